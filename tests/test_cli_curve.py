"""``prefixsim curve``."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, needs

from sim.columns import columns_of

CONVERSATION = SHARED / "traces" / "conversation_trace.jsonl"
SYNTHETIC = SHARED / "traces" / "synthetic_trace.jsonl"


@pytest.fixture
def trace(tmp_path):
    """Turns of a few conversations, in turn."""
    rng = np.random.default_rng(5)
    histories = [[number] for number in range(6)]
    rows = []
    for index in range(40):
        ids = histories[int(rng.integers(6))]
        ids += [1000 + 10 * index + k for k in range(int(rng.integers(1, 4)))]
        rows.append(
            {
                "timestamp": index,
                "input_length": 64 * len(ids) - int(rng.integers(0, 60)),
                "output_length": int(rng.integers(0, 40)),
                "hash_ids": list(ids),
            }
        )
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def curve(prefixsim, *args):
    code, out, err = prefixsim("curve", *args, "--json")
    assert code == 0, err
    return pd.DataFrame(json.loads(out)), err


@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v1_latest"])
@pytest.mark.parametrize("reuse", ["all", "prefill"])
def test_rows_are_what_a_run_hits(prefixsim, trace, policy, reuse):
    sizes = (8, 20, 60, 200)
    rows, _ = curve(
        prefixsim, trace, "--trace-block-size", 64, "--policy", policy, "--reuse", reuse,
        "--kv-capacity", ",".join(f"{size}blocks" for size in sizes),
    )  # fmt: skip
    assert rows["num_blocks"].tolist() == list(sizes)
    assert rows["exact"].all()
    for row in rows.to_dict("records"):
        _, out, _ = prefixsim(
            "run", trace, "--trace-block-size", 64, "--policy", policy, "--reuse", reuse,
            "--kv-capacity", f"{row['num_blocks']}blocks", "--max-num-seqs", 1, "--json",
        )  # fmt: skip
        run = json.loads(out)
        assert row["num_cached_tokens"] == run["num_cached_tokens"]
        assert row["num_refused"] == run["num_rejected"]
        assert row["hit_rate"] == run["hit_rate"] or run["hit_rate"] is None
        if not run["num_rejected"]:
            assert row["infinite_hit_rate"] == pytest.approx(run["infinite_hit_rate"])


def test_capacity_is_told_in_every_unit(prefixsim, trace):
    rows, _ = curve(
        prefixsim, trace, "--trace-block-size", 64, "--kv-capacity", "4096,100blocks,1GiB,50%,100%"
    )
    by_mark = rows.set_index("mark")
    assert by_mark.loc["4096", "num_blocks"] == 256
    assert by_mark.loc["1GiB", "kv_capacity_tokens"] == 8192
    assert by_mark.loc["1GiB", "kv_capacity_gib"] == 1
    assert by_mark.loc["100%", "working_set_share"] == pytest.approx(1, abs=0.01)
    assert rows["num_blocks"].is_monotonic_increasing


def test_capacities_are_chosen_where_none_are_named(prefixsim, trace):
    rows, err = curve(prefixsim, trace, "--trace-block-size", 64)
    marks = ", ".join(rows["mark"])
    for mark in ("knee", "ceiling", "90% of the ceiling", "serves every request"):
        assert mark in marks
    assert rows["hit_rate"].iloc[-1] == rows["infinite_hit_rate"].iloc[-1]
    serving = rows[rows["num_refused"] == 0]
    assert serving["hit_rate"].is_monotonic_increasing
    assert (rows["hit_rate"].fillna(0) <= rows["belady_hit_rate"].fillna(0)).all()
    assert "lower bound" in err


def test_many_policies_and_block_sizes_in_one_call(prefixsim, trace):
    rows, _ = curve(
        prefixsim, trace, "--trace-block-size", 64, "--policy", "vllm_v1,vllm_v1_latest",
        "--block-size", "16,64", "--kv-capacity", "4096",
    )  # fmt: skip
    assert list(zip(rows["policy"], rows["block_size"], strict=True)) == [
        ("vllm_v1", 16), ("vllm_v1_latest", 16), ("vllm_v1", 64), ("vllm_v1_latest", 64),
    ]  # fmt: skip
    assert (rows["kv_capacity_tokens"] == 4096).all()


def test_a_folder_holds_every_capacity_and_a_plot(prefixsim, trace, tmp_path):
    folder = tmp_path / "out"
    rows, _ = curve(prefixsim, trace, "--trace-block-size", 64, "-o", folder)
    assert {path.name for path in folder.iterdir()} == {
        "curve.parquet", "curve_points.parquet", "curve_points.csv", "curve.png", "curve.svg",
    }  # fmt: skip
    points = pd.read_parquet(folder / "curve_points.parquet")
    assert list(points.columns) == [column.name for column in columns_of("curve")]
    assert points["num_blocks"].tolist() == rows["num_blocks"].tolist()
    everything = pd.read_parquet(folder / "curve.parquet").set_index("num_blocks")
    # It holds each rise, so that the row before a capacity has its hit rate.
    for row in rows.to_dict("records"):
        at = everything.loc[: row["num_blocks"]].iloc[-1]
        assert at["hit_rate"] == pytest.approx(np.nan_to_num(row["hit_rate"]))
    first = (folder / "curve.svg").read_bytes()
    curve(prefixsim, trace, "--trace-block-size", 64, "-o", folder)
    assert (folder / "curve.svg").read_bytes() == first


def test_a_sample_says_that_it_is_one(prefixsim, trace):
    rows, err = curve(prefixsim, trace, "--trace-block-size", 64, "--sample", 4)
    assert not rows["exact"].any()
    assert "estimates from one in 4 blocks" in err
    assert rows["hit_rate"].iloc[-1] == pytest.approx(0.7, abs=0.3)


def test_a_trace_needs_no_time_stamps(prefixsim, tmp_path):
    path = tmp_path / "untimed.jsonl"
    path.write_text("\n".join(json.dumps({"input_length": 64, "hash_ids": [0]}) for _ in range(3)))
    rows, _ = curve(prefixsim, path, "--trace-block-size", 64, "--kv-capacity", "infinite")
    assert rows["hit_rate"].tolist() == [pytest.approx(2 * 48 / 192)]


def test_a_table_is_printed(prefixsim, trace):
    code, out, _ = prefixsim("curve", trace, "--trace-block-size", 64, "--order", "head")
    assert code == 0
    assert "trace through store, block size 16: ceiling" in out
    assert "belady_hit_rate" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--policy", "vllm_v0"], "no curve in one pass; choose vllm_v1 or vllm_v1_latest"),
        (["--policy", "vllm_v1,"], "--policy 'vllm_v1,' has an empty value"),
        (["--order", "up"], "--order 'up' must be one of tail, head"),
        (["--order", "head", "--policy", "vllm_v1"], "has no meaning with --order head"),
        (["--order", "head", "--reuse", "all"], "has no meaning with --order head"),
        (["--order", "head", "--sample", "9"], "--sample 9 is for --order tail only"),
        (["--sample", "0"], "--sample 0 must be at least 1"),
        (["--sample", "4", "--kv-capacity", "2blocks"], "largest request needs"),
        (["--reuse", "some"], "--reuse 'some' must be one of all, prefill"),
        (["--block-size", "0"], "--block-size 0 must be at least 1"),
        (["--kv-capacity", "many"], "is not a capacity"),
        (["--model", "gpt-9"], "--model 'gpt-9' must be a preset"),
        (["-o", "/proc/nowhere"], "-o /proc/nowhere cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(prefixsim, trace, args, sentence):
    code, out, err = prefixsim("curve", trace, "--trace-block-size", 64, *args)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_workload_without_prefixes_has_no_curve(prefixsim, tmp_path):
    path = tmp_path / "plain.jsonl"
    path.write_text(json.dumps({"timestamp": 0, "input_length": 64, "output_length": 1}))
    code, _, err = prefixsim("curve", path)
    assert code == 2
    assert "says nothing about shared prefixes" in err


# Mooncake's Figure 9, by one call each. Tokens of capacity, then hit rates.

TOKENS = (10**4, 10**5, 10**6, 2 * 10**6, 4 * 10**6, 5 * 10**6, 8 * 10**6, 10**7, 5 * 10**7, 10**8)
RAW = {
    "conversation": (
        0.0258, 0.0425, 0.0542, 0.0855, 0.1778, 0.2102, 0.2661, 0.2908, 0.3707, 0.3736,
    ),
    "synthetic": (
        0.0003, 0.0116, 0.1421, 0.2315, 0.3745, 0.4278, 0.5356, 0.5768, 0.6512, 0.6512,
    ),
}  # fmt: skip
PAPER = {
    "conversation": (
        0.0449, 0.0731, 0.0866, 0.1202, 0.2149, 0.2471, 0.2997, 0.3263, 0.3983, 0.4006,
    ),
    "synthetic": (
        0.0003, 0.0117, 0.1461, 0.2345, 0.3805, 0.4352, 0.5447, 0.5886, 0.6582, 0.6582,
    ),
}  # fmt: skip
ASSUMED = {"conversation": ("--system-prompt", 880), "synthetic": ()}


@needs(CONVERSATION)
@pytest.mark.parametrize("name", RAW)
def test_figure_9_from_the_raw_ids(prefixsim, name):
    path = SHARED / "traces" / f"{name}_trace.jsonl"
    rows, _ = curve(
        prefixsim, path, "--order", "head", "--block-size", 512,
        "--kv-capacity", ",".join(map(str, TOKENS)),
    )  # fmt: skip
    assert tuple(rows["hit_rate"].round(4)) == RAW[name]


@needs(CONVERSATION)
@pytest.mark.parametrize("name", PAPER)
def test_figure_9_as_published(prefixsim, name):
    path = SHARED / "traces" / f"{name}_trace.jsonl"
    rows, err = curve(
        prefixsim, path, "--order", "head", "--block-size", 16, "--partial-blocks", "shared",
        *ASSUMED[name], "--kv-capacity", ",".join(map(str, TOKENS)),
    )  # fmt: skip
    assert np.abs(rows["hit_rate"].to_numpy() - np.array(PAPER[name])).max() < 0.003
    assert "assumed, not read" in err
