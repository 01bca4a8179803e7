"""What a curve is made from: references to blocks, request after request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.mapped import pieces, zeros

Ints = NDArray[np.int64]
Integer = int | np.integer[Any]
"""What a compiled kernel takes or returns as a number."""


@dataclass(frozen=True)
class Sizes:
    """How large each request is; every array has shape ``(num_requests,)``.

    Attributes
    ----------
    num_full_blocks
        Blocks that the request fills and that are cached.
    num_lookup_blocks
        How many of them a lookup may hit: ``(prompt - 1) // block_size``, since the last token of
        a prompt is always computed.
    num_held_blocks
        Blocks that the request holds at its end, those that never fill included.
    num_prompt_tokens
        What a hit rate is a share of.
    block_size
        Tokens in a block.
    num_missing_tokens
        What the last block that a lookup may hit lacks to be full; None where only full blocks are
        kept, as every engine does.

    Raises
    ------
    ValueError
        The arrays do not fit each other.
    """

    num_full_blocks: Ints
    num_lookup_blocks: Ints
    num_held_blocks: Ints
    num_prompt_tokens: Ints
    block_size: int
    num_missing_tokens: Ints | None = None

    def __post_init__(self) -> None:
        full, lookup, held = self.num_full_blocks, self.num_lookup_blocks, self.num_held_blocks
        if not len(full) or not full.shape == lookup.shape == held.shape:
            raise ValueError("there must be requests, and one entry for each in every array")
        if self.num_prompt_tokens.shape != full.shape:
            raise ValueError("num_prompt_tokens must have one entry per request")
        if lookup.min() < 0 or any(
            (lookup[part] > full[part]).any() or (full[part] > held[part]).any()
            for part in pieces(len(full))
        ):
            raise ValueError("a request looks up no more blocks than it fills, and holds those")

    @property
    def num_requests(self) -> int:
        """How many requests there are."""
        return len(self.num_full_blocks)

    @property
    def max_held_blocks(self) -> int:
        """The smallest pool that serves every request."""
        return int(self.num_held_blocks.max())

    @cached_property
    def num_all_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self.num_prompt_tokens.sum())


@dataclass(frozen=True)
class References:
    """Requests served one at a time, as the blocks that each fills and leaves in the cache.

    Attributes
    ----------
    blocks
        Names of these blocks in the order of the tokens, request after request; any integers,
        shape ``(sizes.num_full_blocks.sum(),)``. Two requests that begin with the same blocks name
        them the same; only a *sample* needs more: see `sim.curve.sample`.
    sizes
        How many blocks each request has.
    """

    blocks: NDArray[np.integer[Any]]
    sizes: Sizes

    def __post_init__(self) -> None:
        if self.offsets[-1] != len(self.blocks):
            raise ValueError("there must be a name for each block that is filled")

    @cached_property
    def offsets(self) -> Ints:
        """Request r has ``blocks[offsets[r]:offsets[r + 1]]``, shape ``(num_requests + 1,)``."""
        offsets = zeros(self.sizes.num_requests + 1)
        np.cumsum(self.sizes.num_full_blocks, out=offsets[1:])
        return offsets
