"""Measures steps, block sizes, copies and peaks of a device.

Every figure is the median of several repetitions after a warm-up. Nothing is fitted here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch

from gpu_backend.device import Device
from gpu_backend.execution import Executor
from gpu_backend.kv_cache import Chunk, KVCache
from gpu_backend.paged import last_rows, run_step

_MAX_REPETITIONS, _SECONDS_A_POINT, _ROUNDS = 5, 0.25, 5
_BLOCKS_COPIED: Final = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class Point:
    """A step to measure: ``sequences`` compute ``new_tokens`` each after ``cached_tokens`` each.

    ``decodes`` more compute one token each after ``decode_cached_tokens``. The names are those of
    `sim.cost_fit`.
    """

    new_tokens: int
    cached_tokens: int
    sequences: int = 1
    decodes: int = 0
    decode_cached_tokens: int = 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens that the step computes."""
        return self.new_tokens * self.sequences + self.decodes

    @property
    def num_context_tokens(self) -> int:
        """Tokens whose KV the step reads."""
        return self.sequences * (self.cached_tokens + self.new_tokens) + self.decodes * (
            self.decode_cached_tokens + 1
        )

    def num_blocks(self, block_size: int) -> int:
        """Blocks that it takes."""
        one = -(-(self.cached_tokens + self.new_tokens) // block_size)
        decode = -(-(self.decode_cached_tokens + 1) // block_size)
        return self.sequences * one + self.decodes * decode

    def key(self) -> tuple[int, ...]:
        """Tell it from others."""
        return tuple(asdict(self).values())


def grid(*, max_tokens: int, max_context: int, max_batch: int, max_kv_tokens: int) -> list[Point]:
    """Lay out the steps that tell the terms of a step's cost apart.

    Parameters
    ----------
    max_tokens
        New tokens of a step.
    max_context
        Tokens of a sequence, cached and new.
    max_batch
        Sequences of a decode step.
    max_kv_tokens
        Tokens of all sequences together: what the cache holds.

    Returns
    -------
    Prefills of one and several sequences with and without cached tokens, one prompt at growing
    shares of cached tokens, decodes, and steps that hold both; the shortest first.
    """
    lengths = _powers(8, max_tokens, 2)
    contexts = _powers(64, max_context, 4)
    points = [
        Point(new, cached, sequences)
        for new in lengths
        for cached in (0, *contexts)
        for sequences in (1, 4)
    ]
    points += hit_rate_points(max_tokens)
    points += [
        Point(1, context - 1, batch) for batch in _powers(1, max_batch, 2) for context in contexts
    ]
    points += [
        Point(new, cached, 1, decodes, context)
        for new in lengths[2::2]
        for cached in (0, contexts[-1] // 2)
        for decodes in _powers(4, max_batch, 4)
        for context in contexts[::2]
    ]
    fitting = {
        point.key(): point
        for point in points
        if point.num_new_tokens <= max_tokens
        and point.cached_tokens + point.new_tokens <= max_context
        and point.decode_cached_tokens < max_context
        and point.num_context_tokens <= max_kv_tokens
    }
    return sorted(fitting.values(), key=lambda point: (point.num_new_tokens, point.key()))


def hit_rate_points(prompt: int) -> list[Point]:
    """One prompt, of which more and more is cached."""
    shares = (0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375)
    return [Point(prompt - int(share * prompt), int(share * prompt)) for share in shares]


def _powers(low: int, high: int, factor: int) -> list[int]:
    """Give ``low`` and its multiples by powers of ``factor`` up to ``high``, and ``high``."""
    found = []
    while low < high:
        found.append(low)
        low *= factor
    return [*found, high]


class StepMeter:
    """Times steps of a model, over blocks scattered as an engine scatters them.

    Parameters
    ----------
    executor
        Model and device.
    block_size
        Tokens in a block.
    num_blocks
        Blocks of the pool; no step may take more.
    """

    def __init__(self, executor: Executor, block_size: int, num_blocks: int) -> None:
        decoder, self._device = executor.decoder, executor.device
        self._decoder = decoder
        self._cache = KVCache(decoder.shape, num_blocks, block_size, decoder.device, decoder.dtype)
        # What is computed does not matter, but denormals or infinities would change its time.
        for pool in (self._cache.keys, self._cache.values):
            pool.normal_(generator=torch.Generator(decoder.device).manual_seed(0))
        rng = np.random.default_rng(0)
        self._scattered = rng.permutation(num_blocks)
        self._tokens = rng.integers(0, decoder.shape.vocab_size, 1 << 16)

    def seconds(self, point: Point) -> float:
        """Time of a step, from its plan to the next tokens."""
        chunks = self._chunks(point)
        decoder, cache = self._decoder, self._cache

        def step() -> None:
            with torch.inference_mode():
                states = run_step(decoder, cache, chunks)
                rows = torch.from_numpy(last_rows(chunks)).to(states.device)
                decoder.logits(states[rows]).argmax(dim=-1).cpu()

        return median_seconds(self._device, step)

    def _chunks(self, point: Point) -> list[Chunk]:
        chunks, first = [], 0
        block_size = self._cache.block_size
        parts = [(point.new_tokens, point.cached_tokens)] * point.sequences
        parts += [(1, point.decode_cached_tokens)] * point.decodes
        for new, cached in parts:
            num_blocks = -(-(cached + new) // block_size)
            table = self._scattered[first : first + num_blocks].tolist()
            first += num_blocks
            chunks.append(Chunk(np.resize(self._tokens, new), cached, table))
        return chunks


def median_seconds(device: Device, work: Callable[[], object]) -> float:
    """Time ``work``: once to warm up, then for a quarter of a second, 1 to 5 times.

    Few, since a whole grid is measured in several passes: what disturbs a machine lasts longer
    than a step, and must not fall on neighbouring points alone.
    """
    warm = device.seconds(work)
    repetitions = min(_MAX_REPETITIONS, max(1, int(_SECONDS_A_POINT / max(warm, 1e-9))))
    return statistics.median(device.seconds(work) for _ in range(repetitions))


def measure_all(
    meter: StepMeter,
    points: list[Point],
    *,
    passes: int,
    done: dict[tuple[int, Point], float],
    on_point: Callable[[int, Point, float], None],
) -> dict[Point, float]:
    """Time every point in every pass, each pass in an order of its own.

    Parameters
    ----------
    meter, points, passes
        What measures what, how often.
    done
        What an interrupted run has measured already, by pass and point.
    on_point
        Called with pass, point and seconds once it is measured.

    Returns
    -------
    The median over the passes, by point.
    """
    times: dict[Point, list[float]] = {point: [] for point in points}
    for index in range(passes):
        order = (
            np.random.default_rng(index).permutation(len(points)) if index else range(len(points))
        )
        for place in order:
            point = points[int(place)]
            seconds = done.get((index, point))
            if seconds is None:
                seconds = meter.seconds(point)
                on_point(index, point, seconds)
            times[point].append(seconds)
    return {point: statistics.median(found) for point, found in times.items()}


def block_sizes_of(executor: Executor, sizes: list[int], point: Point) -> list[dict[str, Any]]:
    """Time one step at several block sizes: what small blocks cost on the device.

    In several rounds over all sizes, for the same reason as in `median_seconds`.
    """
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(_ROUNDS):
        for size, found in times.items():
            found.append(StepMeter(executor, size, point.num_blocks(size)).seconds(point))
    return [
        {
            "block_size": size,
            "num_blocks": point.num_blocks(size),
            "seconds": statistics.median(found),
        }
        for size, found in times.items()
    ]


def copies_of(executor: Executor, sizes: list[int]) -> list[dict[str, Any]]:
    """Time the copy of scattered blocks, all layers of keys and values, from the host.

    On a GPU from pinned memory over the bus; on the CPU it is a copy within its memory, which says
    what a tier below would cost at best.
    """
    decoder, device = executor.decoder, executor.device
    shape = decoder.shape
    rows = []
    for size in sizes:
        # In the host's copy a block lies in one piece, as a tier would keep it.
        piece = (2, shape.num_layers, size, shape.num_kv_heads, shape.head_dim)
        host = torch.zeros((max(_BLOCKS_COPIED), *piece), dtype=decoder.dtype)
        if device.is_cuda:
            host = host.pin_memory()
        pool = torch.zeros_like(host, device=decoder.device)
        for num_blocks in _BLOCKS_COPIED:
            order = np.random.default_rng(size).permutation(len(host))[:num_blocks].tolist()

            def copy(order: list[int] = order, pool: Any = pool, host: Any = host) -> None:  # noqa: ANN401
                for block in order:
                    pool[block].copy_(host[block], non_blocking=True)

            rows.append(
                {
                    "block_size": size,
                    "num_blocks": num_blocks,
                    "num_bytes": num_blocks * host[0].numel() * host.element_size(),
                    "seconds": median_seconds(device, copy),
                }
            )
    return rows


def peaks_of(executor: Executor) -> dict[str, float]:
    """Measure what the device reaches at its best: a large product and a large read.

    Returns
    -------
    ``flops_per_s`` and ``bytes_per_s``: the roofline that the fit is held against.
    """
    device, dtype = executor.device, executor.decoder.dtype
    size = 8192 if device.is_cuda else 1024
    left, right = torch.ones(2, size, size, device=device.torch, dtype=dtype)
    product_s = median_seconds(device, lambda: left @ right)
    num_values = (1 << 31 if device.is_cuda else 1 << 27) // dtype.itemsize
    row = torch.ones(num_values, device=device.torch, dtype=dtype)
    read_s = median_seconds(device, row.sum)
    return {
        "flops_per_s": 2 * size**3 / product_s,
        "bytes_per_s": num_values * dtype.itemsize / read_s,
    }
