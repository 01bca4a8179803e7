"""Which engine runs a configuration – plain or fast, with the same results – and the fast one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import policies
from sim.config import RunConfig
from sim.cost import LinearCost, StepCost
from sim.errors import UsageError
from sim.fast.support import make_rules, pool_rules_of, why_not
from sim.in_columns import column
from sim.mapped import pieces
from sim.overhead import OverheadProfile
from sim.recorder import Recorded
from sim.scheduler import SchedulerConfig
from sim.types import CostModel, Request, SequenceCost

_WORTH_COMPILED_CODE = 200_000
"""Blocks filled and tokens decoded from which on compiled code saves a noticeable time.

Loading it takes a twentieth of a second, but the first use of all compiles it for half a minute.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """What decides which engine runs.

    Attributes
    ----------
    config
        Settings of the run.
    cost, overhead
        What a step takes.
    timed
        Whether our own allocator is measured, which only the plain engine has.
    has_tiers
        Whether there are tiers below the GPU.
    """

    config: RunConfig
    cost: CostModel | SequenceCost
    overhead: OverheadProfile
    timed: bool = False
    has_tiers: bool = False

    def check(self) -> None:
        """Refuse ``--engine fast`` where there is no fast engine.

        Raises
        ------
        UsageError
            There is none; the sentence says why.
        """
        reason = self._why_not_fast()
        if self.config.engine == "fast" and reason:
            raise UsageError(
                f"--engine fast cannot run policy {self.config.policy!r} here: {reason}; choose "
                "plain, or auto, which is fast where it can be."
            )

    def takes_fast(self, requests: Sequence[Request]) -> bool:
        """Choose the engine for ``requests``; True for the fast one."""
        self.check()
        if self.config.engine != "auto":
            return self.config.engine == "fast"
        if self._why_not_fast():
            return False
        if "sim.fast.kernel" in sys.modules:
            return True
        block_size = self.config.block_size
        prompt, output = (column(requests, f"num_{what}_tokens") for what in ("prompt", "output"))
        size = sum(
            int((prompt[part] // block_size + output[part]).sum()) for part in pieces(len(prompt))
        )
        return size >= _WORTH_COMPILED_CODE

    def run_fast(
        self,
        requests: Sequence[Request],
        num_blocks: int,
        *,
        keep_steps: bool = False,
        on_done: Callable[[int], None] | None = None,
    ) -> Recorded:
        """Serve ``requests`` with the fast engine; return what it recorded."""
        # A plain run needs none of it.
        from sim.fast.engine import FastEngine  # noqa: PLC0415
        from sim.fast.record import FastRecord  # noqa: PLC0415

        config, cost = self.config, self.cost
        pool = pool_rules_of(policies.load(config.policy))
        assert pool is not None
        assert isinstance(cost, StepCost | LinearCost)
        rules = make_rules(
            pool,
            _limits(config),
            cost,
            num_blocks=num_blocks,
            block_size=config.block_size,
            overhead=self.overhead,
            overlap=config.overlap,
            cascade=config.cascade,
            keeps_steps=keep_steps,
        )
        record = FastRecord(keep_steps=keep_steps)
        engine = FastEngine(
            rules,
            record,
            reuse="prefill" if config.reuse == "prefill" else "all",
            closed_loop=config.sessions == "closed",
            until_ns=config.until_ns,
            on_done=on_done,
        )
        engine.run(requests)
        return record

    def _why_not_fast(self) -> str:
        if self.timed:
            return "--timed measures the plain code"
        policy = policies.load(self.config.policy)
        return why_not(
            policy, _limits(self.config), self.cost, self.overhead, has_tiers=self.has_tiers
        )


def _limits(config: RunConfig) -> SchedulerConfig:
    return SchedulerConfig(
        config.max_num_seqs, config.max_num_batched_tokens, config.long_prefill_token_threshold
    )
