"""The measurement of bookkeeping: what it serves and says. No test depends on how long it takes."""

import gc
import json
import math
from functools import partial

import pandas as pd
import pytest
from helpers import VLLM, Clock, make, policy_cases, requests_of, serve_in_turn, state_of

import policies
from sim import plots
from sim.config import RunConfig
from sim.errors import UsageError
from sim.inputs import overhead_of
from sim.overhead import compare as comparing
from sim.overhead.driver import Cell
from sim.overhead.evictions import measure_evictions
from sim.overhead.measure import COLUMNS, OPERATIONS, measure_grid
from sim.overhead.table import wide
from sim.overhead.timed import Timed
from sim.types import Inspectable, OperationCounts

CACHING = VLLM
COUNTS = [f"count_{name}" for name in OperationCounts.__slots__]
PROFILES = {name: overhead_of(RunConfig(policy=name))[1] for name in ("none", *VLLM)}


def makers(*names):
    return {name: partial(policies.make, name) for name in names}


def measure(policy, block_size=8, prompt_tokens=64, hit_rate=0.0, *, repetitions=6, rounds=1):
    cells = [Cell(block_size, prompt_tokens, hit_rate)]
    return measure_grid(makers(policy), cells, repetitions=repetitions, rounds=rounds)


@pytest.mark.parametrize("policy", [*VLLM, "lru", "fifo"])
@pytest.mark.parametrize(("hit_rate", "num_hit_blocks"), [(0.0, 0), (0.5, 4), (0.9, 7)])
def test_requests_hit_and_evict_as_asked(policy, hit_rate, num_hit_blocks):
    table = measure(policy, hit_rate=hit_rate)
    assert list(table["operation"]) == list(OPERATIONS)
    assert list(table.columns) == list(COLUMNS)
    assert set(table["measured_hit_rate"]) == {num_hit_blocks / 8}
    assert set(table["num_blocks"]) == {12 * 8}
    # Every miss evicts.
    assert set(table["evicted_blocks_per_request"]) == {8 - num_hit_blocks}
    scans = policy == "vllm_v0_scan"
    assert (table["scanned_entries_per_request"] > 0).all() == scans
    samples = table.set_index("operation")["num_samples"]
    assert samples.pop("append") == 6 * 16
    assert samples.pop("evict") >= 6
    assert set(samples) == {6}
    times = table[table["operation"] != "evict"]
    assert (times[["p50_us", "mean_us", "p99_us", "min_us", "gc_us_mean"]] >= 0).all(axis=None)


@pytest.mark.parametrize("policy", CACHING)
def test_each_operation_has_its_own_counts(policy):
    table = measure(policy, hit_rate=0.5).set_index("operation")
    assert dict(table["calls_per_request"]) == dict.fromkeys(OPERATIONS, 1) | {"append": 16}
    # Four blocks are hit, four are evicted, and 2 of 16 decoded tokens evict one more.
    assert table.loc["allocate", "count_evictions"] == 4
    assert table.loc["append", "count_evictions"] == 2 / 16
    assert (table.loc["lookup", COUNTS] == 0).all()
    assert (table.loc["hash", COUNTS] == 0).all()
    parts = table.loc[["hash", "lookup", "allocate"]]
    counted = [*COUNTS, "count_bytes_hashed"]
    assert (parts[counted].sum() == table.loc["request", counted]).all()
    # 64 prompt tokens, and the 16 that are decoded, at 8 bytes each.
    assert table.loc["request", "count_bytes_hashed"] == 64 * 8
    assert table.loc["append", "count_bytes_hashed"] == 8
    # In a new pool the same four blocks are taken, and none loses its content.
    assert table.loc["evict", "count_evictions"] == 4
    assert table.loc["evict", "count_objects_created"] == 0
    assert table.loc["evict", "count_pointer_updates"] == 0
    pops = {"vllm_v0": 4}.get(policy, 0)
    assert table.loc["evict", "count_heap_pops"] == pytest.approx(pops, abs=1)
    released = table.loc["free", ["count_pointer_updates", "count_heap_pushes"]]
    v1 = policy.startswith("vllm_v1")
    assert (released["count_pointer_updates"] > 0) == v1
    assert (released["count_heap_pushes"] > 0) == (policy == "vllm_v0")


def test_without_caching_nothing_is_hashed_or_evicted():
    table = measure("none", hit_rate=0.5, repetitions=3)
    assert list(table["operation"]) == ["lookup", "allocate", "request", "cache", "append", "free"]
    assert set(table["measured_hit_rate"]) == {0}
    assert set(table["count_evictions"]) == {0}
    assert set(table["count_bytes_hashed"]) == {0}


def test_large_blocks_decode_32_tokens_and_count_the_same_twice():
    counted = []
    for _ in range(2):
        table = measure("vllm_v0", 64, 256, 0.5, repetitions=4, rounds=2)
        table = table.set_index("operation")
        assert table["num_samples"]["append"] == 2 * 4 * 32
        counted.append(table[COUNTS].to_dict())
    assert counted[0] == counted[1]


def test_the_collector_is_left_as_it_was():
    num_callbacks = len(gc.callbacks)
    assert gc.isenabled()
    with pytest.raises(UsageError, match="nope"):
        measure("nope")
    measure("vllm_v1", 8, 16, repetitions=1)
    assert gc.isenabled()
    assert len(gc.callbacks) == num_callbacks
    assert gc.get_freeze_count() == 0


def test_a_grid_is_served_in_turns_and_laid_out_wide():
    turns = []
    table = measure_grid(
        makers("none", "vllm_v1"),
        [Cell(size, 32, rate) for size in (8, 16) for rate in (0.0, 0.5)],
        repetitions=2,
        rounds=3,
        on_turn=lambda: turns.append(1),
    )
    assert len(turns) == 3 * 2 * 2 * 2
    assert len(table) == 4 * 6 + 4 * 8
    assert set(table.loc[table["operation"] == "request", "num_samples"]) == {6}
    laid_out = wide(table)
    assert list(laid_out["policy"]) == ["none", "vllm_v1"] * 4
    assert list(laid_out["evicted_blocks"]) == [0, 4, 0, 2, 0, 2, 0, 1]
    assert laid_out["requests_timed"].eq(6).all()
    assert not laid_out.isna().any(axis=None)


def test_an_eviction_scans_what_shares_a_time_stamp_and_nothing_else_grows():
    table = measure_evictions(makers("none", *VLLM), [1024, 2048], repetitions=1)
    assert set(table["policy"]) == set(CACHING)
    assert set(table["count_evictions"]) == {1}
    cell = ["policy", "time_stamps", "num_free_blocks"]
    counts = table.set_index(cell).sort_index()
    scanned = counts["count_entries_scanned"]
    # 1,024 entries, then one less with each of eight evictions: 1,020.5 in the mean.
    assert scanned["vllm_v0_scan", "one", 1024] == 1020.5
    assert scanned["vllm_v0_scan", "one", 2048] == 2044.5
    # 64 blocks of one request and the first of the next, then one less each time.
    assert scanned["vllm_v0_scan", "many", 1024] == scanned["vllm_v0_scan", "many", 2048] == 61.5
    assert set(scanned[["vllm_v0", "vllm_v1", "vllm_v1_latest"]]) == {0}
    assert set(counts.loc["vllm_v1", "count_pointer_updates"]) == {4}
    assert set(counts.loc["vllm_v0", "count_heap_pops"]) == {1}


def test_block_objects_explain_and_change_nothing():
    """The experiment in examples/ serves and counts as our V0 does."""
    names = ["vllm_v0", "examples.block_objects:Hashes", "examples.block_objects:Objects"]
    table = measure_grid(makers(*names), [Cell(8, 64, 0.5)], repetitions=3, rounds=1)
    counted = table.pivot_table(index="operation", columns="policy", values=COUNTS)
    for count in COUNTS:
        for name in names[1:]:
            assert (counted[count, name] == counted[count, "vllm_v0"]).all()


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
    table = comparing.compare(own, PROFILES | {"mine:Own": "none"})
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


def test_a_ratio_of_engines_that_differs_is_explained():
    own = pd.DataFrame([timings("vllm_v0", 100.0, 3.0, 300.0), timings("vllm_v1", 60.0, 2.0, 20.0)])
    sentences = comparing.explain(comparing.compare(own, PROFILES))
    ratios = [sentence for sentence in sentences if "times V1's in ours" in sentence]
    assert [sentence.partition(":")[0] for sentence in ratios] == [
        "request of vllm_v0",
        "append of vllm_v0",
        "free of vllm_v0",
    ]
    assert "1.7 times V1's in ours, 3.8 times in vLLM's; vLLM's V0 keeps an object" in ratios[0]
    assert "not known" in ratios[2]


def test_every_model_of_vllm_has_measurements_to_compare_with():
    own = pd.DataFrame([timings(name, 1.0, 1.0, 1.0) for name in ("none", *VLLM)])
    assert len(comparing.compare(own, PROFILES)) == 3 * len(own)


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


def test_overhead_reads_its_table_and_draws_where_the_time_goes(prefixsim, tmp_path):
    file, plots = tmp_path / "table.parquet", tmp_path / "plots"
    code, measured, _ = prefixsim("overhead", "--policy", "none,vllm_v1,vllm_v0", *TINY, "-o", file)
    assert code == 0
    code, read, err = prefixsim("overhead", "--from", file, "--plot", plots)
    assert (code, read) == (0, measured)
    assert "breakdown.png" in err
    assert sorted(path.name for path in plots.iterdir()) == ["breakdown.png", "breakdown.svg"]
    assert "hit rate 50 %" in (plots / "breakdown.svg").read_text()


def test_overhead_times_an_eviction_against_free_blocks(prefixsim, tmp_path):
    file, plots = tmp_path / "table.parquet", tmp_path / "plots"
    options = ["--policy", "none,vllm_v0_scan", "--free-blocks", "1000,2000"]
    code, out, err = prefixsim("overhead", *options, "--plot", plots, "-o", file)
    assert code == 0
    assert "1,996.5" in out
    assert "wrote 4 rows" in err
    assert (plots / "eviction_cost.png").exists()
    code, again, _ = prefixsim("overhead", "--from", file, "--json")
    assert code == 0
    assert [row["num_free_blocks"] for row in json.loads(again)] == [1000, 1000, 2000, 2000]
    code, _, err = prefixsim("overhead", "--from", file, "--compare")
    assert code == 2
    assert "--fit and --compare need the times of whole requests" in err


def test_the_pictures_of_overhead_show_what_was_measured():
    table = measure_grid(
        makers("none", "vllm_v0", "vllm_v1"),
        [Cell(size, 64, rate) for size in (8, 16) for rate in (0.0, 0.5)],
        repetitions=2,
        rounds=1,
    )
    # Known times: 1 µs for each of the seven parts of a request, of which evictions half.
    table["p50_us"] = table["operation"].map({"evict": 0.5}).fillna(1.0)
    table["calls_per_request"] = 1
    figure = plots.breakdown(table)
    above, below = figure.axes
    assert "block size 16, prompt 64 tokens" in figure.get_suptitle()
    totals = [float(text.get_text().replace(",", "")) for text in above.texts[:6]]
    # none: lookup, allocate, cache, append, free; the others hash as well.
    assert totals == [5, 6, 6, 5, 6, 6]
    v0 = table.query("policy == 'vllm_v0' and block_size_tokens == 16 and target_hit_rate == 0")
    parts = v0[~v0["operation"].isin(["request", "evict"])]
    counted = parts[[c for c in COUNTS if "stale" not in c and c != "count_evictions"]].sum()
    assert float(below.texts[1].get_text().replace(",", "")) == round(counted.sum())


def test_bars_that_would_dwarf_all_others_are_cut():
    table = measure_grid(makers("none", "vllm_v0"), [Cell(8, 64, 0.0)], repetitions=1, rounds=1)
    table["p50_us"] = table["policy"].map({"none": 1.0, "vllm_v0": 100.0})
    table["calls_per_request"] = 1
    texts = [text.get_text() for text in plots.breakdown(table).axes[0].texts[:2]]
    assert texts == ["5", "600 \N{UPWARDS ARROW}"]


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
        (["--free-blocks", "1000", "--fit", "x"], "--fit and --compare need the times of whole"),
        (["--free-blocks", "9"], "--free-blocks 9 must be at least 1,000"),
        (["--free-blocks", "1000"], "--free-blocks found no evictions: none caches nothing"),
        (["--from", "nowhere.csv"], "--from nowhere.csv cannot be read"),
        (["--from", "nowhere.txt"], "--from nowhere.txt must end in .csv or .parquet"),
        (["--from", "t.csv", "-o", "u.csv"], "--from reads a table and measures nothing"),
        (["-o", "table.txt"], "--output table.txt must end in .csv or .parquet"),
        (["--compare", *TINY, "--prompt-tokens", "512"], "--compare found no cell"),
    ],
)
def test_overhead_says_what_is_wrong(prefixsim, arguments, sentence):
    code, out, err = prefixsim("overhead", "--policy", "none", *arguments)
    assert code == 2
    assert sentence in err
    assert out == ""


def test_a_table_that_is_none_is_refused(prefixsim, tmp_path):
    file = tmp_path / "table.csv"
    file.write_text("policy,p50_us\nnone,1\n")
    code, _, err = prefixsim("overhead", "--from", file)
    assert code == 2
    assert "lacks the columns block_size_tokens, prompt_tokens, target_hit_rate, ...;" in err


def test_overhead_refuses_a_place_it_cannot_write_to(prefixsim, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = prefixsim("overhead", "--policy=none", *TINY, "-o", tmp_path / "file" / "t.csv")
    assert code == 2
    assert "cannot be written" in err
