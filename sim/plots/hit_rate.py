"""Hit rate against capacity, and what the block size does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.errors import UsageError
from sim.plots.series import (
    FLOOR,
    Line,
    at_capacity,
    has_block_sizes,
    has_capacities,
    lines_of,
    say_tokens,
    setting,
)
from sim.plots.style import (
    GREY,
    HEIGHT,
    RC,
    WIDTH,
    Style,
    annotate,
    block_axis,
    depths,
    finish,
    styles_of,
    time_unit,
    token_axis,
)


@rc_context(RC)
def hit_rate_vs_capacity(summary: pd.DataFrame) -> Figure:
    """Draw hit rate against KV capacity: a line per policy, a panel per block size.

    Parameters
    ----------
    summary
        Rows of the summary table. Seeds are averaged; any other setting that varies makes lines
        of its own.

    Raises
    ------
    UsageError
        No policy has two capacities at one block size.
    """
    if not has_capacities(summary):
        raise UsageError(
            "--kind capacity needs two KV capacities at one policy and block size, but these runs "
            f"have {_list_capacities(summary)}; sweep --kv-capacity over several values."
        )
    lines = lines_of(summary)
    styles = styles_of(lines)
    sizes = sorted(int(size) for size in summary["block_size"].unique())
    columns = len(sizes) if len(sizes) < 4 else 2 if len(sizes) == 4 else 3
    rows = -(-len(sizes) // columns)
    figure = Figure(figsize=(WIDTH, HEIGHT if rows == 1 else 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for ax, size in zip(panels, sizes, strict=False):
        curves = [
            (line, line.points[line.points["block_size"] == size].set_index("kv_capacity_tokens"))
            for line in lines
        ]
        _draw_hit_rates(ax, curves, styles, wide=columns == 1)
        if len(sizes) > 1:
            ax.set_title(f"block size {size}")
    token_axis(panels[0], summary["kv_capacity_tokens"], columns)
    for index, ax in enumerate(panels):
        below = index + columns
        if index >= len(sizes):
            ax.set_axis_off()
        elif below >= len(sizes):
            ax.set_xlabel("KV capacity (tokens)")
            ax.tick_params(labelbottom=True)
        if index % columns == 0:
            ax.set_ylabel("hit rate (%)")
    _fit_hit_rates(panels[0], summary)
    known = summary["hit_rate"].notna().any()
    shown = [line for line in lines if known and line.policy != FLOOR]
    finish(figure, "Hit rate against KV capacity", setting(summary), _handles(shown, styles))
    return figure


@rc_context(RC)
def block_size_effect(summary: pd.DataFrame, capacity: float | None = None) -> Figure:
    """Draw hit rate and TTFT against block size, at one KV capacity.

    Parameters
    ----------
    summary
        Rows of the summary table, as for `hit_rate_vs_capacity`.
    capacity
        Tokens; see `at_capacity` for what is equal to it, and for the default.

    Raises
    ------
    UsageError
        No policy has two block sizes at the capacity, or no run has the capacity.
    """
    rows, capacity_tokens = at_capacity(summary, capacity)
    if rows.empty:
        raise UsageError(
            f"no run has a KV capacity of {say_tokens(capacity_tokens)}; choose one of "
            f"{_list_capacities(summary)}."
        )
    if not has_block_sizes(rows):
        sizes = ", ".join(str(size) for size in sorted(rows["block_size"].unique()))
        raise UsageError(
            "--kind block-size needs two block sizes at one policy and KV capacity, but the runs "
            f"with {say_tokens(capacity_tokens)} have {sizes}; sweep --block-size over several "
            "values at an equal --kv-capacity."
        )
    lines = lines_of(rows)
    styles = styles_of(lines)
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    curves = [(line, line.points.set_index("block_size")) for line in lines]
    _draw_hit_rates(left, curves, styles, wide=False)
    _fit_hit_rates(left, rows)
    left.set_title("hit rate")
    left.set_ylabel("hit rate (%)")
    _draw_ttft(right, curves, styles)
    for ax in (left, right):
        block_axis(ax, sorted(int(size) for size in rows["block_size"].unique()))
    finish(
        figure,
        "Hit rate and time to first token against block size",
        setting(rows, say_tokens(capacity_tokens)),
        _handles(lines, styles),
    )
    return figure


def _draw_hit_rates(
    ax: Axes,
    curves: Sequence[tuple[Line, pd.DataFrame]],
    styles: dict[str, Style],
    *,
    wide: bool,
) -> None:
    if all(points["hit_rate"].isna().all() for _, points in curves):
        annotate(ax, "no hit rate: the workload carries\nno prefix information")
        return
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
        curve = pd.concat(parts).groupby(level=0).mean().round(2)
        if len(curve):
            if curve.max() - curve.min() < 0.05:
                curve = curve.iloc[:1]
            key = tuple(zip(curve.index.tolist(), curve.tolist(), strict=True))
            owners.setdefault(key, []).append(variant)
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
        text = "ceiling: infinite cache" if len(owners) == 1 else "ceiling"
        if wide and len(ys) == 1:
            text += f", {ys[0]:.1f} %" if len(owners) == 1 else f" {ys[0]:.1f} %"
        if len(owners) > 1:
            text += f", {'; '.join(variants)}"
        # Of ceilings that lie close together, all but the highest have their labels below.
        near = sum(y - ys[0] < 0.08 * taken[0] for y in taken)
        taken.append(ys[0])
        ax.annotate(
            text,
            (0.01 + 0.4 * max(near - 1, 0), ys[0]),
            (0, -8 if near else 8),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            va="top" if near else "baseline",
            fontsize=9,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
            zorder=4,
        )


def _fit_hit_rates(ax: Axes, summary: pd.DataFrame) -> None:
    """Leave room for the label above the ceiling and for the one below the floor."""
    top = 100 * summary[["hit_rate", "infinite_hit_rate"]].max().max()
    if not top > 0:
        top = 10.0
    ax.set_ylim(-0.11 * top, 1.15 * top)


def _draw_ttft(
    ax: Axes, curves: Sequence[tuple[Line, pd.DataFrame]], styles: dict[str, Style]
) -> None:
    columns = ["ttft_ms_mean", "ttft_ms_p90"]
    times = pd.concat([points[column] for _, points in curves for column in columns]).dropna()
    ax.set_title("TTFT: mean (strong) and p90 (faint)")
    if times.empty:
        annotate(ax, "no request finished")
        return
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
                ax.plot(times_of.index, times_of, label=line.label, **{**look, **faint})
    ax.set_ylabel(f"TTFT ({unit})")
    if times.max() > 30 * times.min() > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    else:
        ax.set_ylim(0, 1.05 * float(times.max()) / scale)


def _handles(lines: Sequence[Line], styles: dict[str, Style]) -> list[Line2D]:
    known = any(line.points["hit_rate"].notna().any() for line in lines)
    handles = []
    for line in lines:
        missing = known and line.points["hit_rate"].isna().all()
        label = f"{line.label} (no prefix information)" if missing else line.label
        handles.append(Line2D([], [], label=label, **styles[line.label].line()))
    return handles


def _list_capacities(summary: pd.DataFrame) -> str:
    values = sorted(int(value) for value in summary["kv_capacity_tokens"].unique())
    said = [f"{value:,}" for value in values[:8]]
    return ", ".join([*said, "..."] if len(values) > 8 else said) + " tokens"
