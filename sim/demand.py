"""The requests of a run: its workload, read or generated, and when they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sim.config import Args, RunConfig
from sim.errors import UsageError
from sim.identity import file_stamp
from sim.types import Request
from workloads import (
    GENERATORS,
    CheckedTrace,
    Workload,
    check_trace,
    cut_duration,
    dials,
    load,
    retime,
    scale_rate,
)

WorkloadKey = tuple[str, str, Args, int, tuple[tuple[str, Any], ...]]
"""Source, digest, dials, seed and options of reading."""


_UNDRAWN = ("trace", "constant", "users")
"""Arrivals that nothing is drawn for."""


def load_workload(config: RunConfig) -> Workload:
    """Load the workload of a configuration, as recorded or generated."""
    key = workload_key(config)
    return _load_workload(*key[:-1], **dict(key[-1]))


def read_workload(config: RunConfig) -> Workload:
    """Load the workload of a configuration without keeping it for the next that has the same."""
    key = workload_key(config)
    return _load_workload.__wrapped__(*key[:-1], **dict(key[-1]))


def workload_key(config: RunConfig) -> WorkloadKey:
    """Gather what decides the workload: equal for configurations that share it."""
    return (
        config.workload,
        "" if config.workload in GENERATORS else file_stamp(config.workload),
        config.workload_args,
        config.seed if draws(config) else 0,
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


def draws(config: RunConfig) -> bool:
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
        check_seed(config)
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


def check_seed(config: RunConfig) -> None:
    """Refuse a seed that nothing is drawn with: equal runs would pass for repetitions."""
    if config.seed and not draws(config) and config.arrival in _UNDRAWN:
        raise UsageError(
            f"--seed {config.seed} changes nothing: requests of {config.workload} and times of "
            f"--arrival {config.arrival} are not drawn; leave the seed out, or draw arrivals, such "
            "as with --arrival poisson and --rate."
        )
