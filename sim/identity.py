"""What decides a run beside its settings: the content of the files and classes that they name."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import policies
from sim.config import RunConfig
from sim.errors import UsageError
from workloads import GENERATORS

VERSION = version("prefixsim")

_NUM_DIGITS = 12
_FILES = ("workload", "cost", "overhead")
_OURS = ("sim", "policies", "workloads", "gpu_backend")


def digests(config: RunConfig, *, workload_digest: str = "") -> dict[str, str]:
    """Take the digests of what a configuration names, each empty where it comes with the version.

    Parameters
    ----------
    config
        What names files and classes.
    workload_digest
        Of the bytes that the workload was read from, for a pipe, which cannot be read again.

    Returns
    -------
    ``workload``, ``cost``, ``overhead``: of the file's content, wherever it lies. ``policy``: of
    the source of a class from outside and of the classes it derives from; what else they import is
    not looked at.
    """
    found = {name: file_digest(getattr(config, name)) for name in _FILES}
    if config.workload in GENERATORS:
        found["workload"] = ""
    elif _is_pipe(config.workload):
        found["workload"] = workload_digest[:_NUM_DIGITS]
    found["policy"] = _policy_digest(config.policy)
    return found


def run_id_of(config: RunConfig, *, workload_digest: str = "") -> str:
    """Name the run: equal only where configuration, what it names and our version are."""
    return name_of(config, digests(config, workload_digest=workload_digest))


def name_of(config: RunConfig, found: Mapping[str, str]) -> str:
    """Name the run of a configuration whose `digests` are known."""
    data = config.to_dict()
    for name, digest in found.items():
        if digest:
            # The same file lying elsewhere is the same input.
            shown = Path(data[name]).name if name in _FILES else data[name]
            data[name] = [shown, digest]
    text = json.dumps([VERSION, data], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_NUM_DIGITS]


def check_repeatable(config: RunConfig) -> None:
    """Refuse to sweep over a workload that can be read only once.

    Raises
    ------
    UsageError
        The workload is a pipe.
    """
    if _is_pipe(config.workload):
        raise UsageError(
            f"workload {config.workload} is a pipe or device, which can be read only once, but "
            "every point of a sweep reads its workload; save it to a file."
        )


def _is_pipe(workload: str) -> bool:
    if workload in GENERATORS:
        return False
    path = Path(workload)
    return workload == "-" or (path.exists() and not path.is_file() and not path.is_dir())


def file_digest(value: str | None) -> str:
    """Take the digest of a file, or of all files of a folder; empty where there is neither."""
    if value is None:
        return ""
    path = Path(value)
    if path.is_dir():
        whole = hashlib.sha256()
        for part in sorted(path.rglob("*")):
            if part.is_file():
                whole.update(f"{part.relative_to(path)} {file_digest(str(part))}\n".encode())
        return whole.hexdigest()[:_NUM_DIGITS]
    if not path.is_file():
        return ""
    status = path.stat()
    return _digest_of(str(path.resolve()), status.st_size, status.st_mtime_ns)


def file_stamp(value: str) -> str:
    """Tell a file from what it was before without reading it; by its digest where it is none.

    Looking at a few rows of a large trace must not take reading all of it.
    """
    path = Path(value)
    if not path.is_file():
        return file_digest(value)
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=256)
def _digest_of(path: str, size: int, mtime_ns: int) -> str:
    """Read a file once for all points of a sweep; size and time of change tell that it is new."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_NUM_DIGITS]


def _policy_digest(name: str) -> str:
    if ":" not in name:
        return ""
    sources = hashlib.sha256()
    for part in inspect.getmro(policies.load(name)):
        module = part.__module__.partition(".")[0]
        if module in _OURS or module in sys.stdlib_module_names:
            continue
        try:
            path = inspect.getsourcefile(part)
        except TypeError:
            path = None
        if path is not None:
            sources.update(Path(path).read_bytes())
    return sources.hexdigest()[:_NUM_DIGITS]
