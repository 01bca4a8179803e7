"""Where the time of cache management goes, and what one eviction costs as the pool grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from sim.plots.axes import log_axis
from sim.plots.style import GREY, RC, WIDTH, finish, nth_style, save

_TIMES = {
    "hash": ("hash token ids", "#999999"),
    "lookup": ("look the prefix up", "#56B4E9"),
    "take": ("allocate, without evictions", "#0072B2"),
    "evict": ("evict", "#D55E00"),
    "cache": ("note computed blocks", "#CC79A7"),
    "append": ("decode", "#009E73"),
    "free": ("free", "#E69F00"),
}
"""Parts of a request's life: label and colour, bottom first."""

_COUNTS = {
    ("dict_operations",): ("dictionary operations", "#56B4E9"),
    ("objects_created",): ("objects made", "#CC79A7"),
    ("heap_pushes", "heap_pops"): ("heap pushes and pops", "#009E73"),
    ("pointer_updates",): ("list pointers set", "#0072B2"),
    ("entries_scanned",): ("table entries scanned", "#D55E00"),
}
"""What is counted: columns; label and colour, bottom first."""

_TALL = 2.0
"""A policy whose bars are so many times higher than all others' is cut off."""


@rc_context(RC)
def breakdown(table: pd.DataFrame) -> Figure:
    """Draw the time of a request's cache management by operation, and what that counts.

    Above, time from admission to release, stacked by operation; below, dictionary operations,
    objects, heap operations, pointers and scanned entries. A group of bars for each hit rate, a bar
    for each policy, its total on top. Bars that would dwarf all others are cut off.

    Parameters
    ----------
    table
        As `sim.overhead.measure.measure_grid` gives it. Of several block sizes 16 is shown, or the
        smallest; of several prompts the longest. The title names them.
    """
    sizes = table["block_size_tokens"]
    size = 16 if (sizes == 16).any() else int(sizes.min())
    rows = table[sizes == size]
    prompt = int(rows["prompt_tokens"].max())
    rows = rows[rows["prompt_tokens"] == prompt]
    policies = list(dict.fromkeys(rows["policy"]))
    rates = sorted(float(rate) for rate in rows["target_hit_rate"].unique())
    bars = [(rate, policy) for rate in rates for policy in policies]
    width = len(policies) + 1
    centres = np.array([width * g + i for g in range(len(rates)) for i in range(len(policies))])
    figure = Figure(figsize=(WIDTH, 8.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _stack(above, centres, _times(rows).reindex(bars), list(_TIMES.values()))
    _stack(below, centres, _counts(rows).reindex(bars), list(_COUNTS.values()))
    above.set_ylabel("CPU time of a request (µs)")
    below.set_ylabel("counted operations of a request")
    below.set_xticks(
        centres, policies * len(rates), rotation=50, ha="right", rotation_mode="anchor"
    )
    for group, rate in enumerate(rates):
        above.text(
            width * group + (len(policies) - 1) / 2,
            1.02,
            f"hit rate {100 * rate:g} %",
            transform=above.get_xaxis_transform(),
            ha="center",
            color=GREY,
        )
    said = f"block size {size}, prompt {prompt:,} tokens, pool full; {_where(rows)}"
    finish(figure, "Where the time of cache management goes", said, [])
    return figure


@rc_context(RC)
def eviction_cost(table: pd.DataFrame) -> Figure:
    """Draw what one eviction takes, measured and counted, against the number of free blocks.

    Parameters
    ----------
    table
        As `sim.overhead.evictions.measure_evictions` gives it.
    """
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    policies = list(dict.fromkeys(table["policy"]))
    work = ["heap_pops", "pointer_updates", "entries_scanned"]
    shown = table.assign(
        us=table["p50_ns"] / 1e3, work=sum(table[f"count_{name}"] for name in work)
    )
    for index, policy in enumerate(policies):
        style = nth_style(index)
        for time_stamps, dashes, marker in (("one", "-", "o"), ("many", "--", "s")):
            mine = shown[(shown["policy"] == policy) & (shown["time_stamps"] == time_stamps)]
            for ax, column in ((left, "us"), (right, "work")):
                ax.plot(
                    mine["num_free_blocks"],
                    mine[column],
                    color=style.colour,
                    linestyle=dashes,
                    marker=marker,
                    markerfacecolor=style.colour if time_stamps == "one" else "white",
                    markersize=5.0 + 1.8 * (len(policies) - 1 - index),
                    zorder=3 + index / 10,
                )
    for ax in (left, right):
        log_axis(ax, table["num_free_blocks"], 3)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:,g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.set_xlabel("free blocks")
    left.set_title("measured: evict a block and take it (µs)")
    right.set_title("counted: scanned + popped + pointers set")
    handles = [
        Line2D([], [], color=nth_style(index).colour, label=policy, linewidth=2.5)
        for index, policy in enumerate(policies)
    ]
    handles += [
        Line2D([], [], color=GREY, marker="o", label="all blocks accessed at one time"),
        Line2D(
            [], [], color=GREY, marker="s", linestyle="--", markerfacecolor="white",
            label="each request's at its own",
        ),
    ]  # fmt: skip
    finish(figure, "What one eviction costs", _where(table), handles)
    return figure


def draw_overhead(table: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw a table that ``prefixsim overhead`` measured; return the files, a PNG and an SVG.

    Where it is one of evictions, `eviction_cost`, otherwise `breakdown`.
    """
    if "time_stamps" in table:
        return save(eviction_cost(table), directory, "eviction_cost")
    return save(breakdown(table), directory, "breakdown")


def _times(rows: pd.DataFrame) -> pd.DataFrame:
    """Median time of each part of a request's life, µs, by hit rate and policy."""
    spent = rows.assign(us=rows["p50_us"] * rows["calls_per_request"]).pivot_table(
        index=["target_hit_rate", "policy"], columns="operation", values="us"
    )
    spent = spent.reindex(columns=[*_TIMES, "allocate"]).fillna(0.0)
    # Lost in the noise, a difference may come out below 0, or above the whole.
    spent["evict"] = spent["evict"].clip(0.0, spent["allocate"])
    spent["take"] = spent["allocate"] - spent["evict"]
    return spent[list(_TIMES)]


def _counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum up what a request counts in its life, by hit rate and policy."""
    # Request and evict are sums and parts of others.
    parts = rows[~rows["operation"].isin(["request", "evict"])]
    found = pd.DataFrame(
        {
            label: sum(parts[f"count_{name}"] for name in names) * parts["calls_per_request"]
            for names, (label, _) in _COUNTS.items()
        }
    )
    return found.groupby([parts["target_hit_rate"], parts["policy"]]).sum()


def _stack(
    ax: Axes,
    centres: NDArray[np.int64],
    values: pd.DataFrame,
    looks: Sequence[tuple[str, str]],
) -> None:
    """Draw stacked bars, a row of ``values`` each, with their totals."""
    totals = values.sum(axis=1)
    bottom = np.zeros(len(values))
    for (_, colour), column in zip(looks, values, strict=True):
        heights = values[column].fillna(0.0).to_numpy()
        ax.bar(centres, heights, 0.82, bottom, color=colour, edgecolor="white", linewidth=0.4)
        bottom += heights
    top = _top(totals)
    ax.set_ylim(0, top)
    for centre, total in zip(centres, totals, strict=True):
        cut = total > top
        ax.annotate(
            f"{total:,.0f}" + (" \N{UPWARDS ARROW}" if cut else ""),
            (centre, min(total, top)),
            (0, -3 if cut else 2),
            textcoords="offset points",
            ha="center",
            va="top" if cut else "bottom",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if cut else None,
        )
    ax.legend(
        handles=[Patch(color=colour, label=label) for label, colour in reversed(looks)],
        loc="upper right",
        fontsize=8.5,
        handlelength=1.2,
    )
    ax.grid(visible=False, axis="x")


def _top(totals: pd.Series[float]) -> float:
    """Choose how high the axis goes: over all bars, or over those of all policies but one."""
    highest = totals.groupby(level="policy").max().sort_values(ascending=False)
    tallest = float(highest.iloc[0])
    if len(highest) > 1 and tallest > _TALL * float(highest.iloc[1]):
        tallest = 1.4 * float(highest.iloc[1])
    return 1.1 * tallest


def _where(table: pd.DataFrame) -> str:
    return f"{table['machine'].iloc[0]}, {table['python'].iloc[0]}"
