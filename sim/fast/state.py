"""The state of an engine in arrays, for compiled code.

A sequence is its index in the array of sequences, a block its id in the array of blocks. Block 0
is no block: it stands for none, and for both ends of the free queue.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.fast.keys import KeyRuns
from sim.mapped import pieces, zeros

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Records = NDArray[np.void]
Record = Any
"""One of `Records`, by reference: what is set in it is set in the array."""

NONE = -1
"""No sequence, no key."""

SEQUENCE = np.dtype(
    [
        (name, np.int64)
        for name in (
            # What every step asks of it, side by side in memory; see `sim.types.Sequence`.
            # Registered are the blocks that a lookup can find; new tokens are those that it
            # computes in the present step.
            "num_tokens",
            "num_computed_tokens",
            "num_new_tokens",
            "num_blocks",
            "num_registered",
            "num_keys",
            "num_total_tokens",
            "num_prompt_tokens",
            # Where its block table begins, its first run of keys, and the one that the next block
            # to be registered lies in or behind.
            "table",
            "first_run",
            "run",
            "next_waiting",
            "has_next_turn",
            "num_cached_tokens",
            "num_hit_blocks",
            "num_preemptions",
            # See `sim.recorder.RequestRecord`.
            "arrival_ns",
            "admitted_ns",
            "first_token_ns",
            "finished_ns",
        )
    ]
)
"""A request, and the part of it that changes."""

_UNKNOWN_YET = (
    "num_cached_tokens", "next_waiting", "admitted_ns", "first_token_ns", "finished_ns",
)  # fmt: skip

BLOCK = np.dtype(
    [
        (name, np.int32)
        for name in (
            "prev",
            "next",
            "ref_count",
            # What it holds, if a lookup may find it, else `NONE`.
            "key",
            # Neighbours in the ring of blocks with the same key, oldest first.
            "same_prev",
            "same_next",
        )
    ]
)
"""Metadata of a physical block; see `policies._free_queue.Block`."""

WORK = (
    "num_requests",
    "num_hashed_tokens",
    "num_block_hits",
    "num_new_blocks",
    "num_new_tokens",
    "num_evicted_blocks",
    "num_scanned_entries",
    "num_refusals",
    "num_refused_hits",
    "num_appends",
    "num_append_blocks",
    "num_table_blocks",
    "num_requests_freed",
    "num_blocks_freed",
    "num_tokens_freed",
    "num_hit_blocks_freed",
)
"""`sim.types.CacheWork`, in the order in which `sim.overhead` sums it up."""

STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            "num_scheduled",
            "num_admitted",
            "num_preempted",
            # See `sim.types.Batch`.
            "batch_tokens",
            "batch_pairs",
            "batch_context",
            *WORK,
        )
    ]
)
"""What a step decided."""

COUNTERS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_ns",
            "num_running",
            "num_waiting",
            "waiting_head",
            "waiting_tail",
            # Arrivals: how many are known, how many were received.
            "num_known",
            "num_received",
            "num_free_blocks",
            "num_cached_blocks",
            # First unused entry behind the block tables.
            "tables_end",
            # The last lookup: blocks that were asked for, found, and held by nobody.
            "num_asked",
            "num_found",
            "num_found_free",
            # Freed at the end of the last step, counted in the next.
            "freed_requests",
            "freed_blocks",
            "freed_tokens",
            "freed_hit_blocks",
            # The last step: when it began, and how many sequences ended with it.
            "start_ns",
            "num_ended",
            # See `sim.recorder.Recorded`.
            "num_done",
            "num_steps",
            "num_preemptions",
            "num_block_queries",
            "num_block_hits",
            "end_ns",
            "gpu_ns",
            "overhead_ns",
            # Rows of the table of steps that are filled.
            "num_rows",
        )
    ]
)
"""Numbers of the whole engine."""


class Rules(NamedTuple):
    """What does not change during a run: limits of the scheduler, pool, and prices."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    block_size: int
    num_blocks: int
    caches: bool
    reuses_keyless_first: bool
    is_linear: bool
    base_ns: int
    per_token_ns: int
    per_sequence_ns: int
    step_cost: NDArray[np.float64]
    has_overhead: bool
    overhead: NDArray[np.float64]
    overlap: bool
    cascade: float
    keeps_steps: bool


class State(NamedTuple):
    """What changes during a run.

    Attributes
    ----------
    engine, step
        One record each, of `COUNTERS` and `STEP`.
    seqs, blocks
        Records of `SEQUENCE` and `BLOCK`; block 0 is the end of the free queue.
    oldest
        By key: the block that a lookup finds, the one registered first; 0 for none.
    run_stop, run_shift
        See `sim.fast.keys.KeyRuns`.
    running
        Sequences with blocks, in order of admission.
    tables
        Block tables of the running sequences, one behind the other in the same order.
    inbox
        Sequences in order of arrival.
    ended
        Sequences that ended with the last step.
    rows
        Table of steps, see `sim.recorder.STEP_COLUMNS`.
    """

    engine: Records
    step: Records
    seqs: Records
    blocks: Records
    oldest: Ints32
    run_stop: Ints32
    run_shift: Ints
    running: Ints32
    tables: Ints32
    inbox: Ints32
    ended: Ints32
    rows: Ints


_ROWS_KEPT = 4096
"""Rows of the table of steps that are filled before they are fetched."""


def make_state(
    rules: Rules, num_prompt_tokens: Ints, num_output_tokens: Ints, keys: KeyRuns
) -> State:
    """Lay out an engine in which nothing has arrived yet.

    Parameters
    ----------
    num_prompt_tokens, num_output_tokens
        Of the requests, shape ``(requests,)``.
    keys
        Their block keys; nothing if the pool caches nothing.
    """
    num_requests = len(num_prompt_tokens)
    num_running = min(rules.max_num_seqs, num_requests)
    seqs = zeros(num_requests, SEQUENCE)
    for part in pieces(num_requests, 1 << 16):
        some = seqs[part]
        some["num_prompt_tokens"] = some["num_tokens"] = num_prompt_tokens[part]
        some["num_total_tokens"] = num_prompt_tokens[part] + num_output_tokens[part]
        some["num_keys"] = keys.num_keys[part]
        some["first_run"] = keys.first_run[part]
        for name in _UNKNOWN_YET:
            some[name] = NONE
    engine = np.zeros(1, dtype=COUNTERS)
    engine["waiting_head"] = engine["waiting_tail"] = NONE
    engine["num_free_blocks"] = rules.num_blocks
    return State(
        engine=engine,
        step=np.zeros(1, dtype=STEP),
        seqs=seqs,
        blocks=_free_blocks(rules.num_blocks) if rules.caches else np.zeros(1, dtype=BLOCK),
        oldest=zeros(keys.num_distinct, np.int32),
        run_stop=keys.run_stop,
        run_shift=keys.run_shift,
        running=np.zeros(num_running, dtype=np.int32),
        tables=np.empty(_table_size(rules, seqs, num_running), dtype=np.int32),
        inbox=zeros(num_requests, np.int32),
        ended=np.zeros(num_running, dtype=np.int32),
        rows=np.zeros((_ROWS_KEPT if rules.keeps_steps else 1, 10), dtype=np.int64),
    )


def _free_blocks(num_blocks: int) -> Records:
    blocks = np.zeros(num_blocks + 1, dtype=BLOCK)
    ids = np.arange(num_blocks + 1, dtype=np.int32)
    blocks["prev"] = np.roll(ids, 1)
    blocks["next"] = np.roll(ids, -1)
    blocks["key"] = NONE
    return blocks


def _table_size(rules: Rules, seqs: Records, num_running: int) -> int:
    """Room for the longest tables that can stand at a time, and half as much to work in."""
    if not rules.caches or not num_running:
        return 1
    # The longest of all are among the longest of each piece.
    sizes = np.zeros(0, dtype=np.int64)
    for part in pieces(len(seqs)):
        some = np.minimum(num_needed_blocks(rules, seqs[part]), rules.num_blocks)
        sizes = np.concatenate([sizes, some])
        sizes = np.partition(sizes, max(0, len(sizes) - num_running))[-num_running:]
    largest = int(sizes.sum())
    return largest + max(largest // 2, int(sizes.max()))


def num_needed_blocks(rules: Rules, seqs: Records) -> Ints:
    """Count the blocks that sequences fill by their end."""
    # The last token of an answer has none.
    num_tokens = np.maximum(seqs["num_total_tokens"] - 1, seqs["num_prompt_tokens"])
    blocks: Ints = -(-num_tokens // rules.block_size)
    return blocks


def is_too_large(rules: Rules, seqs: Records) -> NDArray[np.bool_]:
    """Tell which sequences can never be served."""
    too_large: NDArray[np.bool_] = num_needed_blocks(rules, seqs) > rules.num_blocks
    return too_large
