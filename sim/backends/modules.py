"""Takes the source of a policy from outside to workers that do not have it."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path, PurePosixPath
from types import ModuleType

import policies

Sources = tuple[tuple[str, bytes], ...]
"""Files of modules: path below a folder of imports, and content."""

_OURS = ("sim", "policies", "workloads", "gpu_backend")


def sources_of(policy: str) -> Sources:
    """Collect the modules that a policy from outside is made of.

    Those are its own and what their names come from, but nothing that is installed: workers must
    have that installed, too. What a function imports when it runs is not seen.
    """
    if ":" not in policy:
        return ()
    policies.load(policy)
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    todo = [policy.partition(":")[0]]
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        if module is None or name in seen:
            continue
        seen.add(name)
        path = _file_of(module)
        if path is None:
            continue
        parts = PurePosixPath(*name.split("."))
        is_package = hasattr(module, "__path__")
        inside = parts / "__init__.py" if is_package else parts.with_suffix(".py")
        files[inside.as_posix()] = path.read_bytes()
        todo += _modules_named_in(module)
        todo.append(name.rpartition(".")[0])
    return tuple(sorted(files.items()))


def _modules_named_in(module: ModuleType) -> list[str]:
    found = []
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if name is not None:
            found.append(name)
    return found


def _home(value: object) -> str | None:
    try:
        name = getattr(value, "__module__", None)
    except Exception:  # an object of theirs may answer as it likes
        return None
    return name if isinstance(name, str) else None


def _file_of(module: ModuleType) -> Path | None:
    """Find the source of a module that is neither ours nor installed."""
    if module.__name__.partition(".")[0] in (*_OURS, "__main__") or not module.__name__:
        return None
    name = getattr(module, "__file__", None)
    path = Path(name).resolve() if isinstance(name, str) else None
    if path is None or path.suffix != ".py" or not path.is_file():
        return None
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib")]
    installed.append(Path(sysconfig.get_path("platlib")).resolve())
    return None if any(path.is_relative_to(folder) for folder in installed) else path


class _Installed:
    """The one set of modules that this process has from a head."""

    digest = ""
    folder: Path | None = None
    names: tuple[str, ...] = ()


def install(sources: Sources) -> None:
    """Let this process import these modules, and forget those of another sweep."""
    digest = hashlib.sha256(repr(sources).encode()).hexdigest()
    if not sources or digest == _Installed.digest:
        return
    if _Installed.folder is not None:
        sys.path.remove(str(_Installed.folder))
        shutil.rmtree(_Installed.folder, ignore_errors=True)
    names = tuple(_name_of(path) for path, _ in sources)
    for name in {*names, *_Installed.names}:
        sys.modules.pop(name, None)
    folder = Path(tempfile.mkdtemp(prefix="prefixsim-modules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, data in sources:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    _Installed.digest, _Installed.folder, _Installed.names = digest, folder, names


def _name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
