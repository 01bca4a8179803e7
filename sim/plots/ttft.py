"""How times to first token are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.errors import UsageError
from sim.plots.axes import log_axis
from sim.plots.series import Line
from sim.plots.style import GREY, HEIGHT, RC, WIDTH, depths, finish, styles_of, time_unit

_GUIDES = (50, 90, 99)
_MAX_POINTS = 2000
"""More points than this make a large SVG and no better picture."""


@rc_context(RC)
def ttft_distribution(
    requests: pd.DataFrame,
    labels: Mapping[str, str],
    *,
    setting: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Draw the share of requests whose first token came within a time, a curve per run.

    Parameters
    ----------
    requests
        Rows of the requests table; those without a first token count for nothing.
    labels
        Names of the runs, in the order of the legend; a run without one goes by its id.
    setting
        What the runs have in common, for the title.
    notes
        Sentences on what is not shown.

    Raises
    ------
    UsageError
        No request has a first token.
    """
    finished = requests.dropna(subset=["ttft_ms"])
    if finished.empty:
        raise UsageError(
            f"--kind ttft needs requests with a first token, but none of these {len(requests)} has "
            "one; raise --kv-capacity so that they fit."
        )
    unit, scale = time_unit(finished["ttft_ms"])
    times = {
        str(run_id): np.sort(rows.to_numpy()) / scale
        for run_id, rows in finished.groupby("run_id", sort=False)["ttft_ms"]
    }
    run_ids = list(dict.fromkeys([*labels, *requests["run_id"].unique()]))
    names = _distinct({run_id: labels.get(run_id, run_id) for run_id in run_ids})
    quantiles = {
        run_id: pd.Series(np.log(np.quantile(values, np.linspace(0.02, 0.98, 49)) + 1e-9))
        for run_id, values in times.items()
    }
    drawn = [run_id for run_id in run_ids if run_id in times]
    depth = dict(zip(drawn, depths([quantiles[run_id] for run_id in drawn], 0.02), strict=True))

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    ax = figure.subplots()
    handles = []
    # As in the other plots: no caching is grey, colours go by policy, dashes by what else differs.
    split = {run_id: names[run_id].partition(", ") for run_id in run_ids}
    styles = styles_of(
        [Line(names[run], policy, variant, requests) for run, (policy, _, variant) in split.items()]
    )
    for run_id in run_ids:
        style = styles[names[run_id]]
        label = names[run_id] if run_id in times else f"{names[run_id]} (no first token)"
        handles.append(Line2D([], [], label=label, **style.line()))
        if run_id in times:
            x, share = _thinned(times[run_id])
            at = [int(np.searchsorted(share, guide)) for guide in _GUIDES]
            ax.plot(
                x,
                share,
                label=label,
                drawstyle="steps-post",
                markevery=sorted(set(at)),
                **style.line(depth[run_id]),
            )
    for guide in _GUIDES:
        ax.axhline(guide, color=GREY, linewidth=0.9, linestyle=":", zorder=1, label=f"p{guide}")
        ax.text(
            1.01,
            guide,
            f"p{guide}",
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=9,
            color=GREY,
        )
    ax.set_ylim(0, 102)
    ax.set_ylabel("share of requests (%)")
    ax.set_xlabel(f"TTFT ({unit})")
    shown = pd.Series(np.concatenate(list(times.values())))
    if shown.min() > 0 and shown.max() > 30 * shown.min():
        log_axis(ax, shown)
    else:
        ax.set_xlim(left=0)
    counts = f"{_count(len(run_ids), 'run')}, {_count(len(finished), 'request')}"
    title = f"Distribution of time to first token: {counts}"
    finish(figure, title, setting, handles, notes)
    return figure


def _thinned(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make the points of the curve, from 0 % on; of very many, fewer, closest in the tail."""
    count = len(times)
    kept = np.arange(count)
    if count > _MAX_POINTS:
        evenly = np.linspace(0, count - 1, _MAX_POINTS // 2).astype(np.int64)
        tail = count - np.geomspace(1, count, _MAX_POINTS // 2).astype(np.int64)
        kept = np.union1d(evenly, tail)
    share = 100 * (kept + 1) / count
    return np.append(times[0], times[kept]), np.append(0.0, share)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _distinct(names: dict[str, str]) -> dict[str, str]:
    """Add the run's id to a name that two runs have."""
    taken = list(names.values())
    return {
        run_id: f"{name} ({run_id})" if taken.count(name) > 1 else name
        for run_id, name in names.items()
    }
