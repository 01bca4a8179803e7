"""Curves of a workload, and the rows of their table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sim.capacity import num_usable_blocks
from sim.curve import (
    Curve,
    Paths,
    Pool,
    Release,
    Sample,
    find_paths,
    measure_curve,
    measure_pool,
    most_hits,
    references_of,
    stored_references_of,
)
from sim.errors import UsageError
from sim.mapped import Column, pieces
from sim.presets import Preset
from sim.results import make_frame
from sim.types import Content
from workloads import Workload
from workloads.content import Ints, prefix_names

RELEASES = {"vllm_v1": Release(), "vllm_v1_latest": Release(unfilled_first=True)}
"""Policies whose order is a stack order, one request at a time: how blocks come back in each."""
STORE = "store"

_SHARES_OF_CEILING = (0.5, 0.9, 0.95, 0.99)
_SHARES_OF_WORKING_SET = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_REQUESTS_AT_A_TIME = 1000
_NUM_BELADY = 24


@dataclass(frozen=True)
class Asked:
    """What curves are asked for, once for all policies and block sizes."""

    workload: Workload
    policies: tuple[str, ...]
    block_sizes: tuple[int, ...]
    reuse: str
    head_first: bool
    stride: int
    seed: int
    every_small_pool: bool
    capacities: tuple[str, ...]
    preset: Preset


@dataclass(frozen=True)
class Measured:
    """One curve, its rows, and Belady's bound at capacities over its whole range.

    Attributes
    ----------
    name
        Policy and block size.
    rows
        A row of the table ``curve`` per capacity shown.
    belady
        Columns ``kv_capacity_tokens`` and ``hit_rate``.
    """

    policy: str
    block_size: int
    curve: Curve
    rows: pd.DataFrame
    belady: pd.DataFrame

    @property
    def all_capacities(self) -> pd.DataFrame:
        """Every capacity at which the curve rises; up to the next one it stays as it is."""
        return self.at(self.rises)

    @cached_property
    def rises(self) -> Ints:
        """Where among the capacities of the curve those are."""
        curve = self.curve
        most, least = curve.most_hit_tokens, curve.least_hit_tokens
        found = Column()
        found.extend(np.arange(curve.first + 1))
        for part in pieces(len(most) - 1):
            one_more = slice(part.start, part.stop + 1)
            rises = (
                part.start
                + 1
                + np.flatnonzero((np.diff(most[one_more]) != 0) | (np.diff(least[one_more]) != 0))
            )
            found.extend(rises[rises > curve.first])
        return found.array

    def at(self, which: Ints) -> pd.DataFrame:
        """Lay out some capacities of the curve, by where they are among all."""
        curve = self.curve
        return pd.DataFrame(
            {
                "policy": self.policy,
                "block_size": self.block_size,
                "num_blocks": curve.num_blocks[which],
                "kv_capacity_tokens": curve.num_blocks[which] * self.block_size,
                "hit_rate": curve.hit_rate[which],
                "least_hit_rate": curve.least_hit_rate[which],
                "num_refused": curve.num_refused[which],
            }
        )


def measure(asked: Asked, block_size: int) -> list[Measured]:
    """Measure a curve per policy at one block size; the requests are walked once for all."""
    paths = _paths(asked, block_size)
    found = []
    for policy in asked.policies:
        release = Release(head_first=True) if asked.head_first else RELEASES[policy]
        curve = measure_curve(
            paths,
            release,
            every_small_pool=asked.every_small_pool,
            small_pools=asked.stride == 1,
        )
        rows = _rows(asked, policy, block_size, paths=paths, release=release, curve=curve)
        belady = _spaced_belady(paths, release, curve, block_size)
        found.append(Measured(policy, block_size, curve, rows, belady))
    return found


def _paths(asked: Asked, block_size: int) -> Paths:
    requests = asked.workload.requests
    if asked.head_first:
        return find_paths(stored_references_of(requests, block_size, _last_name))
    outputs = asked.reuse == "all"
    if asked.stride == 1:
        return find_paths(references_of(requests, block_size, outputs=outputs))
    sample = Sample(asked.stride, asked.seed)
    for first in range(0, len(requests), _REQUESTS_AT_A_TIME):
        part = requests[first : first + _REQUESTS_AT_A_TIME]
        sample.add(references_of(part, block_size, outputs=outputs))
    return sample.paths()


def _last_name(content: Content, position: int) -> int:
    return int(prefix_names(content, np.array([position], dtype=np.int64))[0])


def _rows(
    asked: Asked, policy: str, block_size: int, *, paths: Paths, release: Release, curve: Curve
) -> pd.DataFrame:
    marks = _marks(asked, block_size, curve)
    num_blocks = np.array(sorted(marks), dtype=np.int64)
    belady = most_hits(paths, num_blocks, pinned=not release.head_first) * block_size
    working_set = asked.workload.num_distinct_prompt_tokens
    ceiling = curve.ceiling
    rows: list[dict[str, Any]] = []
    for size, best in zip(num_blocks.tolist(), belady.tolist(), strict=True):
        pool, least = _at(asked, paths, release, curve, size)
        hit_rate = _ratio(pool.num_hit_tokens, pool.num_prompt_tokens)
        rows.append(
            {
                "workload": asked.workload.name,
                "policy": policy,
                "order": "head" if asked.head_first else "tail",
                "reuse": asked.reuse,
                "block_size": block_size,
                "sample_stride": asked.stride,
                "mark": ", ".join(marks[size]),
                "num_blocks": size,
                "kv_capacity_tokens": size * block_size,
                "kv_capacity_gib": size
                * block_size
                * asked.preset.model.kv_bytes_per_token
                / 2**30,
                "working_set_share": size * block_size / working_set,
                "hit_rate": hit_rate,
                "least_hit_rate": _ratio(least, pool.num_prompt_tokens),
                "exact": pool.num_hit_tokens == least and asked.stride == 1,
                "infinite_hit_rate": ceiling,
                "ceiling_share": _ratio(hit_rate, ceiling),
                "belady_hit_rate": _ratio(best, pool.num_prompt_tokens),
                "num_cached_tokens": pool.num_hit_tokens,
                "num_prompt_tokens": pool.num_prompt_tokens,
                "num_refused": pool.num_refused,
            }
        )
    return make_frame("curve", rows)


def _at(
    asked: Asked, paths: Paths, release: Release, curve: Curve, num_blocks: int
) -> tuple[Pool, int]:
    """Look one capacity up, or replay it where that is needed; and tokens hit at least."""
    index = int(np.searchsorted(curve.num_blocks, num_blocks, side="right")) - 1
    if index >= curve.first or (index >= 0 and curve.num_blocks[index] == num_blocks):
        pool, least = curve.pool(index), int(curve.least_hit_tokens[index])
        if pool.num_hit_tokens == least or not asked.capacities or asked.stride > 1:
            return pool, least
    pool = measure_pool(paths, release, num_blocks)
    return pool, pool.num_hit_tokens


def _marks(asked: Asked, block_size: int, curve: Curve) -> dict[int, list[str]]:
    """Name the capacities that are shown, in blocks."""
    marks: dict[int, list[str]] = {}
    if asked.capacities:
        for text in asked.capacities:
            marks.setdefault(_num_blocks(asked, text, block_size), []).append(text)
        return marks
    working_set = asked.workload.num_distinct_prompt_tokens
    for share in _SHARES_OF_WORKING_SET:
        size = int(share * working_set) // block_size
        if size >= (1 if asked.stride == 1 else curve.num_blocks[0]):
            marks.setdefault(size, []).append(f"{share:.0%} of the working set")
    if curve.ceiling > 0:
        for share in _SHARES_OF_CEILING:
            marks.setdefault(curve.reaching(share), []).append(f"{share:.0%} of the ceiling")
        marks.setdefault(curve.knee(), []).append("knee")
    if curve.first or asked.stride > 1:
        marks.setdefault(int(curve.num_blocks[curve.first]), []).append("serves every request")
    marks.setdefault(int(curve.num_blocks[-1]), []).append("ceiling")
    return marks


def _num_blocks(asked: Asked, text: str, block_size: int) -> int:
    preset = asked.preset
    size = num_usable_blocks(
        text,
        block_size,
        asked.workload.requests,
        num_distinct_tokens=lambda: asked.workload.num_distinct_prompt_tokens,
        num_gpu_tokens=preset.kv_capacity_tokens,
        num_bytes_per_token=lambda: preset.model.kv_bytes_per_token,
    )
    if asked.stride > 1:
        least = max(-(-request.num_kv_tokens // block_size) for request in asked.workload.requests)
        if size < least:
            raise UsageError(
                f"--kv-capacity {text!r} is {size:,} blocks of {block_size} tokens, but the "
                f"largest request needs {least:,}, and below that --sample estimates nothing; "
                "leave it out or raise the capacity."
            )
    return size


def _spaced_belady(paths: Paths, release: Release, curve: Curve, block_size: int) -> pd.DataFrame:
    low, high = int(curve.num_blocks[curve.first]), int(curve.num_blocks[-1])
    sizes = np.unique(np.geomspace(low, high, _NUM_BELADY).astype(np.int64))
    hits = most_hits(paths, sizes, pinned=not release.head_first) * block_size
    total = paths.sizes.num_all_prompt_tokens
    return pd.DataFrame({"kv_capacity_tokens": sizes * block_size, "hit_rate": hits / total})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
