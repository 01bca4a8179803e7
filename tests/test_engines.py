"""Which engine runs, and that it makes no difference to what a run writes."""

import sys

import pytest
from helpers import requests_of

from policies.vllm_v1 import VllmV1
from sim import engines, experiment
from sim.config import RunConfig
from sim.cost import LinearCost, StepCost
from sim.errors import UsageError
from sim.fast.support import why_not
from sim.identity import run_id_of
from sim.overhead import NO_OVERHEAD
from sim.scheduler import SchedulerConfig
from sim.store import ResultStore

SMALL = {
    "workload": "shared-prefix",
    "workload_args": {"num_requests": 60, "num_prefixes": 4, "prompt": 400},
    "kv_capacity": "4000",
}


class Mine(VllmV1):
    """A policy from outside, which overrides nothing."""


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_both_engines_write_the_same_bytes(tmp_path):
    written = {}
    for engine in ("plain", "fast"):
        results = ResultStore(tmp_path / engine)
        config = RunConfig(engine=engine, **SMALL)
        run = experiment.run(config, keep_steps=True)
        assert run.summary["num_preemptions"] + run.summary["num_cached_tokens"] > 0
        results.write(run)
        results.write_tables()
        written[engine] = files_of(tmp_path / engine)
    assert len(written["fast"]) >= 8
    assert written["fast"] == written["plain"]


def test_the_engine_is_no_part_of_what_is_run():
    ids = {run_id_of(RunConfig(engine=engine, **SMALL)) for engine in ("auto", "plain", "fast")}
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "vllm_v0"}, "its policy has no compiled form"),
        ({"policy": "test_engines:Mine"}, "its policy has no compiled form"),
    ],
)
def test_what_has_no_fast_engine_says_so(settings, reason):
    config = RunConfig(engine="fast", **SMALL | settings)
    with pytest.raises(UsageError) as caught:
        experiment.check(config)
    assert str(caught.value) == (
        f"--engine fast cannot run policy {config.policy!r} here: {reason}; choose plain, or auto, "
        "which is fast where it can be."
    )
    # Left to itself it runs plain.
    assert experiment.run(RunConfig(**SMALL | settings)).summary["num_finished"] == 60


@pytest.mark.parametrize(
    ("limits", "cost", "overhead", "reason"),
    [
        ({}, LinearCost(1), None, ""),
        ({}, StepCost(1.0, 1.0), NO_OVERHEAD, ""),
        ({}, object(), None, "its cost model has no compiled form"),
        ({}, LinearCost(1), object(), "its overhead model has no compiled form"),
        ({"max_num_batched_tokens": 2**31}, LinearCost(1), None, "a step may compute more than"),
        ({}, LinearCost(0, 10**15 - 1), None, "a step may take longer than 64 bits can tell"),
    ],
)
def test_only_what_fits_in_compiled_numbers_is_fast(limits, cost, overhead, reason):
    said = why_not(VllmV1, SchedulerConfig(**limits), cost, overhead)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


def test_only_the_plain_engine_can_be_timed():
    with pytest.raises(UsageError, match="--timed measures the plain code"):
        experiment.run(RunConfig(engine="fast", **SMALL), timed=True)
    assert experiment.run(RunConfig(**SMALL), timed=True).timing is not None


def test_auto_takes_the_fast_engine_where_it_pays(monkeypatch):
    choice = engines.Choice(RunConfig(), LinearCost(1), NO_OVERHEAD)
    long = requests_of(([1] * 1600, [2] * 100))
    monkeypatch.delitem(sys.modules, "sim.fast.kernel", raising=False)
    # 100 blocks of 16 tokens and 100 tokens decoded.
    monkeypatch.setattr(engines, "_WORTH_COMPILED_CODE", 201)
    assert not choice.takes_fast(long)
    monkeypatch.setattr(engines, "_WORTH_COMPILED_CODE", 200)
    assert choice.takes_fast(long)
    # What is loaded already costs nothing.
    monkeypatch.setitem(sys.modules, "sim.fast.kernel", object())
    assert choice.takes_fast([])
    for engine, is_fast in (("plain", False), ("fast", True)):
        config = RunConfig(engine=engine)
        assert engines.Choice(config, LinearCost(1), NO_OVERHEAD).takes_fast(long) is is_fast


def test_time_that_does_not_fit_is_refused(tmp_path):
    cost = tmp_path / "cost.json"
    cost.write_text(
        '{"form": "linear", "coefficients": {"step_base_ns": 999999999999999, '
        '"step_per_token_ns": 0, "step_per_seq_ns": 0}, "provenance": "", "residuals": null}'
    )
    settings = {**SMALL, "workload_args": {"num_requests": 40, "output": 400}}
    config = RunConfig(engine="fast", cost=str(cost), max_num_seqs=1, **settings)
    with pytest.raises(UsageError, match="292 years"):
        experiment.run(config)
