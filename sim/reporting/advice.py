"""Which block size and which capacity a report recommends, and by what rule.

The rules are told in docs/report.md; their limits stand here, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from sim.plots.series import at_capacity
from sim.reporting.cells import Cells

TTFT_WITHIN = 0.02
"""A block size is as good as the best if its mean TTFT is at most this share above that one's."""
THROUGHPUT_WITHIN = 0.02
"""The same of its throughput, below."""
HIT_RATE_WITHIN = 0.01
"""A capacity is as good as the best if its hit rate is at most so far below, as a share of 1."""
CAPACITY_TTFT_WITHIN = 0.05
"""The same of its mean TTFT, as a share of the best."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A recommendation, or why there is none.

    Attributes
    ----------
    row
        The recommended row of `Cells.table`; None without a recommendation.
    rows
        What it was chosen from, in order of what is recommended.
    missing
        Why there is no recommendation, and what to run to get one.
    left_out
        Rows that turn more requests away than those of ``rows`` do, and so serve an easier
        workload: they are not compared.
    """

    row: pd.Series | None
    rows: pd.DataFrame
    missing: str = ""
    left_out: pd.DataFrame = field(default_factory=pd.DataFrame)


def served_alike(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Part rows that turn the fewest requests away from the others, which serve fewer."""
    fewest = rows["num_rejected"] == rows["num_rejected"].min()
    return rows[fewest], rows[~fewest]


def _only_one(kept: pd.DataFrame, left_out: pd.DataFrame, what: str, one: str, then: str) -> Choice:
    """Say that there is nothing to compare with, for all but one row serve fewer requests."""
    num_rejected = round(kept["num_rejected"].iloc[0])
    mine = "serves all requests" if not num_rejected else "turns the fewest requests away"
    others = "the other turns" if len(left_out) == 1 else "the others turn"
    return Choice(
        None,
        kept,
        f"of the {len(kept) + len(left_out)} {what} that were run only one, {one}, {mine}, and "
        f"{others} more of them away, as larger than the cache, so that they are not compared; "
        f"{then}",
        left_out,
    )


def choose_block_size(cells: Cells) -> Choice:
    """Choose the smallest block size whose TTFT and throughput are as good as the best.

    The runs of the main policy at one capacity are looked at: that with the most block sizes.
    """
    mine = cells.of_main_policy()
    if mine.empty:
        return Choice(None, mine, "the only policy that was run is none, which caches nothing")
    rows, _ = at_capacity(_with_settings(mine, cells))
    rows = rows.sort_values("block_size").drop_duplicates("block_size")
    known = rows[rows["ttft_ms_mean"].notna()]
    if rows["block_size"].nunique() < 2:
        size = int(rows["block_size"].iloc[0])
        return Choice(
            None,
            rows,
            f"at this capacity only one block size, {size} tokens, was run; run more with "
            "--block-size 16,32,64",
        )
    if known.empty:
        return Choice(None, rows, "no request finished; raise --kv-capacity so that they fit")
    if known["hit_rate"].isna().all():
        return Choice(
            None,
            rows,
            "the workload has no prefix information, so what a block size changes in hits is not "
            "known",
        )
    known, _ = served_alike(known)
    left_out = rows[~rows["block_size"].isin(known["block_size"])]
    if len(known) < 2:
        return _only_one(
            known,
            left_out,
            "block sizes",
            f"{int(known['block_size'].iloc[0])} tokens",
            "raise --kv-capacity",
        )
    fast = known["ttft_ms_mean"] <= (1 + TTFT_WITHIN) * known["ttft_ms_mean"].min()
    throughput = known["total_throughput"]
    busy = throughput >= (1 - THROUGHPUT_WITHIN) * throughput.max()
    good = known[fast & busy] if (fast & busy).any() else known[fast]
    return Choice(good.iloc[0], known, left_out=left_out)


def choose_capacity(cells: Cells, block_size: int | None) -> Choice:
    """Choose the smallest capacity whose hit rate and TTFT are as good as the best that was run.

    Parameters
    ----------
    cells
        The runs.
    block_size
        At which to look; None for that with the most capacities, of several the smallest.
    """
    mine = cells.of_main_policy()
    if mine.empty:
        return Choice(None, mine, "the only policy that was run is none, which caches nothing")
    counts = mine.groupby("block_size")["kv_capacity_tokens"].nunique()
    if block_size is None or counts.get(block_size, 0) < 2:
        block_size = int(
            mine.loc[mine["block_size"].map(counts) == counts.max(), "block_size"].min()
        )
    rows = mine[mine["block_size"] == block_size].sort_values("kv_capacity_tokens")
    if len(rows) < 2:
        return Choice(
            None,
            rows,
            "only one KV capacity was run; run more with --kv-capacity 5%,10%,20%,40%, or let "
            "'prefixsim curve' give all of them",
        )
    if not (rows["num_finished"] > 0).any():
        return Choice(None, rows, "no request finished; raise --kv-capacity so that they fit")
    known = rows[rows["hit_rate"].notna() & rows["ttft_ms_mean"].notna()]
    if known.empty:
        return Choice(
            None,
            rows,
            "no hit rate is known of these runs, and without it no capacity can be chosen",
        )
    served, _ = served_alike(known)
    left_out = rows[~rows["kv_capacity_tokens"].isin(served["kv_capacity_tokens"])]
    if len(served) < 2:
        return _only_one(
            served,
            left_out,
            "KV capacities",
            f"{served['kv_capacity_tokens'].iloc[0]:,.0f} tokens",
            "run more that are at least as large",
        )
    hits = served["hit_rate"] >= served["hit_rate"].max() - HIT_RATE_WITHIN
    best = served["ttft_ms_mean"].min()
    good = served[hits & (served["ttft_ms_mean"] <= (1 + CAPACITY_TTFT_WITHIN) * best)]
    # The largest has the best of both, but for policies that hit less with more.
    return Choice((good if len(good) else served.tail(1)).iloc[0], served, left_out=left_out)


def _with_settings(rows: pd.DataFrame, cells: Cells) -> pd.DataFrame:
    """Give rows the settings that all of them share, by which `at_capacity` groups."""
    missing = [name for name in cells.runs.columns if name not in rows]
    return rows.assign(**{name: cells.runs[name].iloc[0] for name in missing})
