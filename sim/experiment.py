"""Puts a run together: workload, policy, scheduler, cost, engine, tables.

One of the few modules that know policies and workloads as well as the simulator's core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import policies
from sim.checked import Checked
from sim.columns import columns_of
from sim.config import Args, RunConfig
from sim.demand import check_seed, prepare_requests
from sim.doubts import doubts_about_run
from sim.engine import Engine, OnStep
from sim.engines import Choice
from sim.errors import UsageError
from sim.identity import name_of
from sim.inputs import Inputs, cost_of, load_inputs, num_blocks_of, overhead_of, policy_of
from sim.mapped import Column, pieces
from sim.overhead import OverheadProfile
from sim.overhead.timed import Timed
from sim.recorder import Recorded, Recorder
from sim.results import AT_ONCE, request_table, step_table, summarize
from sim.scheduler import SchedulerConfig
from sim.tiering import (
    check_tiers,
    doubts_about_tiers,
    has_tiers,
    recomputes_last_block,
    settings_of_tiers,
    tiers_of,
    traffic_of_tiers,
    with_tiers,
)
from sim.tiers import Tier
from sim.types import Allocator, Clock, CostModel, Request, SequenceCost
from workloads import GENERATORS, Workload, infinite_hit_rate, is_source, taken

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes
    ----------
    config
        What decided it.
    run_id
        Its name: a hash of configuration, input files and version.
    summary
        Its row of the summary table, see `sim.columns.COLUMNS`.
    recorded
        All that was recorded, from which its other tables are made.
    warnings
        Sentences on what the workload or the configuration makes doubtful.
    notes
        Sentences on what was made, such as the hit rate that a generator achieved.
    timing
        Measured, not simulated: wall time that our own allocator took in this run, a row per
        operation. None unless it was asked for.
    """

    config: RunConfig
    run_id: str
    summary: dict[str, Any]
    recorded: Recorded
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    timing: pd.DataFrame | None = None

    @property
    def requests(self) -> pd.DataFrame:
        """The table of requests, made anew."""
        return request_table(self.recorded, self.run_id)

    @property
    def steps(self) -> pd.DataFrame:
        """The table of steps, made anew; empty unless steps were kept."""
        return step_table(self.recorded, self.run_id)


def _ceiling(
    config: RunConfig, workload: Workload, requests: Sequence[Request], recorder: Recorded
) -> float:
    """Compute what the policy's rules would hit of the served requests if nothing were evicted."""
    served = _places_of_served(recorder)
    if not len(served) or not workload.has_prefix_info:
        return float("nan")
    # In a closed loop, requests come in another order than the workload has them.
    if config.sessions == "open" and len(served) == len(workload.requests):
        requests = workload.requests
    else:
        requests = taken(requests, served)
    return _infinite_hit_rate(
        requests, config.block_size, config.reuse == "all", recomputes_last_block(config)
    )


def _places_of_served(recorder: Recorded) -> NDArray[np.int64]:
    served = Column()
    for part in pieces(recorder.num_requests, AT_ONCE):
        columns = recorder.request_columns(part)
        served.extend(columns.index[columns.is_served])
    return served.array


@lru_cache(maxsize=8)
def _infinite_hit_rate(
    requests: Sequence[Request], block_size: int, outputs: bool, recomputes_last_block: bool
) -> float:
    return infinite_hit_rate(
        requests, block_size, outputs=outputs, recomputes_last_block=recomputes_last_block
    )


def check(config: RunConfig, *, seed_is_used: bool = False) -> None:
    """Fail early on what can be seen without running.

    Parameters
    ----------
    config
        What to simulate.
    seed_is_used
        Whether the caller draws something else than workload and arrivals with the seed.

    Raises
    ------
    UsageError
        Unknown policy, option, preset or workload, a cost file that cannot be used, an engine that
        cannot do it, or a seed without effect.
    """
    policy_of(config)
    cost, _ = cost_of(config)
    overhead, _ = overhead_of(config)
    Choice(config, cost, overhead, has_tiers=has_tiers(config)).check()
    check_tiers(config)
    if not seed_is_used:
        check_seed(config)
    if not is_source(config.workload):
        raise UsageError(
            f"workload {config.workload!r} is neither a generator ({', '.join(GENERATORS)}) nor "
            "a file that exists; check its name and folder."
        )


def build_engine(
    config: RunConfig,
    num_blocks: int,
    recorder: Recorder,
    *,
    wrap: Callable[[Allocator, Clock], Allocator] = lambda allocator, _: allocator,
    cost: CostModel | SequenceCost | None = None,
    overhead: OverheadProfile | None = None,
    on_step: OnStep | None = None,
    tiers: Sequence[Tier] = (),
) -> Engine:
    """Put policy, scheduler, cost and overhead of a configuration together.

    Parameters
    ----------
    config
        What to simulate.
    num_blocks
        Usable blocks of the pool.
    recorder
        Takes the rows.
    wrap
        Puts something around the allocator, given the engine's clock.
    cost, overhead
        Price every step instead of what the configuration names.
    on_step
        Called at the end of every step; see `Engine`.
    tiers
        Stand behind the allocator and whatever is put around it.
    """
    cost = cost or cost_of(config)[0]

    def make_allocator(clock: Clock) -> Allocator:
        allocator = policies.make(
            config.policy,
            num_blocks=num_blocks,
            block_size=config.block_size,
            clock=clock,
            args=dict(config.policy_args),
        )
        if ":" in config.policy:
            allocator = Checked(allocator, config.policy)
        allocator = wrap(allocator, clock)
        return with_tiers(config, allocator, tiers, cost) if tiers else allocator

    return Engine(
        make_allocator,
        SchedulerConfig(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.long_prefill_token_threshold,
        ),
        cost,
        recorder,
        reuse="prefill" if config.reuse == "prefill" else "all",
        closed_loop=config.sessions == "closed",
        until_ns=config.until_ns,
        overhead=overhead or overhead_of(config)[0],
        overlap=config.overlap,
        cascade=config.cascade,
        on_step=on_step,
    )


def run(
    config: RunConfig,
    *,
    inputs: Inputs | None = None,
    keep_steps: bool = False,
    timed: bool = False,
    on_start: Callable[[int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> Run:
    """Simulate one configuration.

    Parameters
    ----------
    config
        What to simulate.
    inputs
        What its files hold; read from them if left out.
    keep_steps
        Fill the table of steps too.
    timed
        Measure what our own allocator takes, which slows the run down.
    on_start, on_done
        Called with the number of requests, and with the number that have ended after each one.

    Raises
    ------
    UsageError
        The workload, policy, cost or capacity cannot be used.
    """
    if inputs is None:
        inputs = load_inputs(config)
    workload, cost, overhead = inputs.workload, inputs.cost, inputs.overhead
    requests = prepare_requests(config, workload)
    num_blocks = num_blocks_of(config, workload)
    tiers = tiers_of(config, workload)
    choice = Choice(config, cost, overhead, timed=timed, has_tiers=bool(tiers))
    if on_start is not None:
        on_start(len(requests))
    recorder: Recorded
    timing = None
    if choice.takes_fast(requests):
        recorder = choice.run_fast(requests, num_blocks, keep_steps=keep_steps, on_done=on_done)
    else:
        recorder = Recorder(keep_steps=keep_steps, on_done=on_done)
        watches: list[Timed] = []

        def wrap(allocator: Allocator, _: Clock) -> Allocator:
            if not timed:
                return allocator
            watches.append(Timed(allocator))
            return watches[0]

        engine = build_engine(
            config, num_blocks, recorder, wrap=wrap, cost=cost, overhead=overhead, tiers=tiers
        )
        engine.run(requests)
        timing = watches[0].table() if timed else None
    digest = inputs.digests
    run_id = name_of(config, digest)
    summary = {
        "run_id": run_id,
        "workload": workload.name,
        "workload_digest": digest["workload"],
        "workload_args": _show_args(config.workload_args),
        "trace_block_size": workload.identity_block_size,
        "lenient": config.lenient,
        "partial_blocks": config.partial_blocks,
        "system_prompt": config.system_prompt,
        "policy": config.policy,
        "policy_digest": digest["policy"],
        "policy_args": _show_args(config.policy_args),
        "block_size": config.block_size,
        "kv_capacity_tokens": num_blocks * config.block_size,
        "num_blocks": num_blocks,
        **settings_of_tiers(config, tiers),
        "cost": inputs.cost_name,
        "cost_digest": digest["cost"],
        "overhead": inputs.overhead_name,
        "overhead_digest": digest["overhead"],
        "overlap": config.overlap,
        "cascade": config.cascade,
        "reuse": config.reuse,
        "arrival": _show_arrival(config),
        "rate_scale": config.rate_scale,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "seed": config.seed,
        "infinite_hit_rate": _ceiling(config, workload, requests, recorder),
        **summarize(recorder, config.block_size, has_prefix_info=workload.has_prefix_info),
        **traffic_of_tiers(config, tiers),
    }
    summary = {column.name: summary[column.name] for column in columns_of("summary")}
    return Run(
        config,
        run_id,
        summary,
        recorder,
        (
            *workload.warnings,
            *doubts_about_run(config, workload, summary),
            *doubts_about_tiers(config, num_blocks, tiers),
        ),
        workload.notes,
        timing,
    )


def _show_args(args: Args) -> str:
    return ",".join(f"{key}={value}" for key, value in args)


def _show_arrival(config: RunConfig) -> str:
    if config.arrival == "trace":
        return "trace" if config.sessions == "open" else "trace, closed loop"
    if config.arrival == "users":
        return f"{config.users} users, closed loop"
    has_shape = config.arrival in ("gamma", "weibull")
    shape = f" burstiness={config.burstiness:g}" if has_shape else ""
    closed = "" if config.sessions == "open" else ", closed loop"
    return f"{config.arrival} {config.rate:g}/s{shape}{closed}"
