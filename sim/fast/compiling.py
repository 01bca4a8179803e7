"""Compiles functions once per machine and says so.

Compiled code is kept in a folder of the user (``NUMBA_CACHE_DIR`` if set), never beside the
source, which may be read-only. The folder's name is made from what the code depends on, since
numba itself looks at the date of one source file only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import binding

from sim.fast import process

Function = TypeVar("Function", bound=Callable[..., Any])

_SOURCES = ("allocator", "compiling", "kernel", "pool", "price", "state", "step")
"""Modules that compiled code is made from."""

_DONE = "compiled"
"""Marks a folder whose code is complete."""


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    for part in (numba.__version__, platform.python_version(), binding.get_host_cpu_name()):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _user_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefixsim"


def _make_folder() -> Path | None:
    """Make the folder for this code; None where nothing can be kept."""
    try:
        base = Path(os.environ.get("NUMBA_CACHE_DIR") or _user_folder())
        folder = base / f"fast-{_fingerprint()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder if os.access(folder, os.W_OK) or (folder / _DONE).exists() else None


FOLDER = _make_folder()
"""Where the compiled code is; None if it is made anew by every process."""


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let numba keep what is declared meanwhile in ``folder``, and nothing else."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def compiled(function: Function) -> Function:
    """Compile a function into whatever calls it, with the arithmetic of Python's own numbers.

    Floats round as in Python: nothing is fused or reordered.
    """
    kernel: Any = numba.njit(function)
    return kernel  # type: ignore[no-any-return]


def entry(function: Function) -> Function:
    """Compile a function that Python calls, and keep it with all that it calls."""
    if FOLDER is None:
        return compiled(function)
    with _kept_in(FOLDER):
        kernel: Any = numba.njit(cache=True)(function)
    return kernel  # type: ignore[no-any-return]


@contextmanager
def loading() -> Iterator[None]:
    """Load compiled code without numba's search for SciPy's BLAS, where nobody else needs it.

    The search imports all of ``scipy.linalg``, a third of a second, and we do no linear algebra.
    What numba finds holds for the process: a process that is not ours alone is left as it is.
    """
    name = "scipy.linalg.cython_blas"
    if not process.is_ours or name in sys.modules:
        yield
        return
    # None in the place of a module makes its import fail.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


_announced = False


def announce() -> None:
    """Say once that the next call compiles, if it does."""
    global _announced  # noqa: PLW0603 - once per process
    if _announced or (FOLDER is not None and (FOLDER / _DONE).exists()):
        return
    _announced = True
    kept = "once" if FOLDER is not None else "in every process, since no cache folder is writable"
    sys.stderr.write(
        f"prefixsim: compiling the fast engine, {kept}; this takes half a minute or so.\n"
    )


def finished() -> None:
    """Note that everything is compiled and kept."""
    if FOLDER is not None and not (FOLDER / _DONE).exists():
        (FOLDER / _DONE).touch()
