"""What must be the same on head and worker for the same configuration to give the same bytes."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sim.identity import VERSION

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("policies", "sim", "workloads")
_LIBRARIES = ("numpy", "pandas", "pyarrow")


@cache
def fingerprint() -> dict[str, str]:
    """Give versions, and a digest of our own source and data, by what they are called."""
    source = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".json") and path.is_file():
                source.update(path.relative_to(_ROOT).as_posix().encode())
                source.update(path.read_bytes())
    return {
        "prefixsim": VERSION,
        "prefixsim source": source.hexdigest()[:12],
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{library: version(library) for library in _LIBRARIES},
    }


def difference(head: dict[str, str]) -> str:
    """Say in what this machine differs from the head; nothing if in nothing."""
    here = fingerprint()
    for name, value in head.items():
        if here.get(name) != value:
            return f"has {name} {here.get(name, '(none)')}, but this machine has {value}"
    return ""
