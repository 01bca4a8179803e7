"""Panels that several pictures have: hit rate between floor and ceiling, TTFT, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from sim.plots.runs import FLOOR
from sim.plots.series import Line
from sim.plots.style import GREY, Style, depths, says, time_unit

_MAX_NAMED = 3
"""More ceilings than this leave no room to name each."""


def draw_hit_rates(
    ax: Axes,
    curves: Sequence[tuple[Line, pd.DataFrame]],
    styles: dict[str, Style],
    *,
    wide: bool,
) -> None:
    """Draw hit rates in %, without those of no caching, which are the floor."""
    shown = [(line, 100 * points["hit_rate"]) for line, points in curves if line.policy != FLOOR]
    for (line, rate), depth in zip(shown, depths([rate for _, rate in shown], 0.5), strict=True):
        if rate.notna().any():
            ax.plot(rate.index, rate, label=line.label, **styles[line.label].line(depth))
    floor = "floor: no caching, 0 %" if wide else "floor: no caching"
    ax.axhline(0, color=GREY, linewidth=1, label="floor")
    ax.annotate(
        floor,
        (0.99, 0),
        (0, -3),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9,
        color=GREY,
    )
    _draw_ceilings(ax, curves, styles, wide=wide)


def _draw_ceilings(
    ax: Axes,
    curves: Sequence[tuple[Line, pd.DataFrame]],
    styles: dict[str, Style],
    *,
    wide: bool,
) -> None:
    """Draw each ceiling once: it is that of a workload, so that lines mostly share it."""
    rates: dict[str, list[pd.Series[float]]] = {}
    colours: dict[str, set[str]] = {}
    for line, points in curves:
        rates.setdefault(line.variant, []).append(100 * points["infinite_hit_rate"].dropna())
        if line.policy != FLOOR:
            colours.setdefault(line.variant, set()).add(styles[line.label].colour)
    owners: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for variant, parts in rates.items():
        # Policies may differ by a rule; no line may lie above what stands for all of them.
        curve = pd.concat(parts).groupby(level=0).max().round(2)
        if len(curve):
            if curve.max() - curve.min() < 0.05:
                curve = curve.iloc[:1]
            key = tuple(zip(curve.index.tolist(), curve.tolist(), strict=True))
            owners.setdefault(key, []).append(variant)
    common = set.intersection(*(set(variant.split(", ")) for variant in rates)) if rates else set()
    taken: list[float] = []
    for points_of, variants in sorted(owners.items(), key=lambda item: -item[0][0][1]):
        xs, ys = zip(*points_of, strict=True)
        own = set.union(set(), *(colours.get(variant, set()) for variant in variants))
        colour = own.pop() if len(owners) > 1 and len(own) == 1 else GREY
        look: dict[str, Any] = {"color": colour, "linestyle": "--", "linewidth": 1.2, "zorder": 3.5}
        if len(ys) == 1:
            ax.axhline(ys[0], label="ceiling", **look)
        else:
            ax.plot(xs, ys, label="ceiling", **look)
        if len(owners) > _MAX_NAMED and taken:
            continue
        text = _name_of(ys, variants, len(owners), common, wide=wide)
        # Of ceilings that lie close together, all but the highest have their labels below.
        near = sum(y - ys[0] < 0.08 * taken[0] for y in taken)
        taken.append(ys[0])
        # Above a curve that rises from the label on, there is room at the top.
        rises = max(ys) > 1.3 * ys[0] + 1
        ax.annotate(
            text,
            (0.01 + 0.4 * max(near - 1, 0), 1 if rises else ys[0]),
            (0, -10 if near or rises else 8),
            xycoords="axes fraction" if rises else ax.get_yaxis_transform(),
            textcoords="offset points",
            va="top" if near else "baseline",
            fontsize=9,
            color=GREY if len(owners) > _MAX_NAMED else colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
            zorder=4,
        )


def _name_of(
    ys: Sequence[float], variants: Sequence[str], num_ceilings: int, common: set[str], *, wide: bool
) -> str:
    """Name a ceiling by its height and by what its lines are, and not all lines."""
    if num_ceilings > _MAX_NAMED:
        return "ceilings (dashed): infinite cache"
    height = f" {ys[0]:.1f} %" if wide and len(ys) == 1 else ""
    if num_ceilings == 1:
        return "ceiling: infinite cache" + (f",{height}" if height else "")
    mine = set.intersection(*(set(variant.split(", ")) for variant in variants)) - common
    return ", ".join([f"ceiling{height}", *(p for p in variants[0].split(", ") if p in mine)])


def fit_hit_rates(ax: Axes, summary: pd.DataFrame) -> None:
    """Leave room for the label above the ceiling and for the one below the floor."""
    top = 100 * summary[["hit_rate", "infinite_hit_rate"]].max().max()
    if not top > 0:
        top = 10.0
    ax.set_ylim(-0.11 * top, 1.15 * top)


def draw_ttft(
    ax: Axes, curves: Sequence[tuple[Line, pd.DataFrame]], styles: dict[str, Style]
) -> None:
    """Draw mean and p90 of TTFT, some of which must be known."""
    columns = ["ttft_ms_mean", "ttft_ms_p90"]
    times = pd.concat([points[column] for _, points in curves for column in columns]).dropna()
    ax.set_title("TTFT: mean (strong) and p90 (faint)")
    unit, scale = time_unit(times)
    for column in columns:
        series = [points[column] / scale for _, points in curves]
        tolerance = 0.005 * float(times.max()) / scale
        for (line, _), times_of, depth in zip(
            curves, series, depths(series, tolerance), strict=True
        ):
            if times_of.notna().any():
                look = styles[line.label].line(depth)
                faint = {"alpha": 0.45} if column == "ttft_ms_p90" else {}
                (drawn,) = ax.plot(times_of.index, times_of, label=line.label, **{**look, **faint})
                says(drawn, column.removeprefix("ttft_ms_"))
    ax.set_ylabel(f"TTFT ({unit})")
    if times.max() > 30 * times.min() > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    else:
        ax.set_ylim(0, 1.05 * float(times.max()) / scale)


def handles_of(lines: Sequence[Line], styles: dict[str, Style]) -> list[Line2D]:
    """Make the entries of the legend."""
    known = any(line.points["hit_rate"].notna().any() for line in lines)
    handles = []
    for line in lines:
        missing = known and line.points["hit_rate"].isna().all()
        label = f"{line.label} (no prefix information)" if missing else line.label
        handles.append(Line2D([], [], label=label, **styles[line.label].line()))
    return handles


def draw_throughput(
    ax: Axes, curves: Sequence[tuple[Line, pd.DataFrame]], styles: dict[str, Style]
) -> None:
    """Draw throughput in prompt and output tokens per second."""
    rates = [points["total_throughput"] for _, points in curves]
    top = max(float(rate.max()) for rate in rates)
    for (line, _), rate, depth in zip(curves, rates, depths(rates, 0.015 * top), strict=True):
        if rate.notna().any():
            ax.plot(rate.index, rate, label=line.label, **styles[line.label].line(depth))
    ax.set_ylabel("throughput (tokens/s)")
    ax.set_ylim(0, 1.08 * top or 1.0)
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
