"""One step of vLLM V1's scheduler over arrays; see `sim.scheduler`, whose rules these are.

The sequences of a step are always the first ones of the running list: running sequences are
scheduled in its order, whoever is preempted stands behind them, and who is admitted comes last.
"""

from __future__ import annotations

from sim.fast.compiling import compiled
from sim.fast.pool import admit, free, grow, make_room, match_prefix, needs_blocks
from sim.fast.state import NONE, Rules, State


@compiled
def wait(state: State, r: int) -> None:
    """Put sequence ``r`` at the end of the waiting queue."""
    engine, seqs = state.engine[0], state.seqs
    seqs[r].next_waiting = NONE
    if engine.waiting_tail == NONE:
        engine.waiting_head = r
    else:
        seqs[engine.waiting_tail].next_waiting = r
    engine.waiting_tail = r
    engine.num_waiting += 1


@compiled
def _wait_first(state: State, r: int) -> None:
    engine, seqs = state.engine[0], state.seqs
    seqs[r].next_waiting = engine.waiting_head
    if engine.waiting_tail == NONE:
        engine.waiting_tail = r
    engine.waiting_head = r
    engine.num_waiting += 1


@compiled
def _leave_queue(state: State) -> None:
    engine, seqs = state.engine[0], state.seqs
    engine.waiting_head = seqs[engine.waiting_head].next_waiting
    if engine.waiting_head == NONE:
        engine.waiting_tail = NONE
    engine.num_waiting -= 1


@compiled
def _begin(state: State) -> None:
    """Begin with what was freed at the end of the last step."""
    engine, step = state.engine[0], state.step[0]
    step.num_scheduled = step.num_admitted = step.num_preempted = 0
    step.batch_tokens = step.batch_pairs = step.batch_context = 0
    step.num_requests = step.num_hashed_tokens = step.num_block_hits = 0
    step.num_new_blocks = step.num_new_tokens = 0
    step.num_evicted_blocks = step.num_scanned_entries = 0
    step.num_refusals = step.num_refused_hits = 0
    step.num_appends = step.num_append_blocks = step.num_table_blocks = 0
    step.num_requests_freed = engine.freed_requests
    step.num_blocks_freed = engine.freed_blocks
    step.num_tokens_freed = engine.freed_tokens
    step.num_hit_blocks_freed = engine.freed_hit_blocks
    engine.freed_requests = engine.freed_blocks = 0
    engine.freed_tokens = engine.freed_hit_blocks = 0


@compiled
def _schedule(state: State, r: int, num_new: int) -> None:
    """Note that sequence ``r``, the next of the running list, computes ``num_new`` tokens."""
    step, seq = state.step[0], state.seqs[r]
    seq.num_new_tokens = num_new
    step.num_scheduled += 1
    step.batch_tokens += num_new
    step.batch_pairs += num_new * seq.num_computed_tokens + num_new * (num_new + 1) // 2
    step.batch_context += seq.num_computed_tokens + num_new


@compiled
def _limit(rules: Rules, num_uncomputed: int, budget: int) -> int:
    threshold = rules.long_prefill_token_threshold
    if 0 < threshold < num_uncomputed:
        num_uncomputed = threshold
    return min(num_uncomputed, budget)


@compiled
def _preempt(rules: Rules, state: State) -> int:
    """Take the blocks of the youngest running sequence away; return which it is."""
    engine, step = state.engine[0], state.step[0]
    engine.num_running -= 1
    r = int(state.running[engine.num_running])
    seq = state.seqs[r]
    num_blocks = -(-seq.num_computed_tokens // rules.block_size)
    step.num_requests_freed += 1
    step.num_blocks_freed += num_blocks - seq.num_hit_blocks
    step.num_hit_blocks_freed += seq.num_hit_blocks
    hit_tokens = seq.num_hit_blocks * rules.block_size
    step.num_tokens_freed += max(0, seq.num_computed_tokens - hit_tokens)
    free(rules, state, r)
    seq.num_computed_tokens = 0
    seq.num_preemptions += 1
    _wait_first(state, r)
    step.num_preempted += 1
    return r


@compiled
def _schedule_running(rules: Rules, state: State, budget: int) -> int:
    engine, step, seqs, running = state.engine[0], state.step[0], state.seqs, state.running
    i = 0
    while i < engine.num_running and budget > 0:
        r = running[i]
        seq = seqs[r]
        num_new = _limit(rules, seq.num_tokens - seq.num_computed_tokens, budget)
        num_blocks = seq.num_blocks
        if needs_blocks(rules, seq, num_new):
            while True:
                num_evicted = grow(rules, state, r, num_new)
                if num_evicted >= 0:
                    break
                if _preempt(rules, state) == r:
                    return budget
            step.num_evicted_blocks += num_evicted
        step.num_appends += 1
        step.num_table_blocks += num_blocks
        if num_new > 1:
            step.num_new_blocks += seq.num_blocks - num_blocks
            step.num_new_tokens += num_new
        elif seq.num_blocks > num_blocks:
            step.num_append_blocks += 1
        _schedule(state, r, num_new)
        budget -= num_new
        i += 1
    return budget


@compiled
def _admit_waiting(rules: Rules, state: State, budget: int) -> None:
    engine, step, seqs = state.engine[0], state.step[0], state.seqs
    while engine.num_waiting > 0 and budget > 0 and engine.num_running < rules.max_num_seqs:
        r = engine.waiting_head
        seq = seqs[r]
        # Without caching nothing is looked up, and nothing is found.
        if rules.caches:
            make_room(rules, state, r)
            match_prefix(rules, state, r)
        num_hits = engine.num_found
        engine.num_block_queries += engine.num_asked
        engine.num_block_hits += num_hits
        num_hit_tokens = num_hits * rules.block_size
        num_new = _limit(rules, seq.num_tokens - num_hit_tokens, budget)
        num_evicted = admit(rules, state, r, num_new)
        if num_evicted < 0:
            step.num_refusals += 1
            step.num_refused_hits += num_hits
            return
        _leave_queue(state)
        state.running[engine.num_running] = r
        engine.num_running += 1
        seq.num_computed_tokens = num_hit_tokens
        seq.num_hit_blocks = num_hits
        step.num_admitted += 1
        step.num_evicted_blocks += num_evicted
        step.num_requests += 1
        step.num_block_hits += num_hits
        step.num_new_blocks += seq.num_blocks - num_hits
        step.num_new_tokens += num_new
        if seq.num_cached_tokens < 0:
            step.num_hashed_tokens += seq.num_tokens
            seq.num_cached_tokens = num_hit_tokens
            seq.admitted_ns = engine.now_ns
        _schedule(state, r, num_new)
        budget -= num_new


@compiled
def schedule(rules: Rules, state: State) -> None:
    """Hand out the token budget of one step: running sequences first, then admissions."""
    _begin(state)
    budget = _schedule_running(rules, state, rules.max_num_batched_tokens)
    if state.step[0].num_preempted == 0:
        _admit_waiting(rules, state, budget)


@compiled
def _end(rules: Rules, state: State, r: int) -> None:
    """Let a sequence go whose last token is out."""
    engine, seq = state.engine[0], state.seqs[r]
    seq.finished_ns = engine.now_ns
    state.ended[engine.num_ended] = r
    engine.num_ended += 1
    engine.freed_requests += 1
    num_blocks = -(-seq.num_computed_tokens // rules.block_size)
    engine.freed_blocks += num_blocks - seq.num_hit_blocks
    engine.freed_hit_blocks += seq.num_hit_blocks
    hit_tokens = seq.num_hit_blocks * rules.block_size
    engine.freed_tokens += max(0, seq.num_computed_tokens - hit_tokens)
    free(rules, state, r)


@compiled
def complete(rules: Rules, state: State) -> None:
    """Apply the end of a step: tokens are computed, new ones come out, requests finish."""
    engine, seqs, running = state.engine[0], state.seqs, state.running
    engine.num_ended = 0
    num_left = 0
    num_scheduled = state.step[0].num_scheduled
    for k in range(num_scheduled):
        r = running[k]
        seq = seqs[r]
        seq.num_computed_tokens += seq.num_new_tokens
        ends = False
        if seq.num_computed_tokens >= seq.num_tokens:
            if seq.num_tokens < seq.num_total_tokens:
                seq.num_tokens += 1
                if seq.num_tokens == seq.num_prompt_tokens + 1:
                    seq.first_token_ns = engine.now_ns
            ends = seq.num_tokens == seq.num_total_tokens
        if ends:
            _end(rules, state, r)
        else:
            running[num_left] = r
            num_left += 1
    if engine.num_ended:
        for k in range(num_scheduled, engine.num_running):
            running[num_left] = running[k]
            num_left += 1
        engine.num_running = num_left
