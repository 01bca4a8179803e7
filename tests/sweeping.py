"""What tests of sweeps share: a grid, a policy that kills its process, folders as bytes."""

import sys
import time

import pytest

from sim.config import RunConfig

SMALL = {"workload_args": {"num_requests": 20, "prompt": 64, "output": 4, "num_prefixes": 2}}

TRACE = "".join(
    f'{{"timestamp": {1000 * i}, "input_length": 40, "output_length": 3, "hash_ids": [{i % 3}]}}\n'
    for i in range(12)
)

_POLICY = """
import os, signal, time
from pathlib import Path

from deadly_part import ENDINGS
from policies.vllm_v1 import VllmV1


class Deadly(VllmV1):
    overhead_profiles = {}

    def __init__(self, num_blocks, block_size, clock, *, end="", wait=False):
        super().__init__(num_blocks, block_size, clock)
        assert end in ENDINGS or Path(end).parent.is_dir()
        if end == "always" or (end and not Path(end).exists()):
            if end != "always":
                Path(end).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while wait:
            time.sleep(0.1)
"""


@pytest.fixture
def deadly(tmp_path, monkeypatch):
    """Write a policy from outside, of two modules, into the working folder; give its name.

    Its option ``end`` kills the process: ``always``, or once, leaving a file of that name.
    """
    (tmp_path / "deadly.py").write_text(_POLICY)
    (tmp_path / "deadly_part.py").write_text('ENDINGS = ("", "always")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "deadly:Deadly"
    for name in ("deadly", "deadly_part"):
        sys.modules.pop(name, None)


def point(**settings):
    """Make a configuration of a small generated workload."""
    return RunConfig(**{**SMALL, **settings})


def grid_over(trace, cost=None):
    """Make a grid that needs files: a trace, and a cost model if given."""
    files = {"workload": str(trace), "cost": cost}
    return [
        RunConfig(**files, policy=policy, block_size=size, kv_capacity=capacity)
        for policy in ("none", "vllm_v0", "vllm_v1")
        for size in (8, 16)
        for capacity in ("256", "infinite")
    ]


def contents(folder):
    """Every file of results below a folder, and its bytes; not what sweeps were to make."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "sweeps"
    }


def wait_until(is_so, what, seconds=120):
    """Wait for something that another process does."""
    for _ in range(seconds * 10):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s for {what}")
