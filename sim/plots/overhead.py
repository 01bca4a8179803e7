"""What caching gains and loses against serving without it, and what managing the cache takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.breakeven import SETTINGS, crossing, relative_throughput
from sim.errors import UsageError
from sim.plots.runs import DIALS, fewer, left_out, told_apart
from sim.plots.series import MAX_LINES, Line, at_capacity, lines_of, setting
from sim.plots.style import GREY, RC, WIDTH, Style, depths, finish, styles_of

REFERENCES: dict[str, pd.DataFrame] = {
    "vllm-v1-alpha": pd.DataFrame(
        {
            "label": "published: vLLM V1 alpha",
            "hit_rate": [0.0, 0.25, 0.5, 0.75],
            "ratio": [0.997, 1.228, 1.701, 2.889],
        }
    )
}
"""Published throughput relative to no caching, by name.

``vllm-v1-alpha``: January 2025, Llama 3.1 8B on one H100, 2,048 tokens in and 128 out.
"""

_MAX_COLUMNS = 3
"""More block sizes than this beside each other leave no room to read any."""

_MAX_SAID = 6
"""Gains and break-evens of more lines than this, as text, would cover the panel."""


def has_hit_rates(summary: pd.DataFrame) -> bool:
    """Whether any policy has a baseline without caching at two hit rates of the workload."""
    relative, _ = relative_to_floor(summary)
    return _most_rates(relative) > 1 and _most_rates(_one_setting(_known(relative))) > 1


def relative_to_floor(summary: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Set runs against those without caching; files told apart, seeds at one hit rate.

    The hit rate of a small workload differs a little with the seed; a point stands at the mean.
    """
    frame, notes = told_apart(summary)
    relative = relative_throughput(frame)
    keys = [relative[name] for name in SETTINGS if name != "seed"]
    rates = relative.groupby(keys, dropna=False)["infinite_hit_rate"].transform("mean")
    return relative.assign(infinite_hit_rate=rates.round(12)), notes


def _known(relative: pd.DataFrame) -> pd.DataFrame:
    return relative.dropna(subset=["ratio", "infinite_hit_rate"])


@rc_context(RC)
def overhead_throughput(summary: pd.DataFrame, reference: pd.DataFrame | None = None) -> Figure:
    """Draw throughput relative to no caching, and the share of cache management, by hit rate.

    A column per block size; a row with all of it, one close to where caching neither gains nor
    loses, with the break-even of every policy, and one with the overhead.

    Parameters
    ----------
    summary
        Rows of the summary table. One workload (but for its hit rate), cost and capacity are
        shown, those with the most hit rates; the title names them.
    reference
        Points to compare with: ``label``, ``hit_rate``, ``ratio``.

    Raises
    ------
    UsageError
        No policy has two hit rates with a baseline.
    """
    relative, notes = relative_to_floor(summary)
    if _most_rates(relative) < 2:
        raise UsageError(
            "--kind overhead needs a policy and the policy none at two hit rates of one workload, "
            f"but these runs have {say_rates(summary)}; sweep --policy none,vllm_v1 "
            "--workload-arg hit_rate=0,0.25,0.5."
        )
    known = _known(relative)
    notes += _without_floor(relative, known)
    shown = _one_setting(known)
    sizes = _spread(sorted(int(size) for size in shown["block_size"].unique()))
    shown = shown[shown["block_size"].isin(sizes)]
    shown = without_hit_rates(shown)
    keep = fewer(shown, DIALS, MAX_LINES)
    notes += left_out(without_hit_rates(known), keep)
    shown = known.loc[keep.index]
    if _most_rates(shown) < 2:
        raise UsageError(
            "--kind overhead needs two hit rates at one KV capacity and block size, but these "
            "runs have one hit rate at each capacity: shares (%) differ with the workload, and "
            "pools that reject requests have a rate of their own; sweep hit rates with a capacity "
            "in tokens, blocks or GiB that holds every request."
        )
    shown = shown.assign(overhead_percent=100 * shown["overhead_share"])
    lines = lines_of(
        without_hit_rates(shown), ("block_size", "infinite_hit_rate"), ("ratio", "overhead_percent")
    )
    styles = styles_of(lines)
    figure = Figure(figsize=(WIDTH, 8.2), layout="constrained")
    grid = figure.subplots(
        3, len(sizes), sharex="row", sharey="row", squeeze=False, height_ratios=[1.1, 1.3, 0.8]
    )
    handles = [Line2D([], [], label=line.label, **styles[line.label].line()) for line in lines]
    for (whole, near, below), size in zip(grid.T, sizes, strict=True):
        curves = _curves(lines, size, "ratio")
        if len(sizes) > 1:
            whole.set_title(f"block size {size}")
        _draw(whole, curves, styles)
        _draw_near(near, curves, styles)
        _draw(below, _curves(lines, size, "overhead_percent"), styles)
        for ax in (whole, near):
            ax.axhline(1, color=GREY, linewidth=1, label="no caching")
            found = _draw_reference(ax, reference)
        for ax in (whole, near, below):
            ax.set_xlabel("hit rate of the workload (%)")
    handles += found
    whole, near, below = grid[:, 0]
    whole.set_ylabel("throughput relative\nto no caching (1 = equal)")
    near.set_ylabel("the same, enlarged around 1")
    below.set_ylabel("cache management\n(% of step time)")
    below.set_ylim(bottom=0)
    _enlarge(near, [_curves(lines, size, "ratio") for size in sizes])
    finish(
        figure, "What prefix caching gains and loses in throughput", common(shown), handles, notes
    )
    return figure


def _without_floor(relative: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """Say which policies have no run without caching to be set against."""
    gone = [name for name in relative["policy"].unique() if name not in set(known["policy"])]
    if not gone:
        return []
    return [f"Not shown: {', '.join(gone)}, without a run of none at equal settings."]


def _most_rates(relative: pd.DataFrame) -> int:
    known = _known(relative)
    rates = known.groupby(_KEYS, dropna=False)["infinite_hit_rate"].nunique()
    return int(rates.max()) if len(rates) else 0


_KEYS = ["workload", "workload_group", "cost", "policy", "policy_args", "block_size"]


def say_rates(summary: pd.DataFrame) -> str:
    """Say which policies and hit rates there are, for an error."""
    policies = ", ".join(str(name) for name in summary["policy"].unique())
    rates = sorted((100 * summary["infinite_hit_rate"].dropna()).round(1).unique())
    said = ", ".join(f"{rate:g}" for rate in rates[:8]) + (", ..." if len(rates) > 8 else "")
    return f"{policies} at {said} %" if said else f"{policies} and no prefix information"


def _one_setting(relative: pd.DataFrame) -> pd.DataFrame:
    """Pick the workload and the cost with the most hit rates, the first by name of several."""
    names = ["workload", "workload_group", "cost"]
    rates = relative.groupby(names)["infinite_hit_rate"].transform("nunique")
    most = relative[rates == rates.max()].sort_values(names).iloc[0]
    rows = relative[(relative[names] == most[names]).all(axis=1)]
    return at_capacity(rows)[0]


def without_hit_rates(relative: pd.DataFrame) -> pd.DataFrame:
    """Let the dial of the hit rate, which makes the points of a line, not tell lines apart."""
    return relative.assign(workload_args=relative["workload_group"])


def common(relative: pd.DataFrame) -> str:
    """Say what the runs have in common, for the title."""
    # At one hit rate: the others are no repetitions.
    rows = relative[relative["workload_args"] == relative["workload_args"].iloc[0]]
    costs = relative["cost"].unique()
    said = setting(without_hit_rates(rows), cost=False)
    return f"{costs[0]}, {said}" if len(costs) == 1 else said


def _spread(sizes: Sequence[int]) -> list[int]:
    if len(sizes) <= _MAX_COLUMNS:
        return list(sizes)
    return [sizes[0], sizes[len(sizes) // 2], sizes[-1]]


def _curves(lines: Sequence[Line], size: int, column: str) -> dict[str, pd.Series[float]]:
    """Make the curve of each line that has the block size, in % of hits."""
    found = {}
    for line in lines:
        rows = line.points[line.points["block_size"] == size]
        if len(rows):
            at = pd.Index(100 * rows["infinite_hit_rate"])
            found[line.label] = pd.Series(rows[column].to_numpy(), index=at)
    return found


def _draw(ax: Axes, curves: Mapping[str, pd.Series[float]], styles: Mapping[str, Style]) -> None:
    tolerance = 0.01 * max(float(curve.max()) for curve in curves.values())
    for (label, curve), depth in zip(
        curves.items(), depths(list(curves.values()), tolerance), strict=True
    ):
        ax.plot(curve.index, curve, label=label, **styles[label].line(depth))


def _say_break_even(at: float, lowest: float) -> str:
    if np.isnan(at):
        return "never"
    # Where caching pays from the first rate that was run on, it may pay before.
    return f"at most {at:.1f} %" if at == lowest > 0 else f"{at:.1f} %"


def _draw_near(ax: Axes, curves: Mapping[str, pd.Series[float]], styles: dict[str, Style]) -> None:
    """Draw close to 1, with the loss at the lowest hit rate and where caching begins to pay."""
    close = [curve[curve < 1.05] for curve in curves.values()]
    for (label, curve), depth in zip(curves.items(), depths(close, 0.001), strict=True):
        ax.plot(curve.index, curve, label=label, **styles[label].line(depth))
    lowest = min(float(curve.index.min()) for curve in curves.values())
    said = [("", f"change at {lowest:.3g} %; pays from")]
    for label, at in _break_evens(curves).items():
        # No "-0.0": plus 0.
        percent = round(100 * (float(curves[label].iloc[0]) - 1), 1) + 0.0
        change = f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}")
        said.append((label, f"{label}: {change}; {_say_break_even(at, lowest)}"))
        if at == lowest > 0:
            continue
        ax.plot([at, at], [0, 1], color=styles[label].colour, linestyle=":", label="break-even")
    if len(curves) > _MAX_SAID:
        return
    for row, (label, text) in enumerate(reversed(said)):
        ax.annotate(
            text,
            (0.98, 0.04),
            (0, 11.5 * row),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=styles[label].colour if label else GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            zorder=5,
        )


def _break_evens(curves: Mapping[str, pd.Series[float]]) -> dict[str, float]:
    return {
        label: crossing(curve.index.to_numpy(), curve.to_numpy()) for label, curve in curves.items()
    }


def _enlarge(ax: Axes, panels: Sequence[Mapping[str, pd.Series[float]]]) -> None:
    """Show from the largest loss to about as large a gain, and all break-evens."""
    curves = [curve for panel in panels for curve in panel.values()]
    marks = [at for panel in panels for at in _break_evens(panel).values() if at > 0]
    first = min(float(curve.index.min()) for curve in curves)
    last = max(float(curve.index.max()) for curve in curves)
    # Without a break-even beyond the first point, or with none at all, the points say how far.
    right = 1.7 * max(marks) if marks else first + 0.2 * (last - first)
    right = max(min(max(right, first + 0.5), last), first + 0.1)
    loss = max(1 - min(float(curve.min()) for curve in curves), 0.005)
    ax.set_xlim(first - 0.03 * (right - first), right)
    ax.set_ylim(1 - 1.15 * loss, 1 + 0.6 * loss)


def _draw_reference(ax: Axes, reference: pd.DataFrame | None) -> list[Line2D]:
    handles = []
    if reference is not None:
        for index, (label, rows) in enumerate(reference.groupby("label", sort=False)):
            look: dict[str, Any] = {
                "color": "black",
                "marker": _REFERENCE_MARKERS[index % len(_REFERENCE_MARKERS)],
                "linestyle": "none",
                "markersize": 9,
                "markerfacecolor": "none",
                "markeredgewidth": 1.4,
                "zorder": 4,
            }
            handles += ax.plot(100 * rows["hit_rate"], rows["ratio"], label=str(label), **look)
    return handles


_REFERENCE_MARKERS = ("s", "D", "o", "^")
