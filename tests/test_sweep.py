"""Grids: what they expand to, that they can be resumed, that a failed point stops no other."""

import json

import pandas as pd
import pytest

from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run
from sim.grid import expand, read_axes, sweep
from sim.store import ResultStore

SMALL = {"workload_args": {"num_requests": 20, "prompt": 64, "output": 4, "num_prefixes": 2}}


def test_a_grid_is_the_product_of_its_axes_the_last_fastest(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(
        'policy = ["none", "vllm_v1"]\nblock-size = [8, 16]\n[workload_args]\nhit_rate = [0, 0.5]\n'
    )
    configs = expand(read_axes(path))
    points = [(c.policy, c.block_size, dict(c.workload_args)["hit_rate"]) for c in configs]
    assert points == [
        ("none", 8, "0"),
        ("none", 8, "0.5"),
        ("none", 16, "0"),
        ("none", 16, "0.5"),
        ("vllm_v1", 8, "0"),
        ("vllm_v1", 8, "0.5"),
        ("vllm_v1", 16, "0"),
        ("vllm_v1", 16, "0.5"),
    ]


def test_an_option_of_one_policy_is_left_out_for_the_others():
    axes = {"policy": ["none", "vllm_v0"], "policy_args.watermark": ["0", "0.1"]}
    points = [(c.policy, c.policy_args) for c in expand(axes)]
    assert points == [
        ("none", ()),
        ("vllm_v0", (("watermark", "0"),)),
        ("vllm_v0", (("watermark", "0.1"),)),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("polcy = 1", "'polcy' is not a setting; known are workload"),
        ("policy = []", "'policy' is an empty list"),
        ("policy = [", "is not TOML"),
        ("[limits]\nblock_size = 1", "'limits' is not a setting"),
    ],
)
def test_a_bad_grid_is_refused_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        read_axes(path)
    assert str(path) in str(caught.value)


def test_a_sweep_goes_on_where_it_stopped_and_writes_the_same_tables(tmp_path):
    axes = {"policy": ["none", "vllm_v0", "vllm_v1"], "kv_capacity": ["256", "infinite"]}
    configs = [RunConfig(**{**c.to_dict(), **SMALL}) for c in expand(axes)]
    whole, parts = ResultStore(tmp_path / "whole"), ResultStore(tmp_path / "parts")

    assert len(sweep(configs, whole, jobs=1)) == 6
    assert len(sweep(configs[:2], parts, jobs=1)) == 2
    assert len(sweep(configs, parts, jobs=2)) == 4
    assert sweep(configs, parts, jobs=1) == []
    assert len(sweep(configs[:1], parts, jobs=1, fresh=True)) == 1

    written = [path.name for path in whole.write_tables()]
    parts.write_tables()
    assert written == ["summary.parquet", "summary.csv", "requests.parquet", "requests.csv"]
    for name in written:
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes()
    assert len(pd.read_csv(whole.folder / "requests.csv")) == 6 * 20


def test_a_failed_point_is_reported_and_stops_no_other(tmp_path):
    good = RunConfig(**SMALL)
    bad = RunConfig(**SMALL, kv_capacity="1")
    outcomes = sweep([bad, good], ResultStore(tmp_path), jobs=1)
    assert [outcome.config for outcome in outcomes] == [bad, good]
    assert outcomes[0].summary is None
    assert "less than one block" in outcomes[0].failure
    assert outcomes[1].summary["num_finished"] == 20


def test_a_run_is_kept_with_its_configuration_and_version(tmp_path):
    config = RunConfig(**SMALL, block_size=8)
    store = ResultStore(tmp_path)
    (outcome,) = sweep([config], store, jobs=1, keep_steps=True)
    record = json.loads((tmp_path / "runs" / outcome.run_id / "run.json").read_text())
    assert RunConfig(**record["config"]) == config
    assert record["version"]
    steps = store.steps()
    assert len(steps) == outcome.summary["num_steps"]
    assert steps["num_new_tokens"].sum() == 20 * (64 + 3) - outcome.summary["num_cached_tokens"]


def test_two_sweeps_from_different_folders_each_find_their_trace(tmp_path, monkeypatch):
    row = '{"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [0]}\n'
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jsonl").write_text(row)
        monkeypatch.chdir(tmp_path / name)
        configs = [RunConfig(workload=f"{name}.jsonl", block_size=size) for size in (2, 4)]
        outcomes = sweep(configs, ResultStore(tmp_path / "results"), jobs=2)
        assert [outcome.failure for outcome in outcomes] == ["", ""]


def test_an_empty_folder_says_how_to_fill_it(tmp_path):
    with pytest.raises(UsageError, match="holds no results; make some with 'prefixsim run"):
        ResultStore(tmp_path).summaries()


def test_a_folder_that_cannot_be_written_is_named_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        ResultStore(tmp_path / "file").prepare()


def test_a_trace_that_has_changed_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = '{"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [0]}\n'
    for count in (1, 2, 3):
        (tmp_path / "trace.jsonl").write_text(row * count)
        assert run(RunConfig(workload="trace.jsonl")).summary["num_requests"] == count
