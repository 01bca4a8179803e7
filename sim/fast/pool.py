"""The block pool of vLLM V1 over arrays; see `policies.vllm_v1`, whose rules these are.

Functions change ``state`` and return what the scheduler has to know. Counts of blocks are plain
numbers, so that a pool that caches nothing needs no blocks at all.
"""

from __future__ import annotations

from sim.fast.compiling import compiled
from sim.fast.state import NONE, Ints32, Record, Records, Rules, State


@compiled
def remove(blocks: Records, block: int) -> None:
    """Take ``block`` out of the free queue, wherever it stands."""
    before, after = blocks[block].prev, blocks[block].next
    blocks[before].next = after
    blocks[after].prev = before


@compiled
def insert(blocks: Records, before: int, block: int, after: int) -> None:
    """Put ``block`` between two neighbours of the free queue."""
    blocks[block].prev = before
    blocks[block].next = after
    blocks[before].next = block
    blocks[after].prev = block


@compiled
def register(blocks: Records, oldest: Ints32, key: int, block: int) -> None:
    """Let ``key`` find ``block``, after those that it finds already."""
    first = oldest[key]
    blocks[block].key = key
    if first == 0:
        oldest[key] = block
        blocks[block].same_prev = block
        blocks[block].same_next = block
        return
    last = blocks[first].same_prev
    blocks[block].same_prev = last
    blocks[block].same_next = first
    blocks[last].same_next = block
    blocks[first].same_prev = block


@compiled
def unregister(blocks: Records, oldest: Ints32, block: int) -> None:
    """Let the key of ``block`` no longer find it."""
    key = blocks[block].key
    blocks[block].key = NONE
    after = blocks[block].same_next
    if after == block:
        oldest[key] = 0
        return
    before = blocks[block].same_prev
    blocks[before].same_next = after
    blocks[after].same_prev = before
    if oldest[key] == block:
        oldest[key] = after


@compiled
def match_prefix(rules: Rules, state: State, r: int) -> None:
    """Find the cached prefix of sequence ``r`` and write its blocks behind all block tables.

    Leaves in the counters how many blocks were asked for, were found, and of those nobody holds.
    """
    engine, seq = state.engine[0], state.seqs[r]
    blocks, oldest, tables = state.blocks, state.oldest, state.tables
    num_candidates = min((seq.num_tokens - 1) // rules.block_size, seq.num_keys)
    engine.num_asked = num_candidates
    num_free = 0
    run = seq.first_run
    i = 0
    block = NONE
    while i < num_candidates and block != 0:
        stop = min(num_candidates, state.run_stop[run])
        shift = state.run_shift[run]
        while i < stop:
            block = oldest[shift + i]
            if block == 0:
                break
            tables[engine.tables_end + i] = block
            if blocks[block].ref_count == 0:
                num_free += 1
            i += 1
        run += 1
    engine.num_found = i
    engine.num_found_free = num_free


@compiled
def take_free_blocks(state: State, r: int, num_blocks: int) -> int:
    """Give sequence ``r`` blocks from the front of the queue; return how many were evicted."""
    blocks, oldest, tables = state.blocks, state.oldest, state.tables
    seq = state.seqs[r]
    end = seq.table + seq.num_blocks
    block = blocks[0].next
    num_evicted = 0
    for i in range(num_blocks):
        if blocks[block].key != NONE:
            unregister(blocks, oldest, block)
            num_evicted += 1
        blocks[block].ref_count = 1
        tables[end + i] = block
        block = blocks[block].next
    blocks[0].next = block
    blocks[block].prev = 0
    seq.num_blocks += num_blocks
    state.engine[0].num_free_blocks -= num_blocks
    state.engine[0].num_cached_blocks -= num_evicted
    return num_evicted


@compiled
def register_full_blocks(rules: Rules, state: State, r: int, num_tokens: int) -> None:
    """Let the blocks that ``num_tokens`` fill be found, before they are even computed."""
    seq = state.seqs[r]
    i = seq.num_registered
    stop = min(num_tokens // rules.block_size, seq.num_keys)
    if i >= stop:
        return
    state.engine[0].num_cached_blocks += stop - i
    run = seq.run
    while i < stop:
        while state.run_stop[run] <= i:
            run += 1
        run_stop = min(stop, state.run_stop[run])
        shift = state.run_shift[run]
        while i < run_stop:
            register(state.blocks, state.oldest, shift + i, state.tables[seq.table + i])
            i += 1
    seq.run = run
    seq.num_registered = stop


@compiled
def needs_blocks(rules: Rules, seq: Record, num_tokens: int) -> bool:
    """Tell whether `grow` has anything to do; a decoded token mostly has room, and fills none."""
    num_total = seq.num_computed_tokens + num_tokens
    if num_total > seq.num_blocks * rules.block_size:
        return True
    fills_next = (seq.num_registered + 1) * rules.block_size <= num_total
    return bool(fills_next and seq.num_registered < seq.num_keys)


@compiled
def grow(rules: Rules, state: State, r: int, num_tokens: int) -> int:
    """Give running sequence ``r`` room for ``num_tokens`` more.

    Returns
    -------
    Blocks evicted for it; -1, and nothing has changed, where there is no room.
    """
    seq = state.seqs[r]
    num_total = seq.num_computed_tokens + num_tokens
    num_evicted: int = 0
    if num_total > seq.num_blocks * rules.block_size:
        num_new_blocks = -(-num_total // rules.block_size) - seq.num_blocks
        if num_new_blocks > state.engine[0].num_free_blocks:
            return -1
        if rules.caches:
            num_evicted = take_free_blocks(state, r, num_new_blocks)
        else:
            seq.num_blocks += num_new_blocks
            state.engine[0].num_free_blocks -= num_new_blocks
    register_full_blocks(rules, state, r, num_total)
    return num_evicted


@compiled
def longest_table(rules: Rules, seq: Record) -> int:
    """Count the blocks that a sequence can come to hold."""
    num_tokens: int = max(seq.num_total_tokens - 1, seq.num_prompt_tokens)
    return min(-(-num_tokens // rules.block_size), rules.num_blocks)


@compiled
def make_room(rules: Rules, state: State, r: int) -> None:
    """Make room behind all block tables for that of sequence ``r``, however long it becomes."""
    engine, seqs, tables = state.engine[0], state.seqs, state.tables
    if engine.tables_end + longest_table(rules, seqs[r]) <= len(tables):
        return
    # Close the gaps that ended sequences left; tables stand in the order of the running list.
    end = 0
    for k in range(engine.num_running):
        seq = seqs[state.running[k]]
        for i in range(seq.num_blocks):
            tables[end + i] = tables[seq.table + i]
        seq.table = end
        end += longest_table(rules, seq)
    engine.tables_end = end


@compiled
def admit(rules: Rules, state: State, r: int, num_tokens: int) -> int:
    """Give waiting sequence ``r`` what `match_prefix` found, and room for ``num_tokens`` more.

    Returns
    -------
    Blocks evicted for it; -1, and nothing has changed, where there is no room.
    """
    engine, seq = state.engine[0], state.seqs[r]
    blocks, tables = state.blocks, state.tables
    num_hits = engine.num_found
    num_total = num_hits * rules.block_size + num_tokens
    num_new_blocks = -(-num_total // rules.block_size) - num_hits
    # A hit that nobody holds stands in the free queue: it cannot serve as a new block.
    if num_new_blocks > engine.num_free_blocks - engine.num_found_free:
        return -1
    if not rules.caches:
        seq.num_blocks = num_new_blocks
        engine.num_free_blocks -= num_new_blocks
        return 0
    seq.table = engine.tables_end
    engine.tables_end += longest_table(rules, seq)
    for i in range(num_hits):
        block = tables[seq.table + i]
        if blocks[block].ref_count == 0:
            remove(blocks, block)
        blocks[block].ref_count += 1
    engine.num_free_blocks -= engine.num_found_free
    seq.num_blocks = num_hits
    seq.num_registered = num_hits
    seq.run = seq.first_run
    num_evicted: int = take_free_blocks(state, r, num_new_blocks)
    register_full_blocks(rules, state, r, num_total)
    return num_evicted


@compiled
def free(rules: Rules, state: State, r: int) -> None:
    """Release the blocks of sequence ``r``, tail first."""
    engine, blocks, tables = state.engine[0], state.blocks, state.tables
    seq = state.seqs[r]
    if not rules.caches:
        engine.num_free_blocks += seq.num_blocks
        seq.num_blocks = 0
        return
    num_released = 0
    for i in range(seq.num_blocks - 1, -1, -1):
        block = tables[seq.table + i]
        blocks[block].ref_count -= 1
        if blocks[block].ref_count == 0:
            num_released += 1
            if rules.reuses_keyless_first and blocks[block].key == NONE:
                insert(blocks, 0, block, blocks[0].next)
            else:
                insert(blocks, blocks[0].prev, block, 0)
    engine.num_free_blocks += num_released
    seq.num_blocks = 0
    seq.num_registered = 0


@compiled
def num_common_prefix_blocks(state: State, r: int, num_running: int) -> int:
    """Count the leading blocks of sequence ``r`` that all running sequences hold."""
    seq = state.seqs[r]
    for i in range(seq.num_blocks):
        if state.blocks[state.tables[seq.table + i]].ref_count != num_running:
            return i
    return int(seq.num_blocks)
