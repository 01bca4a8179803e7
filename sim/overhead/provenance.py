"""Where a measurement was taken: Python, machine, commit, version."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def provenance() -> dict[str, str]:
    """Name what a time depends on, as the last columns of a table.

    ``commit`` is that of the working tree that this file lies in, with ``-dirty`` where tracked
    files differ from it; empty outside one.
    """
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": _processor(),
        "commit": _commit(),
        "version": version("prefixsim"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    describe = ["describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *describe], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
