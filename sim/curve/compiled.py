"""Compiling the kernels of this package with Numba: once per machine, then from its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel when it is first called, and keep the machine code on disk.

    Numba keeps it beside the source or, where that cannot be written, in the user's cache folder.
    Where neither can, the kernel is compiled anew in every process.
    """
    try:
        return cast(Kernel, numba.njit(cache=True)(function))
    except RuntimeError:  # no folder for a cache
        return cast(Kernel, numba.njit(function))


@contextmanager
def before_compiling(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` once if anything has to be compiled within the block, before it is."""
    listener = _Once(say)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


class _Once(event.Listener):  # type: ignore[misc]
    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def on_start(self, event: object) -> None:
        if self._say is not None:
            self._say()
            self._say = None

    def on_end(self, event: object) -> None:
        pass
