"""Where hits come from: the GPU, host memory and SSD, by the capacity of a tier."""

from __future__ import annotations

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from sim.errors import UsageError
from sim.plots.against import cell
from sim.plots.runs import (
    DIALS,
    FLOOR,
    axis_values,
    fewer,
    left_out,
    num_points,
    told_apart,
    without_axis,
)
from sim.plots.series import Line, has_hit_rate, lines_of, setting
from sim.plots.style import GREY, RC, WIDTH, finish

AXES = {
    "host_capacity_tokens": "host memory (tokens)",
    "ssd_capacity_tokens": "SSD (tokens)",
}
_PARTS = {
    "device_hit_rate": ("GPU", "#0072B2", ""),
    "host_hit_rate": ("host memory", "#E69F00", "//"),
    "ssd_hit_rate": ("SSD", "#009E73", ".."),
}
"""Colours of Okabe and Ito's palette; hatches tell them apart without colour."""

_RECOMPUTED = "in a tier, but quicker to compute"

_MAX_PANELS = 6
_MAX_TEXTS = 8
"""Bars of a panel above which there is room for a number."""


def has_tiers(summary: pd.DataFrame) -> bool:
    """Whether any line has two capacities of a tier."""
    return has_hit_rate(summary) and _axis_of(summary) is not None


@rc_context(RC)
def hit_rate_by_tier(summary: pd.DataFrame) -> Figure:
    """Draw hit rate as stacked bars: what the GPU, host memory and SSD give, a panel per line.

    Parameters
    ----------
    summary
        Rows of the summary table. Seeds are averaged; bars are capacities of host memory, or of the
        SSD where host memory does not vary, and any other setting that varies makes panels.

    Raises
    ------
    UsageError
        No line has two capacities of a tier.
    """
    frame, notes = told_apart(summary)
    name = _axis_of(frame)
    if name is None or not has_hit_rate(frame):
        raise UsageError(
            "--kind tiers needs hit rates at two capacities of host memory or SSD, all else being "
            "equal; sweep --host-memory over several values, such as 0,64GiB,512GiB."
        )
    rows, capacity = cell(frame[frame["policy"] != FLOOR], name)
    neutral = fewer(without_axis(rows, name), DIALS, _MAX_PANELS)
    notes += left_out(without_axis(frame, name), neutral)
    values = axis_values(rows.loc[neutral.index], name)
    share = neutral["num_recomputed_tokens"] / neutral["num_prompt_tokens"]
    metrics = [*_PARTS, "recomputed", "infinite_hit_rate"]
    lines = lines_of(neutral.assign(axis=values, recomputed=share), ["axis"], metrics)
    columns = min(len(lines), 3 if len(lines) != 4 else 2)
    num_rows = -(-len(lines) // columns)
    figure = Figure(figsize=(WIDTH, 4.6 if num_rows == 1 else 3.1 * num_rows), layout="constrained")
    grid = list(figure.subplots(num_rows, columns, sharey=True, squeeze=False).flat)
    for index, ax in enumerate(grid):
        if index >= len(lines):
            ax.set_axis_off()
            continue
        _draw(ax, lines[index])
        if len(lines) > 1:
            ax.set_title(lines[index].label)
        if index + columns >= len(lines):
            ax.set_xlabel(AXES[name])
        if index % columns == 0:
            ax.set_ylabel("hit rate (%)")
    shown = [
        Patch(label=label, facecolor=colour, hatch=hatch, edgecolor="white")
        for part, (label, colour, hatch) in _PARTS.items()
        if any((line.points[part] > 0).any() for line in lines)
    ]
    if any((line.points["recomputed"] > 0).any() for line in lines):
        shown.append(Patch(label=_RECOMPUTED, facecolor="white", edgecolor=GREY, linestyle=":"))
    ceiling = Line2D([], [], label="ceiling: infinite cache", color=GREY, linestyle="--")
    finish(
        figure,
        f"Where hits come from, by {AXES[name].removesuffix(' (tokens)')}",
        setting(neutral, capacity),
        [*shown, ceiling],
        notes,
    )
    return figure


def _axis_of(summary: pd.DataFrame) -> str | None:
    """Find the tier whose capacity varies."""
    return next((name for name in AXES if num_points(summary, name) > 1), None)


def _draw(ax: Axes, line: Line) -> None:
    points = line.points.sort_values("axis")
    places = list(range(len(points)))
    bottom = pd.Series(0.0, index=points.index)
    for part, (label, colour, hatch) in _PARTS.items():
        height = 100 * points[part].fillna(0.0)
        ax.bar(
            places,
            height,
            0.72,
            bottom=bottom,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.8,
        )
        bottom += height
    recomputed = 100 * points["recomputed"].fillna(0.0)
    ax.bar(
        places,
        recomputed,
        0.72,
        bottom=bottom,
        label=_RECOMPUTED,
        color="white",
        edgecolor=[GREY if height else "none" for height in recomputed],
        linestyle=":",
        linewidth=1.0,
    )
    if len(places) <= _MAX_TEXTS:
        for place, total in zip(places, bottom, strict=True):
            ax.annotate(
                f"{total:.1f}",
                (place, total),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8},
                zorder=4,
            )
    ceiling = 100 * points["infinite_hit_rate"].mean()
    ax.axhline(ceiling, color=GREY, linestyle="--", linewidth=1.2, label="ceiling")
    ax.set_ylim(0, 1.15 * max(ceiling, float(bottom.max()), 1.0))
    ax.set_xticks(places, [_short(value) for value in points["axis"]])
    if len(places) > _MAX_TEXTS:
        ax.tick_params(axis="x", labelrotation=90)
    ax.grid(visible=False, axis="x")


def _short(num_tokens: float) -> str:
    """Spell a number of tokens with three digits."""
    rounded = float(f"{num_tokens:.3g}")
    return str(EngFormatter(sep="")(rounded))
