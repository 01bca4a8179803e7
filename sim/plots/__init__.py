"""Pictures of a results folder: pure functions from a table to a Matplotlib figure.

Nothing here keeps state or needs a display; in a notebook, run ``%matplotlib inline`` once so
that a figure at the end of a cell is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from sim.errors import UsageError
from sim.plots.hit_rate import block_size_effect, hit_rate_vs_capacity
from sim.plots.series import (
    at_capacity,
    has_block_sizes,
    has_capacities,
    one_cell,
    run_labels,
    setting,
)
from sim.plots.style import save
from sim.plots.ttft import ttft_distribution

__all__ = [
    "KINDS",
    "applicable",
    "at_capacity",
    "block_size_effect",
    "draw",
    "hit_rate_vs_capacity",
    "run_labels",
    "save",
    "setting",
    "ttft_distribution",
]

_MAX_RUNS = 10
"""More curves than this in one plot of distributions cannot be told apart."""


def _ttft(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    shown = summary if len(summary) <= _MAX_RUNS else one_cell(summary)
    mine = requests[requests["run_id"].isin(shown["run_id"])]
    return ttft_distribution(mine, run_labels(shown), setting=setting(shown))


KINDS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], Figure]] = {
    "capacity": lambda summary, requests: hit_rate_vs_capacity(summary),
    "block-size": lambda summary, requests: block_size_effect(summary),
    "ttft": _ttft,
}
"""Every kind of plot, drawn from the tables of summaries and of requests."""


def applicable(summary: pd.DataFrame) -> list[str]:
    """List the kinds of plots that the runs can show."""
    shown = {
        "capacity": has_capacities(summary),
        "block-size": has_block_sizes(summary),
        "ttft": bool((summary["num_finished"] > 0).any()),
    }
    return [kind for kind in KINDS if shown[kind]]


def draw(
    summary: pd.DataFrame,
    requests: pd.DataFrame,
    directory: Path,
    *,
    kinds: Iterable[str] | None = None,
) -> list[Path]:
    """Draw kinds of plots into a folder.

    Parameters
    ----------
    summary, requests
        Tables of the runs. With many runs the distribution of TTFT is drawn for one block size
        and one capacity, which its title names.
    directory
        Where to; made if missing.
    kinds
        Of `KINDS`; by default all that the runs can show.

    Returns
    -------
    list[Path]
        The files, a PNG and an SVG for each kind.

    Raises
    ------
    UsageError
        A kind that there is not, or that the runs cannot show.
    """
    chosen = list(dict.fromkeys(kinds)) if kinds is not None else applicable(summary)
    for kind in chosen:
        if kind not in KINDS:
            raise UsageError(f"--kind {kind!r} is no plot; choose one of {', '.join(KINDS)}.")
    # All are made before any is written: a kind that cannot be drawn leaves no half of the files.
    figures = {kind: KINDS[kind](summary, requests) for kind in chosen}
    return [path for kind, figure in figures.items() for path in save(figure, directory, kind)]
