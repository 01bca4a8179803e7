"""The compiled loop under the event loop: as `sim.engine.Engine`, but for whole runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine import EventLoop, Process, Reuse
from sim.errors import UsageError
from sim.fast import kernel
from sim.fast.keys import column, key_runs, no_keys
from sim.fast.record import FastRecord
from sim.fast.state import Rules, State, make_state
from sim.types import Request

Ints = NDArray[np.int64]

_MAX_WORK = 1_000_000
"""Work of one call of compiled code: a tenth of a second at most."""


class FastEngine(EventLoop):
    """One engine instance with its own block pool, compiled.

    Parameters
    ----------
    rules
        Policy, limits and prices, see `sim.fast.support.make_rules`.
    record
        Takes the rows.
    reuse, closed_loop, until_ns
        As for `sim.engine.Engine`.
    on_done
        Called every now and then with the number of requests that have ended.
    """

    def __init__(
        self,
        rules: Rules,
        record: FastRecord,
        *,
        reuse: Reuse = "all",
        closed_loop: bool = False,
        until_ns: int | None = None,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(closed_loop=closed_loop, until_ns=until_ns)
        self._rules = rules
        self._reuse = reuse
        self._record = record
        self._on_done = on_done
        self._requests: Sequence[Request] = ()
        self._rejections: list[str] = []
        self._index_of: dict[str, int] = {}
        self._order: list[int] = []
        self._num_rejected = 0
        self._state: State

    def run(self, requests: Iterable[Request]) -> None:
        """Serve ``requests``, which come in order of arrival, to the last one."""
        self._requests = requests if isinstance(requests, Sequence) else list(requests)
        prompt = column(self._requests, "num_prompt_tokens")
        output = column(self._requests, "num_output_tokens")
        computed = prompt + np.maximum(output - 1, 0)
        self._rejections = _rejections(computed, self._rules)
        keyed = computed if self._reuse == "all" else prompt
        keys = (
            key_runs(self._requests, keyed, self._rules.block_size)
            if self._rules.caches
            else no_keys(len(self._requests))
        )
        self._state = make_state(self._rules, prompt, output, keys)
        if self._closed_loop:
            self._requests = list(self._requests)  # each is asked for more than once
            self._index_of = {r.request_id: i for i, r in enumerate(self._requests)}
            first_turns = self._link_turns(self._requests)
            for request_id in self._next_turn:
                self._state.seqs["has_next_turn"][self._index_of[request_id]] = 1
            self._env.process(self._arrivals(first_turns))
            self._env.process(self._steps_between_events())
        else:
            self._know_all()
            self._env.process(self._all_steps())
        self._env.run()
        self._record.take_steps(self._state)
        order = np.array(self._order, dtype=np.int64)
        self._record.finish(self._state, self._requests, self._rejections, order)

    def _know_all(self) -> None:
        """Put every request in the inbox: in an open loop, arrivals depend on nothing."""
        state, engine = self._state, self._state.engine[0]
        arrivals = column(self._requests, "arrival_ns")
        # One that is out of order comes when those before it have.
        state.seqs["arrival_ns"] = np.maximum(np.maximum.accumulate(arrivals), 0)
        accepted = [index for index, reason in enumerate(self._rejections) if not reason]
        state.inbox[: len(accepted)] = accepted
        engine["num_known"] = len(accepted)
        self._num_rejected = len(self._requests) - len(accepted)
        self._order = list(range(len(self._requests)))

    def _all_steps(self) -> Process:
        engine = self._state.engine[0]
        while True:
            why = self._advance(kernel.FOREVER)
            yield self._env.timeout(max(0, int(engine["now_ns"]) - self.now()))
            if why == kernel.IDLE:
                return

    def _receive(self, request: Request) -> None:
        index = self._index_of[request.request_id]
        self._order.append(index)
        state, engine = self._state, self._state.engine[0]
        state.seqs["arrival_ns"][index] = self.now()
        if self._rejections[index]:
            self._num_rejected += 1
            self._tell_progress()
            self._ended(request)
            return
        state.inbox[engine["num_known"]] = index
        engine["num_known"] += 1
        self._wake()

    def _steps_between_events(self) -> Process:
        """Do all steps that begin before the next event, and be there when the last one ends."""
        state, engine = self._state, self._state.engine[0]
        while True:
            while not engine["num_running"] + engine["num_waiting"] and (
                engine["num_received"] == engine["num_known"]
            ):
                yield self._sleep()
            # Arrivals due at this very moment are queued already: let them go first.
            if self._env.peek() <= self._env.now:
                yield self._env.timeout(0)
            engine["now_ns"] = self.now()
            next_ns = self._env.peek()
            horizon_ns = kernel.FOREVER if next_ns == float("inf") else int(next_ns)
            why = self._advance(horizon_ns)
            ended = state.ended[: engine["num_ended"]].tolist() if why == kernel.TURN_ENDED else []
            # The last step begins, then ends, so that events at its end keep their order.
            start_ns, end_ns = int(engine["start_ns"]), int(engine["now_ns"])
            if start_ns > self.now():
                yield self._env.timeout(start_ns - self.now())
            yield self._env.timeout(end_ns - self.now())
            for index in ended:
                self._ended(self._requests[index])

    def _advance(self, horizon_ns: int) -> int:
        why = kernel.advance(self._rules, self._state, horizon_ns, _MAX_WORK)
        if why == kernel.TIME_OVER:
            raise UsageError(
                "simulated time passes 292 years, the longest that can be told; lower the times "
                "of --cost or --overhead."
            )
        self._record.take_steps(self._state)
        self._tell_progress()
        return why

    def _tell_progress(self) -> None:
        if self._on_done is not None:
            self._on_done(int(self._state.engine[0]["num_done"]) + self._num_rejected)


def _rejections(num_tokens: Ints, rules: Rules) -> list[str]:
    """Say of each request why it can never be served; nothing where it can."""
    num_blocks = -(-num_tokens // rules.block_size)
    reasons = [""] * len(num_tokens)
    for index in np.flatnonzero(num_blocks > rules.num_blocks).tolist():
        reasons[index] = f"needs {num_blocks[index]} of {rules.num_blocks} blocks"
    return reasons
