"""What caching costs where nothing hits, and from which hit rate it pays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from sim.breakeven import TOLERANCE, break_even, relative_throughput
from sim.reporting.cells import POLICY, Cells, bound_by_arrivals, with_baselines
from sim.reporting.content import Finding
from sim.reporting.words import change, percent

NOTHING = 0.01
"""A workload of which an infinite cache hits no more than this share hits nothing."""

_FOUND = ("break_even", "lowest_hit_rate", "highest_hit_rate", "ratio_at_lowest")


@dataclass(frozen=True, slots=True)
class BreakEvens:
    """Throughput against no caching, by hit rate, over all runs under full load.

    Attributes
    ----------
    relative
        Of the runs, as `sim.breakeven.relative_throughput` gives it.
    table
        As `sim.breakeven.break_even` gives it.
    """

    relative: pd.DataFrame
    table: pd.DataFrame


def find_break_evens(frame: pd.DataFrame, requests: pd.DataFrame) -> BreakEvens:
    """Compare runs by the hit rate of their workload, but for those bound by arrivals."""
    busy = frame[bound_by_arrivals(frame, requests) == 0]
    relative = relative_throughput(with_baselines(busy))
    return BreakEvens(relative, break_even(relative))


def finding_of_zero(row: pd.Series, cells: Cells, found: BreakEvens) -> Finding:
    """Say what caching costs where nothing hits, or that it cannot be said."""
    keys = [*POLICY, "block_size", "kv_capacity_tokens"]
    mine = cells.runs[(cells.runs[keys] == row[keys]).all(axis=1)]["run_id"]
    runs = found.relative[found.relative["run_id"].isin(mine)]
    names = [name for name in found.table.columns if name not in _FOUND]
    table = found.table.merge(runs[names].drop_duplicates(), on=names) if len(runs) else runs
    if table.empty or table["lowest_hit_rate"].iloc[0] > NOTHING:
        return Finding(
            "What it costs",
            "What it would cost where nothing hits cannot be said from these runs: that takes runs "
            "of a workload that shares nothing, under full load, with caching and with --policy "
            "none.",
            tone="unknown",
        )
    lowest, highest, ratio, pays = (
        float(table[name].iloc[0])
        for name in ("lowest_hit_rate", "highest_hit_rate", "ratio_at_lowest", "break_even")
    )
    text = (
        f"Where {percent(lowest)} can hit, throughput under full load is "
        f"{change(ratio, 1.0)} than without caching"
    ).replace("the same than", "the same as")
    if highest > lowest and math.isnan(pays):
        text += f"; up to the highest hit rate that was run, {percent(highest)}, it does not pay"
    elif highest > lowest:
        text += f"; caching pays from a hit rate of {percent(pays)} on"
    figures = f"throughput over that of none {ratio:.4f} at {percent(lowest)}"
    if highest > lowest:
        figures += (
            f"; pays where no more than {percent(TOLERANCE)} is lost, up to {percent(highest)}"
        )
    return Finding("What it costs", f"{text}.", figures)
