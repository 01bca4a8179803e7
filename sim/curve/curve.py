"""The whole curve: hit rate at every capacity, what it may at most and at least be, its knee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.curve.paths import Paths
from sim.curve.pools import Pool, replay_blocks, replay_paths
from sim.curve.stack import Release, hits_by_capacity
from sim.curve.stream import Ints
from sim.mapped import filled, full, pieces, zeros

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
    small
        The measured pools below ``first``, which serve fewer requests.
    num_all_prompt_tokens
        Prompt tokens of all requests, which the others serve.
    num_repeated_blocks
        Copies that all requests make.
    """

    num_blocks: Ints
    first: int
    most_hit_tokens: Ints
    least_hit_tokens: Ints
    small: tuple[Pool, ...]
    num_all_prompt_tokens: int
    num_repeated_blocks: int

    @cached_property
    def num_prompt_tokens(self) -> Ints:
        """Prompt tokens of the requests that are served, shape ``(n,)``."""
        tokens = full(len(self.num_blocks), self.num_all_prompt_tokens)
        tokens[: self.first] = [pool.num_prompt_tokens for pool in self.small]
        return tokens

    @cached_property
    def num_refused(self) -> Ints:
        """Requests that can never fit, shape ``(n,)``."""
        refused = zeros(len(self.num_blocks))
        refused[: self.first] = [pool.num_refused for pool in self.small]
        return refused

    def pool(self, index: int) -> Pool:
        """Put together what is known of one capacity, hits at most."""
        served = self.small[index] if index < self.first else None
        return Pool(
            int(self.num_blocks[index]),
            int(self.most_hit_tokens[index]),
            served.num_prompt_tokens if served else self.num_all_prompt_tokens,
            served.num_refused if served else 0,
        )

    @cached_property
    def hit_rate(self) -> NDArray[np.float64]:
        """Hit tokens as a share of prompt tokens, at most; 0 where all requests are refused."""
        return self._share(self.most_hit_tokens)

    @cached_property
    def least_hit_rate(self) -> NDArray[np.float64]:
        """The same, at least."""
        return self._share(self.least_hit_tokens)

    def _share(self, hit_tokens: Ints) -> NDArray[np.float64]:
        tokens = self.num_prompt_tokens
        return filled(
            len(tokens), lambda part: hit_tokens[part] / np.maximum(tokens[part], 1), np.float64
        )

    @property
    def ceiling(self) -> float:
        """Hit rate of a cache that never evicts."""
        return int(self.most_hit_tokens[-1]) / self.num_all_prompt_tokens

    def reaching(self, share: float) -> int:
        """Find the smallest pool that serves every request and hits this share of the ceiling."""
        hits = self.most_hit_tokens[self.first :]
        # Whole numbers are looked for among whole ones: no copy is made.
        index = int(np.searchsorted(hits, math.ceil(share * float(hits[-1]))))
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
        slope = float(hits[-1]) / float(sizes[end])
        highest, knee = -math.inf, 0
        for part in pieces(end + 1):
            above = hits[part] - sizes[part] * slope
            if above.max() > highest:
                highest, knee = above.max(), int(sizes[part][np.argmax(above)])
        return knee


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
    small = _small_pools(paths, first, every_small_pool) if small_pools else zeros(0)
    num_blocks = zeros(len(small) + last + 1 - first)
    num_blocks[: len(small)] = small
    for part in pieces(last + 1 - first):
        num_blocks[len(small) :][part] = np.arange(first + part.start, first + part.stop)
    upper = [replay_paths(paths, release, size) for size in small.tolist()]
    lower = (
        [replay_paths(paths, release, size, keep_copies=True) for size in small.tolist()]
        if copies
        else upper
    )
    most_hits = _joined(upper, most.num_hit_tokens, first, last)
    return Curve(
        num_blocks=num_blocks,
        first=len(small),
        most_hit_tokens=most_hits,
        least_hit_tokens=_joined(lower, least.num_hit_tokens, first, last) if copies else most_hits,
        small=tuple(upper),
        num_all_prompt_tokens=sizes.num_all_prompt_tokens,
        num_repeated_blocks=most.num_repeated_blocks,
    )


def measure_pool(paths: Paths, release: Release, num_blocks: int) -> Pool:
    """Measure one capacity exactly, whatever is refused or copied there.

    A path at a time where no copies matter, block by block where they do.

    Raises
    ------
    ValueError
        The release is ``head_first``, which a pool is not replayed for.
    """
    if release.head_first:
        raise ValueError("a pool is replayed in vLLM's order only; take the curve's entry instead")
    most = replay_paths(paths, release, num_blocks)
    least = replay_paths(paths, release, num_blocks, keep_copies=True)
    return most if most == least else replay_blocks(paths, release, num_blocks)


def _small_pools(paths: Paths, first: int, every: bool) -> Ints:
    if every or first * len(paths.edges) <= SMALL_POOL_WORK:
        return np.arange(1, first)
    spaced = np.unique(np.geomspace(1, first, NUM_SPACED).astype(np.int64))
    return spaced[spaced < first]


def _joined(small: list[Pool], hits: Ints, first: int, last: int) -> Ints:
    """Put hits of small pools before those of all from ``first`` to ``last``.

    Where ``hits`` go that far they are not copied: the small pools take the place of some below
    ``first``, of which there are more.
    """
    if len(hits) == last + 1:
        hits[first - len(small) : first] = [pool.num_hit_tokens for pool in small]
        return hits[first - len(small) :]
    joined = full(len(small) + last - first + 1, hits[-1])
    joined[: len(small)] = [pool.num_hit_tokens for pool in small]
    large = hits[first : last + 1]
    joined[len(small) : len(small) + len(large)] = large
    return joined
