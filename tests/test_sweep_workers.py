"""Sweeps in several processes: what is shared, what a death costs, what is kept when broken off."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeping import SMALL, TRACE, contents, deadly, grid_over, point, wait_until

from sim import backends
from sim.backends import point as worker
from sim.backends.local import Processes
from sim.demand import load_workload
from sim.errors import UsageError
from sim.grid import missing, sweep
from sim.store import ResultStore
from sim.types import Request
from workloads import Workload, from_columns, to_columns
from workloads.content import Segments

__all__ = ["deadly"]


@st.composite
def workloads(draw):
    """Draw any requests, with odd names and empty contents."""
    names = st.text(st.characters(exclude_categories=()), max_size=4)
    lengths = draw(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=6))
    requests = []
    for index, parts in enumerate(lengths):
        ends = np.cumsum(np.array(parts, dtype=np.int64))
        content = Segments(np.arange(len(parts), dtype=np.int64) * 9, ends)
        num_prompt = draw(st.integers(0, content.num_tokens))
        requests.append(
            Request(
                f"{index}{draw(names)}", index, content, num_prompt,
                content.num_tokens - num_prompt, draw(st.none() | names),
                draw(st.none() | st.integers(0, 9)),
            )
        )  # fmt: skip
    return Workload(draw(names), tuple(requests), 4, draw(st.booleans()), ("doubt",), (), 2, "ab")


def spelt(request):
    """A request as plain data: contents have no equality of their own."""
    parts = (request.request_id, request.arrival_ns, request.num_prompt_tokens,
             request.num_output_tokens, request.session_id, request.think_ns)  # fmt: skip
    return parts, request.content.path()


@given(workloads())
def test_a_workload_survives_as_columns(workload):
    again = from_columns(to_columns(workload))
    assert [spelt(r) for r in again.requests] == [spelt(r) for r in workload.requests]
    for name in ("name", "identity_block_size", "has_prefix_info", "warnings", "notes",
                 "num_skipped", "digest"):  # fmt: skip
        assert getattr(again, name) == getattr(workload, name)


def test_processes_map_a_workload_instead_of_copying_it(tmp_path):
    (tmp_path / "trace.jsonl").write_text(TRACE)
    workload = load_workload(point(workload=str(tmp_path / "trace.jsonl"), workload_args={}))
    processes = Processes(2, 2)
    try:
        columns = worker.map_columns(Path(processes.share(to_columns(workload))))
        contents = [r.content for r in from_columns(columns).requests]
        for array in (a for content in contents for a in (content.bases, content.ends)):
            owner = array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            assert isinstance(owner, np.memmap)
            assert not array.flags.writeable
    finally:
        processes.close(broken=False)


def test_several_processes_write_the_bytes_that_one_does(tmp_path):
    (tmp_path / "trace.jsonl").write_text(TRACE)
    configs = grid_over(tmp_path / "trace.jsonl")
    one, two = ResultStore(tmp_path / "one"), ResultStore(tmp_path / "two")
    for store, jobs in ((one, 1), (two, 2)):
        outcomes = sweep(configs, store, jobs=jobs, keep_steps=True)
        assert [outcome.failure for outcome in outcomes] == [""] * 12
        store.write_tables()
    assert len(contents(one.folder)) == 12 * 3 + 6
    assert contents(one.folder) == contents(two.folder)


def test_a_point_that_cannot_be_read_fails_alone(tmp_path):
    (tmp_path / "good.jsonl").write_text(TRACE)
    (tmp_path / "bad.jsonl").write_text(TRACE + "no JSON\n")
    good, bad = (
        point(workload=str(tmp_path / f"{name}.jsonl"), workload_args={})
        for name in ("good", "bad")
    )
    outcomes = sweep([bad, good], ResultStore(tmp_path / "results"), jobs=2)
    failures = {outcome.config: outcome.failure for outcome in outcomes}
    assert failures[good] == ""
    assert "bad.jsonl:13" in failures[bad]


def test_a_killed_process_costs_its_points_a_second_try(tmp_path, deadly):
    configs = [point(policy=deadly, policy_args={"end": str(tmp_path / "killed")})]
    configs += [point(policy="vllm_v1", block_size=size) for size in (2, 4, 8)]
    outcomes = sweep(configs, ResultStore(tmp_path / "results"), jobs=2)
    assert (tmp_path / "killed").exists()
    assert sorted(outcome.failure for outcome in outcomes) == [""] * 4


def test_a_point_that_always_kills_its_process_is_named_and_no_other(tmp_path, deadly):
    configs = [point(policy=deadly, policy_args={"end": "always"})]
    configs += [point(policy="vllm_v1", block_size=size) for size in (2, 4, 8)]
    outcomes = sweep(configs, ResultStore(tmp_path / "results"), jobs=2)
    failures = {outcome.config: outcome.failure for outcome in outcomes}
    assert failures.pop(configs[0]).startswith("its worker process died 3 times, the last time")
    assert list(failures.values()) == [""] * 3


@pytest.mark.parametrize("to_all", [True, False], ids=["ctrl-c", "sigterm"])
def test_a_sweep_broken_off_keeps_what_is_done_and_goes_on(tmp_path, deadly, to_all):
    settings = [f"--workload-arg={key}={value}" for key, value in SMALL["workload_args"].items()]
    command = [sys.executable, "-m", "sim", "sweep", "-o", "results", "-j", "2", "--policy", deadly]
    command += [*settings, "--policy-arg", "wait=false,true", "--block-size", "8,16"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment, start_new_session=True,
    )  # fmt: skip
    runs = tmp_path / "results" / "runs"
    wait_until(lambda: len([*runs.glob("*/run.json")]) == 2, "the points that end")
    if to_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=120)
    assert [*temporary.glob("prefixsim-*")] == []
    assert process.returncode == 130
    assert "interrupted; results keeps what is done, run the same command to go on." in err
    done = [point(policy=deadly, policy_args={"wait": False}, block_size=size) for size in (8, 16)]
    store = ResultStore(tmp_path / "results")
    assert missing(done, store) == []
    left = [point(policy=deadly, policy_args={"wait": True}, block_size=size) for size in (8, 16)]
    assert missing(done + left, store) == left


@pytest.mark.parametrize(
    ("backend", "address", "sentence"),
    [
        ("slurm", None, "--backend 'slurm' must be one of joblib, dask, ray."),
        ("joblib", "host:1", "--address host:1 has no meaning with --backend joblib"),
        ("dask", None, "--backend dask needs the --address of its scheduler, such as HOST:8786"),
        ("dask", "127.0.0.1:1", "--address 127.0.0.1:1 is no Dask scheduler that answers"),
        ("dask", "127.0.0.1:a", "--address 127.0.0.1:a is no Dask .*it is not HOST:PORT"),
        ("ray", "127.0.0.1:1", "--address 127.0.0.1:1 is no Ray cluster that answers"),
        ("ray", "here", "--address here is no Ray cluster that answers .it is not HOST:PORT"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path, backend, address, sentence
):
    with pytest.raises(UsageError, match=sentence):
        sweep([point()], ResultStore(tmp_path), backend=backend, address=address)


@pytest.mark.parametrize(("backend", "library"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch, backend, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"sim.backends.on_{backend}", raising=False)
    with pytest.raises(UsageError, match=rf"install it with pip install 'prefixsim\[{backend}\]'"):
        backends.start(backend, "host:1", None, 1)


def test_a_sweep_from_python_and_from_the_command_line_say_the_same(tmp_path, prefixsim):
    code, _, err = prefixsim(
        "sweep", "--policy", "none,vllm_v1", "-o", tmp_path, "--backend", "dask"
    )
    assert code == 2
    import sim  # noqa: PLC0415

    with pytest.raises(UsageError) as caught:
        sim.sweep(policy=["none", "vllm_v1"], backend="dask")
    assert err == f"prefixsim: error: {caught.value}\n"


def test_a_bar_shows_what_is_done_and_the_time_left(tmp_path, prefixsim, monkeypatch):
    # On a terminal, which Rich lets one pretend.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    dials = [f"--workload-arg={key}={value}" for key, value in SMALL["workload_args"].items()]
    command = ("sweep", *dials, "-o", tmp_path, "-j", 1, "--block-size")
    _, _, err = prefixsim(*command, "2,4,8")
    assert "0/3" in err
    assert re.search(r"3/3\S* \S*0:00:00", err)
    _, _, err = prefixsim(*command, "2,4,8,16")
    assert "0/4" not in err
    assert "3/4" in err
    assert "4/4" in err


def test_no_room_for_a_shared_workload_is_one_sentence(monkeypatch):
    def full(*_args):
        raise OSError("1000 requested and 0 written")  # as numpy does, without a number

    workers = Processes(1, 1)
    monkeypatch.setattr(np, "save", full)
    try:
        with pytest.raises(UsageError, match=r"0 written\); let TMPDIR name"):
            workers.share({"lengths": np.zeros(1)})
    finally:
        workers.close(broken=False)
