"""How the time of the fast engine grows with requests, blocks, capacity and batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from sim.fast.engine import FastEngine
from sim.fast.record import FastRecord
from sim.fast.support import make_rules
from sim.overhead import load_shipped
from sim.presets import load_preset
from sim.scheduler import SchedulerConfig
from sim.types import Content, PoolRules, Request
from workloads import load


class Renamed:
    """A content with every name moved, so that a copy of a workload shares nothing with it."""

    def __init__(self, content: Content, shift: int) -> None:
        self._content = content
        self._shift = shift
        self.num_tokens = content.num_tokens

    def block_keys(self, block_size: int) -> np.ndarray:
        """Name every full block."""
        return self._content.block_keys(block_size) + self._shift

    def token_ids(self, start: int, stop: int) -> np.ndarray:
        """Name tokens."""
        return self._content.token_ids(start, stop) + self._shift

    def path(self) -> tuple[list[int], list[int]]:
        """Name segments, and say where they end."""
        bases, ends = self._content.path()  # type: ignore[attr-defined]
        return [base + self._shift for base in bases], ends


def copies(requests: Sequence[Request], num_copies: int) -> list[Request]:
    """Put copies of a workload one behind the other, ids made disjoint.

    Each comes when the one before it is served, so that as many wait as for a single one.
    """
    length_ns = 2 * requests[-1].arrival_ns + 1
    shift = 2**40
    return [
        replace(
            request,
            request_id=f"{copy}-{request.request_id}",
            arrival_ns=request.arrival_ns + copy * length_ns,
            content=Renamed(request.content, copy * shift),
        )
        for copy in range(num_copies)
        for request in requests
    ]


def seconds(
    requests: Sequence[Request],
    num_runs: int,
    *,
    block_size: int = 16,
    num_blocks: int = 320_000,
    max_num_seqs: int = 256,
) -> float:
    """Measure a run without reading and tables: median over ``num_runs``."""
    rules = make_rules(
        PoolRules(caches=True),
        SchedulerConfig(max_num_seqs=max_num_seqs),
        load_preset("llama-3-8b", "h100").cost,
        num_blocks=num_blocks,
        block_size=block_size,
        overhead=load_shipped("vllm-0.8.5-v1"),
    )
    times = []
    for _ in range(num_runs):
        started = time.process_time()
        FastEngine(rules, FastRecord()).run(requests)
        times.append(time.process_time() - started)
    return median(times)


def grow(trace: Path, num_runs: int) -> Iterable[str]:
    """Double one thing at a time and yield lines of a table."""
    requests = load(str(trace)).requests
    seconds(requests[:100], 1)  # compiles
    yield "| what grows | to | CPU s | per request, us | per block, ns |\n" + "| --- " * 5 + "|"
    for what, values, measure in (
        ("requests", (1, 2, 4, 8), lambda n: (copies(requests, n), {})),
        ("blocks, by block size", (512, 128, 64, 32, 16), lambda n: (requests, _size(n))),
        (
            "capacity, blocks",
            (40_000, 160_000, 640_000, 2_560_000),
            lambda n: (requests, {"num_blocks": n}),
        ),
        ("batch, sequences", (32, 64, 128, 256, 512), lambda n: (requests, {"max_num_seqs": n})),
    ):
        for value in values:
            some, settings = measure(value)
            time_s = seconds(some, num_runs, **settings)
            block_size = settings.get("block_size", 16)
            num_blocks = sum(request.num_kv_tokens // block_size for request in some)
            shown = len(some) if what == "requests" else value
            yield (
                f"| {what} | {shown} | {time_s:.3f} | {time_s / len(some) * 1e6:.1f} "
                f"| {time_s / num_blocks * 1e9:.0f} |"
            )


def _size(block_size: int) -> dict[str, int]:
    return {"block_size": block_size, "num_blocks": 5_120_000 // block_size}
