"""The picture of a comparison: how far each policy is from the reference, capacity by capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sim.plots.style import GREY, RC, WIDTH, finish

_PANELS_IN_A_ROW = 4
_ROW_HEIGHT = 0.21
_LOOKS = {
    "better": ("#0072B2", "^", "more than noise above"),
    "worse": ("#D55E00", "v", "more than noise below"),
    "noise": (GREY, "o", "no more than noise"),
    "same": (GREY, "s", "the same"),
    "unknown": (GREY, "D", "cannot be told"),
}
"""Colour, marker and meaning of each verdict; the shape says it without the colour."""


@rc_context({**RC, "axes.grid": False})
def draw_comparison(table: pd.DataFrame, *, method: Sequence[str]) -> Figure:
    """Draw a panel per capacity, a row per policy, the best on average on top.

    Parameters
    ----------
    table
        The table ``compare`` of `sim.columns.COLUMNS`.
    method
        What the bound is and how noise was told, in sentences.
    """
    frame = table.assign(label=_labels(table))
    reference = str(frame["reference"].iloc[0])
    others = frame[frame["label"] != reference]
    order = others.groupby("label")["difference"].mean().sort_values(ascending=False, kind="stable")
    labels = list(order.index)
    capacities = list(dict.fromkeys(frame["capacity"]))
    columns = min(len(capacities), _PANELS_IN_A_ROW)
    rows = -(-len(capacities) // columns)
    height = rows * (1.1 + _ROW_HEIGHT * (len(labels) + 1)) + 0.9
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for ax, capacity in zip(axes, capacities, strict=False):
        _panel(ax, frame[frame["capacity"] == capacity], reference, labels)
    for ax in axes[len(capacities) :]:
        ax.set_axis_off()
    for ax in axes[len(capacities) - min(columns, len(capacities)) : len(capacities)]:
        ax.set_xlabel("points")
    setting = f"{frame['workload'].iloc[0]}, block size {frame['block_size'].iloc[0]}"
    finish(
        figure,
        f"Hit rate less that of {reference}, in percentage points",
        setting,
        _handles(frame),
        method,
    )
    return figure


def _labels(table: pd.DataFrame) -> list[str]:
    args = table["policy_args"].str.replace(",", " ")
    return [f"{name} {arg}".strip() for name, arg in zip(table["policy"], args, strict=True)]


def _panel(ax: Axes, rows: pd.DataFrame, reference: str, labels: Sequence[str]) -> None:
    places = {label: place for place, label in enumerate(labels)}
    by_label: dict[str, Any] = {row["label"]: row for row in rows.to_dict("records")}
    base, bound = by_label[reference]["hit_rate"], by_label[reference]["bound_hit_rate"]
    ax.axvline(0, color=GREY, linewidth=1)
    for label, place in places.items():
        row = by_label[label]
        colour, marker, _ = _LOOKS[row["verdict"]]
        low, high = 100 * row["difference_low"], 100 * row["difference_high"]
        if np.isfinite(low) and high > low:
            ax.plot([low, high], [place, place], color=colour, linewidth=1.4, zorder=2)
        filled = row["verdict"] in ("better", "worse", "same")
        ax.plot(
            [100 * row["difference"]],
            [place],
            marker=marker,
            color=colour,
            markersize=5.5,
            markerfacecolor=colour if filled else "white",
            zorder=3,
        )
    _limits(ax, rows, 100 * (bound - base))
    ax.set_yticks(list(places.values()), labels=list(places), fontsize=8)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    for place in range(0, len(labels), 2):
        ax.axhspan(place - 0.5, place + 0.5, color="0.96", zorder=0)
    capacity = rows["capacity"].iloc[0]
    blocks = int(rows["num_blocks"].iloc[0])
    size = f"{blocks:,} blocks"
    size = size if capacity == f"{blocks}blocks" else f"{capacity}: {size}"
    name = "Belady" if rows["bound"].iloc[0] == "belady" else "infinite"
    ax.set_title(
        f"{size}\n{reference.partition(' ')[0]} {100 * base:.1f} %\n{name} {100 * bound:.1f} %",
        fontsize=9,
    )


def _limits(ax: Axes, rows: pd.DataFrame, way: float) -> None:
    """Show all points and, where it is not far beyond them, the bound."""
    columns = ["difference", "difference_low", "difference_high"]
    values = 100 * rows[columns].to_numpy(dtype=float).ravel()
    values = values[np.isfinite(values)]
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    room = max(high - low, 0.1)
    if np.isfinite(way) and way <= high + 0.6 * room:
        ax.axvline(way, color=GREY, linewidth=1.2, linestyle=(0, (5, 2)))
        high = max(high, way)
    margin = 0.07 * max(high - low, 0.1)
    ax.set_xlim(low - margin, high + margin)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.grid(visible=True, axis="x")


def _handles(frame: pd.DataFrame) -> list[Line2D]:
    shown = set(frame[frame["difference"].notna()]["verdict"])
    handles = []
    for verdict, (colour, marker, meaning) in _LOOKS.items():
        if verdict in shown:
            filled = verdict in ("better", "worse", "same")
            face: Any = colour if filled else "white"
            handles.append(
                Line2D([], [], color=colour, marker=marker, markerfacecolor=face, label=meaning)
            )
    handles.append(Line2D([], [], color=GREY, linestyle=(0, (5, 2)), label="bound, where near"))
    return handles
