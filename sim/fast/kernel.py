"""Step after step without the event loop, until somebody else has to act."""

from __future__ import annotations

from sim.fast.compiling import bare_entry, compiled
from sim.fast.price import TOO_LONG, gpu_ns, saved_context, work_ns
from sim.fast.state import Rules, State
from sim.fast.step import complete, schedule, wait

IDLE, HORIZON, TURN_ENDED, PAUSED, TIME_OVER = range(5)
"""Why `advance` returned: nothing is left to do, something else may happen before the next step,
a turn ended that another one follows, enough was done for one call, or time has run out."""

FOREVER = 2**63 - 1
"""Lies behind every event, ns."""


@compiled
def _receive(state: State) -> None:
    """Let those wait that have arrived by now."""
    engine = state.engine[0]
    while engine.num_received < engine.num_known:
        r = state.inbox[engine.num_received]
        if state.seqs[r].arrival_ns > engine.now_ns:
            return
        wait(state, r)
        engine.num_received += 1


@compiled
def _step(rules: Rules, state: State) -> bool:
    """Do one step; return whether its end can be told in 64 bits."""
    engine, step = state.engine[0], state.step[0]
    schedule(rules, state)
    if rules.cascade > 0.0:
        step.batch_context -= saved_context(rules, state)
    # A step that only preempted has nothing for the model to do.
    forward_ns = gpu_ns(rules, step) if step.num_scheduled else 0
    overhead_ns = work_ns(rules, step) if rules.has_overhead else 0
    duration_ns = max(forward_ns, overhead_ns) if rules.overlap else forward_ns + overhead_ns
    if min(forward_ns, overhead_ns) == TOO_LONG or duration_ns > FOREVER - engine.now_ns:
        return False
    engine.start_ns = engine.now_ns
    engine.end_ns = engine.now_ns + duration_ns
    engine.now_ns = engine.end_ns
    engine.gpu_ns += forward_ns
    engine.overhead_ns += overhead_ns
    engine.num_steps += 1
    engine.num_preemptions += step.num_preempted
    if rules.keeps_steps:
        row = state.rows[engine.num_rows]
        row[0] = engine.start_ns
        row[1] = duration_ns
        row[2] = step.num_scheduled
        row[3] = step.batch_tokens
        row[4] = step.num_admitted
        row[5] = step.num_preempted
        row[6] = engine.num_running
        row[7] = engine.num_waiting
        row[8] = rules.num_blocks - engine.num_free_blocks
        row[9] = engine.num_cached_blocks
        engine.num_rows += 1
    complete(rules, state)
    engine.num_done += engine.num_ended
    return True


@compiled
def _a_turn_follows(state: State) -> bool:
    num_followed = 0
    for k in range(state.engine[0].num_ended):
        num_followed += state.seqs[state.ended[k]].has_next_turn
    return num_followed > 0


@bare_entry
def advance(rules: Rules, state: State, horizon_ns: int, max_work: int) -> int:
    """Do steps that begin before ``horizon_ns``.

    Arrivals that are known stand in the inbox; others may come at the horizon. An idle engine goes
    on at the next known arrival.

    Parameters
    ----------
    max_work
        Return after about so many sequences scheduled or blocks handed out, so that the caller
        can be interrupted.

    Returns
    -------
    Why it ended, one of the constants of this module.
    """
    engine, step = state.engine[0], state.step[0]
    while True:
        _receive(state)
        if engine.num_running + engine.num_waiting == 0:
            if engine.num_received == engine.num_known:
                return IDLE
            engine.now_ns = state.seqs[state.inbox[engine.num_received]].arrival_ns
            continue
        if engine.now_ns >= horizon_ns:
            return HORIZON
        if not _step(rules, state):
            return TIME_OVER
        if _a_turn_follows(state):
            return TURN_ENDED
        max_work -= step.num_scheduled + step.num_new_blocks + step.num_block_hits + 1
        if max_work <= 0 or engine.num_rows == len(state.rows):
            return PAUSED
