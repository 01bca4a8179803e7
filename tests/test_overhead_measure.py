"""The measurement of bookkeeping: what it serves and says. No test depends on how long it takes."""

import gc
import json
import math

import pandas as pd
import pytest
from helpers import VLLM, Clock, make, policy_cases, requests_of, serve_in_turn, state_of

from sim.errors import UsageError
from sim.overhead import compare as comparing
from sim.overhead.measure import OPERATIONS, measure, measure_grid, wide
from sim.overhead.timed import Timed
from sim.types import Inspectable

FIRST_COLUMNS = [
    "policy", "block_size_tokens", "prompt_tokens", "target_hit_rate", "measured_hit_rate",
    "operation", "num_samples", "p50_us", "mean_us", "p99_us", "min_us", "gc_us_mean",
    "evicted_blocks_per_request", "scanned_entries_per_request", "num_blocks",
]  # fmt: skip


@pytest.mark.parametrize("policy", [*VLLM, "lru", "fifo"])
@pytest.mark.parametrize(("hit_rate", "num_hit_blocks"), [(0.0, 0), (0.5, 4), (0.9, 7)])
def test_requests_hit_and_evict_as_asked(policy, hit_rate, num_hit_blocks):
    table = measure(policy, block_size=8, prompt_tokens=64, hit_rate=hit_rate, repetitions=6)
    assert list(table["operation"]) == list(OPERATIONS)
    assert list(table.columns[: len(FIRST_COLUMNS)]) == FIRST_COLUMNS
    assert set(table["measured_hit_rate"]) == {num_hit_blocks / 8}
    assert set(table["num_blocks"]) == {12 * 8}
    # Every miss evicts. Two blocks of decoded tokens evict too.
    assert set(table["evicted_blocks_per_request"]) == {8 - num_hit_blocks}
    assert set(table["count_evictions"]) == {8 - num_hit_blocks + 2}
    scans = policy == "vllm_v0_scan"
    assert (table["scanned_entries_per_request"] > 0).all() == scans
    samples = table.set_index("operation")["num_samples"]
    assert samples.pop("append") == 6 * 16
    assert set(samples) == {6}
    times = table[table["operation"] != "evict"]
    assert (times[["p50_us", "mean_us", "p99_us", "min_us", "gc_us_mean"]] >= 0).all(axis=None)


def test_without_caching_nothing_is_hashed_or_evicted():
    table = measure("none", block_size=8, prompt_tokens=64, hit_rate=0.5, repetitions=3)
    assert list(table["operation"]) == ["lookup", "allocate", "request", "cache", "append", "free"]
    assert set(table["measured_hit_rate"]) == {0}
    assert set(table["count_evictions"]) == {0}


def test_large_blocks_decode_32_tokens_and_count_the_same_twice():
    counted = []
    for _ in range(2):
        table = measure("vllm_v0", block_size=64, prompt_tokens=256, hit_rate=0.5, repetitions=4)
        assert table.set_index("operation")["num_samples"]["append"] == 4 * 32
        names = [name for name in table if name.startswith("count_")]
        assert len(names) == 8
        counted.append(table[names].iloc[0].to_dict())
    assert counted[0] == counted[1]


def test_the_collector_is_left_as_it_was():
    num_callbacks = len(gc.callbacks)
    assert gc.isenabled()
    with pytest.raises(UsageError):
        measure("nope")
    measure("vllm_v1", block_size=8, prompt_tokens=16, repetitions=1)
    assert gc.isenabled()
    assert len(gc.callbacks) == num_callbacks
    assert gc.get_freeze_count() == 0


def test_a_grid_is_served_in_passes_and_laid_out_wide():
    done = []
    table = measure_grid(
        ["none", "vllm_v1"],
        [8, 16],
        [32],
        [0.0, 0.5],
        repetitions=2,
        on_cell=lambda: done.append(1),
    )
    assert len(done) == 2 * 2 * 2 * 2
    assert len(table) == 4 * 6 + 4 * 8
    assert set(table.loc[table["operation"] == "request", "num_samples"]) == {4}
    laid_out = wide(table)
    assert list(laid_out["policy"]) == ["none", "vllm_v1"] * 4
    assert list(laid_out["evicted_blocks"]) == [0, 4, 0, 2, 0, 2, 0, 1]
    assert laid_out["requests_timed"].eq(4).all()
    assert not laid_out.isna().any(axis=None)


def timings(policy, request_us, append_us, free_us):
    return {
        "policy": policy,
        "block_size_tokens": 16,
        "prompt_tokens": 1024,
        "target_hit_rate": 0.5,
        "allocate_us_p50": request_us,
        "append_us_mean": append_us,
        "free_us_p50": free_us,
    }


def test_comparison_finds_the_same_cells_and_explains_large_factors():
    own = pd.DataFrame(
        [
            timings("none", 4.202, 1.0, 10.0),
            timings("vllm_v0", 100.0, 3.0, 40.0),
            timings("vllm_v1", 50.0, 1.5, 1000.0),
            timings("mine:Own", 1.0, 1.0, 1.0),
        ]
    )
    table = comparing.compare(own)
    assert list(table["policy"].unique()) == ["none", "vllm_v0", "vllm_v1"]
    row = table.set_index(["policy", "operation"]).loc[("none", "request")]
    assert (row["release"], row["vllm_us"]) == ("0.8.5 v1 off", 42.02)
    assert math.isclose(row["vllm_per_own"], 10)
    ratios = comparing.engine_ratios(table).set_index("operation")
    assert list(ratios["own_ratio"]) == [2.0, 2.0, 0.04]
    assert (ratios["vllm_ratio"] > 1).all()
    sentences = comparing.explain(table)
    assert any(s.startswith("request of none: vLLM's takes 10 times ours; with") for s in sentences)
    assert any(s.startswith("free of vllm_v1: ") and "not known" in s for s in sentences)


def test_every_model_of_vllm_has_measurements_to_compare_with():
    assert set(comparing.RELEASES) == {"none", *VLLM}
    own = pd.DataFrame([timings(name, 1.0, 1.0, 1.0) for name in comparing.RELEASES])
    assert len(comparing.compare(own)) == 3 * len(own)


@pytest.mark.parametrize(
    ("policy", "args"), [pytest.param(p, a, id=i) for i, p, a, _ in policy_cases()]
)
def test_timed_answers_as_the_allocator_within(policy, args):
    requests = requests_of(*[([i % 3] * 17 + [i] * 8, [1, 2, 3]) for i in range(9)])
    outcomes = []
    for wrap in (lambda allocator: allocator, Timed):
        clock = Clock()
        allocator = wrap(make(policy, 24, 4, clock, **args))
        cached = serve_in_turn(allocator, requests, clock)
        assert isinstance(allocator, Inspectable)
        outcomes.append((cached, state_of(allocator), allocator.counts, allocator.num_blocks))
    assert outcomes[0] == outcomes[1]
    table = allocator.table()
    assert list(table.columns) == ["operation", "calls", "total_ms", "mean_us"]
    calls = dict(zip(table["operation"], table["calls"], strict=True))
    # Each request: its prompt and two decoded tokens.
    assert calls == {"match_prefix": 9, "allocate": 27, "cache_blocks": 27, "free": 9}
    with pytest.raises(AttributeError):
        _ = allocator.nothing


TINY = ["--block-sizes=16", "--prompt-tokens=1024", "--hit-rates=0.5", "--repetitions=2"]


def test_overhead_shows_a_row_per_policy_and_cell(prefixsim):
    code, out, err = prefixsim("overhead", "--policy", "none,vllm_v1", *TINY)
    assert code == 0
    assert "request/none" in out
    assert [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")] == [
        "none",
        "vllm_v1",
    ]
    assert "request = hash + lookup + allocate" in err
    code, out, _ = prefixsim("overhead", "--policy", "vllm_v1", *TINY)
    assert code == 0
    assert "n/a" in out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_overhead_writes_what_it_prints(prefixsim, tmp_path, ending):
    file = tmp_path / "new" / f"table.{ending}"
    code, out, err = prefixsim("overhead", "--policy", "vllm_v0", *TINY, "-o", file, "--json")
    assert code == 0
    assert "wrote 8 rows" in err
    rows = json.loads(out)
    table = pd.read_csv(file) if ending == "csv" else pd.read_parquet(file)
    assert [row["operation"] for row in rows] == list(table["operation"]) == list(OPERATIONS)
    assert rows[-1]["p99_us"] is None


def test_overhead_compares(prefixsim):
    code, out, err = prefixsim("overhead", "--compare", "--policy", "none,vllm_v0,vllm_v1", *TINY)
    assert code == 0
    assert "vLLM's/own" in out
    assert "V0 by V1" in out
    assert "another machine" in err
    code, out, _ = prefixsim("overhead", "--compare", "--json", "--policy", "vllm_v1", *TINY)
    assert code == 0
    document = json.loads(out)
    assert [row["operation"] for row in document["times"]] == ["request", "append", "free"]
    assert document["v0_per_v1"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "lifo"], "--policy 'lifo' is not a policy: choose one of"),
        (
            ["--block-sizes", "x"],
            "--block-sizes 'x' must be a whole number or a comma list of them",
        ),
        (["--block-sizes", "0"], "--block-sizes 0 must be at least 1"),
        (["--prompt-tokens", "8"], "--prompt-tokens 8 is less than a block of 16"),
        (["--hit-rates", "0,1"], "--hit-rates 1.0 is outside [0, 1)"),
        (["--hit-rates", "nan"], "--hit-rates nan is outside [0, 1)"),
        (["--hit-rates", ""], "--hit-rates '' must be a number or a comma list of them"),
        (["--repetitions", "0"], "--repetitions 0 must be at least 1"),
        (["-o", "table.txt"], "--output table.txt must end in .csv or .parquet"),
        (["--compare", *TINY, "--prompt-tokens", "512"], "--compare found no cell"),
    ],
)
def test_overhead_says_what_is_wrong(prefixsim, arguments, sentence):
    code, out, err = prefixsim("overhead", "--policy", "none", *arguments)
    assert code == 2
    assert sentence in err
    assert out == ""


def test_overhead_refuses_a_place_it_cannot_write_to(prefixsim, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = prefixsim("overhead", "--policy=none", *TINY, "-o", tmp_path / "file" / "t.csv")
    assert code == 2
    assert "cannot be written" in err
