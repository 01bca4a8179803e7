"""Keeps one flat row per request, and one per step where asked to.

Rows of numbers lie in columns that go to disk when they are large, see `sim.mapped`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.in_columns import names_of, numbers_of
from sim.mapped import Column
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
    """Records of requests column by column, in order of arrival; see `RequestRecord`.

    Every array has the shape ``(requests,)``. ``index`` is the place of each among the requests
    that were to be served.
    """

    index: Ints
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

    @property
    def is_served(self) -> NDArray[np.bool_]:
        """Which of them were not rejected, shape ``(requests,)``."""
        return np.array([not reason for reason in self.rejection], dtype=bool)


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

    @property
    def num_requests(self) -> int:
        """Requests that arrived."""
        ...

    def request_columns(self, part: slice = slice(None)) -> RequestColumns:
        """Lay out what happened to some requests, by default to all, in order of arrival."""
        ...

    @property
    def num_kept_steps(self) -> int:
        """Steps that have a row."""
        ...

    def step_columns(self, part: slice = slice(None)) -> dict[str, Ints]:
        """Lay out some of the steps that have a row by `STEP_COLUMNS`, shape ``(steps,)``."""
        ...


class StepRows:
    """Rows of steps that were kept, one behind the other."""

    def __init__(self) -> None:
        self._numbers = Column()

    def __len__(self) -> int:
        return len(self._numbers) // len(STEP_COLUMNS)

    def add(self, rows: Ints | list[int]) -> None:
        """Take one row of `STEP_COLUMNS`, or several, shape ``(steps, columns)``."""
        self._numbers.extend(np.ravel(rows))

    def columns(self, part: slice) -> dict[str, Ints]:
        """Lay out some of the rows."""
        rows = self._numbers.array.reshape(-1, len(STEP_COLUMNS))[part]
        return {name: rows[:, index].copy() for index, name in enumerate(STEP_COLUMNS)}


_RECORDED = (
    "arrival_ns",
    "admitted_ns",
    "first_token_ns",
    "finished_ns",
    "num_cached_tokens",
    "num_preemptions",
    *OF_TIERS,
)
_ROW = np.dtype(
    [(name, np.int64) for name in ("index", *_RECORDED, "num_needed_blocks", "num_blocks")]
)
"""A request while it is recorded; the last two where it can never be served."""

_NOT_YET = (UNKNOWN,) * 3 + (0,) * 8


def rejection(num_needed_blocks: int, num_blocks: int) -> str:
    """Say why a request can never be served."""
    return f"needs {num_needed_blocks} of {num_blocks} blocks"


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
        self._source: Many[Request] = ()
        self._rows = Column(dtype=_ROW)
        self._steps = StepRows()
        self._live: dict[str, int] = {}

    def begin(self, requests: Many[Request]) -> None:
        """Note what is to be served."""
        self._source = requests

    def arrived(self, index: int, request: Request, now_ns: int) -> None:
        """Note an arrival, of the request that stands at ``index`` among all."""
        self._live[request.request_id] = len(self._rows)
        self._rows.append(np.array((index, now_ns, *_NOT_YET), dtype=_ROW))

    def rejected(self, request: Request, num_needed_blocks: int, num_blocks: int) -> None:
        """Note that a request can never be served, as it needs more blocks than there are."""
        row = self._rows.array[self._live.pop(request.request_id)]
        row["num_needed_blocks"], row["num_blocks"] = num_needed_blocks, num_blocks
        self._done()

    def admitted(self, seq: Sequence, now_ns: int) -> None:
        """Note a first admission; later ones, after a preemption, do not count."""
        row = self._rows.array[self._live[seq.request_id]]
        if row["admitted_ns"] == UNKNOWN:
            row["admitted_ns"] = now_ns
            row["num_cached_tokens"] = seq.num_cached_tokens

    def loaded(self, seq: Sequence, load: Load) -> None:
        """Note what an admission got from tiers; told before `admitted`, the first one counts."""
        row = self._rows.array[self._live[seq.request_id]]
        if row["admitted_ns"] == UNKNOWN:
            for name in OF_TIERS:
                row[name] = getattr(load, name)

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
        rows = self._rows.array
        for seq in step.first_tokens:
            rows[self._live[seq.request_id]]["first_token_ns"] = end_ns
        for seq in step.finished:
            row = rows[self._live.pop(seq.request_id)]
            row["finished_ns"] = end_ns
            row["num_preemptions"] = seq.num_preemptions
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
        self._steps.add(
            [
                start_ns,
                end_ns - start_ns,
                len(step.scheduled),
                step.batch.num_new_tokens,
                len(step.admitted),
                len(step.preempted),
                *queues,
                blocks.used,
                blocks.cached,
            ]
        )

    @property
    def num_requests(self) -> int:
        """Requests that arrived."""
        return len(self._rows)

    @property
    def num_kept_steps(self) -> int:
        """Steps that have a row."""
        return len(self._steps)

    @property
    def requests(self) -> list[RequestRecord]:
        """What happened to each request, in order of arrival, made anew."""
        columns = self.request_columns()
        numbers = {name: getattr(columns, name).tolist() for name in _RECORDED}
        return [
            RequestRecord(
                self._source[index],
                rejection=columns.rejection[row],
                **{name: values[row] for name, values in numbers.items()},
            )
            for row, index in enumerate(columns.index.tolist())
        ]

    @property
    def steps(self) -> list[StepRecord]:
        """The steps that have a row, made anew."""
        columns = [column.tolist() for column in self.step_columns().values()]
        return [StepRecord(*row) for row in zip(*columns, strict=True)]

    def request_columns(self, part: slice = slice(None)) -> RequestColumns:
        """Lay out what happened to some requests, by default to all, in order of arrival."""
        rows = self._rows.array[part]
        index = rows["index"].copy()
        blocks = zip(rows["num_needed_blocks"].tolist(), rows["num_blocks"].tolist(), strict=True)
        return RequestColumns(
            index=index,
            request_id=names_of(self._source, index),
            rejection=[rejection(needed, there) if needed else "" for needed, there in blocks],
            num_prompt_tokens=numbers_of(self._source, "num_prompt_tokens", index),
            num_output_tokens=numbers_of(self._source, "num_output_tokens", index),
            **{name: rows[name].copy() for name in _RECORDED},
        )

    def step_columns(self, part: slice = slice(None)) -> dict[str, Ints]:
        """Lay out some of the steps that have a row by `STEP_COLUMNS`, shape ``(steps,)``."""
        return self._steps.columns(part)

    def _done(self) -> None:
        self._num_done += 1
        if self._on_done is not None:
            self._on_done(self._num_done)
