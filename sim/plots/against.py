"""Hit rate, time to first token and throughput against any numeric setting."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.columns import columns_of
from sim.errors import UsageError
from sim.plots.axes import block_axis, token_axis, value_axis
from sim.plots.panels import (
    draw_hit_rates,
    draw_throughput,
    draw_ttft,
    fit_hit_rates,
    handles_of,
)
from sim.plots.runs import (
    DIALS,
    SWEPT,
    axes_of,
    axis_values,
    fewer,
    left_out,
    list_values,
    num_points,
    told_apart,
    without_axis,
)
from sim.plots.series import (
    MAX_LINES,
    NO_TTFT,
    at_capacity,
    capacities,
    has_hit_rate,
    has_ttft,
    lines_of,
    no_hit_rate,
    say_capacity,
    setting,
)
from sim.plots.style import RC, WIDTH, finish, styles_of

_LABELS = {
    "rate": "arrival rate (requests/s)",
    "rate_scale": "rate_scale (1: arrivals as recorded)",
    "burstiness": "burstiness (1: Poisson, smaller: burstier)",
    "kv_capacity_tokens": "KV capacity (tokens)",
    "block_size": "block size (tokens)",
}
_HEIGHT = 2.3
"""Of a panel, in inches."""


def settings_to_draw(summary: pd.DataFrame) -> list[str]:
    """List the numeric settings that vary and have no picture of their own."""
    frame, _ = told_apart(summary)
    return [name for name in axes_of(frame) if name != "block_size"]


@rc_context(RC)
def against(summary: pd.DataFrame, name: str) -> Figure:
    """Draw hit rate, TTFT and throughput, above each other, against a setting: a line per policy.

    Parameters
    ----------
    summary
        Rows of the summary table. Seeds are averaged; of several block sizes and capacities the
        ones with the most values of the setting are shown, and the rest named below the title.
        Any other setting that varies makes lines of its own.
    name
        A column such as ``rate_scale`` or ``kv_capacity_tokens``; ``rate`` or ``burstiness`` of
        the arrival process; or a dial of the generator or an option of the policy.

    Raises
    ------
    UsageError
        No line has two values of the setting, or no request finished.
    """
    frame, notes = told_apart(summary)
    points = _num_values(frame, name)
    if points < 2:
        offers = ", ".join(axes_of(frame)) or "no numeric setting"
        there = list_values(axis_values(frame, name)) or "none"
        raise UsageError(
            f"--against {name} needs two values of it, all else being equal, but these runs have "
            f"{there}; what varies is {offers}."
        )
    rows, capacity = cell(frame, name)
    rows = rows[axis_values(rows, name).notna()]
    neutral = fewer(without_axis(rows, name), DIALS, MAX_LINES)
    rows = rows.loc[neutral.index]
    values = axis_values(rows, name)
    notes += left_out(without_axis(frame, name), neutral)
    lines = lines_of(neutral.assign(axis=values), ["axis"], [*_METRICS, "total_throughput"])
    styles = styles_of(lines)
    panels = {
        "hit rate": has_hit_rate(rows),
        "TTFT": has_ttft(rows),
        "throughput": bool(rows["total_throughput"].notna().any()),
    }
    drawn = [panel for panel, is_known in panels.items() if is_known]
    if not panels["TTFT"]:
        notes.append(NO_TTFT)
    if not panels["hit rate"]:
        notes.append(no_hit_rate(rows))
    if not drawn:
        raise UsageError(
            f"--against {name} draws hit rate, TTFT and throughput, but no request finished in "
            "these runs; raise --kv-capacity so that they fit."
        )
    figure = Figure(figsize=(WIDTH, _HEIGHT * len(drawn) + 1.0), layout="constrained")
    stack = list(figure.subplots(len(drawn), 1, sharex=True, squeeze=False).flat)
    curves = [(line, line.points.set_index("axis")) for line in lines]
    for ax, panel in zip(stack, drawn, strict=True):
        if panel == "hit rate":
            draw_hit_rates(ax, curves, styles, wide=True)
            fit_hit_rates(ax, rows)
            ax.set_ylabel("hit rate (%)")
        elif panel == "TTFT":
            draw_ttft(ax, curves, styles)
        else:
            draw_throughput(ax, curves, styles)
    _axis(stack, name, values)
    said = ", ".join(drawn[:-1]) + (" and " if len(drawn) > 1 else "") + drawn[-1]
    title = f"{said[0].upper()}{said[1:]} against {_short(name)}"
    texts = ["workload_args", "policy_args", "arrival"]
    said = setting(rows.assign(**{name: neutral[name] for name in texts}), capacity)
    finish(figure, title, said, handles_of(lines, styles), notes)
    return figure


_METRICS = ["hit_rate", "infinite_hit_rate", "ttft_ms_mean", "ttft_ms_p90"]


def _num_values(frame: pd.DataFrame, name: str) -> int:
    if name != "kv_capacity_tokens":
        return num_points(frame, name)
    keys = [*DIALS, "block_size"]
    return int(frame.groupby(keys, dropna=False)[name].nunique().max())


def cell(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, str]:
    """Pick a block size and a capacity, and say the capacity; those with the most values first."""
    rows, capacity = frame, ""
    if name != "kv_capacity_tokens":
        offers = capacities(frame)
        found = [at_capacity(frame, value)[0] for value in offers]
        counts = [num_points(each, name) for each in found]
        best = counts.index(max(counts))
        rows = found[best]
        capacity = say_capacity(rows, offers[best])
    if name != "block_size":
        sizes = sorted(rows["block_size"].unique())
        parts = [rows[rows["block_size"] == size] for size in sizes]
        rows = max(parts, key=lambda each: _num_values(each, name))
    return rows, capacity


def _axis(stack: Sequence[Axes], name: str, values: pd.Series[float]) -> None:
    ax = stack[-1]
    run = sorted(values.unique())
    if name == "kv_capacity_tokens":
        token_axis(ax, values, 1)
    elif name == "block_size":
        block_axis(ax, [int(value) for value in run])
    else:
        value_axis(ax, run)
    units = {column.name: column.unit for column in columns_of("summary")}
    unit = units.get(name, "") if name in (*DIALS, *SWEPT) else ""
    ax.set_xlabel(_LABELS.get(name, f"{name} ({unit})" if unit else name))
    # Autoscaling, which the other panels share, would undo the limits that were set.
    for other in stack:
        other.autoscale(enable=False, axis="x")


def _short(name: str) -> str:
    names = {"kv_capacity_tokens": "KV capacity", "block_size": "block size"}
    return names.get(name, "arrival rate" if name == "rate" else name)
