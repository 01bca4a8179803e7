"""Runs sorted for a report: by situation, then one row per policy, block size and capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from sim.breakeven import FLOOR, SETTINGS, relative_throughput
from sim.plots.runs import DIALS
from sim.plots.series import run_labels

POLICY = ["policy", "policy_args", "overhead"]
"""Columns that tell policies apart."""

_CELL = [*POLICY, "block_size", "kv_capacity_tokens"]
_SITUATION = [name for name in DIALS if name not in POLICY]
_OF_FLOOR = (
    "ttft_ms_mean",
    "ttft_ms_p99",
    "tpot_ms_mean",
    "total_throughput",
    "gpu_s",
    "overhead_s",
    "overhead_share",
    "makespan_s",
    "queue_ms_mean",
    "num_preemptions",
    "num_rejected",
)
SOON = 0.1
"""A run that ends no later after its last arrival than this share of the time before is bound by
arrivals: its throughput is theirs."""
_TIERS = [
    f"{tier}_{what}"
    for tier in ("host", "ssd")
    for what in ("capacity_tokens", "bandwidth", "latency")
] + ["tier_write"]
"""Columns of what lies below the GPU, which changes nothing where nothing is cached."""
_PREFERRED = ("vllm_v1", "vllm_v1_latest", "sglang_radix", "vllm_v0")
"""The policy that sentences are about, where there are several: the first of these."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The runs of one situation.

    Attributes
    ----------
    runs
        Rows of the summary table.
    table
        A row per policy, block size and capacity: means over seeds, their number ``num_seeds``, a
        ``label``, and the same figures of the baseline without caching as ``none_...``, NaN where
        there is none.
    seeds_left_out
        Seeds that some of the cells were not run with; none of their runs is above.
    has_common_seeds
        Whether all cells were run with the same seeds, but for those left out.
    """

    runs: pd.DataFrame
    table: pd.DataFrame
    seeds_left_out: tuple[int, ...] = ()
    has_common_seeds: bool = True

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return str(self.runs["workload"].iloc[0])

    @property
    def cost(self) -> str:
        """What priced the steps."""
        return str(self.runs["cost"].iloc[0])

    @property
    def caching(self) -> pd.DataFrame:
        """The rows of policies that cache."""
        return self.table[self.table["policy"] != FLOOR]

    def of_main_policy(self) -> pd.DataFrame:
        """Pick the policy that the sentences are about; its rows, none where nothing caches."""
        rows = self.caching
        if rows.empty:
            return rows
        there = list(dict.fromkeys(rows["policy"]))
        policy = next((name for name in _PREFERRED if name in there), sorted(there)[0])
        mine = rows[rows["policy"] == policy]
        sizes = mine.groupby(POLICY, sort=True)["block_size"].transform("size")
        most = mine[sizes == sizes.max()].sort_values(POLICY)
        first = most.iloc[0]
        chosen: pd.DataFrame = mine[(mine[POLICY] == first[POLICY]).all(axis=1)]
        return chosen


def situations(frame: pd.DataFrame, requests: pd.DataFrame) -> Iterator[Cells]:
    """Sort runs by everything but policy, block size, capacity and seed.

    Those with the most runs of policies that cache come first. Runs without caching belong to
    every situation that differs from theirs in tiers alone.

    Parameters
    ----------
    frame
        Rows of the summary table, files told apart (`sim.plots.runs.told_apart`).
    requests
        Rows of the table of requests.
    """
    spread = with_baselines(frame)
    groups = [rows for _, rows in spread.groupby(_SITUATION, dropna=False, sort=True)]

    def most(rows: pd.DataFrame) -> tuple[int, int]:
        return int((rows["policy"] != FLOOR).sum()), len(rows)

    for rows in sorted(groups, key=most, reverse=True):
        common, every = _common_seeds(rows)
        kept = rows[rows["seed"].isin(common)] if common else rows
        left_out = tuple(sorted(every - common)) if common else ()
        same = bool(common) or len(rows) == 0
        yield Cells(kept, _table(kept, requests), left_out, same)


def with_baselines(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every setting of tiers that a caching policy was run with the runs of `none` too.

    What is not cached is lost to no tier, so that a run of `none` is the baseline whatever tiers
    there are. Its row is repeated for each, with their columns; rows that no caching run shares
    the other settings with stay as they are, those that differ in tiers alone once.
    """
    is_floor = frame["policy"] == FLOOR
    caching, floors = frame[~is_floor], frame[is_floor]
    if caching.empty or floors.empty:
        return frame
    own = [name for name in _SITUATION if name not in _TIERS]
    told = [*own, *_CELL, "seed"]
    once = floors.sort_values([*_TIERS, "run_id"]).drop_duplicates(told)
    tiers = caching[[*own, *_TIERS]].drop_duplicates()
    columns = list(frame.columns)
    repeated = once.drop(columns=_TIERS).merge(tiers, on=own)[columns]
    alone = once[~once["run_id"].isin(repeated["run_id"])]
    return pd.concat([caching, repeated, alone], ignore_index=True)


def _common_seeds(rows: pd.DataFrame) -> tuple[set[int], set[int]]:
    """Find the seeds that every cell was run with, and those that any was."""
    seeds = [set(group) for _, group in rows.groupby(_CELL, dropna=False)["seed"]]
    return set.intersection(*seeds), set.union(*seeds)


def _table(rows: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """Average over seeds, and set the figures of the baseline beside each row.

    Where some seeds of a cell have a baseline, both sides are averaged over these alone.
    """
    labels = run_labels(rows.assign(block_size=0, kv_capacity_tokens=0, seed=0))
    frame = rows.assign(
        label=rows["run_id"].map(labels),
        bound_by_arrivals=bound_by_arrivals(rows, requests),
    )
    floors = frame[frame["policy"] == FLOOR]
    columns = [*_OF_FLOOR, "bound_by_arrivals"]
    keys = [*SETTINGS, "overhead"]
    means = floors.groupby(keys, dropna=False)[columns].mean()
    means.columns = pd.Index([f"none_{name}" for name in columns])
    relative = relative_throughput(frame)
    baseline = relative["baseline"].reindex(frame.index).fillna("")
    paired = frame.assign(baseline=baseline).merge(
        means.reset_index().rename(columns={"overhead": "baseline"}),
        how="left",
        on=[*SETTINGS, "baseline"],
    )
    has_baseline = paired["none_makespan_s"].notna()
    cell = [paired[name] for name in _CELL]
    some = has_baseline.groupby(cell, dropna=False).transform("any")
    paired = paired[has_baseline | ~some]
    numbers = [
        name for name in paired.select_dtypes(["number", "bool"]) if name not in (*_CELL, "seed")
    ]
    grouped = paired.groupby([*_CELL, "label"], dropna=False, sort=True)
    table = grouped[numbers].mean()
    table["num_seeds"] = grouped["seed"].nunique()
    return table.reset_index()


def bound_by_arrivals(rows: pd.DataFrame, requests: pd.DataFrame) -> pd.Series[float]:
    """Tell the runs that end soon after their last request comes: 1 or 0.

    In a closed loop requests come as fast as they are served, and nothing is bound by them.
    """
    last = requests.groupby("run_id")["arrival_s"].max()
    soon = rows["makespan_s"] <= (1 + SOON) * rows["run_id"].map(last)
    closed = rows["arrival"].str.contains("closed loop")
    return (soon & ~closed).astype("float64")
