"""A sweep on a real Ray cluster, which the test starts; the sweep runs in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sweeping import SMALL, TRACE, contents, deadly, wait_until

__all__ = ["deadly"]

# Ray's programs call a random token file in the user's home their own unless told not to.
ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


@pytest.fixture
def address():
    """Start a cluster of two CPUs; give where it is."""
    pytest.importorskip("importlib.metadata").version("ray")
    # Names of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--head",
             "--block", "--num-cpus", "2", "--include-dashboard", "false", "--port", "0",
             "--disable-usage-stats", "--object-store-memory", str(10**8),
             "--temp-dir", str(folder)],
            stdout=log, stderr=log, cwd=folder, env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
    file = folder / "ray_current_cluster"
    try:
        wait_until(lambda: file.exists() and file.read_text().strip(), "the head node")
        yield file.read_text().strip()
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder, *arguments):
    """Run a sweep from the command line; give exit code, rows, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "sim", "sweep", "-o", str(folder), "--json", *arguments],
        check=False, capture_output=True, text=True, env=ENVIRONMENT, timeout=300,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


def test_a_cluster_does_what_this_machine_does(tmp_path, deadly, address):
    # With a point that fails, and another policy from outside.
    (tmp_path / "trace.jsonl").write_text(TRACE)
    grid = ["--workload", "trace.jsonl", "--policy", "none,vllm_v1,deadly:Deadly", "--steps"]
    grid += ["--kv-capacity", "1,256", "--block-size", "8,16"]
    ray = ["--backend", "ray", "--address", address]
    here = sweep("here", *grid, "-j", "1")
    there = sweep("there", *grid, *ray)
    assert here[0] == there[0] == 2
    assert here[1] == there[1]
    assert len(there[1]) == 6
    assert "--policy none --block-size 8 --kv-capacity 1 failed: --kv-capacity '1'" in there[2]
    assert "6 of 12 points are in there (0 were there before)" in there[2]
    assert contents(tmp_path / "here") == contents(tmp_path / "there")

    # Killed workers: once is forgiven, and what is there already is not run again.
    killers = ["--policy", "deadly:Deadly", "--policy-arg", f"end={tmp_path / 'killed'},always"]
    dials = [f"--workload-arg={key}={value}" for key, value in SMALL["workload_args"].items()]
    code, rows, err = sweep("there", *killers, *dials, *ray)
    assert code == 1
    assert (tmp_path / "killed").exists()
    assert [row["policy_args"] for row in rows] == [f"end={tmp_path / 'killed'}"]
    assert "--policy-arg end=always failed: its worker process died 3 times" in err
    assert "1 of 2 points are in there (0 were there before)" in err
    code, _, err = sweep("there", *grid, *ray)
    assert "6 of 12 points are in there (6 were there before)" in err
