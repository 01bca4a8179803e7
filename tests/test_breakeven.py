"""Throughput relative to no caching, and the hit rate from which on caching pays, by hand."""

import math

import pandas as pd
import pytest

from sim.breakeven import break_even, crossing, relative_throughput
from sim.columns import columns_of
from sim.results import make_frame

BLANK = {"str": "", "bool": False, "int64": 0, "float64": 0.0}
ZERO = {column.name: BLANK[column.dtype] for column in columns_of("summary")}
OFF = {
    "vllm-0.6.4-v0": "vllm-0.6.4-v0-off",
    "vllm-0.8.5-v0": "vllm-0.8.5-v0-off",
    "vllm-0.8.5-v1": "vllm-0.8.5-v1-off",
    "vllm-0.33-v1": "vllm-0.8.5-v1-off",
    "own-vllm_v1": "own-none",
    "own-vllm_v0": "own-none",
    "none": "none",
}


def summary_of(*rows):
    plain = {**ZERO, "workload": "shared-prefix", "block_size": 16, "total_throughput": 100.0}
    return make_frame(
        "summary", [{**plain, "run_id": f"run{i}", **row} for i, row in enumerate(rows)]
    )


def floor(overhead, throughput=100.0, **same):
    return {"policy": "none", "overhead": overhead, "total_throughput": throughput, **same}


def cached(overhead="vllm-0.8.5-v1", throughput=100.0, **same):
    return {"policy": "mine", "overhead": overhead, "total_throughput": throughput, **same}


def pair(rate, ratio, **same):
    """A caching run and its baseline at one hit rate of the workload."""
    same = {"workload_args": f"hit_rate={rate},prompt=64", "infinite_hit_rate": rate, **same}
    return [floor("vllm-0.8.5-v1-off", 200.0, **same), cached(throughput=200.0 * ratio, **same)]


# Which run is the baseline.


@pytest.mark.parametrize("overhead", OFF)
def test_the_baseline_is_the_policys_engine_without_caching(overhead):
    # The throughput of each baseline tells which one was taken.
    floors = [floor(name, 100.0 + i) for i, name in enumerate(sorted(set(OFF.values())))]
    (row,) = relative_throughput(summary_of(cached(overhead), *floors)).to_dict("records")
    assert row["baseline"] == OFF[overhead]
    (taken,) = (f["total_throughput"] for f in floors if f["overhead"] == OFF[overhead])
    assert row["ratio"] == pytest.approx(100 / taken)


def test_without_that_baseline_any_run_of_none_is_taken_and_named():
    rows = [cached(), floor("vllm-0.8.5-v0-off", 80.0), floor("vllm-0.6.4-v0-off", 125.0)]
    (row,) = relative_throughput(summary_of(*rows)).to_dict("records")
    assert (row["baseline"], row["ratio"]) == ("vllm-0.6.4-v0-off", pytest.approx(0.8))
    # Of several, the one that is priced like the policy itself.
    rows = [cached("mine.json"), floor("a.json", 125.0), floor("mine.json", 50.0)]
    (row,) = relative_throughput(summary_of(*rows)).to_dict("records")
    assert (row["baseline"], row["ratio"]) == ("mine.json", 2.0)


def test_without_any_run_of_none_there_is_no_ratio():
    (row,) = relative_throughput(summary_of(cached())).to_dict("records")
    assert row["baseline"] == ""
    assert math.isnan(row["ratio"])
    assert break_even(relative_throughput(summary_of(cached()))).empty


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("workload", "trace.jsonl"),
        ("workload_args", "hit_rate=0.5"),
        ("block_size", 32),
        ("kv_capacity_tokens", 4096),
        ("cost", "llama-3-8b/a100"),
        ("overlap", True),
        ("cascade", 0.5),
        ("reuse", "prefill"),
        ("arrival", "poisson 4/s"),
        ("rate_scale", 2.0),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 512),
        ("seed", 1),
        ("num_requests", 7),
    ],
)
def test_a_baseline_has_all_the_same_settings(name, other):
    off = "vllm-0.8.5-v1-off"
    rows = [cached(), floor(off, **{name: other}), cached(**{name: other})]
    found = relative_throughput(summary_of(*rows))
    assert list(found["baseline"]) == ["", off]
    assert list(found["ratio"].isna()) == [True, False]


def test_options_of_the_policies_do_not_keep_them_apart():
    rows = [cached(policy_args="lookup=walk"), floor("vllm-0.8.5-v1-off", policy_args="engine=x")]
    assert list(relative_throughput(summary_of(*rows))["ratio"]) == [1.0]


def test_runs_keep_order_and_columns_and_the_input_is_left_alone():
    summary = summary_of(*pair(0.5, 1.2), *pair(0.0, 0.9))
    before = summary.copy()
    found = relative_throughput(summary)
    assert list(found["run_id"]) == ["run1", "run3"]
    assert list(found["workload_group"]) == ["prompt=64", "prompt=64"]
    assert list(found.columns) == [*summary.columns, "baseline", "ratio", "workload_group"]
    pd.testing.assert_frame_equal(summary, before)


# From which hit rate on caching pays.


@pytest.mark.parametrize(
    ("rates", "ratios", "expected"),
    [
        # 0.04 below 1 at 0, 0.06 above at 0.1: two fifths of the way.
        ([0, 0.1], [0.96, 1.06], 0.04),
        ([0, 0.1, 0.5], [0.9, 0.98, 1.06], 0.2),
        # Pays at once, and within 0.1 % counts as such.
        ([0, 0.5], [1.0, 1.5], 0.0),
        ([0, 0.5], [0.9991, 1.5], 0.0),
        ([0, 0.5], [0.99, 1.01], 0.25),
        # Nothing below the lowest was run.
        ([0.2, 0.5], [1.1, 1.5], 0.2),
        # A gain that is lost again is none to rely on.
        ([0, 0.1, 0.2, 0.4], [0.9, 1.1, 0.98, 1.02], 0.3),
        # The last point counts as no loss, without a crossing of its own.
        ([0, 0.2], [0.9, 0.9995], 0.2),
        ([0, 0.2], [0.9, 0.95], math.nan),
        ([0, 0.2], [1.1, 0.95], math.nan),
        ([0], [0.9], math.nan),
        ([0], [1.2], 0.0),
    ],
)
def test_crossing(rates, ratios, expected):
    series = pd.Series(rates, dtype=float), pd.Series(ratios, dtype=float)
    found = crossing(*(values.to_numpy() for values in series))
    assert found == pytest.approx(expected, nan_ok=True)


def test_break_even_has_a_row_for_each_policy_and_setting():
    rows = [
        *pair(0.0, 0.96),
        *pair(0.1, 1.06),
        *pair(0.0, 0.9, block_size=64),
        *pair(0.1, 0.95, block_size=64),
    ]
    found = break_even(relative_throughput(summary_of(*rows)))
    assert list(found["policy"]) == ["mine", "mine"]
    assert list(found["baseline"]) == ["vllm-0.8.5-v1-off"] * 2
    assert list(found["block_size"]) == [16, 64]
    assert list(found["workload_group"]) == ["prompt=64"] * 2
    assert found["break_even"].tolist() == pytest.approx([0.04, math.nan], nan_ok=True)
    assert found["ratio_at_lowest"].tolist() == pytest.approx([0.96, 0.9])
    assert set(found["lowest_hit_rate"]) == {0.0}
    assert set(found["highest_hit_rate"]) == {0.1}


def test_seeds_and_equal_hit_rates_are_averaged():
    rows = [
        *pair(0.0, 0.94, seed=0),
        *pair(0.0, 0.98, seed=1),
        *pair(0.1, 1.05, seed=0),
        *pair(0.1, 1.07, seed=1),
        # Too short a prefix for one block of this size.
        *pair(0.0, 0.96, workload_args="hit_rate=0.001,prompt=64"),
    ]
    (row,) = break_even(relative_throughput(summary_of(*rows))).to_dict("records")
    assert row["ratio_at_lowest"] == pytest.approx(0.96)
    assert row["break_even"] == pytest.approx(0.04)


def test_a_workload_without_hit_rate_has_no_break_even():
    rows = pair(0.0, 0.96, infinite_hit_rate=math.nan)
    found = break_even(relative_throughput(summary_of(*rows)))
    assert found.empty
    assert "break_even" in found
