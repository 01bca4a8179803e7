"""Pictures of a results folder: pure functions from a table to a Matplotlib figure.

Nothing here keeps state or needs a display; in a notebook, run ``%matplotlib inline`` once so
that a figure at the end of a cell is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from sim.breakeven import break_even, relative_throughput
from sim.errors import UsageError
from sim.plots.hit_rate import block_size_effect, hit_rate_vs_capacity
from sim.plots.overhead import REFERENCES, has_hit_rates, overhead_throughput
from sim.plots.payoff import break_even_vs_block_size, has_break_evens
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
    "REFERENCES",
    "applicable",
    "at_capacity",
    "block_size_effect",
    "break_even_vs_block_size",
    "draw",
    "hit_rate_vs_capacity",
    "overhead_throughput",
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
    "overhead": lambda summary, requests: overhead_throughput(summary),
    "break-even": lambda summary, requests: break_even_vs_block_size(summary),
}
"""Every kind of plot, drawn from the tables of summaries and of requests."""


def applicable(summary: pd.DataFrame) -> list[str]:
    """List the kinds of plots that the runs can show."""
    shown = {
        "capacity": has_capacities(summary),
        "block-size": has_block_sizes(summary),
        "ttft": bool((summary["num_finished"] > 0).any()),
        "overhead": has_hit_rates(summary),
        "break-even": has_break_evens(summary),
    }
    return [kind for kind in KINDS if shown[kind]]


def draw(
    summary: pd.DataFrame,
    requests: pd.DataFrame,
    directory: Path,
    *,
    kinds: Iterable[str] | None = None,
    reference: str | None = None,
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
    reference
        Published figures to draw into ``overhead``, of `REFERENCES`.

    Returns
    -------
    list[Path]
        The files, a PNG and an SVG for each kind; ``break-even`` has its table as CSV too.

    Raises
    ------
    UsageError
        A kind or reference that there is not, or that the runs cannot show.
    """
    chosen = list(dict.fromkeys(kinds)) if kinds is not None else applicable(summary)
    for kind in chosen:
        if kind not in KINDS:
            raise UsageError(f"--kind {kind!r} is no plot; choose one of {', '.join(KINDS)}.")
    makers = dict(KINDS)
    if reference is not None:
        published = _find_reference(reference, chosen)
        makers["overhead"] = lambda summary, requests: overhead_throughput(summary, published)
    # All are made before any is written: a kind that cannot be drawn leaves no half of the files.
    figures = {kind: makers[kind](summary, requests) for kind in chosen}
    paths = [path for kind, figure in figures.items() for path in save(figure, directory, kind)]
    if "break-even" in figures:
        paths.append(directory / "break_even.csv")
        break_even(relative_throughput(summary)).to_csv(paths[-1], index=False)
    return paths


def _find_reference(name: str, chosen: list[str]) -> pd.DataFrame:
    if name not in REFERENCES:
        raise UsageError(f"--reference {name!r} is not known; choose {', '.join(REFERENCES)}.")
    if "overhead" not in chosen:
        drawn = ", ".join(chosen) or "nothing"
        raise UsageError(
            f"--reference is drawn into the kind overhead alone, but these runs give {drawn}; "
            "add --kind overhead, or leave --reference out."
        )
    return REFERENCES[name]
