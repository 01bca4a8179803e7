"""Attention through block tables, for sequences of any lengths in one batch.

Two ways, both by torch's fused kernels. `SdpaAttention` runs on every device: decodes of like
length go into one padded call of ``scaled_dot_product_attention``, each prefill chunk into a call
of its own. `VarlenAttention` is for CUDA in half precision: one call of ``varlen_attn`` serves the
whole batch without padding. Both write all keys and values of the step before they read any, so
that a sequence may hit blocks that another one computes in the same step, as vLLM allows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation names it
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend.kv_cache import Chunk, KVCache
from gpu_backend.model import Attend, Decoder

_MAX_PADDING: Final = 2.0
"""Decodes in one padded call differ in length by no more than this factor."""

_MAX_GATHERED: Final = 4096
"""Tokens gathered for one padded call, unless one sequence alone has more: what is copied out has
to stay in a cache until it is read."""

NATIVE_BLOCK: Final = 256
"""Flash attention 2 reads block tables itself where blocks are multiples of so many tokens."""


def run_step(decoder: Decoder, cache: KVCache, chunks: Sequence[Chunk]) -> Tensor:
    """Compute a step over the cache; normed states of all new tokens, chunk after chunk."""
    token_ids = np.concatenate([chunk.token_ids for chunk in chunks])
    positions = np.concatenate(
        [np.arange(chunk.num_computed_tokens, chunk.num_tokens) for chunk in chunks]
    )
    return decoder.hidden_states(
        to_device(token_ids, cache.device),
        to_device(positions, cache.device),
        plan_attention(cache, chunks),
    )


def last_rows(chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    """Rows of the last new token of each chunk."""
    return np.cumsum([len(chunk.token_ids) for chunk in chunks]) - 1


def plan_attention(cache: KVCache, chunks: Sequence[Chunk]) -> Attend:
    """Choose the way that serves best on the cache's device, and lay out the step for it."""
    half = cache.keys.dtype in (torch.bfloat16, torch.float16)
    kernel = _varlen_kernel() if cache.device.type == "cuda" and half else None
    return VarlenAttention(cache, chunks, kernel) if kernel else SdpaAttention(cache, chunks)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Sequences that compute one token each, padded to the longest."""

    rows: Tensor  # (sequences,)
    blocks: Tensor  # (sequences * blocks,)
    mask: Tensor  # (sequences, 1, 1, keys), true where there is a key


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A sequence that computes several tokens; ``mask`` is None where none are before them."""

    start: int
    stop: int
    blocks: Tensor
    num_keys: int
    mask: Tensor | None  # (tokens, keys)


class SdpaAttention:
    """Gathers the blocks of each sequence and hands them to ``scaled_dot_product_attention``."""

    def __init__(self, cache: KVCache, chunks: Sequence[Chunk]) -> None:
        self._cache = cache
        self._slots = to_device(np.concatenate([cache.slots(c) for c in chunks]), cache.device)
        ends = last_rows(chunks) + 1
        singles = [i for i, chunk in enumerate(chunks) if len(chunk.token_ids) == 1]
        self._decodes = [
            self._plan_decodes([chunks[i] for i in group], ends[group] - 1)
            for group in groups_of_like_length([chunks[i].num_tokens for i in singles], singles)
        ]
        self._prefills = [
            self._plan_prefill(chunk, int(end))
            for chunk, end in zip(chunks, ends, strict=True)
            if len(chunk.token_ids) > 1
        ]

    def _plan_decodes(self, chunks: Sequence[Chunk], rows: NDArray[np.int64]) -> _Decodes:
        cache = self._cache
        tables = [cache.blocks(chunk) for chunk in chunks]
        longest = max(map(len, tables))
        # A short table is filled up with its own first block, which the mask hides.
        padded = np.stack([np.pad(t, (0, longest - len(t)), constant_values=t[0]) for t in tables])
        num_keys = np.array([chunk.num_tokens for chunk in chunks])
        mask = np.arange(longest * cache.block_size) < num_keys[:, None]
        device = cache.device
        return _Decodes(
            to_device(rows, device),
            to_device(padded.ravel(), device),
            to_device(mask[:, None, None], device),
        )

    def _plan_prefill(self, chunk: Chunk, stop: int) -> _Prefill:
        device = self._cache.device
        num_new, num_keys = len(chunk.token_ids), chunk.num_tokens
        mask = None
        if chunk.num_computed_tokens:
            # Query i is token c + i: it sees the keys up to its own.
            mask = torch.ones(num_new, num_keys, dtype=torch.bool, device=device)
            mask = mask.tril(chunk.num_computed_tokens)
        blocks = to_device(self._cache.blocks(chunk), device)
        return _Prefill(stop - num_new, stop, blocks, num_keys, mask)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write, then attend; see `gpu_backend.model.Attend`."""
        self._cache.write(layer, self._slots, key, value)
        attended = torch.empty_like(query)
        for decodes in self._decodes:
            attended[decodes.rows] = self._attend_decodes(layer, query[decodes.rows], decodes)
        for prefill in self._prefills:
            rows = slice(prefill.start, prefill.stop)
            attended[rows] = self._attend_prefill(layer, query[rows], prefill)
        return attended

    def _attend_decodes(self, layer: int, query: Tensor, decodes: _Decodes) -> Tensor:
        num_seqs, num_heads, head_dim = query.shape
        key, value = (
            part.view(num_seqs, -1, *part.shape[1:]).transpose(1, 2)
            for part in self._cache.gather(layer, decodes.blocks)
        )
        # The query heads of a group share keys: they stand where several queries would, so that
        # the keys are read once for all of them and never repeated.
        grouped = query.view(num_seqs, key.shape[1], -1, head_dim)
        attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=decodes.mask)
        return attended.reshape(num_seqs, num_heads, head_dim)

    def _attend_prefill(self, layer: int, query: Tensor, prefill: _Prefill) -> Tensor:
        key, value = (
            part[: prefill.num_keys].transpose(0, 1)[None]
            for part in self._cache.gather(layer, prefill.blocks)
        )
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key,
            value,
            attn_mask=prefill.mask,
            is_causal=prefill.mask is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


class VarlenAttention:
    """One call for the whole batch, lengths given as running sums (flash attention).

    The kernel reads block tables itself where blocks are multiples of `NATIVE_BLOCK`; smaller ones
    are gathered into a row first, which is what small blocks cost on the device.

    Parameters
    ----------
    cache, chunks
        As for `SdpaAttention`.
    kernel
        ``torch.nn.attention.varlen.varlen_attn``, or what does the same.
    """

    def __init__(
        self, cache: KVCache, chunks: Sequence[Chunk], kernel: Callable[..., Tensor]
    ) -> None:
        self._cache = cache
        self._kernel = kernel
        device = cache.device
        tables = [cache.blocks(chunk) for chunk in chunks]
        num_new = np.array([len(chunk.token_ids) for chunk in chunks])
        num_blocks = np.array([len(table) for table in tables])
        self._slots = to_device(np.concatenate([cache.slots(c) for c in chunks]), device)
        self._max_new, self._max_keys = int(num_new.max()), max(c.num_tokens for c in chunks)
        self._ends_new = to_device(_running(num_new), device)
        self._num_keys = to_device(np.array([c.num_tokens for c in chunks], np.int32), device)
        self._tables: Tensor | None = None
        if cache.block_size % NATIVE_BLOCK == 0:
            longest = int(num_blocks.max())
            padded = np.stack([np.pad(table, (0, longest - len(table))) for table in tables])
            self._tables = to_device(padded.astype(np.int32), device)
        else:
            self._blocks = to_device(np.concatenate(tables), device)
            # Each sequence begins at a block; the kernel is told how much of its last one counts.
            self._ends_keys = to_device(_running(num_blocks * cache.block_size), device)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write, then attend; see `gpu_backend.model.Attend`."""
        cache = self._cache
        cache.write(layer, self._slots, key, value)
        if self._tables is not None:
            keys, values = cache.keys[layer], cache.values[layer]
            ends_keys = None
        else:
            keys, values = cache.gather(layer, self._blocks)
            ends_keys = self._ends_keys
        return self._kernel(
            query.contiguous(),
            keys,
            values,
            self._ends_new,
            ends_keys,
            self._max_new,
            self._max_keys,
            window_size=(-1, 0),  # causal, the last query at the last key
            enable_gqa=True,
            seqused_k=self._num_keys,
            block_table=self._tables,
        )


def groups_of_like_length(lengths: Sequence[int], names: Sequence[int]) -> list[list[int]]:
    """Split ``names`` into groups of like lengths that are not too large, the longest first."""
    groups: list[list[int]] = []
    longest = 0
    for length, name in sorted(zip(lengths, names, strict=True), reverse=True):
        is_full = bool(groups) and (len(groups[-1]) + 1) * longest > _MAX_GATHERED
        if not groups or is_full or length * _MAX_PADDING < longest:
            groups.append([])
            longest = length
        groups[-1].append(name)
    return groups


def _running(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Sum the counts before each, and all of them: int32 with one more entry."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def _varlen_kernel() -> Callable[..., Tensor] | None:
    """Return torch's kernel for mixed lengths; None where this torch has none that reads blocks."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - newer than torch 2.9
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    kernel: Any = varlen_attn
    return kernel if {"seqused_k", "block_table", "enable_gqa"} <= set(known) else None
