"""Sentences on what makes the figures of a situation doubtful."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from sim.reporting.cells import Cells
from sim.reporting.content import Finding
from sim.reporting.words import counted, listed, number, percent, where_of

WAITING_ABOVE = 0.5
"""Requests that wait for a longer share of their TTFT than this have more load than is served."""


def doubts_of(row: pd.Series, cells: Cells) -> Iterator[Finding]:
    """Say what makes the figures of a row of `Cells.table` doubtful."""
    if row["num_rejected"] > 0:
        yield Finding(
            "Doubts",
            f"{counted(round(row['num_rejected']), 'request')} of {number(row['num_requests'])} "
            "can never fit into this KV cache and count in no figure.",
            f"{where_of(row)}: num_rejected {number(row['num_rejected'])}",
            "doubt",
        )
    if not math.isnan(row["none_num_rejected"]) and row["num_rejected"] != row["none_num_rejected"]:
        mine, floor = round(row["num_rejected"]), round(row["none_num_rejected"])
        yield Finding(
            "Doubts",
            f"With caching {counted(mine, 'request')} and without {counted(floor, 'request')} were "
            "turned away, as larger than the KV cache, so what is compared are not the same "
            "requests.",
            f"{where_of(row)}: num_rejected {mine} against {floor} of none",
            "doubt",
        )
    yield from _doubts_of_seeds(cells)
    waits = {"with caching": (row["queue_ms_mean"], row["ttft_ms_mean"])}
    if not math.isnan(row["none_ttft_ms_mean"]):
        waits["without"] = (row["none_queue_ms_mean"], row["none_ttft_ms_mean"])
    late = {name: wait / ttft for name, (wait, ttft) in waits.items() if ttft > 0}
    if any(share > WAITING_ABOVE for share in late.values()):
        said = listed([f"{percent(share, 0)} {name}" for name, share in late.items()])
        yield Finding(
            "Doubts",
            f"Requests spend {said} of their time to first token waiting to be admitted: at times "
            "more arrives than is served. Such a TTFT grows with the length of the trace, and says "
            "more of the load than of the cache; runs with a lower --rate-scale or --rate tell "
            "what caching does to latency alone.",
            f"queue_ms_mean {row['queue_ms_mean']:.2f}, ttft_ms_mean {row['ttft_ms_mean']:.2f}",
            "doubt",
        )
    if row["num_preemptions"] > 0 or row["none_num_preemptions"] > 0:
        known = not math.isnan(row["none_num_preemptions"])
        floor = counted(round(row["none_num_preemptions"]), "time") if known else ""
        text = (
            f"Running requests lost their blocks {counted(round(row['num_preemptions']), 'time')}"
            + (f", without caching {floor}," if known else "")
            + " and were computed again: the KV cache is small for what runs together."
        )
        if known:
            text += (
                " Part of what caching buys comes from that, for such a request finds its own "
                "blocks again; the hit rate, which counts first admissions, does not show it."
            )
        yield Finding(
            "Doubts",
            text,
            f"{where_of(row)}: num_preemptions {number(row['num_preemptions'])} against "
            f"{number(row['none_num_preemptions'])} of none",
            "doubt",
        )


def _doubts_of_seeds(cells: Cells) -> Iterator[Finding]:
    """Say which seeds count in no figure, or that what is compared has not the same seeds."""
    left_out, kept = cells.seeds_left_out, cells.runs["seed"].nunique()
    if left_out:
        yield Finding(
            "Doubts",
            f"Of {len(left_out) + kept} seeds {kept} {'was' if kept == 1 else 'were'} run with "
            "every policy, block size and capacity; runs of the other "
            f"{counted(len(left_out), 'seed')} count in no figure here.",
            f"seed {listed(sorted(cells.runs['seed'].unique()))}; left out: {listed(left_out)}",
            "doubt",
        )
    elif not cells.has_common_seeds:
        yield Finding(
            "Doubts",
            "No seed was run with every policy, block size and capacity, so block sizes and "
            "capacities are compared over different seeds; what caching buys is not.",
            f"seeds {listed(sorted(cells.runs['seed'].unique()))}",
            "doubt",
        )
