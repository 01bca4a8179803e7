"""Published figures, reproduced by the commands of the README."""

from pathlib import Path

import pytest

from sim.config import RunConfig
from sim.experiment import run
from sim.grid import expand, read_axes

GRID = Path(__file__).parent.parent / "examples" / "v1_alpha.toml"
PUBLISHED = {"0": 0.997, "0.25": 1.228, "0.5": 1.701, "0.75": 2.889}
"""Throughput with caching over without: vLLM V1 alpha, January 2025."""


@pytest.fixture(scope="module")
def throughput():
    """Requests per second by policy and hit rate."""
    wanted = [
        config
        for config in expand(read_axes(GRID))
        if config.policy == "vllm_v1"
        or (config.policy_args == (("engine", "v1-0.8.5"),) and _hit_rate(config) == "0")
    ]
    assert len(wanted) == 5
    return {
        (config.policy, _hit_rate(config)): run(config).summary["request_throughput"]
        for config in wanted
    }


def _hit_rate(config: RunConfig) -> str:
    return dict(config.workload_args)["hit_rate"]


@pytest.mark.parametrize("hit_rate", PUBLISHED)
def test_the_gains_of_v1_lie_within_five_percent(throughput, hit_rate):
    # Without caching the hit rate of the workload changes nothing.
    ratio = throughput["vllm_v1", hit_rate] / throughput["none", "0"]
    assert ratio == pytest.approx(PUBLISHED[hit_rate], rel=0.05)


def test_v1_loses_less_than_a_percent_where_nothing_hits(throughput):
    assert 0.99 < throughput["vllm_v1", "0"] / throughput["none", "0"] < 1
