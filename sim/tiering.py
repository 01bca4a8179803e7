"""The settings of tiers below the GPU: made into tiers, checked, and told of in a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import policies
from sim.capacity import is_nothing, num_tier_blocks
from sim.config import RunConfig, option_name
from sim.errors import UsageError
from sim.presets import load_preset
from sim.tiers import Tier, Tiered, Write, prefill_pricer
from sim.types import Allocator, CostModel, SequenceCost, TellsEvictions
from workloads import Workload


def tiers_of(config: RunConfig, workload: Workload) -> list[Tier]:
    """Make the tiers below the GPU, fastest first; none behind a policy that caches nothing."""
    if not has_tiers(config):
        return []
    num_bytes_per_token = load_preset(config.model, config.gpu).model.kv_bytes_per_token
    found = []
    for name, option, capacity, gb_per_s, latency_us in (
        ("host", "--host-memory", config.host_memory, config.host_bandwidth, config.host_latency),
        ("ssd", "--ssd", config.ssd, config.ssd_bandwidth, config.ssd_latency),
    ):
        num_blocks = num_tier_blocks(
            option,
            capacity,
            config.block_size,
            workload.requests,
            num_distinct_tokens=lambda: workload.num_distinct_prompt_tokens,
            num_bytes_per_token=lambda: num_bytes_per_token,
        )
        if num_blocks:
            # A GB/s is a byte per ns.
            ns_per_block = config.block_size * num_bytes_per_token / gb_per_s
            found.append(Tier(name, num_blocks, ns_per_block, round(latency_us * 1000)))
    return found


def has_tiers(config: RunConfig) -> bool:
    """Whether there are tiers, and a policy that they can stand behind."""
    return config.has_tiers and bool(getattr(policies.load(config.policy), "caches_blocks", True))


def check_tiers(config: RunConfig) -> None:
    """Fail early on tiers that a policy cannot have.

    Raises
    ------
    UsageError
        Blocks are to be written on eviction, and the policy does not tell what it evicts.
    """
    tells = isinstance(policies.load(config.policy), TellsEvictions)
    if has_tiers(config) and config.tier_write == "evict" and not tells:
        raise UsageError(
            f"--tier-write evict: policy {config.policy!r} does not tell what it evicts; give it a "
            "method tell_evictions (see sim.types.TellsEvictions), or write through."
        )


def with_tiers(
    config: RunConfig,
    allocator: Allocator,
    tiers: Sequence[Tier],
    cost: CostModel | SequenceCost,
) -> Tiered:
    """Put tiers behind an allocator."""
    write: Write = "through" if config.tier_write == "through" else "evict"
    return Tiered(
        allocator,
        tiers,
        write,
        prefill_pricer(cost),
        recomputes_last_block=recomputes_last_block(config),
    )


def recomputes_last_block(config: RunConfig) -> bool:
    """Whether of a prompt that is cached whole the policy computes the last block again."""
    return bool(getattr(policies.load(config.policy), "recomputes_last_block", True))


def settings_of_tiers(config: RunConfig, tiers: Sequence[Tier]) -> dict[str, Any]:
    """Tell the settings by the columns of a summary."""
    blocks = {tier.name: tier.num_blocks for tier in tiers}
    return {
        "host_capacity_tokens": blocks.get("host", 0) * config.block_size,
        "host_bandwidth": config.host_bandwidth,
        "host_latency": config.host_latency,
        "ssd_capacity_tokens": blocks.get("ssd", 0) * config.block_size,
        "ssd_bandwidth": config.ssd_bandwidth,
        "ssd_latency": config.ssd_latency,
        "tier_write": config.tier_write,
    }


def traffic_of_tiers(config: RunConfig, tiers: Sequence[Tier]) -> dict[str, float]:
    """Tell what was read and written by the columns of a summary."""
    traffic = {f"{name}_{what}_gb": 0.0 for name in ("host", "ssd") for what in ("read", "written")}
    for tier in tiers:
        num_bytes = (
            config.block_size * load_preset(config.model, config.gpu).model.kv_bytes_per_token
        )
        traffic[f"{tier.name}_read_gb"] = tier.num_blocks_read * num_bytes / 1e9
        traffic[f"{tier.name}_written_gb"] = tier.num_blocks_written * num_bytes / 1e9
    return traffic


def doubts_about_tiers(config: RunConfig, num_blocks: int, tiers: Sequence[Tier]) -> list[str]:
    """Say where a tier can hold hardly anything that a GPU of so many blocks has lost."""
    if not tiers or config.tier_write == "evict" or tiers[0].num_blocks > num_blocks:
        return []
    option = {"host": "--host-memory", "ssd": "--ssd"}[tiers[0].name]
    return [
        f"{option} holds {tiers[0].num_blocks:,} blocks, no more than the GPU's {num_blocks:,}, "
        "and is written through: hardly anything that the GPU has lost is still there; raise it, "
        "or choose --tier-write evict."
    ]


def tiers_without_effect(config: RunConfig) -> list[str]:
    """Name the settings of tiers that change nothing."""
    if config.has_tiers and not has_tiers(config):
        return [
            f"--host-memory and --ssd change nothing with --policy {config.policy}: it caches no "
            "blocks, so that none are lost to a lower tier."
        ]
    defaults = RunConfig()

    def say(names: Sequence[str], where: str) -> list[str]:
        chosen = [
            option_name(name) for name in names if getattr(config, name) != getattr(defaults, name)
        ]
        verb = "changes" if len(chosen) == 1 else "change"
        return [f"{' and '.join(chosen)} {verb} nothing at {where}."] if chosen else []

    said = []
    if is_nothing(config.host_memory):
        said += say(("host_bandwidth", "host_latency"), "--host-memory 0")
    if is_nothing(config.ssd):
        said += say(("ssd_bandwidth", "ssd_latency"), "--ssd 0")
    if not config.has_tiers:
        said += say(("tier_write",), "--host-memory 0 and --ssd 0")
    return said
