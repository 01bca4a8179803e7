"""Operator tables as a cost, and a recorded run against ours."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, needs, requests_of

from sim import validate
from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import check
from sim.inputs import cost_of
from sim.operators import OperatorCost
from sim.types import Sequence

REAL = SHARED / "measurements" / "vllm_0.19_rtx4090_llama-3.1-8b"
SIZES = (1, 4, 16)
LAYERS = (
    "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj",
    "embedding", "final_layernorm",
)  # fmt: skip


def attention_us(chunk, cached, decodes, context):
    """Linear in each size, as interpolation is."""
    return 5 + 0.5 * chunk + 0.25 * cached + 3 * decodes + 0.125 * decodes * context


@pytest.fixture
def folder(tmp_path):
    """Tables of a model of two layers whose times are known at every size."""
    rows = [(0, 0, n, k, attention_us(0, 0, n, k)) for n in SIZES for k in (16, 64)]
    rows += [(c, p, 0, 0, attention_us(c, p, 0, 0)) for c in (2, 8, 32) for p in (0, 16)]
    rows += [
        (c, p, n, k, attention_us(c, p, n, k))
        for c in (2, 8, 32)
        for p in (0, 16)
        for n in SIZES
        for k in (16, 64)
        if (c, n) != (32, 16)  # too many tokens to be measured
    ]
    columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "attention.csv", index=False)
    dense = [(layer, tokens, 1 + tokens) for layer in LAYERS for tokens in (1, 8, 32)]
    pd.DataFrame(dense, columns=["layer", "tokens", "time_us"]).to_csv(
        tmp_path / "dense.csv", index=False
    )
    once = [("lm_head", 1, 10), ("lm_head", 16, 25), ("sampler", 1, 2), ("sampler", 16, 2)]
    pd.DataFrame(once, columns=["layer", "sequences", "time_us"]).to_csv(
        tmp_path / "per_sequence.csv", index=False
    )
    write_meta(tmp_path, num_layers=2)
    return tmp_path


def write_meta(folder, sizes=(), **more):
    compiled = {"cudagraph_capture_sizes": list(sizes)}
    document = {"resolved_config": {"compilation_config": compiled}, **more}
    (folder / "meta.json").write_text(json.dumps(document))


def dense_us(tokens):
    # Two layers of seven kernels, the norm twice, and two kernels once.
    return (2 * 8 + 2) * (1 + tokens)


# Worked values


def test_a_prefill_by_hand(folder):
    # 5 tokens after 10: attention 5 + 2.5 + 2.5 = 10, output layer 10 and sampler 2.
    assert OperatorCost(folder).step_ns_of([(5, 10)]) == 1000 * (dense_us(5) + 2 * 10 + 12)


def test_decodes_by_hand(folder):
    # Three after 19 and 39 and 59, so that they read 20, 40 and 60: 40 on average.
    us = dense_us(3) + 2 * attention_us(0, 0, 3, 40) + 10 + 2 + 2
    assert OperatorCost(folder).step_ns_of([(1, 19), (1, 39), (1, 59)]) == 1000 * us


def test_a_step_with_both_by_hand(folder):
    # The longest chunk is looked up with the decodes; the other adds 8 (chunk) + 5 - 6, where 6
    # is the least that any attention in the table takes: 5 + 0.5 * 2.
    both = attention_us(20, 4, 2, 30)
    us = dense_us(20 + 16 + 2) + 2 * (both + 5 + 8 - 6) + 10 + 3 + 2
    parts = [(16, 0), (1, 29), (20, 4), (1, 29)]
    assert OperatorCost(folder).step_ns_of(parts) == pytest.approx(1000 * us, abs=1)


def test_beyond_the_tables_times_go_on_as_they_grew(folder):
    cost = OperatorCost(folder)
    us = dense_us(100) + 2 * attention_us(100, 50, 0, 0) + 12
    assert cost.step_ns_of([(100, 50)]) == 1000 * us
    # 32 tokens beside 16 decodes were too many to measure.
    us = dense_us(48) + 2 * attention_us(32, 0, 16, 64) + 10 + 16 + 2
    assert cost.step_ns_of([(32, 0)] + [(1, 63)] * 16) == 1000 * us


def test_steps_are_padded_to_the_sizes_of_graphs(folder):
    plain = OperatorCost(folder)
    write_meta(folder, sizes=(8, 16), num_layers=2)
    padded = OperatorCost(folder)

    def more(num):
        parts = [(1, 15)] * num
        return padded.step_ns_of(parts) - plain.step_ns_of(parts)

    assert more(5) == 1000 * (dense_us(8) - dense_us(5))
    assert more(8) == 0
    assert more(9) == 1000 * (dense_us(16) - dense_us(9))
    assert more(17) == 0


def test_sequences_are_priced_by_what_they_compute(folder):
    cost = OperatorCost(folder)
    first, second = (Sequence(r, []) for r in requests_of((range(40), range(3)), ([1], [2])))
    first.num_computed_tokens = 30
    scheduled = [(first, 10), (second, 1)]
    assert cost.sequences_ns(scheduled) == cost.step_ns_of([(10, 30), (1, 0)])


# Files


def test_a_folder_is_a_cost_of_a_run(folder, prefixsim):
    config = RunConfig(cost=str(folder))
    check(config)
    assert isinstance(cost_of(config)[0], OperatorCost)
    args = ("--num-requests", "20", "--workload-arg", "prompt=60", "--cost", folder)
    code, out, err = prefixsim("run", "shared-prefix", *args, "--json")
    assert code == 0, err
    assert json.loads(out)["cost"] == str(folder)
    code, _, err = prefixsim("run", "shared-prefix", *args, "--cascade", "0.5")
    assert code == 2
    assert "--cascade 0.5 does not go with --cost" in err


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("dense.csv", lambda t: t[t["layer"] != "o_proj"], "no times of o_proj"),
        ("dense.csv", lambda t: t.drop(columns="tokens"), "lacks tokens"),
        ("attention.csv", lambda t: t[t["n_decode"] == 0], "0 and 0; measure what is missing"),
        ("attention.csv", lambda t: t.assign(time_us=-1), "attention.csv:2: time_us is -1"),
        ("per_sequence.csv", lambda t: t.head(0), "has 0 rows"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(folder, name, change, words):
    change(pd.read_csv(folder / name)).to_csv(folder / name, index=False)
    with pytest.raises(UsageError, match=words):
        OperatorCost(folder)


def test_layers_are_those_of_the_model(folder):
    for more, num_layers in (({}, 32), ({"model": "Qwen/Qwen3-8B"}, 36), ({"num_layers": 5}, 5)):
        write_meta(folder, **more)
        assert OperatorCost(folder).num_layers == num_layers
    write_meta(folder, model="some/model")
    with pytest.raises(UsageError, match=r"layers of model 'some/model' are not known; add num_"):
        OperatorCost(folder)


def test_a_missing_table_is_named(folder):
    (folder / "dense.csv").unlink()
    with pytest.raises(UsageError, match=r"dense.csv: cannot be read .* attention.csv, dense.csv"):
        OperatorCost(folder)


# A run made by hand: what our engine did, recorded as a benchmark would


@pytest.fixture
def recorded(folder):
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.integers(1, 40, 12)) * 100_000
    arrivals -= arrivals[0]
    trace = [
        {
            "input_toks": 20, "output_toks": 6, "arrival_time_ns": int(arrival),
            "input_tok_ids": rng.integers(0, 3, 20).tolist(), "output_tok_ids": [7] * 6,
        }
        for arrival in arrivals
    ]  # fmt: skip
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace))
    write_meta(
        folder,
        num_layers=2,
        dataset_path="somewhere/trace.jsonl",
        started_at="2026-08-20T23:19:39Z",
        kv_cache={"num_gpu_blocks": 13, "block_size": 4, "enable_prefix_caching": True},
    )
    meta = json.loads((folder / "meta.json").read_text())
    meta["resolved_config"]["scheduler_config"] = {
        "max_num_seqs": 8, "max_num_batched_tokens": 16, "scheduler_reserve_full_isl": True,
        "async_scheduling": True,
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta))
    rows = [
        {
            "request_id": f"r{i}", "input_toks": 20, "output_toks": 6,
            "arrival_time": 1000 + row["arrival_time_ns"] / 1e9, "queued_ts": 50 + i,
            "first_token_ts": 51 + i, "last_token_ts": 53.5 + i,
        }
        for i, row in enumerate(trace)
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_figures_are_those_of_the_recording(recorded):
    outcome = validate.validate(recorded)
    means = outcome.times[outcome.times["statistic"] == "mean"].set_index("figure")["real"]
    assert means.to_dict() == {"TTFT": 1.0, "TPOT": 0.5, "latency": 3.5}
    assert outcome.num_requests == 12
    assert outcome.makespan_s[0] == 14.5
    assert outcome.num_preemptions > 0
    assert outcome.queues is None
    error = outcome.errors_of_means()["TTFT"]
    row = outcome.times.iloc[0]
    assert error == row["simulated"] / row["real"] - 1


def test_the_limits_are_those_of_the_engine(recorded):
    found = validate.read_recorded(recorded)
    assert (found.num_blocks, found.block_size) == (13, 4)
    assert found.scheduler.reserve_full_prompt
    assert found.ahead
    assert found.scheduler.max_num_batched_tokens == 16
    assert found.trace == recorded / "trace.jsonl"


def test_queues_are_compared_at_the_same_time(recorded):
    first = 1000.0
    started = 1_787_267_979  # of started_at, s
    rows = [json.loads(line) for line in (recorded / "requests.jsonl").read_text().splitlines()]
    for row in rows:
        row["arrival_time"] += started - first + 2
    (recorded / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # The first request arrives 2 s after the start: before it nothing runs, long after it neither.
    pd.DataFrame({"t": [1, 60], "running": [0, 0], "waiting": [0, 0]}).to_csv(
        recorded / "timeseries.csv", index=False
    )
    queues = validate.validate(recorded).queues.set_index("sequences")
    assert queues.loc["running", "mean_gap"] == 0
    pd.DataFrame({"t": [2.000001], "running": [1], "waiting": [0]}).to_csv(
        recorded / "timeseries.csv", index=False
    )
    queues = validate.validate(recorded).queues.set_index("sequences")
    assert queues.loc["running", "simulated"] == 1


def test_the_command_prints_what_was_compared(recorded, prefixsim):
    code, out, err = prefixsim("validate", recorded)
    assert code == 0, err
    assert "latency" in out
    assert "preemptions" in err
    code, out, _ = prefixsim("validate", recorded, "--json", "--policy", "none")
    assert json.loads(out)["num_requests"] == 12


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda f: (f / "meta.json").unlink(), "meta.json: cannot be read"),
        (write_meta, "is missing or wrong"),
        (lambda f: (f / "trace.jsonl").unlink(), "its trace 'trace.jsonl' is not in"),
        (lambda f: (f / "requests.jsonl").write_text("{}\n"), "requests.jsonl:1: request_id,"),
        (lambda f: (f / "requests.jsonl").write_text("no\n"), "requests.jsonl:1: not a JSON"),
        (lambda f: (f / "trace.jsonl").write_text(
            (f / "trace.jsonl").read_text().replace("[7, 7, ", "[7, ", 1)
        ), "trace.jsonl:1: 20 and 5 tokens but request 'r0' had 20 and 6"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_fit_is_named(recorded, break_it, words):
    break_it(recorded)
    with pytest.raises(UsageError, match=words):
        validate.validate(recorded)


@needs(REAL)
def test_means_of_a_real_engine_are_met_within_half_a_per_cent():
    outcome = validate.validate(REAL)
    assert outcome.num_requests == 300
    errors = outcome.errors_of_means()
    assert {name: abs(error) < 0.005 for name, error in errors.items()} == dict.fromkeys(
        ("TTFT", "TPOT", "latency"), True
    )
    assert (outcome.times["error"].abs() < 0.01).all()
    assert (outcome.queues["error"].abs() < 0.01).all()
