"""The event loop: requests arrive, the engine steps. The only place that knows SimPy."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Many
from typing import Any, Literal

import simpy

from sim.errors import UsageError
from sim.in_columns import column, think_ns_of
from sim.recorder import Recorder
from sim.scheduler import Scheduler, SchedulerConfig, Step
from sim.turn_order import NONE, Ints, following_turns, places_of
from sim.types import (
    Allocator,
    Clock,
    CostModel,
    OverheadModel,
    Request,
    Sequence,
    SequenceCost,
)

_MAX_NS = 2**63 - 1

MIN_CASCADE_SEQS, _MIN_COMMON_TOKENS = 8, 256
"""From when on vLLM 0.8.5 uses cascade attention."""

Process = Generator[simpy.Event, Any, None]
Reuse = Literal["prefill", "all"]
OnStep = Callable[[int, Step, Scheduler], None]


class EventLoop:
    """Simulated time and the arrivals in it; what an engine does between them is its own.

    Parameters
    ----------
    closed_loop
        Send a turn of a session only when the turn before it has ended; see `Engine`.
    until_ns
        In a closed loop, send no turn later than that, nor those after it.
    """

    def __init__(self, *, closed_loop: bool, until_ns: int | None = None) -> None:
        self._env = simpy.Environment()
        self._closed_loop = closed_loop
        self._until_ns = until_ns
        self._requests: Many[Request] = ()
        self._arrival_ns: Ints
        self._following: Ints | None = None
        self._wake_up: simpy.Event | None = None

    def now(self) -> int:
        """Read the simulated time, ns."""
        return int(self._env.now)

    def _expect(self, requests: Iterable[Request]) -> None:
        """Take note of what is to be served."""
        self._requests = requests if isinstance(requests, Many) else tuple(requests)
        self._arrival_ns = column(self._requests, "arrival_ns")

    def _hold_back_turns(self) -> Iterable[int]:
        """Hold back every turn but the first of each session; give the places of the others."""
        self._following, is_first = following_turns(self._requests)
        return places_of(is_first)

    def _arrivals(self, places: Iterable[int]) -> Process:
        for index in places:
            delay_ns = int(self._arrival_ns[index]) - self.now()
            if delay_ns > 0:
                yield self._env.timeout(delay_ns)
            self._receive(index)

    def _follow(self, index: int, delay_ns: int) -> Process:
        if delay_ns > 0:
            yield self._env.timeout(delay_ns)
        self._receive(index)

    def _receive(self, index: int) -> None:
        """Take the request at a place among all, which arrives now."""
        raise NotImplementedError

    def _sleep(self) -> simpy.Event:
        """Make the event that `_wake` lets happen."""
        self._wake_up = self._env.event()
        return self._wake_up

    def _wake(self) -> None:
        if self._wake_up is not None:
            self._wake_up.succeed()
            self._wake_up = None

    def _ended(self, index: int) -> None:
        """Let the turn that follows come."""
        following = NONE if self._following is None else int(self._following[index])
        if following == NONE:
            return
        delay_ns = think_ns_of(self._requests, following)
        if delay_ns is None:
            delay_ns = max(0, int(self._arrival_ns[following]) - self.now())
        if self._until_ns is not None and self.now() + delay_ns > self._until_ns:
            return
        self._env.process(self._follow(following, delay_ns))


class Engine(EventLoop):
    """One engine instance with its own block pool, fed by an arrival process.

    Time is simulated, in integer nanoseconds. A request that arrives no later than a step begins
    takes part in it; a token appears at the end of the step that computes it; an idle engine
    sleeps until the next arrival.

    Parameters
    ----------
    make_allocator
        Makes the policy's allocator, given the clock of this engine.
    config
        Limits of the scheduler.
    cost
        Prices each step, by its sums or by its sequences.
    recorder
        Takes the rows.
    reuse
        ``all``: blocks filled while decoding are cached too. ``prefill``: only blocks that lie
        wholly in a prompt are.
    closed_loop
        Send a turn of a session only when the turn before it has ended, ``think_ns`` later; a turn
        without a think time comes at its own time stamp or when that turn ends, if that is later.
    until_ns
        In a closed loop, send no turn later than that, nor those after it.
    overhead
        Prices what cache management does in a step.
    overlap
        Manage the cache while the model runs (asynchronous scheduling): a step takes the longer of
        the two instead of both.
    cascade
        Share of the reads of a common prefix that are saved because the sequences that all hold it
        read it once (cascade attention), from 0 to 1. As in vLLM V1 it takes at least 8 sequences
        and 256 common tokens.
    on_step
        Called with the start of the step, the step and the scheduler, at the end of every step.
    ahead
        Schedule a step when the one before it begins, as vLLM's asynchronous scheduling does: a
        request that comes meanwhile takes part in the step after the next, and blocks of requests
        that end are missed for one step. Cache management then overlaps, and ``cascade`` and
        ``on_step`` are not supported.
    """

    def __init__(
        self,
        make_allocator: Callable[[Clock], Allocator],
        config: SchedulerConfig,
        cost: CostModel | SequenceCost,
        recorder: Recorder,
        *,
        reuse: Reuse = "all",
        closed_loop: bool = False,
        until_ns: int | None = None,
        overhead: OverheadModel | None = None,
        overlap: bool = False,
        cascade: float = 0.0,
        on_step: OnStep | None = None,
        ahead: bool = False,
    ) -> None:
        super().__init__(closed_loop=closed_loop, until_ns=until_ns)
        self.allocator = make_allocator(self.now)
        self.scheduler = Scheduler(config, self.allocator)
        self._price = _pricer(cost)
        self._recorder = recorder
        self._reuse = reuse
        self._overhead = overhead
        self._overlap = overlap
        self._cascade = cascade
        self._on_step = on_step
        self._ahead = ahead
        self._place_of: dict[str, int] = {}
        assert not (ahead and (cascade or on_step)), "not supported together"

    def run(self, requests: Iterable[Request]) -> None:
        """Serve ``requests``, which come in order of arrival, to the last one."""
        self._expect(requests)
        self._recorder.begin(self._requests)
        places = self._hold_back_turns() if self._closed_loop else range(len(self._requests))
        self._env.process(self._arrivals(places))
        self._env.process(self._steps_ahead() if self._ahead else self._steps())
        self._env.run()

    def _receive(self, index: int) -> None:
        request = self._requests[index]
        self._recorder.arrived(index, request, self.now())
        num_missing_blocks = self.scheduler.num_missing_blocks(request)
        if num_missing_blocks:
            num_blocks = self.allocator.max_request_blocks()
            self._recorder.rejected(request, num_blocks + num_missing_blocks, num_blocks)
            self._ended(index)
            return
        self._place_of[request.request_id] = index
        self.scheduler.add(Sequence(request, self._block_keys(request)))
        self._wake()

    def _block_keys(self, request: Request) -> list[int]:
        block_size = self.allocator.block_size
        num_tokens = request.num_kv_tokens if self._reuse == "all" else request.num_prompt_tokens
        keys = request.content.block_keys(block_size)
        names: list[int] = keys[: num_tokens // block_size].tolist()
        return names

    def _steps(self) -> Process:
        scheduler = self.scheduler
        recorder = self._recorder
        while True:
            while not scheduler.has_work():
                yield self._sleep()
            # Arrivals due at this very moment are queued already: let them go first.
            if self._env.peek() <= self._env.now:
                yield self._env.timeout(0)
            start_ns = self.now()
            step = scheduler.schedule()
            for seq, load in step.loads:
                recorder.loaded(seq, load)
            for seq, _ in step.admitted:
                recorder.admitted(seq, start_ns)
            queues = (len(scheduler.running), len(scheduler.waiting))
            if self._cascade:
                self._read_common_prefix_once(step)
            # A step that only preempted has nothing for the model to do.
            gpu_ns = self._price(step) if step.scheduled else 0
            overhead_ns = self._overhead.work_ns(step.work) if self._overhead else 0
            busy_ns = step.load_ns + gpu_ns
            end_ns = start_ns + (
                max(busy_ns, overhead_ns) if self._overlap else busy_ns + overhead_ns
            )
            if end_ns > _MAX_NS:
                raise UsageError(
                    "the run takes more than 292 simulated years, the longest time that can be "
                    "told; lower the coefficients of --cost or --overhead, or raise the rate."
                )
            recorder.priced(gpu_ns, overhead_ns, step.load_ns)
            recorder.snapshot_step(step, start_ns, end_ns, queues, self.allocator.usage)
            yield self._env.timeout(end_ns - start_ns)
            scheduler.complete(step)
            recorder.stepped(step, end_ns)
            if self._on_step is not None:
                self._on_step(start_ns, step, scheduler)
            for seq in step.finished:
                self._ended(self._place_of.pop(seq.request_id))

    def _steps_ahead(self) -> Process:
        scheduler, recorder = self.scheduler, self._recorder
        following: tuple[Step, int] | None = None
        while True:
            while following is None and not scheduler.has_work():
                self._wake_up = self._env.event()
                yield self._wake_up
            if self._env.peek() <= self._env.now:
                yield self._env.timeout(0)
            current = following or self._schedule_ahead(in_flight=False)
            if current is None:
                continue
            step, duration_ns = current
            start_ns = self.now()
            following = self._schedule_ahead(in_flight=True) if scheduler.has_work() else None
            queues = (len(scheduler.running), len(scheduler.waiting))
            end_ns = start_ns + duration_ns
            recorder.snapshot_step(step, start_ns, end_ns, queues, self.allocator.usage)
            yield self._env.timeout(duration_ns)
            scheduler.release(step)
            recorder.stepped(step, end_ns)
            for seq in step.finished:
                self._ended(self._place_of.pop(seq.request_id))

    def _schedule_ahead(self, *, in_flight: bool) -> tuple[Step, int] | None:
        """Schedule a step and count it as computed; None if it computes nothing."""
        step = self.scheduler.schedule(in_flight=in_flight)
        for seq, load in step.loads:
            self._recorder.loaded(seq, load)
        for seq, _ in step.admitted:
            self._recorder.admitted(seq, self.now())
        if not step.scheduled:
            self._recorder.stepped(step, self.now())
            return None
        gpu_ns = self._price(step)
        overhead_ns = self._overhead.work_ns(step.work) if self._overhead else 0
        self._recorder.priced(gpu_ns, overhead_ns, step.load_ns)
        self.scheduler.advance(step)
        return step, max(step.load_ns + gpu_ns, overhead_ns)

    def _read_common_prefix_once(self, step: Step) -> None:
        """Take the reads that cascade attention saves off the context that the step reads."""
        count_blocks = getattr(self.allocator, "num_common_prefix_blocks", None)
        num_seqs = len(step.scheduled)
        # Where not all that run are in the step, a block that all hold may not serve all of it.
        if count_blocks is None or not MIN_CASCADE_SEQS <= num_seqs == len(self.scheduler.running):
            return
        num_blocks = count_blocks(step.scheduled[0][0], num_seqs)
        num_tokens = num_blocks * self.allocator.block_size
        if num_tokens >= _MIN_COMMON_TOKENS:
            step.batch.num_context_tokens -= int(self._cascade * (num_seqs - 1) * num_tokens)


def _pricer(cost: CostModel | SequenceCost) -> Callable[[Step], int]:
    if isinstance(cost, CostModel):
        step_ns = cost.step_ns
        return lambda step: step_ns(step.batch)
    sequences_ns = cost.sequences_ns
    return lambda step: sequences_ns(step.scheduled)
