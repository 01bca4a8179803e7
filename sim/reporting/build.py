"""Puts a report together from the tables of runs, and whatever else is known of the workload."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import pandas as pd

from sim.plots.runs import FLOOR, told_apart
from sim.reporting.cells import situations
from sim.reporting.content import Picture, Report, Situation, Table
from sim.reporting.findings import situation_of
from sim.reporting.pictures import pictures_of
from sim.reporting.recommended import CurveFacts
from sim.reporting.tables import table_of_runs
from sim.reporting.words import counted, listed
from sim.reporting.zero import find_break_evens
from sim.waste import unfilled_share

MAX_SITUATIONS = 8
"""More than this are not told one by one; their runs are in the table."""

_LIBRARIES = ("prefixsim", "numpy", "pandas", "scipy", "simpy", "numba", "matplotlib")


@dataclass(frozen=True, slots=True)
class Extras:
    """What is known beside the runs, where a report was made from a workload.

    Attributes
    ----------
    curve
        What the curve of every capacity says.
    pictures, tables
        Shown before those of the runs.
    doubts
        Sentences on what is doubtful.
    full_load
        Rows of the summary table of runs with all requests there at once, which tell of
        throughput and of nothing else.
    """

    curve: CurveFacts | None = None
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    doubts: Sequence[str] = ()
    full_load: pd.DataFrame | None = None


def build(
    summary: pd.DataFrame,
    requests: pd.DataFrame,
    *,
    command: str,
    missing: Sequence[str] = (),
    extras: Extras | None = None,
) -> Report:
    """Make a report.

    Parameters
    ----------
    summary, requests
        Rows of the tables of these names.
    command
        What made it, shown at its end.
    missing
        Points that a sweep over the folder was asked for and that are not there.
    extras
        What else is known.
    """
    extras = extras or Extras()
    frame, notes = told_apart(summary)
    cells = list(situations(frame, requests))
    full = None
    if extras.full_load is not None:
        (at_once,) = situations(extras.full_load, requests)
        full = at_once.of_main_policy()
    unfilled = pd.Series(
        unfilled_share(frame, requests).to_numpy(), index=frame["run_id"].to_numpy()
    )
    zero = find_break_evens(_with(frame, extras.full_load), requests)
    told = [
        situation_of(
            each,
            unfilled,
            extras.curve if index == 0 else None,
            full if index == 0 else None,
            zero,
        )
        for index, each in enumerate(cells[:MAX_SITUATIONS])
    ]
    undrawn: list[str] = []
    pictures = tuple(pictures_of(frame, requests, undrawn.append))
    names = [str(name) for name in dict.fromkeys(frame["workload"])]
    return Report(
        title=f"Prefix caching of {listed(names[:3])}" + (" and others" if len(names) > 3 else ""),
        lead=_lead(frame, told, len(cells)),
        situations=tuple(told),
        pictures=(*extras.pictures, *pictures),
        tables=(*extras.tables, table_of_runs(_with(frame, extras.full_load))),
        doubts=(*_missing(frame, missing), *notes, *undrawn, *extras.doubts),
        command=command,
        versions=(
            *((name, version(name)) for name in _LIBRARIES),
            ("Python", platform.python_version()),
        ),
    )


def _with(frame: pd.DataFrame, more: pd.DataFrame | None) -> pd.DataFrame:
    return frame if more is None else pd.concat([frame, more], ignore_index=True)


def _lead(frame: pd.DataFrame, told: Sequence[Situation], num_situations: int) -> str:
    policies = [str(name) for name in dict.fromkeys(frame["policy"]) if name != FLOOR]
    parts = [
        f"{counted(len(frame), 'run')} of {listed(policies) or 'no policy that caches'}"
        + (", set against no caching" if FLOOR in set(frame["policy"]) and policies else "")
    ]
    if num_situations > 1:
        parts.append(
            f"in {num_situations} situations, which differ in workload, load or engine; what "
            f"follows first is the one with the most runs{' that cache' if policies else ''}"
        )
    if num_situations > len(told):
        parts.append(f"{len(told)} of them are told, all are in the pictures and tables")
    return "; ".join(parts) + "."


def _missing(frame: pd.DataFrame, missing: Sequence[str]) -> list[str]:
    if not missing:
        return []
    examples = "; ".join(missing[:3]) + ("; ..." if len(missing) > 3 else "")
    return [
        f"The sweep is not finished: {len(frame)} runs are there and "
        f"{counted(len(missing), 'point')} {'is' if len(missing) == 1 else 'are'} missing "
        f"({examples}). Run the same sweep again to go on where it stopped."
    ]
