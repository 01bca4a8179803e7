"""What the files hold that a configuration names, and what its other settings come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import policies
from sim.capacity import num_usable_blocks
from sim.config import RunConfig
from sim.cost import load_cost
from sim.demand import load_workload
from sim.errors import UsageError
from sim.identity import digests
from sim.overhead import OverheadProfile, resolve
from sim.presets import load_preset
from sim.types import CostModel, SequenceCost
from workloads import Workload


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
    policy, args = policy_of(config)
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


def policy_of(config: RunConfig) -> tuple[Any, dict[str, object]]:
    """Load the policy of a configuration, and its options in their types."""
    policy = policies.load(config.policy)
    return policy, policies.convert_args(config.policy, policy, dict(config.policy_args))


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


def _room_of(config: RunConfig) -> Callable[[int, int], int]:
    policy, args = policy_of(config)
    size = getattr(policy, "num_blocks_to_hold", None)
    if size is None:
        return lambda num_blocks, num_requests: num_blocks
    return lambda num_blocks, num_requests: int(size(num_blocks, num_requests, **args))
