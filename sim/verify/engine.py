"""Replays an engine log: a slice of a trace in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sim.cost import LinearCost
from sim.engine import Engine
from sim.recorder import Recorder, RequestRecord
from sim.types import Request
from sim.verify.allocator import make_allocator
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


def replay(log: Log, policy: str, traces: Traces) -> Iterator[Divergence]:
    """Run the slice and compare every request and the summary."""
    _check(log)
    requests = traces.slice(log)
    recorder = Recorder()
    engine = Engine(
        lambda clock: make_allocator(log, policy, clock),
        scheduler_config(log),
        LinearCost(
            step_base_ns=log.number("step_base_ns"),
            step_per_token_ns=log.number("step_per_token_ns"),
            step_per_seq_ns=log.number("step_per_seq_ns"),
        ),
        recorder,
    )
    engine.run(requests)
    records = {record.request.request_id: record for record in recorder.requests}
    start = log.number("start")
    for number, line in log.of_kind("request"):
        index = line["index"]
        record = records[requests[index - start].request_id]
        yield from log.compare(number, line, {"kind": "request", "index": index, **_row(record)})
    for number, line in log.of_kind("summary"):
        yield from log.compare(number, line, {"kind": "summary", **_summary(recorder)})


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


def _row(record: RequestRecord) -> Line:
    return {
        "arrival_ns": record.arrival_ns,
        "num_prompt_tokens": record.request.num_prompt_tokens,
        "num_output_tokens": record.request.num_output_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "admitted_ns": record.admitted_ns,
        "first_token_ns": record.first_token_ns,
        "finished_ns": record.finished_ns,
        "num_preemptions": record.num_preemptions,
    }


def _summary(recorder: Recorder) -> Line:
    served = [record for record in recorder.requests if not record.rejection]
    num_cached_tokens = sum(record.num_cached_tokens for record in served)
    num_prompt_tokens = sum(record.request.num_prompt_tokens for record in served)
    ttft_ns = [record.first_token_ns - record.arrival_ns for record in served]
    return {
        "steps": recorder.num_steps,
        "makespan_ns": recorder.end_ns,
        "prefix_cache_block_queries": recorder.num_block_queries,
        "prefix_cache_block_hits": recorder.num_block_hits,
        "num_cached_tokens": num_cached_tokens,
        "num_prompt_tokens": num_prompt_tokens,
        "token_hit_rate": num_cached_tokens / num_prompt_tokens if num_prompt_tokens else 0.0,
        "preemptions": recorder.num_preemptions,
        "mean_ttft_ns": sum(ttft_ns) / len(ttft_ns) if ttft_ns else 0.0,
    }
