"""One page about a workload: lengths, arrivals, what is shared and how long after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike, NDArray

from sim.errors import UsageError
from sim.mapped import filled
from sim.plots.axes import log_axis
from sim.plots.style import GREY, HEIGHT, RC, WIDTH, nth_style
from sim.types import Request

_RATES = {
    "infinite_hit_rate_with_outputs": "full blocks, answers too",
    "infinite_hit_rate": "full blocks of prompts",
    "infinite_hit_rate_last_half": "last half of requests",
    "infinite_hit_rate_partial": "partial last blocks too",
    "infinite_block_hit_rate": "of blocks",
    "mean_request_hit_rate": "mean over requests",
}
_NUM_BINS = 60
_MAX_POINTS = 2000
"""A drawn line needs no more, or twice as many."""

Numbers = NDArray[Any]


@rc_context(RC)
def workload_page(
    requests: Sequence[Request], figures: Mapping[str, Any], gaps_s: ArrayLike
) -> Figure:
    """Draw lengths, arrivals, hit rates of an infinite cache and times to reuse.

    Parameters
    ----------
    requests
        In order of arrival.
    figures
        What the workload is described by, under the names that ``workload describe`` prints.
    gaps_s
        Time since a shared prefix was last used, s, per request that shares one.
    """
    figure = Figure(figsize=(WIDTH * 1.4, HEIGHT * 1.6), layout="constrained")
    lengths, arrivals, rates, reuse = figure.subplots(2, 2).flat
    figure.suptitle(f"{figures['name']}, {len(requests):,} requests", x=0.01, ha="left")
    _lengths(lengths, requests)
    _arrivals(arrivals, requests)
    _rates(rates, figures)
    _reuse(reuse, gaps_s)
    return figure


def save_page(figure: Figure, path: Path) -> None:
    """Write a page in the format that the name of the file ends with.

    Raises
    ------
    UsageError
        It cannot be written, or there is no such format.
    """
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise UsageError(f"--plot {path} must end in .png, .svg or .pdf.")
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UsageError(
            f"--plot {path} cannot be written ({error.strerror or error}); give a file in a folder"
            " that exists and may be written to."
        ) from None


def _lengths(axes: Axes, requests: Sequence[Request]) -> None:
    ends: list[float] = []
    for number, (label, name) in enumerate(
        {"prompts": "num_prompt_tokens", "outputs": "num_output_tokens"}.items()
    ):
        ordered = _at_least(1, _column(requests, name))
        ordered.sort()
        ends += [ordered[0], ordered[-1]]
        style = nth_style(number)
        axes.step(*_shares(ordered), where="post", color=style.colour, ls=style.dashes, label=label)
    log_axis(axes, pd.Series(ends, dtype="float64"), 2)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="tokens", ylabel="share of requests", title="Lengths")
    axes.legend()


def _arrivals(axes: Axes, requests: Sequence[Request]) -> None:
    times_ns = _column(requests, "arrival_ns")
    times_s = filled(len(times_ns), lambda part: times_ns[part] / 1e9, np.float64)
    counts, edges = np.histogram(times_s, bins=_NUM_BINS)
    axes.stairs(counts / np.diff(edges), edges, color=nth_style(0).colour)
    axes.set(xlabel="time in s", ylabel="requests per second", title="Arrivals")
    axes.set_ylim(bottom=0)


def _rates(axes: Axes, figures: Mapping[str, Any]) -> None:
    axes.set_title("Hit rate of an infinite cache, by convention")
    known = {label: figures[name] for name, label in _RATES.items() if figures[name] is not None}
    if not known:
        axes.text(0.5, 0.5, "not available: no prefix information", ha="center", color=GREY)
        axes.set_axis_off()
        return
    axes.barh(list(known), list(known.values()), color=nth_style(0).colour, height=0.6)
    for row, value in enumerate(known.values()):
        axes.text(min(value, 0.9) + 0.01, row, f"{value:.3f}", va="center")
    axes.set(xlim=(0, 1), xlabel=f"blocks of {figures['block_size']} tokens")
    axes.invert_yaxis()


def _reuse(axes: Axes, gaps_s: ArrayLike) -> None:
    axes.set_title("Time since a shared prefix was last used")
    gaps = np.asarray(gaps_s)
    if not len(gaps):
        axes.text(0.5, 0.5, "nothing is shared", ha="center", color=GREY)
        axes.set_axis_off()
        return
    ordered = _at_least(1e-3, gaps)
    ordered.sort()
    axes.step(*_shares(ordered), where="post", color=nth_style(0).colour, label="time to reuse")
    log_axis(axes, pd.Series([ordered[0], ordered[-1]]), 3)
    axes.set(xlabel="s (at least 1 ms)", ylabel="share of requests that share")


def _column(requests: Sequence[Request], name: str) -> Numbers:
    """Lay out a number of each request; whoever keeps requests in columns has it already."""
    found = getattr(requests, name, None)
    return np.array([getattr(one, name) for one in requests]) if found is None else found


def _at_least(least: float, values: Numbers) -> Numbers:
    """Copy numbers, none of them smaller than the least that an axis shows."""
    return filled(len(values), lambda part: np.maximum(values[part], least), values.dtype)


def _shares(ordered: Numbers) -> tuple[Numbers, Numbers]:
    """Give the share of numbers up to each, of ascending ones; no more than a line shows."""
    if len(ordered) <= _MAX_POINTS:
        places = np.arange(len(ordered))
    else:
        # Evenly up the axis, which misses no step that can be seen, and evenly along it.
        wanted = np.geomspace(ordered[0], ordered[-1], _MAX_POINTS)
        up = np.linspace(0, len(ordered) - 1, _MAX_POINTS).astype(np.int64)
        along = np.searchsorted(ordered, wanted[:-1], side="right") - 1
        places = np.unique(np.concatenate((up, np.maximum(along, 0))))
    return ordered[places], (places + 1) / len(ordered)
