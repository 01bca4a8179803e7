"""What a block size gains and costs: hit rate, cache management, unfilled slots."""

from __future__ import annotations

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.errors import UsageError
from sim.plots.axes import block_axis
from sim.plots.panels import draw_hit_rates, fit_hit_rates, handles_of
from sim.plots.runs import DIALS, fewer, left_out, told_apart
from sim.plots.series import (
    MAX_LINES,
    Line,
    at_capacity,
    has_block_sizes,
    has_hit_rate,
    lines_of,
    no_hit_rate,
    say_capacity,
    setting,
)
from sim.plots.style import RC, WIDTH, Style, depths, finish, styles_of
from sim.waste import unfilled_share

_PANELS = {
    "overhead_percent": "cache management\n(% of step time)",
    "unfilled_percent": "unfilled slots\n(% of a request's)",
}
_METRICS = ["hit_rate", "infinite_hit_rate", *_PANELS]
_HEIGHT = 2.1
"""Of a panel, in inches."""


@rc_context(RC)
def block_size_trade_off(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    """Draw hit rate, share of cache management and unfilled slots against block size.

    Parameters
    ----------
    summary, requests
        Rows of the tables of these names. Seeds are averaged; of several capacities that with the
        most block sizes is shown; any other setting that varies makes lines of its own.

    Raises
    ------
    UsageError
        No policy has two block sizes at one capacity, or no request finished.
    """
    frame, notes = told_apart(summary)
    rows, capacity = at_capacity(frame)
    if not has_block_sizes(rows):
        raise UsageError(
            "the trade-off needs two block sizes at one policy and KV capacity; sweep block_size "
            "over several values at an equal kv_capacity."
        )
    rows = fewer(rows, DIALS, MAX_LINES)
    notes += left_out(frame, rows)
    rows = rows.assign(
        overhead_percent=100 * rows["overhead_share"],
        unfilled_percent=100 * unfilled_share(rows, requests),
    )
    if rows["unfilled_percent"].isna().all():
        raise UsageError(
            "the trade-off has nothing to draw, for no request finished in these runs; raise "
            "kv_capacity so that they fit."
        )
    lines = lines_of(rows, ["block_size"], _METRICS)
    styles = styles_of(lines)
    curves = [(line, line.points.set_index("block_size")) for line in lines]
    with_hits = has_hit_rate(rows)
    if not with_hits:
        notes.append(no_hit_rate(rows))
    count = len(_PANELS) + with_hits
    figure = Figure(figsize=(WIDTH, _HEIGHT * count + 1.0), layout="constrained")
    stack = list(figure.subplots(count, 1, sharex=True, squeeze=False).flat)
    if with_hits:
        draw_hit_rates(stack[0], curves, styles, wide=True)
        fit_hit_rates(stack[0], rows)
        stack[0].set_ylabel("hit rate (%)")
    for ax, (column, label) in zip(stack[-len(_PANELS) :], _PANELS.items(), strict=True):
        _draw(ax, curves, styles, column)
        ax.set_ylabel(label)
    block_axis(stack[-1], sorted(int(size) for size in rows["block_size"].unique()))
    said = "Hit rate, cache management and unfilled slots" if with_hits else "What blocks cost"
    finish(
        figure,
        f"{said} against block size",
        setting(rows, say_capacity(rows, capacity)),
        handles_of(lines, styles),
        notes,
    )
    return figure


def _draw(
    ax: Axes, curves: list[tuple[Line, pd.DataFrame]], styles: dict[str, Style], column: str
) -> None:
    series = [points[column] for _, points in curves]
    top = max(float(each.max()) for each in series)
    for (line, _), values, depth in zip(curves, series, depths(series, 0.015 * top), strict=True):
        ax.plot(values.index, values, label=line.label, **styles[line.label].line(depth))
    ax.set_ylim(0, 1.08 * top or 1.0)
