"""What a run says of itself: ceilings by the policy's own rules, and settings that disagree."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run

OVERFLOWING = 10**23


def trace(tmp_path, *rows):
    """Write rows of (input_length, output_length, hash_ids), a second apart."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "timestamp": 1000 * index,
                    "input_length": num_input,
                    "output_length": num_output,
                    "hash_ids": ids,
                }
            )
            for index, (num_input, num_output, ids) in enumerate(rows)
        )
    )
    return {"workload": str(path), "trace_block_size": 16}


def test_the_ceiling_counts_the_requests_that_are_served(tmp_path):
    # Three prompts of 33 tokens share 32; one of 320 is larger than the pool.
    shared = [(33, 1, [0, 1, 10 + index]) for index in range(3)]
    source = trace(tmp_path, *shared, (320, 1, list(range(100, 120))))
    summary = run(RunConfig(**source, kv_capacity="10blocks")).summary
    assert summary["num_rejected"] == 1
    assert summary["hit_rate"] == summary["infinite_hit_rate"] == 64 / 99


def test_where_nothing_is_served_there_is_no_ceiling(tmp_path):
    source = trace(tmp_path, (320, 1, list(range(20))))
    summary = run(RunConfig(**source, kv_capacity="10blocks")).summary
    assert math.isnan(summary["hit_rate"])
    assert math.isnan(summary["infinite_hit_rate"])


@pytest.mark.parametrize(
    ("policy", "num_cached", "num_hit_blocks"),
    [
        # V1 computes the block of the last token again, and so did V0 0.6.4 by its count of hits.
        ("vllm_v1", 16, 1),
        ("vllm_v1_latest", 16, 1),
        ("vllm_v0_scan", 16, 1),
        # V0 0.8.5 computes the last token alone.
        ("vllm_v0", 31, 2),
    ],
)
def test_a_repeated_prompt_reaches_the_ceiling_of_the_policys_rules(
    tmp_path, policy, num_cached, num_hit_blocks
):
    source = trace(tmp_path, (32, 1, [0, 1]), (32, 1, [0, 1]))
    summary = run(RunConfig(**source, policy=policy, kv_capacity="infinite")).summary
    assert summary["hit_rate"] == summary["infinite_hit_rate"] == num_cached / 64
    assert summary["block_hit_rate"] == num_hit_blocks / 4


def test_in_a_closed_loop_the_ceiling_follows_the_order_that_came_about(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "session_id": "a", "hash_ids": [1]},
        # Comes first in the file and last in a closed loop, 10 s after the turn before.
        {"timestamp": 1, "session_id": "a", "delay": 10_000, "hash_ids": [2, 3]},
        {"timestamp": 2000, "hash_ids": [2, 4]},
    ]
    for row in rows:
        row |= {"input_length": 16 * len(row["hash_ids"]), "output_length": 1}
    path.write_text("\n".join(map(json.dumps, rows)))
    for sessions in ("open", "closed"):
        config = RunConfig(
            workload=str(path), trace_block_size=16, sessions=sessions, turns="cumulative"
        )
        summary = run(config).summary
        assert summary["hit_rate"] == summary["infinite_hit_rate"] == 16 / 80
    order = run(config).requests["num_cached_tokens"].tolist()
    assert order == [0, 0, 16]


def test_a_rate_scale_belongs_to_recorded_arrivals():
    with pytest.raises(UsageError, match="--rate-scale 2 speeds up recorded arrivals and has no"):
        run(RunConfig(rate_scale=2, arrival="poisson", rate=1))


@pytest.mark.parametrize(
    "name",
    [
        "num_requests", "trace_block_size", "block_size", "max_num_seqs", "max_num_batched_tokens",
        "long_prefill_token_threshold", "seed",
    ],
)  # fmt: skip
def test_whole_numbers_have_an_end(name):
    option = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"{option} {OVERFLOWING} must be at most 2,147,483,647."):
        RunConfig(**{name: OVERFLOWING})


@pytest.mark.parametrize("text", ["10.5blocks", "1000.5", "1" * 400, "1" * 400 + "%"])
def test_a_capacity_is_whole_and_finite(text):
    with pytest.raises(UsageError, match=r"--kv-capacity '1\S*"):
        run(RunConfig(kv_capacity=text, num_requests=50))


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v0_scan", "vllm_v1", "vllm_v1_latest", "none"])
def test_an_infinite_pool_is_never_short_whatever_a_policy_keeps_free(tmp_path, policy):
    source = trace(tmp_path, (160, 10, list(range(10))), (160, 40, list(range(10, 20))))
    config = RunConfig(**source, policy=policy, kv_capacity="infinite", rate_scale=1000)
    summary = run(config).summary
    assert (summary["num_rejected"], summary["num_preemptions"]) == (0, 0)
    assert (
        summary["queue_ms_mean"]
        == run(replace(config, kv_capacity="1000blocks")).summary["queue_ms_mean"]
    )


def test_a_large_watermark_needs_a_larger_pool(tmp_path):
    config = RunConfig(
        **trace(tmp_path, (160, 10, list(range(10)))),
        policy="vllm_v0",
        policy_args={"watermark": 0.5},
        kv_capacity="infinite",
    )
    assert run(config).summary["num_finished"] == 1


def test_time_has_an_end(tmp_path):
    path = tmp_path / "cost.json"
    coefficients = {"step_base_ns": 9 * 10**14, "step_per_token_ns": 9 * 10**14}
    document = {"form": "linear", "coefficients": {**coefficients, "step_per_seq_ns": 0}}
    path.write_text(json.dumps(document))
    config = RunConfig(cost=str(path), num_requests=50)
    with pytest.raises(UsageError, match="the run takes more than 292 simulated years"):
        run(config)


def test_a_path_names_a_workload_and_odd_arguments_are_refused(tmp_path):
    path = Path(trace(tmp_path, (16, 1, [1]))["workload"])
    assert RunConfig(workload=path).workload == str(path)
    for args in ("hit_rate=1", ["hit_rate=1"], [("a", "b", "c")]):
        with pytest.raises(UsageError, match="must be pairs of key and value"):
            RunConfig(workload_args=args)
    with pytest.raises(UsageError, match="must be text"):
        RunConfig(cost="a\0b")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sessions": "closed"}, "--sessions closed changes nothing: shared-prefix names no"),
        ({"cascade": 0.5, "max_num_seqs": 4}, "--cascade 0.5 changes nothing with --max-num-seqs"),
        ({"overlap": True, "overhead": "none"}, "--overlap changes nothing with --overhead none"),
    ],
)
def test_a_setting_without_effect_is_named(settings, sentence):
    (warning,) = run(RunConfig(num_requests=30, **settings)).warnings
    assert warning.startswith(sentence)


def test_a_seed_that_draws_nothing_is_refused(tmp_path):
    source = trace(tmp_path, (32, 1, [0, 1]), (32, 1, [2, 3]))
    with pytest.raises(UsageError, match="--seed 3 changes nothing"):
        run(RunConfig(**source, seed=3))
    drawn = [
        run(RunConfig(**source, arrival="poisson", rate=1, seed=seed)).requests["arrival_s"][1]
        for seed in (0, 3)
    ]
    assert drawn[0] != drawn[1]


def test_the_seed_draws_the_sharing_that_is_added_to_lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    rows = "".join(f"2023-11-16 18:17:{second:02},100,1\n" for second in range(60))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    dials = {"hit_rate": 0.4, "num_prefixes": 5, "zipf": 1.0}
    tables = [
        run(RunConfig(workload=str(path), workload_args=args, seed=seed, block_size=1)).requests
        for seed, args in ((0, dials), (3, dials), (0, {**dials, "seed": 3}))
    ]
    cached = [table["num_cached_tokens"].tolist() for table in tables]
    assert cached[1] == cached[2] != cached[0]
    with pytest.raises(UsageError, match="the seed is given twice"):
        run(RunConfig(workload=str(path), workload_args={**dials, "seed": 3}, seed=3))


@pytest.mark.parametrize(("duration", "num_sent"), [(3.5, 2), (4.0, 3), (1.5, 1)])
@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("arrival", [{}, {"arrival": "users", "users": 1}])
def test_a_closed_loop_sends_nothing_after_its_duration(
    tmp_path, duration, num_sent, engine, arrival
):
    # A step takes a second and a user thinks for one: turns are sent at 0, 2 and 4 s.
    path = tmp_path / "trace.jsonl"
    turn = {"timestamp": 0, "input_length": 16, "output_length": 1, "session_id": "a"}
    rows = [{**turn, "hash_ids": [0]}, *({**turn, "hash_ids": [i], "delay": 1000} for i in (1, 2))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cost = tmp_path / "cost.json"
    coefficients = {"step_base_ns": 10**9, "step_per_token_ns": 0, "step_per_seq_ns": 0}
    cost.write_text(json.dumps({"form": "linear", "coefficients": coefficients}))
    table = run(
        RunConfig(
            workload=str(path), turns="cumulative", trace_block_size=16, sessions="closed",
            cost=str(cost), overhead="none", duration=duration, engine=engine, **arrival,
        )
    ).requests  # fmt: skip
    assert table["arrival_s"].tolist() == [0, 2, 4][:num_sent]
    assert (table["status"] == "finished").all()
