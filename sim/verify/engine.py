"""Replays an engine log: a slice of a trace in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sim.cost import LinearCost
from sim.engine import Engine
from sim.fast.support import make_rules
from sim.recorder import Recorded, Recorder, RequestColumns
from sim.types import Request
from sim.verify.allocator import make_allocator, pool_size, rules_of
from sim.verify.fields import NUMBER, WHOLE, Kind, shown
from sim.verify.log import Divergence, Line, Log
from sim.verify.scheduler import scheduler_config
from workloads import load

REQUEST: dict[str, Kind] = {
    "index": WHOLE,
    "arrival_ns": WHOLE,
    "num_prompt_tokens": WHOLE,
    "num_output_tokens": WHOLE,
    "num_cached_tokens": WHOLE,
    "admitted_ns": WHOLE,
    "first_token_ns": WHOLE,
    "finished_ns": WHOLE,
    "num_preemptions": WHOLE,
}
"""Fields of the line of a request."""

SUMMARY: dict[str, Kind] = {
    "steps": WHOLE,
    "makespan_ns": WHOLE,
    "prefix_cache_block_queries": WHOLE,
    "prefix_cache_block_hits": WHOLE,
    "num_cached_tokens": WHOLE,
    "num_prompt_tokens": WHOLE,
    "token_hit_rate": NUMBER,
    "preemptions": WHOLE,
    "mean_ttft_ns": NUMBER,
}
"""Fields of the last line."""


class Traces:
    """Finds and keeps the traces that engine logs refer to."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._requests: dict[Path, Sequence[Request]] = {}

    def slice(self, log: Log) -> list[Request]:
        """Read the requests of a log, their arrivals counted from the first one's."""
        path = self._find(log)
        if path not in self._requests:
            self._requests[path] = load(str(path)).requests
        start, count = log.number("start"), log.number("count", minimum=1)
        requests = self._requests[path][start : start + count]
        if len(requests) < count:
            log.refuse(
                log.config_number,
                f"requests {start} to {start + count} are asked for and {path} has "
                f"{len(self._requests[path])}",
                "give the trace that was recorded",
            )
        first_ns = requests[0].arrival_ns
        return [replace(r, arrival_ns=r.arrival_ns - first_ns) for r in requests]

    def _find(self, log: Log) -> Path:
        name = log.text("trace")
        near = log.path.resolve().parent
        folders = (
            [self._folder]
            if self._folder is not None
            else [near, near.parent / "traces", near.parent.parent / "traces"]
        )
        for folder in folders:
            if _is_file(folder / name):
                return folder / name
        log.refuse(
            log.config_number,
            f"trace {shown(name)} is not in {' or '.join(map(str, folders))}",
            "name its folder with --traces",
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # No file has a name as long as that.
        return False


def replay(log: Log, policy: str, traces: Traces, *, fast: bool = False) -> Iterator[Divergence]:
    """Run the slice and compare every request and the summary.

    ``fast`` takes the fast engine, which the policy must have.
    """
    _check(log)
    requests = traces.slice(log)
    cost = LinearCost(
        step_base_ns=log.number("step_base_ns"),
        step_per_token_ns=log.number("step_per_token_ns"),
        step_per_seq_ns=log.number("step_per_seq_ns"),
    )
    recorded = (_run_fast if fast else _run_plain)(log, policy, requests, cost)
    columns = recorded.request_columns()
    rows = {request_id: row for row, request_id in enumerate(columns.request_id)}
    start = log.number("start")
    for number, line in log.of_kind("request"):
        index = line["index"]
        row = _row(columns, rows[requests[index - start].request_id])
        yield from log.compare(number, line, {"kind": "request", "index": index, **row})
    for number, line in log.of_kind("summary"):
        yield from log.compare(number, line, {"kind": "summary", **_summary(recorded)})


def _check(log: Log) -> None:
    """Refuse a log that lacks a request of its slice, or the summary at the end."""
    log.check_kinds("request", "summary")
    start, count = log.number("start"), log.number("count", minimum=1)
    seen: dict[int, int] = {}
    for number, line in log.of_kind("request"):
        log.check(number, line, "the request", REQUEST)
        index = line["index"]
        if not start <= index < start + count:
            log.refuse(
                number,
                f"index {index} is outside the slice {start} to {start + count} that the "
                "configuration names",
                "correct the one or the other",
            )
        if index in seen:
            log.refuse_as_cut(
                number, f"index {index} stands a second time, after line {seen[index]}"
            )
        seen[index] = number
    if len(seen) < count:
        # Named from what is there: a wrong count may be far larger than the file.
        missing = next(index for index in range(start, start + count) if index not in seen)
        log.refuse_as_cut(
            log.config_number,
            f"count is {count} and {len(seen)} lines are of kind 'request': index {missing} is "
            "missing",
        )
    number, last = log.lines[-1]
    if last["kind"] != "summary":
        log.refuse_as_cut(number, "the last line is not of kind 'summary'")
    for number, line in log.of_kind("summary"):
        if line is not last:
            log.refuse_as_cut(number, "a line of kind 'summary' stands before the last line")
        log.check(number, line, "the summary", SUMMARY)


def _run_plain(log: Log, policy: str, requests: list[Request], cost: LinearCost) -> Recorded:
    recorder = Recorder()
    engine = Engine(
        lambda clock: make_allocator(log, policy, clock), scheduler_config(log), cost, recorder
    )
    engine.run(requests)
    return recorder


def _run_fast(log: Log, policy: str, requests: list[Request], cost: LinearCost) -> Recorded:
    # Compiled code takes half a second to load.
    from sim.fast.engine import FastEngine  # noqa: PLC0415
    from sim.fast.record import FastRecord  # noqa: PLC0415

    size = pool_size(log, policy)
    rules = make_rules(
        rules_of(policy),
        scheduler_config(log),
        cost,
        num_blocks=size["num_blocks"],
        block_size=size["block_size"],
    )
    record = FastRecord()
    FastEngine(rules, record).run(requests)
    return record


_COMPARED = (
    "arrival_ns",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "admitted_ns",
    "first_token_ns",
    "finished_ns",
    "num_preemptions",
)


def _row(columns: RequestColumns, index: int) -> Line:
    return {name: int(getattr(columns, name)[index]) for name in _COMPARED}


def _summary(recorded: Recorded) -> Line:
    columns = recorded.request_columns()
    served = columns.is_served
    num_cached_tokens = int(columns.num_cached_tokens[served].sum())
    num_prompt_tokens = int(columns.num_prompt_tokens[served].sum())
    ttft_ns = (columns.first_token_ns - columns.arrival_ns)[served].tolist()
    return {
        "steps": recorded.num_steps,
        "makespan_ns": recorded.end_ns,
        "prefix_cache_block_queries": recorded.num_block_queries,
        "prefix_cache_block_hits": recorded.num_block_hits,
        "num_cached_tokens": num_cached_tokens,
        "num_prompt_tokens": num_prompt_tokens,
        "token_hit_rate": num_cached_tokens / num_prompt_tokens if num_prompt_tokens else 0.0,
        "preemptions": recorded.num_preemptions,
        "mean_ttft_ns": sum(ttft_ns) / len(ttft_ns) if ttft_ns else 0.0,
    }
