"""Proof by execution: every policy is right, every sabotaged one is caught."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import policies
from gpu_backend.execution import to_tokens
from sim import prove
from sim.config import RunConfig
from sim.errors import UsageError

SETTINGS = {
    "num_requests": 24,
    "workload_args": {"prompt": 60, "output": 8, "rate": 500, "num_prefixes": 3, "hit_rate": 0.6},
    "kv_capacity": "360tokens",
}
EXACT = {"vllm_v0": {"lookup": "walk"}, "vllm_v0_scan": {"lookup": "walk"}}
FAULTS = [
    "FreesTooEarly", "SharesAWrongBlock", "ForgetsToUnregister", "HitsOneTokenTooMany",
    "RegistersAhead", "ForgetsThePrefix", "HandsOutTwice", "CountsBehindAGap",
]  # fmt: skip


def proof_of(policy="vllm_v1", **settings):
    args = EXACT.get(policy, {})
    config = RunConfig(**{**SETTINGS, "policy": policy, "policy_args": args, **settings})
    return prove.prove(config, prove.ModelChoice(dtype="fp32", device="cpu"))


# Right ones


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_is_right_while_blocks_are_scarce(policy, block_size):
    proven = proof_of(policy, block_size=block_size, long_prefill_token_threshold=23)
    assert proven.agrees
    assert proven.largest_difference < 1e-4
    assert len(proven.compared) == 24
    hits = sum(one.num_cached_tokens for one in proven.compared)
    # The shared prefix is 41 tokens: blocks of 64 never hold it alone.
    assert (hits > 200) == (policy != "none" and block_size < 64)
    if policy != "none":
        assert proven.num_evictions > 0


@pytest.mark.parametrize("policy", policies.names())
def test_a_request_that_was_preempted_is_right_again(policy):
    proven = proof_of(policy, block_size=4, workload_args={
        "prompt": 40, "output": 40, "rate": 1e4, "num_prefixes": 3, "hit_rate": 0.5,
    }, max_num_batched_tokens=64)  # fmt: skip
    assert proven.num_preemptions > 0
    assert any(one.num_preemptions for one in proven.compared)
    assert proven.agrees
    # What a preempted request computes again is compared again.
    assert sum(one.num_positions for one in proven.compared) > 24 * 79 - sum(
        one.num_cached_tokens for one in proven.compared
    )


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1", "vllm_v1_latest"])
def test_equal_prompts_at_once_are_right(policy, tmp_path):
    # All arrive together with one prompt: duplicates under V1, shared copies under V0.
    trace = tmp_path / "same.jsonl"
    row = {"timestamp": 0, "input_length": 50, "output_length": 12, "hash_ids": [0, 1]}
    trace.write_text("".join(json.dumps(row) + "\n" for _ in range(6)))
    proven = proof_of(
        policy, workload=str(trace), workload_args={}, num_requests=None, trace_block_size=25,
        block_size=5, kv_capacity="2000tokens", long_prefill_token_threshold=7,
    )  # fmt: skip
    assert proven.agrees
    assert len(proven.compared) == 6


# Wrong ones


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sabotaged_policy_is_caught(fault):
    proven = proof_of(
        f"sabotage:{fault}", block_size=4, long_prefill_token_threshold=16, policy_args={}
    )
    assert not proven.agrees
    assert proven.wrong
    # By far more than rounding makes of it.
    assert proven.largest_difference > 0.05


def test_no_number_is_a_difference(monkeypatch):
    from gpu_backend import kv_cache  # noqa: PLC0415 - needs torch

    monkeypatch.setattr(kv_cache, "POISON", float("nan"))
    proven = proof_of("sabotage:HitsOneTokenTooMany", block_size=4, policy_args={})
    assert proven.largest_difference == float("inf")
    assert not proven.agrees


def test_a_request_that_cannot_be_served_is_not_proven():
    proven = proof_of(kv_capacity="50tokens", block_size=10)
    assert proven.num_rejected == 24
    assert not proven.compared
    assert not proven.agrees


# Tokens


def test_equal_names_are_equal_tokens_and_others_look_unlike():
    names = np.arange(100_000)
    tokens = to_tokens(names, 512, seed=0)
    assert (tokens == to_tokens(names, 512, seed=0)).all()
    assert (tokens != to_tokens(names, 512, seed=1)).mean() > 0.99
    counts = np.bincount(tokens, minlength=512)
    assert len(counts) == 512
    # About 195 each, as many as throws of a die would make of it.
    assert counts.min() > 195 - 5 * 14
    assert counts.max() < 195 + 5 * 14
    # A later stretch of names is no copy of an earlier one.
    assert (tokens[:50_000] == tokens[50_000:]).mean() < 0.01


# The command


ARGS = ("shared-prefix", "--num-requests", "12", "--workload-arg", "prompt=40",
        "--workload-arg", "output=5", "--workload-arg", "rate=200",
        "--workload-arg", "num_prefixes=2", "--device", "cpu")  # fmt: skip


def test_the_last_line_says_how_many_and_how_far(prefixsim):
    code, out, err = prefixsim("prove", *ARGS, "--block-size", "4", "--seed", "3")
    assert code == 0
    assert out.splitlines()[-1].startswith("proven 12 of 12 requests, largest difference ")
    assert "evictions" in err


def test_a_wrong_policy_exits_with_1_and_names_the_requests(prefixsim):
    code, out, _ = prefixsim(
        "prove", *ARGS, "--block-size", "4", "--policy", "sabotage:HitsOneTokenTooMany"
    )
    assert code == 1
    assert "logits that differ, the worst first" in out
    assert out.splitlines()[-1].startswith("proven ")
    code, out, _ = prefixsim(
        "prove", *ARGS, "--block-size", "4", "--policy", "sabotage:HitsOneTokenTooMany", "--json"
    )
    assert code == 1
    outcome = json.loads(out)
    assert not outcome["agrees"]
    assert outcome["wrong"][0]["difference"] == outcome["largest_difference"] > 0.05


def test_time_executes_and_compares_with_a_cost_model(prefixsim, tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(
        '{"form": "linear", "coefficients": {"step_base_ns": 2000000, "step_per_token_ns": 1000, '
        '"step_per_seq_ns": 10000}}'
    )
    code, out, _ = prefixsim("prove", *ARGS, "--time", "--cost", path, "--json")
    assert code == 0
    row = json.loads(out)["model_s"]
    assert row["measured"] > 0
    assert row["error"] == pytest.approx(row["simulated"] / row["measured"] - 1)


def test_without_torch_there_is_a_hint_and_the_rest_works(prefixsim, monkeypatch):
    monkeypatch.setattr("gpu_backend.find_spec", lambda name: None)
    code, _, err = prefixsim("prove", *ARGS)
    assert code == 2
    assert err == (
        "prefixsim: error: prefixsim prove needs torch; install it with: "
        'pip install "prefixsim[gpu]"\n'
    )


def test_nothing_else_needs_torch(tmp_path):
    # A process of its own, in which torch cannot be imported.
    script = """
import sys
sys.modules["torch"] = None
from sim import calibrate, cli, plots, prove, validate
from sim.cli.calibrate import command
cli.main(["run", "shared-prefix", "--num-requests", "20"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hit_rate" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--decoder", "gpt"), "neither a preset"),
        (("--dtype", "fp8"), "--dtype 'fp8' must be one of fp32, bf16"),
        (("--device", "tpu"), "--device 'tpu' must be cuda or cpu"),
        (("--cascade", "0.5"), "--cascade 0.5"),
        (("--decoder", "llama-3-8b", "--kv-capacity", "9000000blocks"), "GB"),
    ],
)
def test_what_cannot_be_run_is_named(prefixsim, args, words):
    code, _, err = prefixsim("prove", *ARGS, *args)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    import torch  # noqa: PLC0415

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="finds no CUDA GPU on this machine; use --device cpu"):
        prove.make_executor(prove.ModelChoice(device="cuda"))
