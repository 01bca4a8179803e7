"""A curve from a sample of the prefixes, for traces too large to hold.

A path is cut into runs of blocks: 1, 1, 2, 4, 8 and so on up to ``stride`` and from there all of
that length. Of each run one block is drawn, which one by a hash of the run's first block, and it
stands for the whole run. So the same blocks are drawn whenever a path passes them, about one block
in ``stride``, and two requests that share a prefix share what is drawn of it (spatial sampling as
in SHARDS: Waldspurger, Park, Garthwaite and Ahmad, 2015, but stratified along the path). A run is
hit whole or not at all, as the block drawn from it is, which is right on average wherever two paths
part. All distances are in blocks of the trace, so no capacity has to be scaled.

The names of blocks must tell whole prefixes apart, as those of `sim.types.Content.block_keys` do.
Only the drawn blocks are kept, and of the others only the first of each run is even looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled, entry
from sim.curve.paths import Paths, find_paths
from sim.curve.stream import Integer, Ints, References, Sizes, join_sizes


@dataclass
class Sample:
    """Takes a trace part by part and keeps only what was drawn.

    Parameters
    ----------
    stride
        Of how many blocks one is drawn; 1 draws all.
    seed
        Another seed draws other blocks.
    """

    stride: int
    seed: int = 0
    _blocks: list[NDArray[np.integer[Any]]] = field(default_factory=list)
    _num_drawn: list[Ints] = field(default_factory=list)
    _num_drawn_lookup: list[Ints] = field(default_factory=list)
    _sizes: list[Sizes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride {self.stride} must be at least 1")

    def add(self, references: References) -> None:
        """Draw from the next requests, which keep full blocks only."""
        sizes = references.sizes
        starts = _run_starts(self.stride, int(sizes.num_full_blocks.max()) + 1)
        blocks, num_drawn, num_drawn_lookup = _draw(
            references.blocks,
            references.offsets,
            sizes.num_lookup_blocks,
            starts,
            self.seed,
        )
        self._blocks.append(blocks)
        self._num_drawn.append(num_drawn)
        self._num_drawn_lookup.append(num_drawn_lookup)
        self._sizes.append(sizes)

    @property
    def num_drawn_blocks(self) -> Integer:
        """References that are kept."""
        return sum(len(blocks) for blocks in self._blocks)

    def paths(self) -> Paths:
        """Walk what was drawn; lengths and sizes are in blocks of the trace."""
        sizes = join_sizes(self._sizes)
        num_drawn = np.concatenate(self._num_drawn)
        num_drawn_lookup = np.concatenate(self._num_drawn_lookup)
        # Walked as if each drawn block were one block, then every run gets its length.
        drawn = find_paths(
            References(
                np.concatenate(self._blocks),
                replace(
                    sizes,
                    num_full_blocks=num_drawn,
                    num_lookup_blocks=num_drawn_lookup,
                    num_held_blocks=num_drawn,
                ),
            )
        )
        starts = _run_starts(self.stride, int(sizes.num_full_blocks.max()) + 1)
        ends = np.cumsum(drawn.lengths[drawn.edges], dtype=np.int64)
        before = np.concatenate(([0], ends))[drawn.offsets[:-1]]
        depth = ends - np.repeat(before, np.diff(drawn.offsets))
        lengths = np.zeros_like(drawn.lengths)
        lengths[drawn.edges] = starts[depth] - starts[depth - drawn.lengths[drawn.edges]]
        num_unfilled = sizes.num_held_blocks - sizes.num_full_blocks
        num_full = starts[num_drawn]
        sampled = replace(
            sizes,
            num_full_blocks=num_full,
            num_lookup_blocks=starts[num_drawn_lookup],
            num_held_blocks=num_full + num_unfilled,
        )
        return Paths(drawn.edges, drawn.offsets, lengths, sampled)


def _run_starts(stride: int, num_blocks: int) -> Ints:
    """Place of the first block of each run, until the runs cover so many blocks."""
    starts = [0]
    length = 1
    while starts[-1] < num_blocks:
        starts.append(starts[-1] + length)
        length = min(stride, max(length, starts[-1]))
    return np.array(starts, dtype=np.int64)


@compiled
def _mixed(value: Integer, seed: Integer) -> Integer:
    """Spread a number over 64 bits (the finish of SplitMix64)."""
    mixed = np.uint64(value) + (np.uint64(seed) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@entry
def _draw(
    blocks: NDArray[np.integer[Any]], offsets: Ints, num_lookup: Ints, starts: Ints, seed: int
) -> tuple[NDArray[np.integer[Any]], Ints, Ints]:
    """Draw one block of each run; of a run that a request does not finish, it may have none."""
    num_requests = len(offsets) - 1
    num_drawn = np.zeros(num_requests, dtype=np.int64)
    num_drawn_lookup = np.zeros(num_requests, dtype=np.int64)
    for request in range(num_requests):
        num_blocks = offsets[request + 1] - offsets[request]
        num_drawn[request] = np.searchsorted(starts, num_blocks)
    drawn = np.empty(num_drawn.sum(), dtype=blocks.dtype)
    count = np.int64(0)
    for request in range(num_requests):
        begin = offsets[request]
        num_blocks = offsets[request + 1] - begin
        first = count
        for run in range(num_drawn[request]):
            start = starts[run]
            length = np.uint64(starts[run + 1] - start)
            chosen = start + np.int64(_mixed(blocks[begin + start], seed) % length)
            if chosen >= num_blocks:
                break  # only in the last run
            drawn[count] = blocks[begin + chosen]
            count += 1
            if chosen < num_lookup[request]:
                num_drawn_lookup[request] = count - first
        num_drawn[request] = count - first
    return drawn[:count].copy(), num_drawn, num_drawn_lookup
