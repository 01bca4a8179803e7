"""Traces for which there is not the memory: they lie on disk, and so does what is made of them."""

import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits are told otherwise"
)

_RUN = """
import resource, sys
from functools import partial
import sim.mapped
from sim import cli
from workloads import mooncake, segment_rows, structure

# A small trace is told to be a large one, first of all to the code that large ones are worth.
structure._WORTH_COMPILED_CODE = 0
mooncake.PrefixTree = partial(mooncake.PrefixTree, compile_from=1)
sim.mapped.LARGE = {large}
segment_rows.AT_ONCE = 1 << 15

def run(path):
    try:
        cli.main([path if word == "TRACE" else word for word in {words!r}])
    except SystemExit as ended:
        assert not ended.code, ended.code

small, large = sys.argv[1:]
run(small)  # loads, and compiles, whatever there is to load
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + (24 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
run(large)
"""
_COMMANDS = {
    "describe": "workload describe TRACE --block-size 4 --trace-block-size 4 --plot page.png",
    "curve": "curve TRACE --block-size 4 --trace-block-size 4 -o curve --kv-capacity 9blocks,50%",
    "sample": "curve TRACE --block-size 2 --trace-block-size 4 --sample 2",
    "head": "curve TRACE --block-size 4 --trace-block-size 4 --order head",
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Write a small trace and one of 100,000 rows, each of which shares, branches and ends new."""
    folder = tmp_path_factory.mktemp("traces")
    paths = []
    for num_rows in (2_000, 100_000):
        rng = np.random.default_rng(1)
        heads, ways = rng.integers(0, 2000, num_rows), rng.integers(0, 7, num_rows)
        outputs = rng.integers(1, 40, num_rows)
        path = folder / f"{num_rows}.jsonl"
        with path.open("w") as file:
            for row, (head, way, output) in enumerate(
                zip(heads.tolist(), ways.tolist(), outputs.tolist(), strict=True)
            ):
                ids = [head, 10_000 + 7 * head + way, 1_000_000 + row]
                file.write(
                    f'{{"timestamp": {row}, "input_length": 11, "output_length": {output},'
                    f' "hash_ids": {ids}}}\n'
                )
        paths.append(str(path))
    return paths


@pytest.mark.parametrize(
    ("command", "in_files"),
    [*((command, True) for command in _COMMANDS), ("describe", False), ("curve", False)],
)
def test_a_trace_needs_no_memory_of_its_size(command, in_files, traces, tmp_path):
    """24 MiB more than a small trace takes: enough where arrays lie in files, and only there."""
    large = 1 << 18 if in_files else 1 << 40
    done = subprocess.run(
        [sys.executable, "-c", _RUN.format(large=large, words=_COMMANDS[command].split()), *traces],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode == 0) == in_files, done.stderr
    assert in_files or "MemoryError" in done.stderr or "allocate" in done.stderr
