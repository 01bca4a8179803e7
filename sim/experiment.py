"""Puts a run together: workload, policy, scheduler, cost, engine, tables.

One of the few modules that know policies and workloads as well as the simulator's core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import policies
from sim.capacity import num_usable_blocks
from sim.checked import Checked
from sim.columns import columns_of
from sim.config import Args, RunConfig
from sim.cost import load_cost
from sim.engine import MIN_CASCADE_SEQS, Engine, OnStep
from sim.engines import Choice
from sim.errors import UsageError
from sim.identity import digests, file_stamp, name_of
from sim.mapped import Column, pieces
from sim.overhead import OverheadProfile, resolve
from sim.overhead.timed import Timed
from sim.presets import load_preset
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
    tiers_without_effect,
    traffic_of_tiers,
    with_tiers,
)
from sim.tiers import Tier
from sim.types import Allocator, Clock, CostModel, Request, SequenceCost
from workloads import (
    GENERATORS,
    CheckedTrace,
    Workload,
    check_trace,
    cut_duration,
    dials,
    infinite_hit_rate,
    is_source,
    load,
    num_sessions,
    retime,
    scale_rate,
    taken,
)

if TYPE_CHECKING:
    import pandas as pd

_UNDRAWN = ("trace", "constant", "users")
"""Arrivals that nothing is drawn for."""


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


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the files hold that a configuration names, so that a run needs none of them.

    Attributes
    ----------
    workload
        As recorded or generated.
    cost, cost_name
        Prices a step, and what it is called in the summary.
    overhead, overhead_name
        Likewise for cache management.
    digests
        See `sim.identity.digests`.
    """

    workload: Workload
    cost: CostModel | SequenceCost
    cost_name: str
    overhead: OverheadProfile
    overhead_name: str
    digests: dict[str, str]


def load_inputs(config: RunConfig) -> Inputs:
    """Read all files that a configuration names.

    Raises
    ------
    UsageError
        One of them cannot be used.
    """
    workload = load_workload(config)
    return Inputs(
        workload,
        *cost_of(config),
        *overhead_of(config),
        digests(config, workload_digest=workload.digest),
    )


def load_workload(config: RunConfig) -> Workload:
    """Load the workload of a configuration, as recorded or generated."""
    key = workload_key(config)
    return _load_workload(*key[:-1], **dict(key[-1]))


def read_workload(config: RunConfig) -> Workload:
    """Load the workload of a configuration without keeping it for the next that has the same."""
    key = workload_key(config)
    return _load_workload.__wrapped__(*key[:-1], **dict(key[-1]))


WorkloadKey = tuple[str, str, Args, int, tuple[tuple[str, Any], ...]]
"""Source, digest, dials, seed and options of reading."""


def workload_key(config: RunConfig) -> WorkloadKey:
    """Gather what decides the workload: equal for configurations that share it."""
    return (
        config.workload,
        "" if config.workload in GENERATORS else file_stamp(config.workload),
        config.workload_args,
        config.seed if _draws(config) else 0,
        (
            ("num_requests", config.num_requests),
            ("format_name", config.format),
            ("trace_block_size", config.trace_block_size),
            ("time_unit", _unless_auto(config.time_unit)),
            ("turns", _unless_auto(config.turns)),
            ("tokenizer", config.tokenizer),
            ("lenient", config.lenient),
            ("timed", config.arrival == "trace"),
            ("partial_blocks", config.partial_blocks),
            ("system_prompt", config.system_prompt),
        ),
    )


def _draws(config: RunConfig) -> bool:
    """Whether the workload itself, as apart from its arrivals, is drawn with a seed."""
    if config.workload in GENERATORS:
        return "seed" in dials(config.workload)
    return bool(config.workload_args)  # sharing is added to a trace that has none


def check_workload(config: RunConfig) -> CheckedTrace:
    """Read a trace to its end and list what cannot be used.

    Raises
    ------
    UsageError
        The workload is a generator.
    """
    if config.workload in GENERATORS:
        raise UsageError(
            f"{config.workload} is a generator, which has nothing to check; give a trace file."
        )
    return check_trace(
        config.workload,
        config.format,
        num_requests=config.num_requests,
        trace_block_size=config.trace_block_size,
        time_unit=_unless_auto(config.time_unit),
        turns=_unless_auto(config.turns),
        tokenizer=config.tokenizer,
    )


def _unless_auto(value: str) -> str | None:
    return None if value == "auto" else value


@lru_cache(maxsize=2)
def _load_workload(
    source: str,
    stamp: str,
    args: Args,
    seed: int,
    **options: Any,  # noqa: ANN401
) -> Workload:
    """Keep the last workloads: the points of a sweep mostly share one."""
    dial_values: dict[str, object] = dict(args)
    if seed:
        if "seed" in dial_values:
            raise UsageError(
                f"the seed is given twice, as --seed {seed} and as --workload-arg"
                f" seed={dial_values['seed']}; leave one out."
            )
        dial_values["seed"] = seed
    return load(source, args=dial_values, **options)


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
        served.extend(columns.index[[not reason for reason in columns.rejection]])
    return served.array


@lru_cache(maxsize=8)
def _infinite_hit_rate(
    requests: Sequence[Request], block_size: int, outputs: bool, recomputes_last_block: bool
) -> float:
    return infinite_hit_rate(
        requests, block_size, outputs=outputs, recomputes_last_block=recomputes_last_block
    )


def prepare_requests(
    config: RunConfig, workload: Workload, *, seed_is_used: bool = False
) -> Sequence[Request]:
    """Apply arrival process, rate scale and duration.

    Parameters
    ----------
    config
        Settings of the arrivals.
    workload
        Its requests.
    seed_is_used
        Whether the caller draws something else with the seed.

    Raises
    ------
    UsageError
        Settings of the arrivals that do not go together.
    """
    if config.rate_scale != 1 and config.arrival != "trace":
        raise UsageError(
            f"--rate-scale {config.rate_scale:g} speeds up recorded arrivals and has no meaning "
            f"with --arrival {config.arrival}; "
            + (
                "leave it out, or change --users."
                if config.arrival == "users"
                else "set its --rate instead."
            )
        )
    if not seed_is_used:
        _check_seed(config)
    requests = retime(
        workload.requests,
        config.arrival,
        rate=config.rate,
        burstiness=config.burstiness,
        seed=config.seed,
        session_starts=config.sessions == "closed",
        users=config.users,
    )
    if config.rate_scale != 1:
        requests = scale_rate(requests, config.rate_scale)
    if config.duration is None:
        return requests
    return cut_duration(requests, config.duration, sessions=config.sessions == "closed")


def _check_seed(config: RunConfig) -> None:
    """Refuse a seed that nothing is drawn with: equal runs would pass for repetitions."""
    if config.seed and not _draws(config) and config.arrival in _UNDRAWN:
        raise UsageError(
            f"--seed {config.seed} changes nothing: requests of {config.workload} and times of "
            f"--arrival {config.arrival} are not drawn; leave the seed out, or draw arrivals, such "
            "as with --arrival poisson and --rate."
        )


def num_blocks_of(config: RunConfig, workload: Workload) -> int:
    """Resolve the capacity of a configuration to usable blocks."""
    return num_usable_blocks(
        config.kv_capacity,
        config.block_size,
        workload.requests,
        num_distinct_tokens=lambda: workload.num_distinct_prompt_tokens,
        num_gpu_tokens=lambda: load_preset(config.model, config.gpu).kv_capacity_tokens(),
        num_bytes_per_token=lambda: load_preset(config.model, config.gpu).model.kv_bytes_per_token,
        num_blocks_to_hold=_room_of(config),
    )


def _policy_of(config: RunConfig) -> tuple[Any, dict[str, object]]:
    """Load the policy of a configuration, and its options in their types."""
    policy = policies.load(config.policy)
    return policy, policies.convert_args(config.policy, policy, dict(config.policy_args))


def _room_of(config: RunConfig) -> Callable[[int, int], int]:
    policy, args = _policy_of(config)
    size = getattr(policy, "num_blocks_to_hold", None)
    if size is None:
        return lambda num_blocks, num_requests: num_blocks
    return lambda num_blocks, num_requests: int(size(num_blocks, num_requests, **args))


def cost_of(config: RunConfig) -> tuple[CostModel | SequenceCost, str]:
    """Load the cost model of a configuration and name it.

    Raises
    ------
    UsageError
        The file or folder cannot be used, or does not go with the other settings.
    """
    if config.cost is not None and Path(config.cost).is_dir():
        if config.cascade:
            raise UsageError(
                f"--cascade {config.cascade:g} does not go with --cost {config.cost}: measured "
                "kernels read every sequence's keys; leave it out."
            )
        from sim.operators import OperatorCost  # noqa: PLC0415 - pandas is slow to load

        return OperatorCost(Path(config.cost)), config.cost
    if config.cost is not None:
        return load_cost(config.cost, config.block_size), config.cost
    return load_preset(config.model, config.gpu).cost, f"{config.model}/{config.gpu}"


def overhead_of(config: RunConfig) -> tuple[OverheadProfile, str]:
    """Load the overhead profile of a configuration and name it.

    A policy names its profiles in an attribute ``overhead_profiles``, by ``vllm`` and ``own``; it
    may depend on the policy's options.
    """
    policy, args = _policy_of(config)
    profiles = getattr(policy, "overhead_profiles", {})
    try:
        chosen = dict(profiles(**args) if callable(profiles) else profiles)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"--policy {config.policy!r}: overhead_profiles gives no mapping from 'vllm' and 'own' "
            f"to names of profiles ({type(error).__name__}: {error}); mend the policy."
        ) from error
    return resolve(config.overhead, config.policy, chosen)


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
    _policy_of(config)
    cost, _ = cost_of(config)
    overhead, _ = overhead_of(config)
    Choice(config, cost, overhead, has_tiers=has_tiers(config)).check()
    check_tiers(config)
    if not seed_is_used:
        _check_seed(config)
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
            *_doubts(config, workload, summary),
            *doubts_about_tiers(config, num_blocks, tiers),
        ),
        workload.notes,
        timing,
    )


def doubts_about_sharing(workload: Workload, block_size: int) -> list[str]:
    """Say what hit rates at a block size cannot mean, for what the workload does not tell."""
    if not workload.has_prefix_info:
        return [
            f"{workload.name} says nothing about shared prefixes: the hit rate is not available, "
            "which is not 0."
        ]
    if block_size < workload.identity_block_size:
        return [
            f"{workload.name} tells prefixes apart in blocks of {workload.identity_block_size} "
            f"tokens: sharing below that does not show, so the hit rate at --block-size "
            f"{block_size} is a lower bound; use a trace with finer ids to compare small "
            "block sizes."
        ]
    if block_size % workload.identity_block_size:
        return [
            f"--block-size {block_size} is no multiple of the "
            f"{workload.identity_block_size}-token blocks of {workload.name}: a block that ends "
            "inside one counts as shared only if that one is."
        ]
    return []


def _doubts(config: RunConfig, workload: Workload, summary: dict[str, Any]) -> list[str]:
    """Say what the numbers of this run cannot mean."""
    doubts = doubts_about_sharing(workload, config.block_size)
    if summary["overhead"] == "none" and config.overhead != "none":
        doubts.append(
            f"policy {config.policy!r} names no overhead profile: its cache management takes no "
            "time here; give one with --overhead FILE.json."
        )
    if summary["num_rejected"]:
        doubts.append(
            f"{summary['num_rejected']} of {summary['num_requests']} requests can never fit in "
            f"{summary['num_blocks']} blocks and were rejected; no rate counts them."
        )
    return doubts + _without_effect(config, workload)


def _without_effect(config: RunConfig, workload: Workload) -> list[str]:
    """Name the settings that change nothing in this run."""
    said = []
    if config.sessions == "closed" and not num_sessions(workload.requests):
        said.append(
            f"--sessions closed changes nothing: {workload.name} names no sessions, so every "
            "request comes by itself."
        )
    if config.cascade and config.max_num_seqs < MIN_CASCADE_SEQS:
        said.append(
            f"--cascade {config.cascade:g} changes nothing with --max-num-seqs "
            f"{config.max_num_seqs}: vLLM reads a common prefix once from {MIN_CASCADE_SEQS} "
            "sequences on."
        )
    said += tiers_without_effect(config)
    if config.overlap and config.overhead == "none":
        said.append("--overlap changes nothing with --overhead none: there is nothing to overlap.")
    return said


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
