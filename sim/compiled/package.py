"""The kernels of one package, and the folder where their machine code is kept.

The folder is the user's (or in ``NUMBA_CACHE_DIR``, if set), never beside the source, which may be
read-only. Its name is made from all that the code depends on, since numba itself looks at the date
of one source file only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from sim.compiled.machine_code import MachineCode, host

Function = TypeVar("Function", bound=Callable[..., Any])


class Package:
    """Decorators for the kernels of one package, which call no kernels but each other.

    Parameters
    ----------
    source
        Folder of the package: when a module in it changes, all is compiled anew.
    what
        What its kernels make up, as the message before compiling calls it.
    time
        How long that takes.
    """

    def __init__(self, source: Path, what: str, time: str) -> None:
        self._source = source
        self._what = what
        self._time = time
        self._listener: object = None
        self._said = False

    def compiled(self, function: Function) -> Function:
        """Compile a function into whatever calls it.

        Floats round as in Python: nothing is fused or reordered.
        """
        return cast(Function, _Compiled(function, self._made))

    def entry(self, function: Function) -> Function:
        """Compile a function that Python calls, for each combination of types that it meets."""
        return cast(Function, _Compiled(function, self._made_and_kept))

    def bare_entry(self, function: Function) -> Function:
        """Compile a function that Python calls and that needs no numba; see `MachineCode`."""
        return cast(Function, MachineCode(function, lambda: self.folder, self._say))

    @cached_property
    def folder(self) -> Path | None:
        """Where machine code is kept; None if every process has to make it anew."""
        try:
            base = Path(os.environ.get("NUMBA_CACHE_DIR") or _user_folder())
            folder = base / f"{self._source.name}-{self._fingerprint()}"
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # RuntimeError: there is no home
            return None
        return folder

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for folder in (self._source, Path(__file__).parent):
            for path in sorted(folder.glob("*.py")):
                digest.update(path.name.encode())
                digest.update(path.read_bytes())
        for part in (version("numba"), platform.python_version(), *host()):
            digest.update(part.encode())
        return digest.hexdigest()[:16]

    def _made(self, function: Callable[..., Any]) -> Any:  # noqa: ANN401 - numba has no types
        import numba  # noqa: PLC0415 - takes a quarter of a second

        return numba.njit(function)

    def _made_and_kept(self, function: Callable[..., Any]) -> Any:  # noqa: ANN401
        import numba  # noqa: PLC0415
        from numba.core import event  # noqa: PLC0415

        if self._listener is None:
            self._listener = _listener(self._source, self._say)
            event.register("numba:compile", self._listener)
        if self.folder is None:
            return numba.njit(function)
        with _kept_in(self.folder):
            try:
                return numba.njit(cache=True)(function)
            except RuntimeError:  # the folder cannot be written
                return numba.njit(function)

    def _say(self) -> None:
        """Say, once in a process, that something is compiled now."""
        if self._said:
            return
        self._said = True
        is_kept = self.folder is not None and os.access(self.folder, os.W_OK)
        how_often = "once" if is_kept else "in every process, since no cache folder is writable"
        sys.stderr.write(
            f"prefixsim: compiling {self._what}, {how_often}; this takes {self._time}.\n"
        )


class _Compiled:
    """A function that is handed to numba when it is first needed, and not when it is defined."""

    def __init__(self, function: Callable[..., Any], make: Callable[..., Any]) -> None:
        self._function = function
        self._make = make
        self.__doc__ = function.__doc__

    @cached_property
    def _dispatcher(self) -> Any:  # noqa: ANN401
        return self._make(self._function)

    @property
    def _numba_type_(self) -> Any:  # noqa: ANN401 - what numba asks a global of a kernel for
        return self._dispatcher._numba_type_

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401
        return self._dispatcher(*args)


def _user_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefixsim"


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let numba keep what is declared meanwhile in ``folder``, and nothing else."""
    import numba  # noqa: PLC0415

    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _listener(source: Path, say: Callable[[], None]) -> object:
    """Make what tells when numba begins to compile a function of this package."""
    from numba.core import event  # noqa: PLC0415

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:  # noqa: ANN401
            file = Path(event.data["dispatcher"].py_func.__code__.co_filename)
            if file.parent == source:
                say()

        def on_end(self, event: object) -> None:
            pass

    return Listener()
