"""Sweeps on a real Dask cluster, which these tests start: a scheduler and two workers."""

import json
import os
import subprocess
import sys

import pytest
from sweeping import TRACE, contents, deadly, grid_over, point, wait_until

import policies
from sim.backends import loop
from sim.errors import UsageError
from sim.grid import missing, sweep
from sim.store import ResultStore

__all__ = ["deadly"]

pytest.importorskip("distributed")


def address_in(folder):
    """Wait for a scheduler to say where it is."""
    file = folder / "scheduler.json"
    wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler")
    return json.loads(file.read_text())["address"]


def wait_for_workers(folder, count):
    """Wait for workers to be known: a sweep is not patient with a cluster that has none."""
    log = folder / "worker.log"
    wait_until(lambda: log.read_text().count("Registered to") >= count, "workers")


def start(folder, *arguments):
    """Start a part of the cluster far from the folder that the sweep runs in."""
    environment = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "dask", *arguments, "--no-dashboard",
             "--scheduler-file", str(folder / "scheduler.json")],
            stdout=log, stderr=log, cwd=folder, env=environment,
        )  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Start a cluster; give the address of its scheduler."""
    folder = tmp_path_factory.mktemp("dask")
    processes = [start(folder, "scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        found = address_in(folder)
        processes.append(
            start(
                folder, "worker", "--host", "127.0.0.1", "--nworkers", "2", "--nthreads", "1",
                "--local-directory", str(folder),
            )
        )  # fmt: skip
        wait_for_workers(folder, 2)
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)


def test_a_cluster_writes_the_bytes_that_this_machine_does(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text(TRACE)
    configs = [*grid_over("trace.jsonl"), point(num_requests=None, block_size=4)]
    here, there = ResultStore(tmp_path / "here"), ResultStore(tmp_path / "there")
    sweep(configs, here, jobs=1, keep_steps=True)
    assert len(sweep(configs[:2], there, backend="dask", address=address, keep_steps=True)) == 2
    outcomes = sweep(configs, there, backend="dask", address=address, keep_steps=True)
    assert [outcome.failure for outcome in outcomes] == [""] * 11
    for store in (here, there):
        store.write_tables()
    assert contents(here.folder) == contents(there.folder)


def test_what_fails_or_kills_its_worker_stops_no_other(tmp_path, deadly, address):
    once = {"end": str(tmp_path / "killed")}
    configs = [
        point(kv_capacity="1"),
        point(policy=deadly, policy_args=once),
        point(policy=deadly, policy_args={"end": "always"}),
        *(point(block_size=size) for size in (2, 4, 8)),
    ]
    outcomes = sweep(
        configs, ResultStore(tmp_path / "results"), backend="dask", address=address, jobs=3
    )
    failures = {outcome.config: outcome.failure for outcome in outcomes}
    assert "less than one block" in failures[configs[0]]
    assert (tmp_path / "killed").exists()
    assert failures[configs[2]].startswith("its worker process died 3 times, the last time with no")
    assert [failures[config] for config in configs[3:]] == [""] * 3
    assert failures[configs[1]] == ""


def test_a_policy_that_has_changed_is_sent_again(tmp_path, deadly, address):
    file = tmp_path / "deadly.py"
    failures = []
    for text in (file.read_text(), "import deadly_part\n" + file.read_text() + "assert 0, 'new'\n"):
        # The head has it loaded, the workers have what was sent last.
        policies.load(deadly)
        file.write_text(text)
        (outcome,) = sweep(
            [point(policy=deadly)], ResultStore(tmp_path / "r"), backend="dask", address=address
        )
        failures.append(outcome.failure)
    assert failures[0] == ""
    assert "importing module 'deadly' raised AssertionError (new)" in failures[1]


def test_workers_of_another_version_are_refused(tmp_path, monkeypatch, address):
    here = loop.fingerprint()
    monkeypatch.setattr(loop, "fingerprint", lambda: {**here, "numpy": "0.1"})
    with pytest.raises(UsageError, match=r"^worker .* has numpy .*, but this machine has 0\.1; "):
        sweep([point()], ResultStore(tmp_path), backend="dask", address=address)


def test_a_scheduler_without_workers_is_refused(tmp_path, monkeypatch):
    from sim.backends import on_dask  # noqa: PLC0415 - needs the extra

    monkeypatch.setattr(on_dask, "_PATIENCE_S", 1)
    process = start(tmp_path, "scheduler", "--host", "127.0.0.1", "--port", "0")
    try:
        address = address_in(tmp_path)
        with pytest.raises(UsageError, match="has no workers; start some with 'dask worker tcp"):
            sweep([point()], ResultStore(tmp_path), backend="dask", address=address)
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_scheduler_that_goes_ends_the_sweep_with_a_sentence(tmp_path, deadly):
    processes = [start(tmp_path, "scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        address = address_in(tmp_path)
        processes.append(start(tmp_path, "worker", "--nthreads", "1", "--no-nanny"))
        wait_for_workers(tmp_path, 1)

        def leave(_):
            processes[0].kill()

        configs = [point(policy=deadly, policy_args={"wait": wait}) for wait in (False, True)]
        with pytest.raises(UsageError, match=r"scheduler at .* has gone; what is done is kept"):
            sweep(
                configs, ResultStore(tmp_path / "results"), backend="dask", address=address,
                on_outcome=leave,
            )  # fmt: skip
        assert missing(configs, ResultStore(tmp_path / "results")) == configs[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait(timeout=60)
