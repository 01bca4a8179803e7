"""The command line as a user meets it: output, exit codes, sentences."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sim.columns import columns_of

SMALL = [
    "--num-requests=20",
    "--workload-arg=prompt=64",
    "--workload-arg=output=4",
    "--workload-arg=num_prefixes=2",
]


def test_run_prints_one_json_object_of_the_summary_row(prefixsim):
    code, out, err = prefixsim("run", "shared-prefix", *SMALL, "--json")
    row = json.loads(out)
    assert code == 0
    assert set(row) == {column.name for column in columns_of("summary")}
    # 18 of 20 requests can hit, for half of all 1,280 tokens: prefixes of 35 or 36 tokens, of
    # which blocks of 16 hold two.
    assert row["num_prompt_tokens"] == 1280
    assert row["num_cached_tokens"] == 18 * 32
    assert row["hit_rate"] == row["infinite_hit_rate"] == 0.45
    assert "in an infinite cache" in err


def test_a_timed_run_gives_the_same_row_and_says_what_it_took(prefixsim):
    _, plain, _ = prefixsim("run", "shared-prefix", *SMALL, "--json")
    _, timed, err = prefixsim("run", "shared-prefix", *SMALL, "--json", "--timed")
    assert plain == timed
    assert all(name in err for name in ("match_prefix", "allocate", "cache_blocks", "free"))
    _, out, _ = prefixsim("run", "shared-prefix", *SMALL, "--timed")
    assert "measured in this run" in out


def test_run_and_sweep_fill_a_folder_that_plot_draws(prefixsim, tmp_path):
    code, _, _ = prefixsim("run", "shared-prefix", *SMALL, "-o", tmp_path, "--steps")
    assert code == 0
    assert pd.read_parquet(tmp_path / "steps.parquet")["num_new_tokens"].sum() > 0
    code, out, _ = prefixsim(
        "sweep",
        "-o",
        tmp_path,
        *("--num-requests", 20, "--workload-arg", "prompt=64", "--workload-arg", "output=4,8"),
        *("--policy", "none,vllm_v1", "--block-size", "8,16", "--kv-capacity", "512,1024"),
        "--json",
    )
    assert code == 0
    assert len(json.loads(out)) == 2 * 2 * 2 * 2
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert len(summary) == 17
    assert list(summary.columns) == [column.name for column in columns_of("summary")]
    code, out, _ = prefixsim("plot", tmp_path)
    assert code == 0
    drawn = out.split()
    assert len(drawn) >= 6
    assert {path.rpartition(".")[2] for path in drawn} == {"png", "svg"}


def test_one_configuration_gives_the_same_bytes_twice(prefixsim, tmp_path):
    for folder in ("a", "b"):
        prefixsim("run", "shared-prefix", *SMALL, "-o", tmp_path / folder, "--steps")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert len(files) >= 9
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_table_of_a_sweep_shows_what_varies(prefixsim, tmp_path):
    _, out, _ = prefixsim(
        "sweep", *SMALL, "--workload-arg", "hit_rate=0,0.5", "--policy", "none,vllm_v1",
        "-o", tmp_path,
    )  # fmt: skip
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    names = [cell.strip() for line in out.splitlines() for cell in line.split("┃")[1:-1]]
    shown = [names.index(name) for name in ("dial hit_rate", "policy", "hit_rate")]
    ceiling = names.index("infinite_hit_rate")
    assert [[row[index] for index in (*shown, ceiling)] for row in rows if row] == [
        ["0", "none", "0.0000", "0.0000"],
        ["0.5", "none", "0.0000", "0.4500"],
        ["0", "vllm_v1", "0.0000", "0.0000"],
        ["0.5", "vllm_v1", "0.4500", "0.4500"],
    ]
    # A profile of its own prices each policy, so it varies too; the seed does not.
    assert "overhead" in names
    assert "seed" not in names


def test_a_sweep_whose_every_point_is_bad_input_exits_with_2(prefixsim, tmp_path):
    code, out, err = prefixsim("sweep", *SMALL, "--kv-capacity", "1,2", "-o", tmp_path)
    assert code == 2
    assert out == ""
    assert err.count("less than one block") == 2


def test_a_sweep_with_one_bad_point_keeps_the_others(prefixsim, tmp_path):
    code, _, err = prefixsim("sweep", *SMALL, "--kv-capacity", "1,infinite", "-o", tmp_path)
    assert code == 2
    assert "point --kv-capacity 1 --num-requests 20" in err.replace("  ", " ") or "failed" in err
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 1


BAD = [
    (
        ["run", "nope"],
        "workload 'nope' is neither a generator (shared-prefix, multi-turn, agent, few-shot, rag,",
    ),
    (["run", "shared-prefix", "--block-size", "x"], "--block-size 'x' must be a whole number"),
    (
        ["run", "shared-prefix", "--policy", "lifo"],
        "--policy 'lifo' is not a policy: choose one of",
    ),
    (["run", "shared-prefix", "--policy", "os:nope"], "has no class 'nope'"),
    (["run", "shared-prefix", "--policy", "nope_:X"], "module 'nope_' cannot be imported"),
    (["run", "shared-prefix", "--policy", "json:JSONDecoder"], "lacks match_prefix"),
    (["run", "shared-prefix", "--policy-arg", "x=1"], "--policy-arg x: policy 'vllm_v1' has no"),
    (["run", "shared-prefix", "--policy-arg", "x"], "--policy-arg 'x' must be KEY=VALUE"),
    (["run", "shared-prefix", "--policy-arg", "null_block=2"], "must be true or false"),
    (["run", "shared-prefix", "--workload-arg", "x=1"], "no dial 'x'"),
    (["run", "shared-prefix", "--gpu", "abacus"], "--gpu 'abacus'"),
    (["run", "shared-prefix", "--model", "abacus"], "--model 'abacus'"),
    (["run", "shared-prefix", "--cost", "nope.json"], "nope.json: cannot read the cost model"),
    (["run", "shared-prefix", "--kv-capacity", "lots"], "--kv-capacity 'lots' is not a capacity"),
    (["run", "shared-prefix", "--rate", "3"], "--rate 3 has no meaning with --arrival trace"),
    (["run", "shared-prefix", "--arrival", "poisson"], "--arrival poisson needs a rate"),
    (["run", "shared-prefix", "--max-num-seqs", "0"], "--max-num-seqs 0 must be at least 1"),
    (["run", "."], "is a directory"),
    (["sweep"], "sweep has nothing to vary"),
    (["sweep", "nope.toml"], "nope.toml cannot be read"),
    (["sweep", "--policy", "none,"], "--policy 'none,' has an empty value in its list"),
    (
        ["sweep", "--policy", "none", "--jobs", "0"],
        "--jobs '0' must be a whole number of at least 1",
    ),
    (["run"], "missing argument 'WORKLOAD'; see 'prefixsim run --help'."),
    (["run", "shared-prefix", "--foo"], "no such option: --foo"),
    (["fly"], "no such command 'fly'; see 'prefixsim --help'."),
    (["run", "shared-prefix", "-o", ""], "-o '' names no place to write to"),
    (["run", "shared-prefix", "--steps"], "--steps keeps its table in a results folder"),
    (["sweep", "--workload", "/dev/null"], "workload /dev/null is a pipe or device"),
    (["run", "shared-prefix", "--policy", ""], "--policy '' must be text, such as 'vllm_v1'."),
    (
        ["run", "shared-prefix", "--policy", "vllm_v0", "--policy-arg", "watermark=2"],
        "--policy-arg watermark=2.0 is outside [0, 1)",
    ),
    (
        ["run", "shared-prefix", "--policy", "vllm_v0", "--policy-arg", "watermark=x"],
        "--policy-arg watermark=x must be a number, such as 0.01.",
    ),
    (
        ["run", "shared-prefix", "--policy", "vllm_v0", "--policy-arg", "lookup=x"],
        "--policy-arg lookup=x is not a way to look a prefix up",
    ),
    (["plot", "/dev/null"], "/dev/null is no folder; name the results folder"),
    (["verify", "/dev/null"], "/dev/null is no file; name recorded logs"),
    (["plot", "nope"], "nope holds no results"),
    (["verify", "nope"], "nope does not exist"),
    (["workload", "describe", "nope"], "neither a generator"),
    (["workload", "write", "shared-prefix", "-o", "/nope/x"], "/nope/x cannot be written"),
]


@pytest.mark.parametrize(("args", "sentence"), BAD, ids=[" ".join(args) for args, _ in BAD])
def test_bad_input_gets_one_sentence_and_exit_code_2(
    prefixsim, tmp_path, monkeypatch, args, sentence
):
    monkeypatch.chdir(tmp_path)
    code, out, err = prefixsim(*args)
    assert code == 2
    assert out == ""
    complaints = [line for line in err.splitlines() if line.startswith("prefixsim: error: ")]
    assert len(complaints) == 1
    assert sentence in complaints[0]
    assert complaints[0].endswith(".")
    assert "Traceback" not in err


def test_a_policy_from_outside_runs_and_takes_options(prefixsim, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from policies.vllm_v1 import VllmV1\n\n\n"
        "class Forgetful(VllmV1):\n"
        "    def __init__(self, num_blocks, block_size, clock, *, every=2):\n"
        "        super().__init__(num_blocks, block_size, clock)\n"
        "        self.every = every\n\n"
        "    def _register(self, key, block):\n"
        "        if key % self.every:\n"
        "            super()._register(key, block)\n"
        "        else:\n"
        "            self.cached.setdefault(key, {})\n\n"
        "    def _unregister(self, key, block):\n"
        "        self.cached.get(key, {}).pop(block.block_id, None)\n"
    )
    monkeypatch.chdir(tmp_path)
    rates = []
    for every in (1, 1_000_000):
        code, out, _ = prefixsim(
            "run", "shared-prefix", *SMALL, "--json", "--policy", "mine:Forgetful",
            "--policy-arg", f"every={every}",
        )  # fmt: skip
        assert code == 0
        rates.append(json.loads(out)["hit_rate"])
    assert rates == [0.0, 0.45]


def test_listings_name_every_policy_preset_and_generator(prefixsim):
    for command, expected in (
        (["policies"], ["none", "vllm_v0", "vllm_v0_scan", "vllm_v1", "vllm_v1_latest"]),
        (["presets"], ["llama-3-8b", "llama-3-70b", "qwen3-8b", "a100-80g", "h100", "h200"]),
        (["workload", "generators"], ["shared-prefix"]),
    ):
        code, out, _ = prefixsim(*command)
        assert code == 0
        assert all(name in out for name in expected)
        code, out, _ = prefixsim(*command, "--json")
        assert code == 0
        assert json.loads(out)


def test_a_written_workload_reads_back_with_the_same_hits(prefixsim, tmp_path):
    path = tmp_path / "trace.jsonl"
    dials = ["--num-requests=30", "--workload-arg=prompt=256", "--workload-arg=output=4"]
    code, _, _ = prefixsim("workload", "write", "shared-prefix", *dials, "-o", path,
                           "--ids-block-size", "1")  # fmt: skip
    assert code == 0
    _, direct, _ = prefixsim("run", "shared-prefix", *dials, "--json")
    _, read, _ = prefixsim("run", path, "--trace-block-size", "1", "--json")
    same = ("num_requests", "num_prompt_tokens", "num_cached_tokens", "ttft_ms_mean", "makespan_s")
    assert {k: json.loads(direct)[k] for k in same} == {k: json.loads(read)[k] for k in same}


def test_describe_counts_for_several_block_sizes(prefixsim):
    code, out, err = prefixsim(
        "workload", "describe", "shared-prefix", *SMALL, "--block-size", "1,16", "--json"
    )
    rows = json.loads(out)
    assert code == 0
    assert [row["block_size"] for row in rows] == [1, 16]
    assert rows[0]["infinite_hit_rate"] == pytest.approx(0.5, abs=0.5 * 20 / 1280)
    assert rows[1]["infinite_hit_rate"] == 0.45
    assert "hit rate" in err


def test_a_trace_that_hides_small_blocks_gets_a_warning(prefixsim, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
    )
    _, _, err = prefixsim("run", path, "--json")
    assert "sharing below that does not show" in err
    _, _, err = prefixsim("run", path, "--block-size", "512", "--json")
    assert "sharing below" not in err


def test_without_prefix_information_the_hit_rate_is_not_available(prefixsim, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1}\n')
    code, out, err = prefixsim("run", path, "--json")
    assert code == 0
    assert json.loads(out)["hit_rate"] is None
    assert "not available" in err


def test_a_request_that_can_never_fit_is_counted_and_the_run_goes_on(prefixsim, tmp_path):
    rows = [
        {"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": list(range(n // 512))}
        for t, n in ((0, 512), (10, 131072), (20, 1024))
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    code, out, err = prefixsim("run", path, "--kv-capacity", "10000", "--json", "-o", tmp_path)
    row = json.loads(out)
    assert code == 0
    assert (row["num_requests"], row["num_finished"], row["num_rejected"]) == (3, 2, 1)
    assert "1 of 3 requests can never fit in 625 blocks" in err
    rejections = pd.read_parquet(tmp_path / "requests.parquet")["rejection"]
    # (131,072 + 5 - 1) tokens are 8,193 blocks of 16.
    assert list(rejections) == ["", "needs 8193 of 625 blocks", ""]


@pytest.mark.parametrize("args", [["presets", "--json"], ["policies"]])
def test_a_full_disk_is_one_sentence(args):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sim", *args],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "prefixsim: error: the output cannot be used (No space left on device).\n"
    )


def test_python_dash_m_sim_is_prefixsim():
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("prefixsim 0.")


def test_help_pages_name_every_setting(prefixsim):
    for command in ("run", "sweep"):
        code, out, _ = prefixsim(command, "--help")
        assert code == 0
        for option in ("--block-size", "--kv-capacity", "--policy-arg", "--rate-scale", "--reuse"):
            assert option in out
