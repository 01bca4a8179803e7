"""The compiled loop under the event loop: as `sim.engine.Engine`, but for whole runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sim.engine import EventLoop, Process, Reuse
from sim.errors import UsageError
from sim.fast import kernel
from sim.fast.keys import key_runs, no_keys
from sim.fast.record import FastRecord
from sim.fast.state import Rules, State, is_too_large, make_state
from sim.in_columns import column, kv_tokens
from sim.mapped import Column, filled, pieces
from sim.turn_order import NONE
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
        self._order = Column()
        self._num_rejected = 0
        self._state: State

    def run(self, requests: Iterable[Request]) -> None:
        """Serve ``requests``, which come in order of arrival, to the last one."""
        self._expect(requests)
        prompt = column(self._requests, "num_prompt_tokens")
        output = column(self._requests, "num_output_tokens")
        keyed = prompt
        if self._reuse == "all":
            keyed = filled(len(prompt), lambda part: kv_tokens(prompt[part], output[part]))
        keys = (
            key_runs(self._requests, keyed, self._rules.block_size)
            if self._rules.caches
            else no_keys(len(self._requests))
        )
        self._state = make_state(self._rules, prompt, output, keys)
        if self._closed_loop:
            places = self._hold_back_turns()
            assert self._following is not None
            for part in pieces(len(prompt)):
                self._state.seqs["has_next_turn"][part] = self._following[part] != NONE
            self._env.process(self._arrivals(places))
            self._env.process(self._steps_between_events())
        else:
            self._know_all()
            self._env.process(self._all_steps())
        self._env.run()
        self._record.take_steps(self._state)
        order = self._order.array if self._closed_loop else None
        self._record.finish(self._rules, self._state, self._requests, order)

    def _know_all(self) -> None:
        """Put every request in the inbox: in an open loop, arrivals depend on nothing."""
        state, engine = self._state, self._state.engine[0]
        arrivals = self._arrival_ns
        latest_ns = num_known = 0
        for part in pieces(len(arrivals)):
            # One that is out of order comes when those before it have.
            in_order = np.maximum(np.maximum.accumulate(arrivals[part]), latest_ns)
            state.seqs["arrival_ns"][part] = in_order
            latest_ns = in_order[-1]
            accepted = np.flatnonzero(~is_too_large(self._rules, state.seqs[part])) + part.start
            state.inbox[num_known : num_known + len(accepted)] = accepted
            num_known += len(accepted)
        engine["num_known"] = num_known
        self._num_rejected = len(self._requests) - num_known

    def _all_steps(self) -> Process:
        engine = self._state.engine[0]
        while True:
            why = self._advance(kernel.FOREVER)
            yield self._env.timeout(max(0, int(engine["now_ns"]) - self.now()))
            if why == kernel.IDLE:
                return

    def _receive(self, index: int) -> None:
        self._order.append(index)
        state, engine = self._state, self._state.engine[0]
        state.seqs["arrival_ns"][index] = self.now()
        if is_too_large(self._rules, state.seqs[index]):
            self._num_rejected += 1
            self._tell_progress()
            self._ended(index)
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
                self._ended(index)

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
