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
from sim.reporting.words import counted, gibibytes, listed, milliseconds, percent, points, tokens


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
        f"Recommended: {int(row['block_size'])} tokens. It {reason}."
        + _what_size_changes(rows, cells, unfilled)
        + _not_compared(choice, "block size", "block sizes"),
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


_ALIKE = 0.0005
"""Shares that differ by less are told as the same: what is spelt to 0.1 % shows no more."""


def _what_size_changes(rows: pd.DataFrame, cells: Cells, unfilled: pd.Series[float] | None) -> str:
    """Say what smaller and larger blocks do, as far as the figures show it."""
    hits = rows["hit_rate"]
    smaller, larger = [], []
    if hits.is_monotonic_decreasing and hits.iloc[0] - hits.iloc[-1] >= _ALIKE:
        smaller.append("hit more")
    if unfilled is not None:
        waste = pd.Series([_unfilled_of(row, cells, unfilled) for _, row in rows.iterrows()])
        if waste.is_monotonic_increasing and waste.iloc[-1] - waste.iloc[0] >= _ALIKE:
            smaller.append("waste less memory in their last block")
    cost = rows["overhead_share"]
    if cost.is_monotonic_decreasing and cost.iloc[0] - cost.iloc[-1] >= _ALIKE / 10:
        larger.append("cost less to manage")
    said = [
        f"{name} {listed(what)}"
        for name, what in (("smaller blocks", smaller), ("larger ones", larger))
        if what
    ]
    if hits.max() - hits.min() < _ALIKE:
        said.insert(0, "all hit the same")
    text = "; ".join(said).replace("larger ones", "larger ones" if smaller else "larger blocks")
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _not_compared(choice: Choice, noun: str, nouns: str) -> str:
    """Say what is left out, for it serves fewer requests; empty where nothing is."""
    count = len(choice.left_out)
    if not count:
        return ""
    one = count == 1
    return (
        f" {count} other {noun if one else nouns} {'turns' if one else 'turn'} more requests "
        f"away, as larger than the cache; {'it serves' if one else 'they serve'} an easier "
        f"workload and {'is' if one else 'are'} not compared."
    )


def _of_size(row: pd.Series, cells: Cells, unfilled: pd.Series[float] | None) -> str:
    said = (
        f"{row['block_size']}: TTFT {milliseconds(row['ttft_ms_mean'])}, hit rate "
        f"{percent(row['hit_rate'])}, management "
        f"{percent(row['overhead_share'], 2)}"
    )
    if unfilled is None:
        return said
    share = _unfilled_of(row, cells, unfilled)
    return said if math.isnan(share) else f"{said}, unfilled slots {percent(share)}"


def _unfilled_of(row: pd.Series, cells: Cells, unfilled: pd.Series[float]) -> float:
    """Average the share of unfilled slots over the runs of a row."""
    runs = cells.runs
    same = (runs[["policy", "block_size", "kv_capacity_tokens"]] == [
        row["policy"], row["block_size"], row["kv_capacity_tokens"]
    ]).all(axis=1)  # fmt: skip
    return float(unfilled.reindex(runs.loc[same, "run_id"]).mean())


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
        f"It is the smallest of the {len(rows)} capacities compared whose hit rate is within "
        f"{points(HIT_RATE_WITHIN)} of the best of them ({percent(row['hit_rate'])}; "
        f"{percent(run)}) and whose mean TTFT is within {percent(CAPACITY_TTFT_WITHIN, 0)} "
        "of the best. "
    )
    if row["num_rejected"] > 0:
        text += (
            f"All of them turn {counted(round(row['num_rejected']), 'request')} away; what larger "
            "ones, which serve these too, would hit is not known: run them too."
        )
    elif gap > HIT_RATE_WITHIN:
        text += (
            f"The best of them still lies {points(gap)} below a cache that never evicts, so "
            "larger ones may pay: run them too."
        )
    else:
        text += "More gains nearly nothing: the best of them lies at the ceiling."
    said = [
        f"{tokens(each['kv_capacity_tokens'])} {percent(each['hit_rate'])}, "
        f"{milliseconds(each['ttft_ms_mean'])}"
        for each in rows.to_dict("records")
    ]
    text += _not_compared(choice, "capacity", "capacities")
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
