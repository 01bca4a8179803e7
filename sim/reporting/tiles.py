"""The figures that a reader looks for first."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from sim.breakeven import FLOOR
from sim.reporting.advice import HIT_RATE_WITHIN, Choice
from sim.reporting.content import Tile
from sim.reporting.words import gibibytes, milliseconds, number, percent


def tiles_of(row: pd.Series | None, size: Choice, capacity: Choice, gib: float) -> Iterator[Tile]:
    """Give hit rate, latency, throughput, cost and what is recommended; n/a where not known.

    Parameters
    ----------
    row
        Of `Cells.table`, which the sentences are about.
    size, capacity
        What is recommended.
    gib
        Of a token's KV; NaN where the model is not known.
    """
    if row is not None:
        hit = row["hit_rate"]
        known = row["policy"] != FLOOR and not math.isnan(hit)
        ceiling = f"of {percent(row['infinite_hit_rate'])} at most" if known else "not available"
        yield Tile("Hit rate", percent(hit) if known else "n/a", ceiling)
        ttft, floor = row["ttft_ms_mean"], row["none_ttft_ms_mean"]
        against = (
            "no run without caching"
            if math.isnan(floor)
            else f"{milliseconds(floor)} without caching"
        )
        yield Tile("Mean TTFT", milliseconds(ttft), against)
        mine, without = row["total_throughput"], row["none_total_throughput"]
        against = "no run without caching" if math.isnan(without) else f"{number(without)} without"
        yield Tile("Throughput, tokens/s", number(mine), against)
        yield Tile("Cache management", percent(row["overhead_share"], 2), "of the engine's time")
    if size.row is None:
        yield Tile("Block size", "n/a", "see below why")
    else:
        yield Tile("Block size", f"{int(size.row['block_size'])}", "tokens, recommended")
    if capacity.row is None:
        yield Tile("KV capacity", "n/a", "see below why")
    else:
        value = capacity.row["kv_capacity_tokens"]
        beside = "" if math.isnan(gib) else f", {gibibytes(value * gib)}"
        # Where more would hit more, the best that was run is no more than that.
        gap = capacity.row["infinite_hit_rate"] - capacity.row["hit_rate"]
        is_last = value == capacity.rows["kv_capacity_tokens"].max() and gap > HIT_RATE_WITHIN
        what = "the largest that was run" if is_last else "recommended"
        if capacity.row["num_rejected"] > 0:
            what = "of those that were run, but too small for some requests"
        yield Tile("KV capacity", f"{value:,.0f}", f"tokens{beside}, {what}")
