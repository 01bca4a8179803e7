"""Runs the steps of an engine through a real model, and compares with the model alone.

`Proof` and `Stopwatch` stand where a cost model stands: the engine asks them for the time of a step
after blocks are handed out and before any is freed, which is when the step has to be computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend.device import Device
from gpu_backend.kv_cache import Chunk, KVCache
from gpu_backend.model import Decoder
from gpu_backend.paged import last_rows, run_step
from sim.errors import UsageError
from sim.types import Allocator, Content, Sequence

Scheduled = list[tuple[Sequence, int]]
"""Sequences of a step and how many tokens each computes."""

TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference of two logits that rounding may make, in units of the logits' standard
deviation. In fp32 it makes about 1e-5, in bf16 0.06; the faults of the tests make 0.3 to 6."""

_LOGITS_AT_ONCE: Final = 1 << 26


class Executor:
    """A model with a pool of blocks, and the tokens that requests stand for.

    Parameters
    ----------
    decoder
        The model.
    device
        Where it lives.
    seed
        Of the tokens: contents name prefixes, and each name is given a token by it.
    """

    def __init__(self, decoder: Decoder, device: Device, *, seed: int = 0) -> None:
        self.decoder = decoder
        self.device = device
        self._seed = seed
        self._allocator: Allocator | None = None
        self._cache: KVCache | None = None

    def attach(self, allocator: Allocator) -> None:
        """Take the allocator whose block tables are run, and make its pool.

        Raises
        ------
        UsageError
            The pool does not fit into the device's memory.
        """
        # Ids of a policy that reserves blocks go beyond the usable ones; one that does not say may.
        num_blocks = allocator.num_blocks + getattr(allocator, "num_reserved_blocks", 1)
        shape, dtype = self.decoder.shape, self.decoder.dtype
        num_bytes = num_blocks * allocator.block_size * shape.kv_values_per_token * dtype.itemsize
        free = self.device.free_bytes()
        if num_bytes > 0.8 * free:
            raise UsageError(
                f"--kv-capacity: {num_blocks} blocks of {allocator.block_size} tokens take "
                f"{num_bytes / 1e9:.1f} GB of this model but {free / 1e9:.1f} GB are free on the "
                "device; lower it or take a smaller model."
            )
        self._allocator = allocator
        self._cache = KVCache(shape, num_blocks, allocator.block_size, self.device.torch, dtype)

    def tokens(self, content: Content, start: int, stop: int) -> NDArray[np.int64]:
        """Give the model's tokens ``start`` to ``stop`` of a stream: equal where prefixes are."""
        return to_tokens(content.token_ids(start, stop), self.decoder.shape.vocab_size, self._seed)

    def chunks(self, scheduled: Scheduled) -> list[Chunk]:
        """Look up what each sequence of a step computes, and where."""
        assert self._allocator is not None, "attach an allocator first"
        return [
            Chunk(
                self.tokens(
                    seq.request.content,
                    seq.num_computed_tokens,
                    seq.num_computed_tokens + num_new_tokens,
                ),
                seq.num_computed_tokens,
                self._allocator.block_table(seq),
            )
            for seq, num_new_tokens in scheduled
        ]

    def run(self, chunks: list[Chunk]) -> Tensor:
        """Compute a step; normed states of all its new tokens."""
        assert self._cache is not None, "attach an allocator first"
        with torch.inference_mode():
            return run_step(self.decoder, self._cache, chunks)

    def next_tokens(self, chunks: list[Chunk]) -> Tensor:
        """Compute a step to its end, as an engine does: the likeliest next token of each chunk."""
        states = self.run(chunks)
        with torch.inference_mode():
            rows = torch.from_numpy(last_rows(chunks)).to(states.device)
            return self.decoder.logits(states[rows]).argmax(dim=-1).cpu()


def to_tokens(names: NDArray[np.int64], vocab_size: int, seed: int) -> NDArray[np.int64]:
    """Give each name a token, well mixed: neighbouring names and other prefixes look unlike.

    The mixing is the finalizer of SplitMix64 (Steele, Lea and Flood 2014), modulo the vocabulary.
    """
    mixed = names.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(vocab_size)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Compared:
    """One request: what was computed over the cache against the model without one.

    Attributes
    ----------
    num_positions
        Positions computed, those computed again after a preemption counted again.
    difference
        Largest difference between two logits over all of them, in standard deviations of the
        request's logits; infinite where any is no number.
    position
        Where that is.
    """

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_positions: int
    difference: float
    position: int


@dataclass(slots=True)
class _Computed:
    """States of a request, as they came: each part begins at a position."""

    parts: list[tuple[int, Tensor]] = field(default_factory=list)


class Proof:
    """Runs every step, and compares the logits of every position that was computed.

    Parameters
    ----------
    executor
        Runs the steps.
    price
        Time that a step takes in the simulation, ns, as though nothing were executed.
    """

    def __init__(self, executor: Executor, price: Callable[[Scheduled], int]) -> None:
        self._executor = executor
        self._price = price
        self._computed: dict[str, _Computed] = {}

    def sequences_ns(self, scheduled: Scheduled) -> int:
        """Execute the step; its time is the price."""
        chunks = self._executor.chunks(scheduled)
        states = self._executor.run(chunks)
        parts = torch.split(states, [len(chunk.token_ids) for chunk in chunks])
        for (seq, _), chunk, part in zip(scheduled, chunks, parts, strict=True):
            computed = self._computed.setdefault(seq.request_id, _Computed())
            computed.parts.append((chunk.num_computed_tokens, part))
        return self._price(scheduled)

    def compare(self, seq: Sequence) -> Compared:
        """Compare a request that has ended, and forget its states."""
        decoder, executor = self._executor.decoder, self._executor
        request = seq.request
        tokens = executor.tokens(request.content, 0, request.num_kv_tokens)
        parts = self._computed.pop(seq.request_id).parts
        worst, worst_at = -1.0, 0
        with torch.inference_mode():
            plain = decoder.plain_states(torch.from_numpy(tokens).to(decoder.device))
            for start, states in parts:
                # In slices: the logits of a long prompt over a large vocabulary are gigabytes.
                rows = max(1, _LOGITS_AT_ONCE // decoder.shape.vocab_size)
                for offset in range(0, len(states), rows):
                    mine = decoder.logits(states[offset : offset + rows])
                    first = start + offset
                    other = decoder.logits(plain[first : first + len(mine)])
                    # Per position, since the logits of one are what a sampler sees.
                    gaps = (mine - other).abs().amax(dim=-1) / other.std(dim=-1)
                    gaps = torch.nan_to_num(gaps, nan=math.inf)
                    index = int(gaps.argmax())
                    if float(gaps[index]) > worst:
                        worst, worst_at = float(gaps[index]), first + index
        return Compared(
            request_id=seq.request_id,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=seq.num_cached_tokens,
            num_preemptions=seq.num_preemptions,
            num_positions=sum(len(states) for _, states in parts),
            difference=worst,
            position=worst_at,
        )


class Stopwatch:
    """Runs every step to the next tokens and prices it by the time that it took here."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.num_steps = 0
        self.total_s = 0.0
        self.wall_s = 0.0

    def sequences_ns(self, scheduled: Scheduled) -> int:
        """Execute the step; its time is that of the host's clock, ns (see `Device.clock`)."""
        chunks = self._executor.chunks(scheduled)
        started = time.perf_counter()
        seconds = self._executor.device.host_seconds(lambda: self._executor.next_tokens(chunks))
        self.wall_s += time.perf_counter() - started
        self.num_steps += 1
        self.total_s += seconds
        return max(1, round(seconds * 1e9))
