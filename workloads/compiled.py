"""Compiles functions for traces that are large enough to be worth it, once per machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile a function when it is first called, and keep the machine code on disk.

    Numba keeps it beside the source or, where that cannot be written, in the user's cache folder.
    Where neither can, it is compiled anew in every process.
    """
    try:
        return cast(Kernel, numba.njit(cache=True)(function))
    except RuntimeError:  # no folder for a cache
        return cast(Kernel, numba.njit(function))


@contextmanager
def announced() -> Iterator[None]:
    """Say on standard error that something is compiled within the block, if it is."""
    event.register("numba:compile", _listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", _listener)


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: object) -> None:
        if not self._said:
            sys.stderr.write("prefixsim: compiling what reads large traces, once.\n")
            self._said = True

    def on_end(self, event: object) -> None:
        pass


_listener = _Listener()
