"""Runs are named by what decides them: settings, and the content of what settings name."""

import importlib
import sys

import pytest

from sim.config import RunConfig
from sim.errors import UsageError
from sim.identity import check_repeatable, digests, run_id_of

POLICY = """
from policies.vllm_v1 import VllmV1


class Base(VllmV1):
    pass


class Mine(Base):
    pass
"""


def test_equal_configurations_name_the_same_run_and_others_another():
    assert run_id_of(RunConfig()) == run_id_of(RunConfig())
    ids = {
        run_id_of(RunConfig(seed=seed, block_size=size)) for seed in range(3) for size in (8, 16)
    }
    assert len(ids) == 6


def test_a_run_is_named_by_what_its_trace_holds_not_where_it_lies(tmp_path):
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "trace.jsonl").write_text(text)
    configs = [RunConfig(workload=str(tmp_path / name / "trace.jsonl")) for name in "abc"]
    a, b, c = map(run_id_of, configs)
    assert a == b
    assert a != c
    assert digests(configs[0])["workload"] == digests(configs[1])["workload"] != ""


def test_cost_and_overhead_files_count_by_content(tmp_path):
    path = tmp_path / "file.json"
    for name in ("cost", "overhead"):
        ids = []
        for text in ("{}", "{ }", "{}"):
            path.write_text(text)
            ids.append(run_id_of(RunConfig(**{name: str(path)})))
        assert ids[0] == ids[2] != ids[1]


def test_a_folder_is_named_by_all_its_files(tmp_path):
    ids = []
    for text in ("1", "2", "1"):
        (tmp_path / "session.json").write_text(text)
        ids.append(run_id_of(RunConfig(workload=str(tmp_path))))
    assert ids[0] == ids[2] != ids[1]


def test_what_comes_with_the_version_has_no_digest():
    assert set(digests(RunConfig()).values()) == {""}


def test_a_changed_policy_from_outside_is_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = RunConfig(policy="my_changing_policy:Mine")
    ids = []
    for text in (POLICY, POLICY + "    x = 1\n", POLICY):
        (tmp_path / "my_changing_policy.py").write_text(text)
        sys.modules.pop("my_changing_policy", None)
        importlib.invalidate_caches()
        ids.append(run_id_of(config))
    assert ids[0] == ids[2] != ids[1]


def test_a_pipe_is_named_by_what_was_read_and_cannot_be_swept(tmp_path):
    pipe = RunConfig(workload="/dev/null")
    assert run_id_of(pipe, workload_digest="a") != run_id_of(pipe, workload_digest="b")
    file = RunConfig(workload=str(tmp_path))
    assert run_id_of(file, workload_digest="a") == run_id_of(file, workload_digest="b")
    check_repeatable(file)
    check_repeatable(RunConfig())
    for workload in ("/dev/null", "-"):
        with pytest.raises(UsageError, match=f"workload {workload} is a pipe or device"):
            check_repeatable(RunConfig(workload=workload))
