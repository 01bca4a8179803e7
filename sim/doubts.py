"""What the numbers of a run cannot mean, in sentences."""

from __future__ import annotations

from typing import Any

from sim.config import RunConfig
from sim.engine import MIN_CASCADE_SEQS
from sim.tiering import tiers_without_effect
from workloads import Workload, num_sessions


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


def doubts_about_run(config: RunConfig, workload: Workload, summary: dict[str, Any]) -> list[str]:
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
