"""Keeps one flat row per request, and one per step where asked to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.scheduler import Step
from sim.types import BlockUsage, Load, Request, Sequence

UNKNOWN = -1
"""Stands for a time that never came, ns."""


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request; times in ns, `UNKNOWN` where the event never came."""

    request: Request
    arrival_ns: int
    admitted_ns: int = UNKNOWN
    first_token_ns: int = UNKNOWN
    finished_ns: int = UNKNOWN
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    rejection: str = ""
    num_host_tokens: int = 0
    num_ssd_tokens: int = 0
    num_recomputed_tokens: int = 0
    load_ns: int = 0


@dataclass(slots=True)
class StepRecord:
    """One engine step: when it began, how long it took, what it computed, what was left."""

    start_ns: int
    duration_ns: int
    num_scheduled_seqs: int
    num_new_tokens: int
    num_admitted: int
    num_preempted: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_cached_blocks: int


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """The records of all requests column by column, in order of arrival; see `RequestRecord`.

    Every array has the shape ``(requests,)``.
    """

    request_id: list[str]
    rejection: list[str]
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    num_cached_tokens: Ints
    num_preemptions: Ints
    arrival_ns: Ints
    admitted_ns: Ints
    first_token_ns: Ints
    finished_ns: Ints
    num_host_tokens: Ints
    num_ssd_tokens: Ints
    num_recomputed_tokens: Ints
    load_ns: Ints


OF_TIERS = ("num_host_tokens", "num_ssd_tokens", "num_recomputed_tokens", "load_ns")
"""Columns of a request that are 0 without tiers below the GPU."""

STEP_COLUMNS = tuple(field.name for field in fields(StepRecord))
"""Columns of a step, in the order in which rows of numbers hold them."""


class Recorded(Protocol):
    """What a run leaves behind, whoever recorded it: sums, and columns of requests and steps."""

    num_steps: int
    num_preemptions: int
    num_block_queries: int
    num_block_hits: int
    end_ns: int
    gpu_ns: int
    overhead_ns: int
    load_ns: int

    def served(self) -> Collection[Request]:
        """List the requests that were not rejected, in order of arrival."""
        ...

    def request_columns(self) -> RequestColumns:
        """Lay out what happened to each request."""
        ...

    def step_columns(self) -> dict[str, Ints]:
        """Lay out the steps by `STEP_COLUMNS`, each of shape ``(steps,)``; none if not kept."""
        ...


class Recorder:
    """Collects records while a run goes on.

    Parameters
    ----------
    keep_steps
        Keep a row for every step too; a long run has hundreds of thousands.
    on_done
        Called with the number of requests that have ended, after each one.
    """

    def __init__(
        self, *, keep_steps: bool = False, on_done: Callable[[int], None] | None = None
    ) -> None:
        self.requests: list[RequestRecord] = []
        self.steps: list[StepRecord] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_block_queries = 0
        self.num_block_hits = 0
        self.end_ns = 0
        self.gpu_ns = 0
        self.overhead_ns = 0
        self.load_ns = 0
        self._keep_steps = keep_steps
        self._on_done = on_done
        self._num_done = 0
        self._live: dict[str, RequestRecord] = {}

    def arrived(self, request: Request, now_ns: int) -> None:
        """Note an arrival."""
        record = RequestRecord(request, now_ns)
        self.requests.append(record)
        self._live[request.request_id] = record

    def rejected(self, request: Request, reason: str) -> None:
        """Note that a request can never be served."""
        self._live.pop(request.request_id).rejection = reason
        self._done()

    def admitted(self, seq: Sequence, now_ns: int) -> None:
        """Note a first admission; later ones, after a preemption, do not count."""
        record = self._live[seq.request_id]
        if record.admitted_ns == UNKNOWN:
            record.admitted_ns = now_ns
            record.num_cached_tokens = seq.num_cached_tokens

    def loaded(self, seq: Sequence, load: Load) -> None:
        """Note what an admission got from tiers; told before `admitted`, the first one counts."""
        record = self._live[seq.request_id]
        if record.admitted_ns == UNKNOWN:
            record.num_host_tokens = load.num_host_tokens
            record.num_ssd_tokens = load.num_ssd_tokens
            record.num_recomputed_tokens = load.num_recomputed_tokens
            record.load_ns = load.load_ns

    def priced(self, gpu_ns: int, overhead_ns: int, load_ns: int) -> None:
        """Note what a step takes on the GPU and in cache management, and what it waits for."""
        self.gpu_ns += gpu_ns
        self.overhead_ns += overhead_ns
        self.load_ns += load_ns

    def stepped(self, step: Step, end_ns: int) -> None:
        """Note the end of a step."""
        self.num_steps += 1
        self.num_preemptions += len(step.preempted)
        self.num_block_queries += step.num_block_queries
        self.num_block_hits += step.num_block_hits
        self.end_ns = end_ns
        for seq in step.first_tokens:
            self._live[seq.request_id].first_token_ns = end_ns
        for seq in step.finished:
            record = self._live.pop(seq.request_id)
            record.finished_ns = end_ns
            record.num_preemptions = seq.num_preemptions
            self._done()

    def snapshot_step(
        self,
        step: Step,
        start_ns: int,
        end_ns: int,
        queues: tuple[int, int],
        usage: Callable[[], BlockUsage],
    ) -> None:
        """Keep a row of the step, if steps are kept; ``queues`` is (running, waiting)."""
        if not self._keep_steps:
            return
        blocks = usage()
        self.steps.append(
            StepRecord(
                start_ns,
                end_ns - start_ns,
                len(step.scheduled),
                step.batch.num_new_tokens,
                len(step.admitted),
                len(step.preempted),
                queues[0],
                queues[1],
                blocks.used,
                blocks.cached,
            )
        )

    def served(self) -> list[Request]:
        """List the requests that were not rejected, in order of arrival."""
        return [record.request for record in self.requests if not record.rejection]

    def request_columns(self) -> RequestColumns:
        """Lay out what happened to each request."""
        records = self.requests

        def column(name: str) -> Ints:
            return np.array([getattr(record, name) for record in records], dtype=np.int64)

        requests = [record.request for record in records]
        return RequestColumns(
            request_id=[request.request_id for request in requests],
            rejection=[record.rejection for record in records],
            num_prompt_tokens=np.array([r.num_prompt_tokens for r in requests], dtype=np.int64),
            num_output_tokens=np.array([r.num_output_tokens for r in requests], dtype=np.int64),
            num_cached_tokens=column("num_cached_tokens"),
            num_preemptions=column("num_preemptions"),
            arrival_ns=column("arrival_ns"),
            admitted_ns=column("admitted_ns"),
            first_token_ns=column("first_token_ns"),
            finished_ns=column("finished_ns"),
            num_host_tokens=column("num_host_tokens"),
            num_ssd_tokens=column("num_ssd_tokens"),
            num_recomputed_tokens=column("num_recomputed_tokens"),
            load_ns=column("load_ns"),
        )

    def step_columns(self) -> dict[str, Ints]:
        """Lay out the steps by `STEP_COLUMNS`; none if they were not kept."""
        return {
            name: np.array([getattr(step, name) for step in self.steps], dtype=np.int64)
            for name in STEP_COLUMNS
        }

    def _done(self) -> None:
        self._num_done += 1
        if self._on_done is not None:
            self._on_done(self._num_done)
