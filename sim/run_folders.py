"""The folder of each run below a results folder, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sim.errors import UsageError
from sim.experiment import Run
from sim.run_files import put

PART = ".part-"
"""Beginning of the name of a folder that a run is being written into."""


def runs_of(results: Path) -> Path:
    """Name the folder of all runs."""
    return results / "runs"


def make(results: Path) -> None:
    """Make a results folder that can be written.

    Raises
    ------
    UsageError
        It cannot be.
    """
    try:
        runs_of(results).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs_of(results)):
            pass
    except OSError as error:
        raise unwritable(results, error) from error


def write(results: Path, run: Run) -> None:
    """Keep a run; an equal one is replaced.

    Raises
    ------
    UsageError
        The results folder cannot be written.
    """
    with _new(results, run.run_id) as folder:
        put(run, lambda name: (folder / name).open("wb"))


def write_files(results: Path, run_id: str, files: Mapping[str, bytes]) -> None:
    """Keep a run that was done elsewhere, by its `sim.run_files.files_of`; see `write`."""
    with _new(results, run_id) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)


def unwritable(results: Path, error: OSError) -> UsageError:
    """Say that a results folder cannot be written."""
    reason = os.strerror(error.errno) if error.errno else error  # Arrow adds words of its own
    return UsageError(f"-o {results} cannot be written ({reason}); name a folder that can.")


@contextmanager
def _new(results: Path, run_id: str) -> Iterator[Path]:
    """Let a run be written into a folder, which then takes its place."""
    make(results)
    try:
        parts = Path(tempfile.mkdtemp(prefix=PART, dir=runs_of(results)))
        try:
            yield parts
            final = runs_of(results) / run_id
            if final.exists():
                shutil.rmtree(final)
            parts.chmod(0o755)
            parts.rename(final)
        except BaseException:  # an interruption, too
            shutil.rmtree(parts, ignore_errors=True)
            raise
    except OSError as error:
        raise unwritable(results, error) from error
