"""Which runs the fast engine can do, and their rules as it needs them. Compiles nothing."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np

from sim.cost import LinearCost, StepCost
from sim.fast.state import Rules
from sim.overhead import NO_OVERHEAD, OverheadProfile
from sim.scheduler import SchedulerConfig
from sim.types import PoolRules

_MAX_TOKENS = 2**31 - 1
"""Tokens of a step up to which all sums fit in 64 bits."""

_MAX_NS = 2**61


def pool_rules_of(policy: Any) -> PoolRules | None:  # noqa: ANN401 - any policy class
    """Look up the rules that a policy class itself says it follows.

    What a class inherits does not count: it may well do something else.
    """
    found = vars(policy).get("pool_rules")
    return found if isinstance(found, PoolRules) else None


def why_not(
    policy: Any,  # noqa: ANN401
    config: SchedulerConfig,
    cost: object,
    overhead: object,
    *,
    has_tiers: bool = False,
) -> str:
    """Say why the fast engine cannot do a run, as a clause; nothing if it can."""
    without_form = {
        "its policy": pool_rules_of(policy) is None,
        "memory below the GPU": has_tiers,
        "its cost model": type(cost) not in (StepCost, LinearCost),
        "its overhead model": overhead is not None and type(overhead) is not OverheadProfile,
    }
    for what, is_without in without_form.items():
        if is_without:
            return f"{what} has no compiled form"
    if config.max_num_batched_tokens > _MAX_TOKENS:
        return f"a step may compute more than {_MAX_TOKENS} tokens"
    if isinstance(cost, LinearCost):
        base_ns, per_token_ns, per_sequence_ns = astuple(cost)
        num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        longest = base_ns + per_token_ns * config.max_num_batched_tokens
        if longest + per_sequence_ns * num_seqs > _MAX_NS:
            return "a step may take longer than 64 bits can tell"
    return ""


def make_rules(
    pool: PoolRules,
    config: SchedulerConfig,
    cost: StepCost | LinearCost,
    *,
    num_blocks: int,
    block_size: int,
    overhead: OverheadProfile | None = None,
    overlap: bool = False,
    cascade: float = 0.0,
    keeps_steps: bool = False,
) -> Rules:
    """Put together what does not change during a run that the fast engine can do.

    Parameters
    ----------
    pool, num_blocks, block_size
        Rules of the policy, and its usable blocks.
    config, cost, overhead, overlap, cascade
        As for `sim.engine.Engine`.
    keeps_steps
        Whether a row is kept for every step.
    """
    linear = cost if isinstance(cost, LinearCost) else LinearCost(0)
    step = cost if isinstance(cost, StepCost) else StepCost(0.0, 0.0)
    return Rules(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        block_size=block_size,
        num_blocks=num_blocks,
        caches=pool.caches,
        reuses_keyless_first=pool.reuses_keyless_first,
        is_linear=isinstance(cost, LinearCost),
        base_ns=linear.step_base_ns,
        per_token_ns=linear.step_per_token_ns,
        per_sequence_ns=linear.step_per_seq_ns,
        step_cost=np.array(
            [
                step.min_ns,
                step.ns_per_new_token,
                step.ns_per_pair,
                step.ns_per_context_token,
                step.ns_per_sequence,
                step.ns_per_prefill_context_token,
            ],
            dtype=np.float64,
        ),
        has_overhead=overhead is not None,
        overhead=np.array(astuple(overhead or NO_OVERHEAD), dtype=np.float64),
        overlap=overlap,
        cascade=float(cascade),
        keeps_steps=keeps_steps,
    )
