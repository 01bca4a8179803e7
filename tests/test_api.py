"""The Python interface says what the command line says, and draws itself."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import sim
from sim.errors import UsageError

SMALL = {"workload_args": {"num_requests": 20, "prompt": 64, "output": 4, "num_prefixes": 2}}
OPTIONS = [f"--workload-arg={key}={value}" for key, value in SMALL["workload_args"].items()]


def test_a_run_gives_the_figures_of_the_command_line(prefixsim):
    run = sim.run("shared-prefix", policy="vllm_v0", policy_args={"watermark": 0.1}, **SMALL)
    _, out, _ = prefixsim(
        "run", "shared-prefix", "--policy", "vllm_v0", "--policy-arg", "watermark=0.1", *OPTIONS,
        "--json",
    )  # fmt: skip
    row = json.loads(out)
    assert {name: run[name] for name in ("run_id", "hit_rate", "makespan_s", "ttft_ms_p99")} == {
        name: row[name] for name in ("run_id", "hit_rate", "makespan_s", "ttft_ms_p99")
    }
    assert len(run.requests) == 20
    assert "<td>hit_rate</td>" in run._repr_html_()
    assert isinstance(run.plot.ttft(), Figure)


def test_steps_and_timing_come_when_asked_for():
    run = sim.run(**SMALL)
    assert len(run.steps) == 0
    assert run.timing is None
    run = sim.run(**SMALL, keep_steps=True, timed=True)
    assert len(run.steps) == run["num_steps"]
    assert list(run.timing["operation"])[:2] == ["match_prefix", "allocate"]


def test_a_sweep_is_the_product_of_its_axes():
    results = sim.sweep(
        policy=["none", "vllm_v1"],
        block_size=(8, 16),
        workload_args={**SMALL["workload_args"], "hit_rate": [0, 0.5]},
        kv_capacity="infinite",
    )
    assert len(results.summary) == 8
    assert len(results.requests) == 8 * 20
    assert set(results.summary["policy"]) == {"none", "vllm_v1"}
    html = results._repr_html_()
    assert "<th>block_size</th>" in html
    assert "<th>seed</th>" not in html
    assert isinstance(results.plot.block_size(), Figure)


def test_a_folder_keeps_what_a_sweep_has_done(tmp_path):
    whole = sim.sweep(folder=tmp_path, policy=["none", "vllm_v1"], **SMALL)
    part = sim.sweep(folder=tmp_path, policy="vllm_v1", **SMALL)
    assert part.summary["policy"].tolist() == ["vllm_v1"]
    again = sim.load(tmp_path)
    assert again.summary.equals(whole.summary)


def test_curves_give_the_rows_of_the_command_line(prefixsim):
    args = {**SMALL["workload_args"], "hit_rate": 0.6}
    options = [f"--workload-arg={key}={value}" for key, value in args.items()]
    curves = sim.curve_of(
        policy=["vllm_v1", "vllm_v1_latest"],
        block_size=(8, 16),
        kv_capacity=["160", "50%"],
        workload_args=args,
        seed=3,
    )
    _, out, err = prefixsim(
        "curve", "shared-prefix", "--policy", "vllm_v1,vllm_v1_latest", "--block-size", "8,16",
        "--kv-capacity", "160,50%", "--seed", "3", *options, "--json",
    )  # fmt: skip
    assert curves.points.to_dict("records") == json.loads(out)
    assert len(curves.points) == 2 * 2 * 2
    assert [sentence for sentence in curves.notes if sentence in err] == list(curves.notes) != []
    assert "<th>belady_hit_rate</th>" in curves._repr_html_()
    assert set(curves.every_capacity["block_size"]) == {8, 16}
    assert isinstance(curves.plot(), Figure)


def test_one_policy_and_block_size_need_no_list():
    one = sim.curve_of(policy="vllm_v1", block_size=8, kv_capacity=160, **SMALL)
    assert one.points["kv_capacity_tokens"].tolist() == [160]
    assert one.warnings == ()


def test_curves_say_what_is_doubtful(capsys):
    curves = sim.curve_of(kv_capacity=["2blocks", "infinite"], **SMALL)
    assert len(curves.warnings) == 1
    assert "pools of less than 5 blocks" in curves.warnings[0]
    assert curves.warnings[0] in capsys.readouterr().err


def test_a_grid_file_is_overridden_by_what_is_given(tmp_path):
    (tmp_path / "grid.toml").write_text(
        'policy = ["none", "vllm_v1"]\nblock_size = [8, 16]\n'
        "[workload_args]\nnum_requests = 20\nprompt = 64\noutput = 4\nnum_prefixes = 2\n"
    )
    results = sim.sweep(tmp_path / "grid.toml", block_size=32)
    assert results.summary["block_size"].tolist() == [32, 32]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sim.run(polcy="none"), "polcy.*settings are the fields of sim.config.RunConfig"),
        (lambda: sim.sweep(polcy=["none"]), "'polcy' is no setting"),
        (lambda: sim.run("nope"), "neither a generator"),
        (lambda: sim.sweep(**SMALL, kv_capacity=[1, 2]), "2 of 2 points failed: --kv-capacity '1'"),
        (lambda: sim.sweep(workload_args=(("hit_rate", "0.2"),)), "must be a mapping from dial"),
        (lambda: sim.sweep(policy_args="watermark=0.1"), "policy_args .* must be a mapping"),
        (lambda: sim.sweep(policy=[]), "policy is an empty list; give at least one value."),
        (lambda: sim.sweep(policy={"none"}), "policy .* must be a value or a list of values"),
        (lambda: sim.sweep(jobs=0, **SMALL), "jobs 0 must be a whole number of at least 1."),
        (lambda: sim.load("/nope"), "holds no results"),
        (lambda: sim.curve_of(max_num_seqs=1), "'max_num_seqs' is no setting of a curve"),
        (lambda: sim.curve_of(policy=["vllm_v0"]), "--policy 'vllm_v0' has no curve in one pass"),
        (lambda: sim.curve_of("nope"), "neither a generator"),
        (lambda: sim.curve_of(policy=["vllm_v1"], order="head"), "'vllm_v1' has no meaning with"),
    ],
)
def test_bad_input_is_the_same_sentence(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call()


def test_nothing_else_is_offered():
    with pytest.raises(AttributeError, match="module 'sim' has no attribute 'nope'"):
        _ = sim.nope


def test_arrays_are_axes(tmp_path):
    results = sim.sweep(block_size=np.array([8, 16]), kv_capacity=pd.Series([4096, 8192]), **SMALL)
    assert results.summary["kv_capacity_tokens"].tolist() == [4096, 8192, 4096, 8192]


def test_a_comparison_is_that_of_the_command_line(prefixsim, tmp_path):
    options = {"policy": "fifo", "kv_capacity": ["20%", "50%"], "hits_only": True}
    found = sim.compare(policy_args={"leaf_only": [False, True]}, **options, **SMALL)
    _, out, _ = prefixsim(
        "compare", "shared-prefix", *OPTIONS, "--policy", "fifo", "--kv-capacity", "20%,50%",
        "--hits-only", "--policy-arg", "leaf_only=false,true", "--json", "-j", 1,
    )  # fmt: skip
    said = json.loads(out)
    assert list(found.verdicts) == said["verdicts"]
    assert found.table["hit_rate"].tolist() == [row["hit_rate"] for row in said["rows"]]
    assert len(found.table) == 2 * 4
    assert isinstance(found.plot(), Figure)
    assert "share_of_way" in found._repr_html_()
    with pytest.raises(UsageError, match="nothing to compare"):
        sim.compare(policy="lru", **SMALL)
    sim.compare(folder=tmp_path, **options, **SMALL)
    assert len(list((tmp_path / "serial").iterdir())) == 4
