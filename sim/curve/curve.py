"""The whole curve: hit rate at every capacity, what it may at most and at least be, its knee."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.curve.paths import Paths
from sim.curve.pools import Pool, replay_blocks, replay_paths
from sim.curve.stack import Release, hits_by_capacity
from sim.curve.stream import Ints

SMALL_POOL_WORK = 20_000_000
"""Edges that may be walked for pools too small for some request; half a second or so."""
NUM_SPACED = 64
"""Pools of this kind that are measured where all would take more."""


@dataclass(frozen=True)
class Curve:
    """Hits by capacity, from measured pools too small for some request on to one that holds all.

    Attributes
    ----------
    num_blocks
        Capacities, ascending, int64, shape ``(n,)``: all from ``first`` on, since there one pass
        gives all. Below, each pool refuses other requests and so has a trace of its own; there all
        are measured, or some.
    first
        Index of the smallest pool that serves every request.
    most_hit_tokens, least_hit_tokens
        What lies between them is hit, shape ``(n,)``. They differ only where copies of blocks are
        made, see `sim.curve.stack.hits_by_capacity`.
    num_prompt_tokens, num_refused
        Prompt tokens of the requests that are served, and requests that can never fit.
    num_repeated_blocks
        Copies that all requests make.
    """

    num_blocks: Ints
    first: int
    most_hit_tokens: Ints
    least_hit_tokens: Ints
    num_prompt_tokens: Ints
    num_refused: Ints
    num_repeated_blocks: int

    @property
    def hit_rate(self) -> NDArray[np.float64]:
        """Hit tokens as a share of prompt tokens, at most; 0 where all requests are refused."""
        return self.most_hit_tokens / np.maximum(self.num_prompt_tokens, 1)

    @property
    def least_hit_rate(self) -> NDArray[np.float64]:
        """The same, at least."""
        return self.least_hit_tokens / np.maximum(self.num_prompt_tokens, 1)

    @property
    def ceiling(self) -> float:
        """Hit rate of a cache that never evicts."""
        return float(self.hit_rate[-1])

    def reaching(self, share: float) -> int:
        """Find the smallest pool that serves every request and hits this share of the ceiling."""
        hits = self.most_hit_tokens[self.first :]
        index = int(np.searchsorted(hits, share * float(hits[-1])))
        return int(self.num_blocks[self.first + index])

    def knee(self) -> int:
        """Find the capacity from which on more of it pays less than on average.

        It is where the curve lies highest above the straight line from no cache to the smallest
        one that reaches the ceiling, on plain axes: up to there a block brings more than that
        average, after it less (Satopää, Albrecht, Irwin and Raghavan, 2011).
        """
        sizes = self.num_blocks[self.first :]
        hits = self.most_hit_tokens[self.first :]
        end = int(np.searchsorted(hits, hits[-1]))
        line = sizes[: end + 1] * (float(hits[-1]) / float(sizes[end]))
        return int(sizes[int(np.argmax(hits[: end + 1] - line))])


def measure_curve(
    paths: Paths, release: Release, *, every_small_pool: bool = False, small_pools: bool = True
) -> Curve:
    """Measure the curve of requests that are served one at a time.

    Parameters
    ----------
    paths
        The requests.
    release
        The order of the queue. With ``head_first`` nothing is refused.
    every_small_pool
        Measure all pools that are too small for some request, however long it takes.
    small_pools
        Whether to measure any of them.
    """
    most = hits_by_capacity(paths, release)
    copies = most.num_repeated_blocks > 0 and not release.head_first
    least = hits_by_capacity(paths, release, keep_copies=True) if copies else most
    sizes = paths.sizes
    first = 1 if release.head_first else sizes.max_held_blocks
    last = max(first, len(most.num_hit_tokens) - 1, len(least.num_hit_tokens) - 1)
    num_blocks = np.arange(first, last + 1)
    small = _small_pools(paths, first, every_small_pool) if small_pools else num_blocks[:0]
    upper = [replay_paths(paths, release, size) for size in small.tolist()]
    lower = (
        [replay_paths(paths, release, size, keep_copies=True) for size in small.tolist()]
        if copies
        else upper
    )
    return Curve(
        num_blocks=np.concatenate((small, num_blocks)),
        first=len(small),
        most_hit_tokens=_joined(
            [pool.num_hit_tokens for pool in upper], most.num_hit_tokens, num_blocks
        ),
        least_hit_tokens=_joined(
            [pool.num_hit_tokens for pool in lower], least.num_hit_tokens, num_blocks
        ),
        num_prompt_tokens=_padded(
            [pool.num_prompt_tokens for pool in upper], sizes.num_all_prompt_tokens, num_blocks
        ),
        num_refused=_padded([pool.num_refused for pool in upper], 0, num_blocks),
        num_repeated_blocks=most.num_repeated_blocks,
    )


def measure_pool(paths: Paths, release: Release, num_blocks: int) -> Pool:
    """Measure one capacity exactly, requests one at a time; any that a vLLM could have.

    A path at a time where no copies matter, block by block where they do.
    """
    most = replay_paths(paths, release, num_blocks)
    least = replay_paths(paths, release, num_blocks, keep_copies=True)
    return most if most == least else replay_blocks(paths, release, num_blocks)


def _small_pools(paths: Paths, first: int, every: bool) -> Ints:
    if every or first * len(paths.edges) <= SMALL_POOL_WORK:
        return np.arange(1, first)
    spaced = np.unique(np.geomspace(1, first, NUM_SPACED).astype(np.int64))
    return spaced[spaced < first]


def _joined(small: list[int], hits: Ints, num_blocks: Ints) -> Ints:
    large = hits[np.minimum(num_blocks, len(hits) - 1)]
    return np.concatenate((np.array(small, dtype=np.int64), large))


def _padded(small: list[int], value: int, num_blocks: Ints) -> Ints:
    return np.concatenate(
        (np.array(small, dtype=np.int64), np.full(len(num_blocks), value, dtype=np.int64))
    )
