"""Sentences that recommend a block size and a capacity, or say why none can be recommended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from sim.reporting.advice import (
    CAPACITY_TTFT_WITHIN,
    HIT_RATE_WITHIN,
    TTFT_WITHIN,
    Choice,
)
from sim.reporting.cells import Cells
from sim.reporting.content import Finding
from sim.reporting.words import gibibytes, listed, milliseconds, percent, points, tokens


@dataclass(frozen=True, slots=True)
class CurveFacts:
    """What a curve of every capacity says; in tokens, at one block size.

    Attributes
    ----------
    ceiling
        Hit rate of a cache that never evicts.
    knee_tokens, knee_hit_rate
        The knee.
    near_tokens
        Smallest capacity within a point of the ceiling.
    gpu_tokens
        Room of the GPU beside the weights; None where it is not known.
    """

    policy: str
    block_size: int
    ceiling: float
    knee_tokens: int
    knee_hit_rate: float
    near_tokens: int
    gpu_tokens: int | None
    gpu_hit_rate: float = math.nan
    gpu_name: str = ""


def block_size_findings(
    choice: Choice, cells: Cells, unfilled: pd.Series[float] | None
) -> Iterator[Finding]:
    """Say which block size is recommended and why, with the figures of all that were run."""
    if choice.row is None:
        yield Finding(
            "Block size", f"No block size can be recommended: {choice.missing}.", tone="unknown"
        )
        return
    row, rows = choice.row, choice.rows
    sizes = listed([int(size) for size in rows["block_size"]])
    best = rows.sort_values("ttft_ms_mean").iloc[0]
    if int(best["block_size"]) == int(row["block_size"]):
        reason = f"has the lowest mean TTFT of {sizes} tokens"
        if int(row["block_size"]) != int(rows["block_size"].iloc[0]):
            reason += ", and no smaller one comes within 2 % of it in TTFT and throughput"
        else:
            reason += ", and it is the smallest"
    else:
        reason = (
            f"is the smallest of {sizes} whose TTFT and throughput are within "
            f"{percent(TTFT_WITHIN, 0)} of the best ({milliseconds(row['ttft_ms_mean'])}; "
            f"{milliseconds(best['ttft_ms_mean'])} with {int(best['block_size'])})"
        )
    yield Finding(
        "Block size",
        f"Recommended: {int(row['block_size'])} tokens. It {reason}. Smaller blocks hit more and "
        "waste less memory in their last block; larger ones cost less to manage.",
        "; ".join(_of_size(each, cells, unfilled) for _, each in rows.iterrows()),
    )
    own = int(cells.runs["trace_block_size"].iloc[0])
    below = [int(size) for size in rows["block_size"] if size < own]
    if below:
        yield Finding(
            "Block size",
            f"{cells.workload} tells prefixes apart in blocks of {own} tokens, so what block "
            f"{'sizes' if len(below) > 1 else 'size'} {listed(below)} would hit beyond that does "
            "not show: their hit rates are at least what stands here, and their TTFT at most.",
            tone="doubt",
        )


def _of_size(row: pd.Series, cells: Cells, unfilled: pd.Series[float] | None) -> str:
    said = (
        f"{row['block_size']}: TTFT {milliseconds(row['ttft_ms_mean'])}, hit rate "
        f"{percent(row['hit_rate'])}, management "
        f"{percent(row['overhead_share'], 2)}"
    )
    if unfilled is None:
        return said
    runs = cells.runs
    same = (runs[["policy", "block_size", "kv_capacity_tokens"]] == [
        row["policy"], row["block_size"], row["kv_capacity_tokens"]
    ]).all(axis=1)  # fmt: skip
    share = unfilled.reindex(runs.loc[same, "run_id"]).mean()
    return said if math.isnan(share) else f"{said}, unfilled slots {percent(share)}"


def _size_of(num_tokens: float, block_size: int, gib: float) -> str:
    """Spell a capacity in every unit that is known."""
    said = f"{tokens(num_tokens)} ({num_tokens / block_size:,.0f} blocks of {block_size}"
    return said + (")" if math.isnan(gib) else f", {gibibytes(num_tokens * gib)})")


def capacity_findings(choice: Choice, gib: float, curve: CurveFacts | None) -> Iterator[Finding]:
    """Say which capacity is recommended and why, in every unit; and what the curve says of it."""
    if choice.row is None:
        yield Finding(
            "Capacity", f"No KV capacity can be recommended: {choice.missing}.", tone="unknown"
        )
    else:
        yield _recommended_capacity(choice, gib)
    if curve is not None:
        yield from _on_curve(curve, gib)


def _recommended_capacity(choice: Choice, gib: float) -> Finding:
    row, rows = choice.row, choice.rows
    assert row is not None
    run = rows["hit_rate"].max()
    gap = row["infinite_hit_rate"] - run
    text = (
        f"Recommended: {_size_of(row['kv_capacity_tokens'], row['block_size'], gib)}. "
        f"It is the smallest of the {len(rows)} capacities run whose hit rate is within "
        f"{points(HIT_RATE_WITHIN)} of the best run ({percent(row['hit_rate'])}; {percent(run)}) "
        f"and whose mean TTFT is within {percent(CAPACITY_TTFT_WITHIN, 0)} of the best. "
    )
    if gap > HIT_RATE_WITHIN:
        text += (
            f"The best that was run still lies {points(gap)} below a cache that never evicts, so "
            "larger ones may pay: run them too."
        )
    else:
        text += "More gains nearly nothing: the best run lies at the ceiling."
    said = [
        f"{tokens(each['kv_capacity_tokens'])} {percent(each['hit_rate'])}, "
        f"{milliseconds(each['ttft_ms_mean'])}"
        for each in rows.to_dict("records")
    ]
    return Finding("Capacity", text, "; ".join(said))


def _on_curve(curve: CurveFacts, gib: float) -> Iterator[Finding]:
    size = curve.block_size
    if not curve.ceiling > 0:
        yield Finding("Capacity", "No capacity hits anything: no prompt repeats an earlier one.")
        return
    text = (
        f"One request at a time, the curve bends at {_size_of(curve.knee_tokens, size, gib)}, the "
        f"knee, with {percent(curve.knee_hit_rate)} hit; {_size_of(curve.near_tokens, size, gib)} "
        f"come within {points(HIT_RATE_WITHIN)} of the {percent(curve.ceiling)} of a cache that "
        "never evicts. "
    )
    if curve.gpu_tokens is not None:
        room = tokens(curve.gpu_tokens)
        text += f"{curve.gpu_name} has room for {room} beside the weights"
        if curve.gpu_tokens >= curve.near_tokens:
            text += ", which is enough. "
        else:
            text += (
                f", where {percent(curve.gpu_hit_rate)} hit: memory beyond that would gain up to "
                f"{points(curve.ceiling - curve.gpu_hit_rate)}. "
            )
    text += "Requests that run together need room of their own beside it."
    yield Finding(
        "Capacity",
        text,
        f"curve of {curve.policy}, block size {size}: knee {tokens(curve.knee_tokens)}, ceiling "
        f"{curve.ceiling:.4f}",
    )
