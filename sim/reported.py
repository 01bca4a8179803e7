"""Reports of a results folder, and where they are written; see `sim.reported_workload`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sim import plots
from sim.config import option_name
from sim.errors import UsageError
from sim.reporting import Report, build, render
from sim.store import ResultStore
from workloads import GENERATORS


def is_results(source: str) -> bool:
    """Whether a source names a folder of results; an empty folder counts as one without runs."""
    path = Path(source)
    if source in GENERATORS or not path.is_dir():
        return False
    return (path / "runs").is_dir() or not any(path.iterdir())


def report_of_folder(folder: Path, *, command: str, where: Sequence[str] = ()) -> Report:
    """Report what a results folder holds.

    Parameters
    ----------
    folder
        Of ``prefixsim run -o`` or ``sweep -o``.
    command
        What makes the report.
    where
        Conditions such as ``block_size=16``: the runs that meet them all are reported.

    Raises
    ------
    UsageError
        The folder holds no results, or no run meets the conditions.
    """
    store = ResultStore(folder)
    summary = store.summaries()
    for condition in where:
        summary = plots.where(summary, condition)
    missing = [] if where else store.missing()
    requests = store.requests(summary["run_id"])
    return build(summary, requests, command=command, missing=missing)


def refuse_settings(source: str, given: Mapping[str, object]) -> None:
    """Refuse settings beside a results folder, whose runs are what they are."""
    for name in given:
        raise UsageError(
            f"{source} is a results folder, whose runs are what they are, so {option_name(name)} "
            "has no effect; leave it out, or choose runs with --where NAME=VALUE."
        )


def refuse_conditions(source: str, conditions: Sequence[str]) -> None:
    """Refuse to choose among runs where there are none yet."""
    if conditions:
        raise UsageError(
            f"--where {conditions[0]} chooses among the runs of a results folder, and {source!r} "
            "is none; leave it out."
        )


def check_output(path: Path) -> None:
    """Fail before anything is run, if a page cannot be written there.

    Raises
    ------
    UsageError
        It is no name of a page, or lies in a folder that is missing or cannot be written.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {path} must end in .html.")
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write(report: Report, path: Path) -> None:
    """Write a report as one page; a page that is there is replaced.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    text = render(report)
    try:
        # Written whole or not at all.
        part = path.with_name(f".part-{path.name}")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"-o {path} cannot be written ({error.strerror}); name a file in a folder that exists."
    )
