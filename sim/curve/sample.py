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
from sim.curve.stream import Integer, Ints, References, Sizes
from sim.mapped import LARGE, filled, joined, zeros

_SIZES = ("num_full_blocks", "num_lookup_blocks", "num_held_blocks", "num_prompt_tokens")


class _Parts:
    """Numbers that come part by part; many together lie in a file."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []
        self._late: list[NDArray[Any]] = []
        self._num_late = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts)) + self._num_late

    def add(self, numbers: NDArray[Any]) -> None:
        """Take the next numbers."""
        self._late.append(numbers)
        self._num_late += len(numbers)
        if self._num_late * numbers.itemsize >= LARGE:
            self._parts.append(joined(self._late))
            self._late, self._num_late = [], 0

    def whole(self) -> NDArray[Any]:
        """Give all of them."""
        return joined(self._parts + self._late)


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
    _blocks: _Parts = field(default_factory=_Parts)
    _num_drawn: _Parts = field(default_factory=_Parts)
    _num_drawn_lookup: _Parts = field(default_factory=_Parts)
    _sizes: dict[str, _Parts] = field(default_factory=lambda: {name: _Parts() for name in _SIZES})
    _block_size: int = 0

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
        self._blocks.add(blocks)
        self._num_drawn.add(num_drawn)
        self._num_drawn_lookup.add(num_drawn_lookup)
        for name, parts in self._sizes.items():
            parts.add(getattr(sizes, name))
        self._block_size = sizes.block_size

    @property
    def num_drawn_blocks(self) -> Integer:
        """References that are kept."""
        return len(self._blocks)

    def paths(self) -> Paths:
        """Walk what was drawn; lengths and sizes are in blocks of the trace."""
        joined_sizes = {name: parts.whole() for name, parts in self._sizes.items()}
        sizes = Sizes(**joined_sizes, block_size=self._block_size)
        num_drawn = self._num_drawn.whole()
        num_drawn_lookup = self._num_drawn_lookup.whole()
        # Walked as if each drawn block were one block, then every run gets its length.
        drawn = find_paths(
            References(
                self._blocks.whole(),
                replace(
                    sizes,
                    num_full_blocks=num_drawn,
                    num_lookup_blocks=num_drawn_lookup,
                    num_held_blocks=num_drawn,
                ),
            )
        )
        starts = _run_starts(self.stride, int(sizes.num_full_blocks.max()) + 1)
        lengths = zeros(len(drawn.lengths), np.int32)
        _lengthen(drawn.edges, drawn.offsets, drawn.lengths, starts, lengths)
        held, full = sizes.num_held_blocks, sizes.num_full_blocks
        num_full = filled(len(held), lambda part: starts[num_drawn[part]])
        sampled = replace(
            sizes,
            num_full_blocks=num_full,
            num_lookup_blocks=filled(len(held), lambda part: starts[num_drawn_lookup[part]]),
            num_held_blocks=filled(
                len(held), lambda part: num_full[part] + (held[part] - full[part])
            ),
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


@entry
def _lengthen(
    edges: NDArray[np.int32],
    offsets: Ints,
    drawn: NDArray[np.int32],
    starts: Ints,
    lengths: NDArray[np.int32],
) -> None:
    """Give each edge as many blocks as the runs have that its drawn blocks stand for."""
    for request in range(len(offsets) - 1):
        num_drawn = np.int64(0)
        for edge in edges[offsets[request] : offsets[request + 1]]:
            before = starts[num_drawn]
            num_drawn += drawn[edge]
            lengths[edge] = starts[num_drawn] - before
