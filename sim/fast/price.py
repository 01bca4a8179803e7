"""What a step takes, ns: `sim.cost` and `sim.overhead.profile` for compiled code.

Same operations in the same order, so the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from sim.fast.compiling import compiled
from sim.fast.pool import num_common_prefix_blocks
from sim.fast.state import Record, Rules, State

TOO_LONG = -1
"""Stands for a time that 64 bits do not hold."""

_MAX_NS = 2.0**61


@compiled
def gpu_ns(rules: Rules, step: Record) -> int:
    """Time of the forward pass, at least 1; see `sim.cost`."""
    num_tokens, num_seqs = step.batch_tokens, step.num_scheduled
    if rules.is_linear:
        linear = rules.base_ns + rules.per_token_ns * num_tokens + rules.per_sequence_ns * num_seqs
        return int(max(linear, 1))
    cost = rules.step_cost
    min_ns, per_token, per_pair, per_context = cost[0], cost[1], cost[2], cost[3]
    per_sequence, per_prefill_context = cost[4], cost[5]
    if num_tokens > num_seqs:
        per_context += per_prefill_context
    compute_ns = per_token * num_tokens
    ns = (
        math.sqrt(min_ns * min_ns + compute_ns * compute_ns)
        + per_pair * step.batch_pairs
        + per_context * step.batch_context
        + per_sequence * num_seqs
    )
    if not ns < _MAX_NS:
        return TOO_LONG
    return max(int(ns + 0.5), 1)


@compiled
def work_ns(rules: Rules, step: Record) -> int:
    """CPU time of cache management, rounded half to even; see `sim.overhead.profile`."""
    per = rules.overhead
    ns = (
        per[0] * step.num_requests
        + per[1] * step.num_hashed_tokens
        + per[2] * step.num_block_hits
        + per[3] * step.num_new_blocks
        + per[4] * step.num_new_tokens
        + per[5] * step.num_evicted_blocks
        + per[6] * step.num_scanned_entries
        + per[7] * step.num_refusals
        + per[8] * step.num_refused_hits
        + per[9] * step.num_appends
        + per[10] * step.num_append_blocks
        + per[11] * step.num_table_blocks
        + per[12] * step.num_requests_freed
        + per[13] * step.num_blocks_freed
        + per[14] * step.num_tokens_freed
        + per[15] * step.num_hit_blocks_freed
    )
    return int(np.rint(ns)) if ns < _MAX_NS else TOO_LONG


@compiled
def saved_context(rules: Rules, state: State) -> int:
    """Count the reads that cascade attention saves; see `sim.engine`."""
    num_seqs = state.step[0].num_scheduled
    if not rules.caches or num_seqs < 8 or num_seqs != state.engine[0].num_running:
        return 0
    num_blocks = num_common_prefix_blocks(state, state.running[0], num_seqs)
    num_tokens = num_blocks * rules.block_size
    if num_tokens < 256:
        return 0
    return int(rules.cascade * (num_seqs - 1) * num_tokens)
