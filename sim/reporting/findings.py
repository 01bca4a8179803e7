"""Plain sentences on the runs of one situation, each with the figures that it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from sim.breakeven import FLOOR
from sim.errors import UsageError
from sim.plots.series import setting
from sim.presets import load_preset
from sim.reporting.advice import Choice, choose_block_size, choose_capacity, served_alike
from sim.reporting.cells import Cells
from sim.reporting.content import Finding, Situation
from sim.reporting.doubts import doubts_of
from sim.reporting.recommended import CurveFacts, block_size_findings, capacity_findings
from sim.reporting.tiles import tiles_of
from sim.reporting.words import (
    change,
    listed,
    milliseconds,
    number,
    percent,
    points,
    tokens,
    where_of,
)
from sim.reporting.zero import BreakEvens, finding_of_zero


def situation_of(
    cells: Cells,
    unfilled: pd.Series[float] | None = None,
    curve: CurveFacts | None = None,
    full: pd.DataFrame | None = None,
    zero: BreakEvens | None = None,
) -> Situation:
    """Say what the runs of one situation show.

    Parameters
    ----------
    cells
        The runs.
    unfilled
        Share of unfilled slots by run id; None where it is not known.
    curve
        The curve of every capacity, if there is one.
    full
        Row of a run of the main policy with all requests there at once, as in `Cells.table`.
    zero
        What caching costs where nothing hits.
    """
    size = choose_block_size(cells)
    block_size = None if size.row is None else int(size.row["block_size"])
    capacity = choose_capacity(cells, block_size)
    row = _row_to_tell(cells, size, capacity)
    gib = _gib_per_token(cells.cost)
    findings: list[Finding] = []
    if row is not None:
        findings += _hits(row, cells)
        findings += _buys(row, full)
        findings += _costs(row, cells, zero)
        findings += _others(row, cells)
    findings += block_size_findings(size, cells, unfilled)
    findings += capacity_findings(capacity, gib, curve)
    if row is not None:
        findings += doubts_of(row, cells)
    tiles = tiles_of(row, size, capacity, gib)
    return Situation(setting(cells.runs), tuple(tiles), tuple(findings))


def _row_to_tell(cells: Cells, size: Choice, capacity: Choice) -> pd.Series | None:
    """Pick the run that the sentences are about: the recommended one, as far as there is one."""
    if capacity.row is not None:
        return capacity.row
    if size.row is not None:
        return size.row
    rows = capacity.rows if len(capacity.left_out) else size.rows
    rows = rows if len(rows) else cells.table
    # Of what turns the fewest requests away, the first.
    return served_alike(rows)[0].iloc[0]


def _gib_per_token(cost: str) -> float:
    """Find how large the KV of a token is, where a preset's name says the model; else NaN."""
    model, _, gpu = cost.partition("/")
    try:
        return load_preset(model, gpu).model.kv_bytes_per_token / 2**30
    except UsageError:
        return math.nan


def _hits(row: pd.Series, cells: Cells) -> Iterator[Finding]:
    if row["policy"] == FLOOR:
        yield Finding(
            "Hit rate",
            "Nothing hits, for caching is off in all of these runs; run a policy that caches, such "
            "as --policy none,vllm_v1.",
            tone="unknown",
        )
    elif row["num_finished"] == 0:
        yield Finding(
            "Hit rate",
            "No request finished: all are larger than the KV cache. Raise --kv-capacity.",
            f"num_rejected {number(row['num_rejected'])} of {number(row['num_requests'])}",
            "unknown",
        )
    elif math.isnan(row["hit_rate"]):
        yield Finding(
            "Hit rate",
            f"No hit rate is available: {cells.workload} has lengths but says nothing about shared "
            "prefixes. That is not a hit rate of 0; a trace with hash ids, tokens or text would "
            "tell it.",
            tone="unknown",
        )
    else:
        gap = row["infinite_hit_rate"] - row["hit_rate"]
        beside = (
            "as much as a cache that never evicts"
            if gap < 0.0005
            else f"{points(gap)} below the {percent(row['infinite_hit_rate'])} of a cache that "
            "never evicts"
        )
        yield Finding(
            "Hit rate",
            f"With {row['label']}, blocks of {row['block_size']} and a KV cache of "
            f"{tokens(row['kv_capacity_tokens'])}, "
            f"{percent(row['hit_rate'])} of the prompt tokens are found in the cache and not "
            f"computed again ({beside}); {percent(row['share_requests_hit'], 0)} of the requests "
            "hit something.",
            f"{where_of(row)}: hit_rate {row['hit_rate']:.4f}, infinite_hit_rate "
            f"{row['infinite_hit_rate']:.4f}",
        )


def _buys(row: pd.Series, full: pd.DataFrame | None) -> Iterator[Finding]:
    if row["policy"] == FLOOR or math.isnan(row["ttft_ms_mean"]):
        return
    if math.isnan(row["none_ttft_ms_mean"]):
        yield Finding(
            "What it buys",
            f"The mean time to first token is {milliseconds(row['ttft_ms_mean'])} (99th percentile "
            f"{milliseconds(row['ttft_ms_p99'])}). What caching buys cannot be said: these runs "
            "have none without caching at this setting; run the same with --policy none too.",
            f"{where_of(row)}: ttft_ms_mean {row['ttft_ms_mean']:.2f}",
            "unknown",
        )
        return
    yield Finding(
        "What it buys: latency",
        f"The first token comes after {milliseconds(row['ttft_ms_mean'])} on average instead of "
        f"{milliseconds(row['none_ttft_ms_mean'])} without caching: "
        f"{change(row['ttft_ms_mean'], row['none_ttft_ms_mean'])}. One request in a hundred waits "
        f"longer than {milliseconds(row['ttft_ms_p99'])}; without caching, longer than "
        f"{milliseconds(row['none_ttft_ms_p99'])}.",
        f"{where_of(row)}: ttft_ms_mean {row['ttft_ms_mean']:.2f} against "
        f"{row['none_ttft_ms_mean']:.2f} of none, ttft_ms_p99 {row['ttft_ms_p99']:.2f} against "
        f"{row['none_ttft_ms_p99']:.2f}",
    )
    yield from _throughput(row, full)


def _throughput(row: pd.Series, full: pd.DataFrame | None) -> Iterator[Finding]:
    mine, floor = row["total_throughput"], row["none_total_throughput"]
    figures = f"total_throughput {mine:,.0f} tokens/s against {floor:,.0f} of none"
    topic = "What it buys: throughput"
    if full is None and row["bound_by_arrivals"] >= 0.5 and row["none_bound_by_arrivals"] >= 0.5:
        yield Finding(
            topic,
            f"Throughput is that of the arrivals, {number(mine)} tokens/s, with caching and "
            "without: what more could be served cannot be said at this load; runs with a higher "
            "--rate-scale or --rate tell it.",
            figures,
            "unknown",
        )
    elif full is None:
        yield Finding(
            topic,
            f"Throughput is {number(mine)} tokens/s with caching and {number(floor)} without: "
            f"{change(mine, floor)}.",
            figures,
        )
    else:
        for one in full.to_dict("records"):
            mine, floor = one["total_throughput"], one["none_total_throughput"]
            yield Finding(
                topic,
                f"With all requests there at once, the engine serves {number(mine)} tokens/s with "
                f"caching and {number(floor)} without: {change(mine, floor)}. As they arrive, it "
                f"serves {number(row['total_throughput'])} tokens/s with and "
                f"{number(row['none_total_throughput'])} without.",
                f"{where_of(pd.Series(one))}, all at once: total_throughput {mine:,.0f} tokens/s "
                f"against {floor:,.0f} of none",
            )


def _costs(row: pd.Series, cells: Cells, zero: BreakEvens | None) -> Iterator[Finding]:
    if row["policy"] == FLOOR or not row["num_finished"]:
        return
    each = 1000 * row["overhead_s"] / row["num_finished"]
    text = (
        f"Managing the cache takes {percent(row['overhead_share'], 2)} of the engine's time, "
        f"{milliseconds(each)} of CPU time for each request"
    )
    if not math.isnan(row["none_overhead_share"]):
        text += f"; without caching, managing blocks takes {percent(row['none_overhead_share'], 2)}"
    figures = f"{where_of(row)}: overhead_s {row['overhead_s']:.3f}, overhead_share "
    figures += f"{row['overhead_share']:.5f}, profile {row['overhead']}"
    if row["overhead"] in ("none", ""):
        yield Finding(
            "What it costs",
            "The time of cache management is not counted in these runs (--overhead none), so what "
            "caching costs cannot be said.",
            figures,
            "unknown",
        )
        return
    yield Finding("What it costs", text + ". All times above include it.", figures)
    if zero is not None:
        yield finding_of_zero(row, cells, zero)


def _others(row: pd.Series, cells: Cells) -> Iterator[Finding]:
    rows = cells.caching.dropna(subset=["ttft_ms_mean"])
    rows = rows[rows["block_size"] == row["block_size"]]
    capacity = rows["kv_capacity_tokens"]
    # Where most policies were run; of several such capacities the nearest.
    counts = rows.groupby("kv_capacity_tokens")["label"].transform("nunique")
    distance = (capacity - row["kv_capacity_tokens"]).abs()
    best = distance[counts == counts.max()].min()
    rows = rows[(counts == counts.max()) & (distance == best)].drop_duplicates("label")
    rows, left_out = served_alike(rows)
    if len(rows) < 2:
        return
    at = int(rows["kv_capacity_tokens"].iloc[0])
    fastest = rows.sort_values("ttft_ms_mean").iloc[0]
    text = (
        f"Of the {len(rows)} policies that cache and were run with blocks of {row['block_size']} "
        f"and {tokens(at)}, {fastest['label']} has the lowest mean TTFT "
        f"({milliseconds(fastest['ttft_ms_mean'])})"
    )
    if rows["hit_rate"].notna().any():
        most = rows.sort_values("hit_rate").iloc[-1]
        spread = rows["hit_rate"].max() - rows["hit_rate"].min()
        if spread < 0.0005:
            text += "; all hit the same"
        elif most["label"] == fastest["label"]:
            text += f" and the highest hit rate ({percent(most['hit_rate'])})"
        else:
            text += f"; {most['label']} has the highest hit rate ({percent(most['hit_rate'])})"
    floor = fastest["none_ttft_ms_mean"]
    if floor < fastest["ttft_ms_mean"]:
        text += f"; without caching it is lower still ({milliseconds(floor)})"
    text += "."
    if len(left_out):
        text += f" {listed(list(left_out['label']))} turned more requests away: not compared."
    said = [f"{r['label']} {r['ttft_ms_mean']:.2f} ms" for r in rows.to_dict("records")]
    if floor < fastest["ttft_ms_mean"]:
        said.append(f"none {floor:.2f} ms")
    yield Finding("Policies", text, f"ttft_ms_mean: {listed(said)}")
