"""How the time of the fast engine grows with requests, blocks, capacity and batch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np

from sim.fast.engine import FastEngine
from sim.fast.record import FastRecord
from sim.fast.support import make_rules
from sim.overhead import load_shipped
from sim.presets import load_preset
from sim.scheduler import SchedulerConfig
from sim.types import PoolRules
from workloads import load
from workloads.requests import Requests


def copies(requests: Requests, num_copies: int) -> Requests:
    """Put copies of a workload one behind the other, ids made disjoint.

    Each comes when the one before it is served, so that as many wait as for a single one.
    """
    counts, bases, ends = requests.paths()
    length_ns = 2 * int(requests.arrival_ns[-1]) + 1
    copy = np.arange(num_copies)[:, np.newaxis]
    num_segments = np.tile(counts, num_copies)
    return Requests(
        np.ravel(requests.arrival_ns + copy * length_ns),
        np.tile(requests.num_prompt_tokens, num_copies),
        np.tile(requests.num_output_tokens, num_copies),
        np.cumsum(num_segments) - num_segments,
        num_segments,
        np.ravel(bases + copy * 2**40),
        np.tile(ends, num_copies),
    )


def seconds(
    requests: Requests,
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
    assert isinstance(requests, Requests)  # as those of every trace
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
            num_blocks = int((some.num_kv_tokens // block_size).sum())
            shown = len(some) if what == "requests" else value
            yield (
                f"| {what} | {shown} | {time_s:.3f} | {time_s / len(some) * 1e6:.1f} "
                f"| {time_s / num_blocks * 1e9:.0f} |"
            )


def _size(block_size: int) -> dict[str, int]:
    return {"block_size": block_size, "num_blocks": 5_120_000 // block_size}
