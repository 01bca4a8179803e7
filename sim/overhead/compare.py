"""Our own times beside those that were measured of vLLM's code, cell by cell."""

from __future__ import annotations

import math

import pandas as pd

from sim.overhead.build import read_table

RELEASES = {
    "none": ("0.8.5", "v1", False),
    "vllm_v0_scan": ("0.6.4", "v0", True),
    "vllm_v0": ("0.8.5", "v0", True),
    "vllm_v1": ("0.8.5", "v1", True),
    "vllm_v1_latest": ("0.33", "v1", True),
}
"""Release, engine and whether it caches, by the policy that models it."""

CELL = ["block_size_tokens", "prompt_tokens", "target_hit_rate"]
TIMES = {"request": "allocate_us_p50", "append": "append_us_mean", "free": "free_us_p50"}
"""Figure of each operation that is compared. Of an append the mean, since the median misses the
one token in a block that takes a new one."""

_MANY_TIMES = math.sqrt(10)
"""Closer to another power of ten than to one."""

_V0_REQUEST = (
    "vLLM's V0 builds a Block object with a list of its tokens for every block and hands it "
    "through several layers of allocators, ours moves numbers"
)
_V0_APPEND = (
    "vLLM's V0 takes the sequence's whole list of tokens for each new one, cuts it into blocks and "
    "appends to a Block object, ours is told how many tokens there are"
)
_V0_FREE = (
    "vLLM's V0 hands each Block object, one by one, through several layers of allocators, ours "
    "counts references in one list"
)
_REASONS = {
    ("none", "request"): "with caching off, vLLM's V1 still unlinks Block objects from its linked "
    "queue and counts references, by several calls per block; ours takes numbers from a list",
    ("none", "append"): "for each token, vLLM's V1 looks for blocks outside a sliding window, "
    "counts those a request needs and checks the pool; ours does one division",
    ("none", "free"): "with caching off, vLLM's V1 still counts down and links every Block object, "
    "by calls per block; ours gives all numbers back to a list in one call",
    ("vllm_v0", "request"): _V0_REQUEST,
    ("vllm_v0", "append"): _V0_APPEND,
    ("vllm_v0", "free"): _V0_FREE,
    ("vllm_v0_scan", "request"): _V0_REQUEST,
    ("vllm_v0_scan", "append"): _V0_APPEND,
    ("vllm_v0_scan", "free"): _V0_FREE,
}
"""Why vLLM's own code takes several times as long, where it is known to."""


def compare(own: pd.DataFrame) -> pd.DataFrame:
    """Put vLLM's time beside ours, for every policy and cell that both have.

    Parameters
    ----------
    own
        As `sim.overhead.measure.wide` gives it.

    Returns
    -------
    A row per policy, cell and operation: ``policy``, ``release``, the cell, ``operation``,
    ``own_us``, ``vllm_us`` and ``vllm_per_own``. Median times; of ``append`` the mean.
    """
    recorded = _recorded()
    joined = own.merge(recorded, on=["policy", *CELL], suffixes=("_own", "_vllm"))
    parts = []
    for operation, figure in TIMES.items():
        part = joined[["policy", "release", *CELL]].copy()
        part["operation"] = operation
        part["own_us"] = joined[f"{figure}_own"]
        part["vllm_us"] = joined[f"{figure}_vllm"]
        part["vllm_per_own"] = part["vllm_us"] / part["own_us"]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def engine_ratios(comparison: pd.DataFrame) -> pd.DataFrame:
    """Divide the times of both V0s by those of 0.8.5's V1: ours, and vLLM's.

    Returns
    -------
    A row per V0 policy, cell and operation: ``own_ratio`` and ``vllm_ratio``.
    """
    key = [*CELL, "operation"]
    times = comparison[["policy", *key, "own_us", "vllm_us"]]
    v0 = times[times["policy"].isin(["vllm_v0", "vllm_v0_scan"])]
    v1 = times[times["policy"] == "vllm_v1"].drop(columns="policy")
    both = v0.merge(v1, on=key, suffixes=("", "_v1"))
    both["own_ratio"] = both["own_us"] / both["own_us_v1"]
    both["vllm_ratio"] = both["vllm_us"] / both["vllm_us_v1"]
    return both[["policy", *key, "own_ratio", "vllm_ratio"]]


def explain(comparison: pd.DataFrame) -> list[str]:
    """Say why, wherever the median cell's times are of another order of magnitude."""
    sentences = []
    for (policy, operation), rows in comparison.groupby(["policy", "operation"], sort=False):
        factor = float(rows["vllm_per_own"].median())
        if 1 / _MANY_TIMES <= factor <= _MANY_TIMES:
            continue
        reason = _REASONS.get((str(policy), str(operation))) if factor > 1 else None
        sentences.append(
            f"{operation} of {policy}: vLLM's takes {factor:.3g} times ours"
            + (f"; {reason}." if reason else ", for reasons not known: look at both.")
        )
    return sentences


def _recorded() -> pd.DataFrame:
    table = read_table()
    parts = []
    for policy, (release, engine, caching) in RELEASES.items():
        part = table[
            (table["vllm_version"] == release)
            & (table["engine"] == engine)
            & (table["prefix_caching"] == int(caching))
        ]
        off = "" if caching else " off"
        parts.append(part.assign(policy=policy, release=f"{release} {engine}{off}"))
    return pd.concat(parts, ignore_index=True)[["policy", "release", *CELL, *TIMES.values()]]
