"""Fits an overhead profile to measured times of a block manager."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from sim.overhead.profile import OverheadProfile

Floats = NDArray[np.float64]

POOL_PROMPTS = 12
"""The recorded pools hold so many prompts."""
NUM_WARM_UP = 10
"""Requests before timing begins. The record does not tell; among 5, 8, 10, 12 and 15 this is the
smallest from which the scan of vLLM 0.6.4 fits."""
NUM_DECODED_TOKENS = 32
"""Tokens that a recorded request decodes at most: two blocks, or this for larger blocks."""


@dataclass(frozen=True, slots=True)
class FitResiduals:
    """Relative errors of one operation of a profile, ``|model / measured - 1|``."""

    operation: str
    num_points: int
    median: float
    p90: float
    worst: float
    worst_at: dict[str, float]


def fit_profile(
    table: pd.DataFrame, *, evicts: bool, scans: bool
) -> tuple[OverheadProfile, list[FitResiduals]]:
    """Fit by non-negative least squares with relative weights.

    Parameters
    ----------
    table
        A row per cell: ``block_size_tokens``, ``prompt_tokens``, ``measured_hit_rate`` (NaN where
        caching is off), ``requests_timed`` (over two passes), ``allocate_us_p50``,
        ``append_us_mean``, ``free_us_p50``. With ``evicted_blocks`` and ``scanned_entries`` (per
        request) where those were counted; otherwise they are inferred: a median request evicts
        once the requests before it have filled the pool, and a scan then looks at half of the
        blocks that a request released at one time.
    evicts
        Whether the block manager evicts; with caching off it does not.
    scans
        Whether it finds its victims by scanning a table.

    Returns
    -------
    profile, residuals
        Residuals of ``allocate``, ``append`` and ``free``, in this order. The append time is a
        mean, since the median misses the one token in a block that takes a new one; it includes
        the garbage collector, the others do not.
    """
    work = _work(table)
    terms = {
        "allocate_us_p50": (
            "request", "hashed_token", "block_hit", "new_block", "new_token", "evicted_block",
            "scanned_entry",
        ),
        "append_us_mean": ("append", "append_block", "table_block"),
        "free_us_p50": ("request_freed", "block_freed", "token_freed", "hit_block_freed"),
    }  # fmt: skip
    absent = {"evicted_block": not evicts, "scanned_entry": not (evicts and scans)}
    coefficients: dict[str, float] = {}
    residuals = []
    for column, all_names in terms.items():
        measured_ns = table[column].to_numpy(dtype=float) * 1e3
        names = [name for name in all_names if not absent.get(name, False)]
        matrix = np.column_stack([work[name] for name in names])
        solution, _ = nnls(matrix / measured_ns[:, None], np.ones(len(table)))
        coefficients |= {
            f"ns_per_{name}": round(float(value), 3)
            for name, value in zip(names, solution, strict=True)
        }
        errors = np.abs(matrix @ solution / measured_ns - 1)
        residuals.append(_residuals(column.partition("_us")[0], errors, table))
    return OverheadProfile(**coefficients), residuals


def fit_refusals(hit_blocks: Floats, times_ns: Floats) -> dict[str, float]:
    """Fit what an admission costs that finds no room, by the blocks that it would hit.

    Returns
    -------
    ``ns_per_refusal`` and ``ns_per_refused_hit``, by non-negative least squares with relative
    weights.
    """
    # A lookup without caching may be too short to time.
    times_ns = np.maximum(times_ns, 1.0)
    matrix = np.column_stack([np.ones(len(hit_blocks)), hit_blocks])
    solution, _ = nnls(matrix / times_ns[:, None], np.ones(len(times_ns)))
    names = ("ns_per_refusal", "ns_per_refused_hit")
    return {name: round(float(v), 3) for name, v in zip(names, solution, strict=True)}


def _work(table: pd.DataFrame) -> dict[str, Floats]:
    """Work that each operation of each cell did, by the names of the coefficients."""
    prompt = table["prompt_tokens"].to_numpy(dtype=float)
    block = table["block_size_tokens"].to_numpy(dtype=float)
    hit_rate = table["measured_hit_rate"].fillna(0).to_numpy(dtype=float)
    ones = np.ones(len(table))
    hit = np.round(hit_rate * prompt / block)
    new = prompt / block - hit
    decoded = np.minimum(2 * block, NUM_DECODED_TOKENS)
    if "evicted_blocks" in table:
        evicted = table["evicted_blocks"].to_numpy(dtype=float)
        scanned = table["scanned_entries"].to_numpy(dtype=float)
    else:
        # Half of the timed requests are of one pass; its median stands in the middle of those.
        position = NUM_WARM_UP + table["requests_timed"].to_numpy(dtype=float) / 4
        evicts = POOL_PROMPTS / np.maximum(1 - hit_rate, 1e-9) < position
        evicted = np.where(evicts, new, 0.0)
        scanned = evicted * new / 2
    return {
        "request": ones,
        "hashed_token": prompt,
        "block_hit": hit,
        "new_block": new,
        "new_token": new * block,
        "evicted_block": evicted,
        "scanned_entry": scanned,
        "append": ones,
        "append_block": 1 / block,
        "table_block": prompt / block + decoded / block / 2,
        "request_freed": ones,
        "block_freed": new + decoded / block,
        "token_freed": new * block + decoded,
        "hit_block_freed": hit,
    }


def _residuals(operation: str, errors: Floats, table: pd.DataFrame) -> FitResiduals:
    worst = int(np.argmax(errors))
    cell = ("block_size_tokens", "prompt_tokens", "target_hit_rate")
    return FitResiduals(
        operation=operation,
        num_points=len(errors),
        median=round(float(np.median(errors)), 4),
        p90=round(float(np.quantile(errors, 0.9)), 4),
        worst=round(float(errors[worst]), 4),
        worst_at={name: float(table[name].iloc[worst]) for name in cell if name in table},
    )
