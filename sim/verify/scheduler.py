"""Replays a scheduler log step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import Request, Sequence
from sim.verify.allocator import make_allocator
from sim.verify.log import Divergence, Log
from workloads.content import Interner, TokenIds


def replay(log: Log, policy: str) -> Iterator[Divergence]:
    """Add the requests at the steps that the log names and compare every step."""
    log.check_kinds("request", "step")
    block_size = log.number("block_size", minimum=1)
    step_index = 0
    allocator = make_allocator(log, policy, lambda: step_index)
    scheduler = Scheduler(scheduler_config(log), allocator)
    arrivals = _arrivals(log, block_size)
    for number, line in log.of_kind("step"):
        step_index = line["step"]
        added = arrivals.pop(step_index, [])
        for seq in added:
            scheduler.add(seq)
        step = scheduler.schedule()
        scheduler.complete(step)
        got = {
            "kind": "step",
            "step": step_index,
            "added": [seq.request_id for seq in added],
            "num_scheduled_tokens": {seq.request_id: n for seq, n in step.scheduled},
            "admitted_num_cached_tokens": {seq.request_id: n for seq, n in step.admitted},
            "preempted": sorted(seq.request_id for seq in step.preempted),
            "finished": sorted(seq.request_id for seq in step.finished),
            "num_free_blocks": allocator.usage().free,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "prefix_cache_block_queries": step.num_block_queries,
            "prefix_cache_block_hits": step.num_block_hits,
        }
        # Who was preempted and who finished are sets: no order among those of one step.
        expected = {
            field: sorted(value) if field in ("preempted", "finished") else value
            for field, value in line.items()
        }
        yield from log.compare(number, expected, got)


def scheduler_config(log: Log) -> SchedulerConfig:
    """Limits of the scheduler, as the log states them."""
    return SchedulerConfig(
        max_num_seqs=log.number("max_num_seqs", minimum=1),
        max_num_batched_tokens=log.number("max_num_batched_tokens", minimum=1),
        long_prefill_token_threshold=log.number("long_prefill_token_threshold", 0),
    )


def _arrivals(log: Log, block_size: int) -> dict[int, list[Sequence]]:
    interner = Interner()
    arrivals: dict[int, list[Sequence]] = defaultdict(list)
    for _, line in log.of_kind("request"):
        prompt, output = line["tokens"], line["output_tokens"]
        content = TokenIds(np.array(prompt + output, dtype=np.int64), interner)
        request = Request(line["request"], 0, content, len(prompt), len(output))
        keys = content.block_keys(block_size).tolist()
        arrivals[line["arrival_step"]].append(Sequence(request, keys))
    return arrivals
