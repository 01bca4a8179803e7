"""What computing the rest of a prompt takes, to be compared with loading some of it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from sim.types import Batch, CostModel, Sequence, SequenceCost

PrefillCost = Callable[[Sequence, int, int], int]
"""Time in which a sequence, alone in a step, computes (new tokens, after so many), ns."""


def prefill_pricer(cost: CostModel | SequenceCost) -> PrefillCost:
    """Ask any cost model for the prefill of one sequence alone, all in one step."""
    if not isinstance(cost, CostModel):
        return lambda seq, new, computed: cost.sequences_ns([(_at(seq, computed), new)])
    by_sums = cost

    def price(seq: Sequence, num_new_tokens: int, num_computed_tokens: int) -> int:
        batch = Batch()
        batch.add(num_new_tokens, num_computed_tokens)
        return by_sums.step_ns(batch)

    return price


def _at(seq: Sequence, num_computed_tokens: int) -> Sequence:
    """Imagine a sequence further on than it is."""
    imagined = copy(seq)
    imagined.num_computed_tokens = num_computed_tokens
    return imagined
