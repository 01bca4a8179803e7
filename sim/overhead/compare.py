"""Our own times beside those that were measured of vLLM's code, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from sim.overhead.build import read_recorded, recorded_profile
from sim.overhead.table import CELL

TIMES = {"request": "allocate_us_p50", "append": "append_us_mean", "free": "free_us_p50"}
"""Figure of each operation that is compared. Of an append the mean, since the median misses the
one token in a block that takes a new one."""

_MANY_TIMES = math.sqrt(10)
"""Closer to another power of ten than to one."""

_HALF_AS_LARGE_AGAIN = 1.5

# As read in the sources of the released packages 0.6.4.post1 and 0.8.5.post1.
_V0 = {
    "request": "for every block that is not cached vLLM's V0 sets up a Block object with its "
    "tokens to look it up, hands it back, and sets up another to fill it, each around a second "
    "object, and hashes the tokens each time; ours hashes once and moves numbers",
    "append": "vLLM's V0 counts the blocks that a token touches, cuts the new tokens by blocks and "
    "appends them to a Block object through several properties and calls; ours divides",
    "free": "vLLM's V0 hands each Block object, one by one, through three allocators and back to a "
    "pool of objects; ours counts references in one list",
}
_V1_OFF = {
    "request": "with caching off, vLLM's V1 still unlinks Block objects from its linked queue and "
    "counts references, by several calls per block; ours takes numbers from a list",
    "append": "for each token, vLLM's V1 looks for blocks outside a sliding window, counts those a "
    "request needs and asks the pool for its free blocks; ours does one division",
    "free": "with caching off, vLLM's V1 still counts down and links every Block object, by calls "
    "per block, and compares it with the null block field by field; ours gives all numbers back "
    "to a list in one call",
}
_REASONS = {"0.6.4 v0": _V0, "0.8.5 v0": _V0, "0.8.5 v1 off": _V1_OFF}
"""Why vLLM's own code takes several times as long, by release and operation."""
_RATIO_REASON = (
    "vLLM's V0 keeps an object for each block of a request and hashes its tokens with each; ours "
    "with such objects comes to about vLLM's ratio (examples/block_objects.py)"
)
_V1 = "0.8.5 v1"


def compare(own: pd.DataFrame, profiles: Mapping[str, str]) -> pd.DataFrame:
    """Put vLLM's time beside ours, for every policy and cell that both have.

    Parameters
    ----------
    own
        As `sim.overhead.table.wide` gives it.
    profiles
        Name of the overhead profile of what each policy models, as ``vllm-0.8.5-v1``. A policy
        that none was measured for is left out.

    Returns
    -------
    A row per policy, cell and operation: ``policy``, ``release``, the cell, ``operation``,
    ``own_us``, ``vllm_us`` and ``vllm_per_own``. Median times; of ``append`` the mean.
    """
    recorded = read_recorded()
    recorded["profile"] = recorded_profile(recorded)
    recorded["release"] = [
        f"{row.vllm_version} {row.engine}" + ("" if row.prefix_caching else " off")
        for row in recorded.itertuples()
    ]
    named = own.assign(profile=own["policy"].map(dict(profiles)))
    joined = named.merge(recorded, on=["profile", *CELL], suffixes=("_own", "_vllm"))
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
    A row per policy that models a V0 with caching, cell and operation: ``own_ratio`` and
    ``vllm_ratio``.
    """
    key = [*CELL, "operation"]
    times = comparison[["policy", "release", *key, "own_us", "vllm_us"]]
    v0 = times[times["release"].str.endswith(" v0")]
    v1 = times[times["release"] == _V1].drop(columns=["policy", "release"])
    both = v0.merge(v1, on=key, suffixes=("", "_v1"))
    both["own_ratio"] = both["own_us"] / both["own_us_v1"]
    both["vllm_ratio"] = both["vllm_us"] / both["vllm_us_v1"]
    return both[["policy", *key, "own_ratio", "vllm_ratio"]]


def explain(comparison: pd.DataFrame) -> list[str]:
    """Say why, wherever times or ratios differ much in the median cell.

    Of times where vLLM's is of another order of magnitude, of V0 by V1 where one ratio is half as
    large again as the other.
    """
    return _explain_times(comparison) + _explain_ratios(engine_ratios(comparison))


def _explain_ratios(ratios: pd.DataFrame) -> list[str]:
    sentences = []
    for (policy, operation), rows in ratios.groupby(["policy", "operation"], sort=False):
        own, vllm = float(rows["own_ratio"].median()), float(rows["vllm_ratio"].median())
        if max(own, vllm) < _HALF_AS_LARGE_AGAIN * min(own, vllm):
            continue
        reason = _RATIO_REASON if vllm > own else "for reasons not known: look at both"
        sentences.append(
            f"{operation} of {policy}: {own:.2g} times V1's in ours, {vllm:.2g} times in vLLM's; "
            f"{reason}."
        )
    return sentences


def _explain_times(comparison: pd.DataFrame) -> list[str]:
    sentences = []
    groups = comparison.groupby(["policy", "release", "operation"], sort=False)
    for (policy, release, operation), rows in groups:
        factor = float(rows["vllm_per_own"].median())
        if 1 / _MANY_TIMES <= factor <= _MANY_TIMES:
            continue
        reason = _REASONS.get(str(release), {}).get(str(operation)) if factor > 1 else None
        sentences.append(
            f"{operation} of {policy}: vLLM's takes {factor:.3g} times ours"
            + (f"; {reason}." if reason else ", for reasons not known: look at both.")
        )
    return sentences
