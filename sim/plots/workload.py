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

from sim.errors import UsageError
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


@rc_context(RC)
def workload_page(
    requests: Sequence[Request], figures: Mapping[str, Any], gaps_s: Sequence[float]
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
    for number, (label, lengths) in enumerate(
        {
            "prompts": [request.num_prompt_tokens for request in requests],
            "outputs": [max(request.num_output_tokens, 1) for request in requests],
        }.items()
    ):
        ordered = np.sort(lengths)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        style = nth_style(number)
        axes.step(ordered, share, where="post", color=style.colour, ls=style.dashes, label=label)
    every = [*(r.num_prompt_tokens for r in requests), *(r.num_output_tokens for r in requests)]
    log_axis(axes, pd.Series(every, dtype="float64").clip(lower=1), 2)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="tokens", ylabel="share of requests", title="Lengths")
    axes.legend()


def _arrivals(axes: Axes, requests: Sequence[Request]) -> None:
    times_s = np.array([request.arrival_ns for request in requests]) / 1e9
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


def _reuse(axes: Axes, gaps_s: Sequence[float]) -> None:
    axes.set_title("Time since a shared prefix was last used")
    if not len(gaps_s):
        axes.text(0.5, 0.5, "nothing is shared", ha="center", color=GREY)
        axes.set_axis_off()
        return
    ordered = np.sort(np.maximum(gaps_s, 1e-3))
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    axes.step(ordered, share, where="post", color=nth_style(0).colour, label="time to reuse")
    log_axis(axes, pd.Series(ordered), 3)
    axes.set(xlabel="s (at least 1 ms)", ylabel="share of requests that share")
