"""Replays a scheduler log step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import Request, Sequence
from sim.verify.allocator import make_allocator, pool_size, rules_of
from sim.verify.fields import COUNTS, REQUEST_IDS, TEXT, TOKENS, WHOLE, Kind, shown
from sim.verify.log import Divergence, Line, Log
from workloads.content import Interner, TokenIds

REQUEST: dict[str, Kind] = {
    "request": TEXT,
    "arrival_step": WHOLE,
    "tokens": TOKENS,
    "output_tokens": TOKENS,
}
"""Fields of a line that describes a request."""

BY_REQUEST: dict[str, Kind] = {
    "added": REQUEST_IDS,
    "num_scheduled_tokens": COUNTS,
    "admitted_num_cached_tokens": COUNTS,
    "preempted": REQUEST_IDS,
    "finished": REQUEST_IDS,
}
"""Fields of a step that name requests."""

STEP: dict[str, Kind] = {
    "step": WHOLE,
    **BY_REQUEST,
    "num_free_blocks": WHOLE,
    "num_running": WHOLE,
    "num_waiting": WHOLE,
    "prefix_cache_block_queries": WHOLE,
    "prefix_cache_block_hits": WHOLE,
}
"""Fields of a step."""


def replay(log: Log, policy: str, *, fast: bool = False) -> Iterator[Divergence]:
    """Add the requests at the steps that the log names and compare every step.

    ``fast`` takes the compiled scheduler, which the policy must have.
    """
    log.check_kinds("request", "step")
    _check(log)
    arrivals = _arrivals(log)
    steps = _Fast(log, policy, arrivals) if fast else _Plain(log, policy)
    for number, line in log.of_kind("step"):
        got = steps.step(line["step"], arrivals.pop(line["step"], []))
        # Who was preempted and who finished are sets: no order among those of one step.
        expected = {
            field: sorted(value) if field in ("preempted", "finished") else value
            for field, value in line.items()
        }
        yield from log.compare(number, expected, {"kind": "step", "step": line["step"], **got})


class _Plain:
    """The plain scheduler, asked step by step."""

    def __init__(self, log: Log, policy: str) -> None:
        self._index = 0
        self._allocator = make_allocator(log, policy, lambda: self._index)
        self._scheduler = Scheduler(scheduler_config(log), self._allocator)

    def step(self, index: int, added: list[Request]) -> Line:
        """Queue requests and do a step; say what it did by the names of the log."""
        self._index = index
        scheduler = self._scheduler
        for request in added:
            keys = request.content.block_keys(self._allocator.block_size).tolist()
            scheduler.add(Sequence(request, keys))
        step = scheduler.schedule()
        scheduler.complete(step)
        return {
            "added": [request.request_id for request in added],
            "num_scheduled_tokens": {seq.request_id: n for seq, n in step.scheduled},
            "admitted_num_cached_tokens": {seq.request_id: n for seq, n in step.admitted},
            "preempted": sorted(seq.request_id for seq in step.preempted),
            "finished": sorted(seq.request_id for seq in step.finished),
            "num_free_blocks": self._allocator.usage().free,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "prefix_cache_block_queries": step.num_block_queries,
            "prefix_cache_block_hits": step.num_block_hits,
        }


class _Fast:
    """The compiled scheduler, asked step by step."""

    def __init__(self, log: Log, policy: str, arrivals: dict[int, list[Request]]) -> None:
        # Compiled code takes half a second to load.
        from sim.verify.fast import FastScheduler  # noqa: PLC0415

        requests = [request for added in arrivals.values() for request in added]
        self._scheduler = FastScheduler(
            rules_of(policy), scheduler_config(log), requests, **pool_size(log, policy)
        )

    def step(self, _: int, added: list[Request]) -> Line:
        """Queue requests and do a step; say what it did by the names of the log."""
        return self._scheduler.step([request.request_id for request in added])


def _check(log: Log) -> None:
    """Refuse a log that is not the whole of a run, from the first arrival to the last token."""
    arrivals = _check_requests(log)
    before: Line | None = None
    numbers = set()
    number = log.config_number
    for number, line in log.of_kind("step"):
        log.check(number, line, "the step", STEP)
        _check_order(log, number, before, line)
        for field in BY_REQUEST:
            for name in line[field]:
                if name not in arrivals:
                    log.refuse_as_cut(
                        number,
                        f"{field} of the step names {shown(name)}, which no line of kind "
                        "'request' describes",
                    )
        numbers.add(line["step"])
        before = line
    if before is None:
        log.refuse_as_cut(log.lines[-1][0], "there is no line of kind 'step'")
    if not arrivals:
        log.refuse_as_cut(log.lines[0][0], "there is no line of kind 'request'")
    for name, (request_number, arrival_step) in arrivals.items():
        if arrival_step not in numbers:
            log.refuse_as_cut(
                request_number,
                f"request {shown(name)} arrives at step {arrival_step}, and that step is missing",
            )
    if _num_unfinished(before):
        log.refuse_as_cut(
            number,
            f"the last step, {before['step']}, leaves {_num_unfinished(before)} requests running "
            "or waiting",
        )


def _check_requests(log: Log) -> dict[str, tuple[int, int]]:
    """Return line and step of arrival by request."""
    arrivals: dict[str, tuple[int, int]] = {}
    for number, line in log.of_kind("request"):
        log.check(number, line, "the request", REQUEST)
        name = line["request"]
        if name in arrivals:
            log.refuse_as_cut(
                number,
                f"request {shown(name)} is described a second time, after line {arrivals[name][0]}",
            )
        arrivals[name] = number, line["arrival_step"]
    return arrivals


def _check_order(log: Log, number: int, before: Line | None, line: Line) -> None:
    """Refuse a step out of order, and a gap while there was work: idle steps have no line."""
    if before is None:
        return
    step, step_before = line["step"], before["step"]
    if step <= step_before:
        log.refuse_as_cut(number, f"step {step} comes after step {step_before}, and must be later")
    if step > step_before + 1 and _num_unfinished(before):
        log.refuse_as_cut(
            number,
            f"step {step_before + 1} is missing, though step {step_before} leaves "
            f"{_num_unfinished(before)} requests running or waiting",
        )


def _num_unfinished(step: Line) -> int:
    num_requests: int = step["num_running"] + step["num_waiting"]
    return num_requests


def scheduler_config(log: Log) -> SchedulerConfig:
    """Limits of the scheduler, as the log states them."""
    return SchedulerConfig(
        max_num_seqs=log.number("max_num_seqs", minimum=1),
        max_num_batched_tokens=log.number("max_num_batched_tokens", minimum=1),
        long_prefill_token_threshold=log.number("long_prefill_token_threshold", 0),
    )


def _arrivals(log: Log) -> dict[int, list[Request]]:
    interner = Interner()
    arrivals: dict[int, list[Request]] = defaultdict(list)
    for _, line in log.of_kind("request"):
        prompt, output = line["tokens"], line["output_tokens"]
        content = TokenIds(np.array(prompt + output, dtype=np.int64), interner)
        request = Request(line["request"], 0, content, len(prompt), len(output))
        arrivals[line["arrival_step"]].append(request)
    return arrivals
