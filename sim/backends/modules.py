"""Takes the source of a policy from outside to workers that do not have it."""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib
import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath

import policies

Sources = tuple[tuple[str, bytes], ...]
"""Files of modules: path below a folder of imports, and content."""

_OURS = ("sim", "policies", "workloads", "gpu_backend")


def sources_of(policy: str) -> Sources:
    """Collect the modules that a policy from outside is made of.

    Those are its own and all that they import, wherever in their source, but nothing that is
    installed: workers must have that installed, too.
    """
    if ":" not in policy:
        return ()
    policies.load(policy)
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    todo = [policy.partition(":")[0]]
    while todo:
        name = todo.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        path = _file_of(name)
        if path is None:
            continue
        is_package = path.name == "__init__.py"
        place = PurePosixPath(*name.split("."))
        inside = place / path.name if is_package else place.with_suffix(".py")
        files[inside.as_posix()] = path.read_bytes()
        todo.append(name.rpartition(".")[0])
        todo += _imports(files[inside.as_posix()], name if is_package else name.rpartition(".")[0])
    return tuple(sorted(files.items()))


def _imports(source: bytes, package: str) -> set[str]:
    """Name what a source imports; ``from a import b`` may mean a module a.b."""
    found: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # it says so where it is imported
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else ()), *([node.module] if node.module else ())]
            base = ".".join(parts)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found | {parent for name in found for parent in _parents(name)}


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _file_of(name: str) -> Path | None:
    """Find the source of a module that is neither ours nor installed; None if there is none."""
    # Looking a module up imports what it lies in, which may be large: the top tells who has it.
    if not _is_from_outside(name.partition(".")[0]):
        return None
    spec = _spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _is_from_outside(top: str) -> bool:
    if top in (*_OURS, "__main__") or top in sys.stdlib_module_names:
        return False
    spec = _spec(top)
    if spec is None:
        return False
    # A folder without __init__.py has no origin of its own.
    places = [spec.origin] if spec.origin is not None else spec.submodule_search_locations or []
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return not any(Path(p).resolve().is_relative_to(folder) for p in places for folder in installed)


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a name in a module, not a module
        return None


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
