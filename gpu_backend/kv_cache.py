"""The KV cache: one pool of blocks per layer, reached through block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend.shape import ModelShape
from sim.errors import UsageError

POISON: Final = 60.0
"""What a block holds before it is written: finite, since even a masked NaN spoils a sum, and far
from any key or value, so that reading it shows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one sequence computes in a step.

    Attributes
    ----------
    token_ids
        The new tokens, int64, at least one.
    num_computed_tokens
        Tokens before them, whose KV the cache holds.
    block_table
        Blocks of the sequence in order; those that hold tokens up to the last new one are used.
    """

    token_ids: NDArray[np.int64]
    num_computed_tokens: int
    block_table: Sequence[int]

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence at the end of the step: the keys that are read."""
        return self.num_computed_tokens + len(self.token_ids)


class KVCache:
    """Keys and values of every layer in blocks of ``block_size`` tokens.

    Parameters
    ----------
    shape
        Of the model.
    num_blocks
        Blocks of the pool; ids run from 0 to ``num_blocks - 1``.
    block_size
        Tokens in a block.
    device, dtype
        As the model's.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.keys = torch.full(size, POISON, device=device, dtype=dtype)
        self.values = torch.full(size, POISON, device=device, dtype=dtype)

    def slots(self, chunk: Chunk) -> NDArray[np.int64]:
        """Places of the new tokens in the pool: block id times block size plus offset.

        Raises
        ------
        UsageError
            The block table is too short, or names a block outside the pool.
        """
        blocks = self.blocks(chunk)
        positions = np.arange(chunk.num_computed_tokens, chunk.num_tokens)
        slots: NDArray[np.int64] = (
            blocks[positions // self.block_size] * self.block_size + positions % self.block_size
        )
        return slots

    def blocks(self, chunk: Chunk) -> NDArray[np.int64]:
        """Blocks that hold the tokens of ``chunk``, old and new."""
        num_blocks = -(-chunk.num_tokens // self.block_size)
        if len(chunk.block_table) < num_blocks:
            raise UsageError(
                f"a block table holds {len(chunk.block_table)} blocks of {self.block_size} tokens "
                f"but {chunk.num_tokens} tokens need {num_blocks}; mend allocate() or "
                "block_table() of the policy."
            )
        blocks = np.asarray(chunk.block_table[:num_blocks], dtype=np.int64)
        if blocks.min() < 0 or blocks.max() >= self.num_blocks:
            raise UsageError(
                f"a block table names blocks {blocks.min()} to {blocks.max()} of a pool with ids 0 "
                f"to {self.num_blocks - 1}; mend the policy, or state its num_reserved_blocks."
            )
        return blocks

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Put keys and values (tokens, kv_heads, head_dim) into their places."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copy whole blocks out, shape ``(len(blocks) * block_size, kv_heads, head_dim)`` each."""
        key = self.keys[layer].index_select(0, blocks).flatten(0, 1)
        value = self.values[layer].index_select(0, blocks).flatten(0, 1)
        return key, value
