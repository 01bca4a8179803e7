"""Hit rate against capacity, and what the block size does."""

from __future__ import annotations

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from sim.errors import UsageError
from sim.plots.axes import block_axis, token_axis
from sim.plots.panels import draw_hit_rates, draw_ttft, fit_hit_rates, handles_of
from sim.plots.runs import DIALS, FLOOR, fewer, left_out, told_apart
from sim.plots.series import (
    MAX_LINES,
    NO_TTFT,
    at_capacity,
    drawable,
    has_block_sizes,
    has_capacities,
    has_hit_rate,
    has_ttft,
    lines_of,
    no_hit_rate,
    say_capacity,
    say_tokens,
    setting,
)
from sim.plots.style import HEIGHT, RC, WIDTH, finish, styles_of


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
    summary, notes = drawable(summary)
    if not has_hit_rate(summary):
        raise UsageError(
            "--kind capacity draws hit rates, but "
            f"{', '.join(str(name) for name in summary['workload'].unique())} carries no prefix "
            "information; draw TTFT and throughput with --against kv_capacity_tokens."
        )
    if not has_capacities(summary):
        raise UsageError(
            "--kind capacity needs two KV capacities at one policy and block size, but these runs "
            f"have {_list_capacities(summary)}; sweep --kv-capacity over several values."
        )
    lines = lines_of(summary)
    styles = styles_of(lines)
    # No panel is empty: lines without a hit rate have their word in the legend.
    known = summary[summary[["hit_rate", "infinite_hit_rate"]].notna().any(axis=1)]
    sizes = sorted(int(size) for size in known["block_size"].unique())
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
        draw_hit_rates(ax, curves, styles, wide=columns == 1)
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
    fit_hit_rates(panels[0], summary)
    shown = [line for line in lines if line.policy != FLOOR]
    handles = handles_of(shown, styles)
    finish(figure, "Hit rate against KV capacity", setting(summary), handles, notes)
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
    frame, notes = told_apart(summary)
    rows, capacity_tokens = at_capacity(frame, capacity)
    if rows.empty:
        raise UsageError(
            f"no run has a KV capacity of {say_tokens(capacity_tokens)}; choose one of "
            f"{_list_capacities(frame)}."
        )
    if not has_block_sizes(rows):
        sizes = ", ".join(str(size) for size in sorted(rows["block_size"].unique()))
        raise UsageError(
            "--kind block-size needs two block sizes at one policy and KV capacity, but the runs "
            f"with {say_tokens(capacity_tokens)} have {sizes}; sweep --block-size over several "
            "values at an equal --kv-capacity."
        )
    rows = fewer(rows, DIALS, MAX_LINES)
    notes += left_out(frame, rows)
    lines = lines_of(rows)
    styles = styles_of(lines)
    curves = [(line, line.points.set_index("block_size")) for line in lines]
    named = {"hit rate": has_hit_rate(rows), "time to first token": has_ttft(rows)}
    if not any(named.values()):
        raise UsageError(
            "--kind block-size draws hit rate and TTFT, but no request finished in these runs; "
            "raise --kv-capacity so that they fit."
        )
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = list(figure.subplots(1, sum(named.values()), squeeze=False).flat)
    for ax in panels:
        block_axis(ax, sorted(int(size) for size in rows["block_size"].unique()), len(panels))
    if named["hit rate"]:
        draw_hit_rates(panels[0], curves, styles, wide=False)
        fit_hit_rates(panels[0], rows)
        panels[0].set_title("hit rate")
        panels[0].set_ylabel("hit rate (%)")
    else:
        notes.append(no_hit_rate(rows))
    if named["time to first token"]:
        draw_ttft(panels[-1], curves, styles)
    else:
        notes.append(NO_TTFT)
    said = " and ".join(name for name, is_shown in named.items() if is_shown)
    finish(
        figure,
        f"{said[0].upper()}{said[1:]} against block size",
        setting(rows, say_capacity(rows, capacity_tokens)),
        handles_of(lines, styles),
        notes,
    )
    return figure


def _list_capacities(summary: pd.DataFrame) -> str:
    values = sorted(int(value) for value in summary["kv_capacity_tokens"].unique())
    said = [f"{value:,}" for value in values[:8]]
    return ", ".join([*said, "..."] if len(values) > 8 else said) + " tokens"
