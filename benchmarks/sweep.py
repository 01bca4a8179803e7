"""A sweep of 100 points in one process and in two, as whole commands, in turn."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from benchmarks.process import Measured, run

BLOCK_SIZES = (16, 32, 64, 128, 512)
NUM_TOKENS = tuple(range(512_000, 10_240_001, 512_000))
"""Capacities: 20, so that there are 100 points."""


def one_and_two(trace: Path, num_runs: int) -> Iterable[str]:
    """Sweep with ``--jobs`` 1 and 2, ``num_runs`` times, and yield lines of a table.

    Both must have written the same bytes, or the benchmark stops.
    """
    yield "| run | processes | wall s | CPU s | peak MiB of the first | wall, of one process |"
    yield "| --- " * 6 + "|"
    ratios = []
    for number in range(1, num_runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            found = {jobs: _sweep(trace, Path(folder) / str(jobs), jobs) for jobs in (1, 2)}
            if _contents(Path(folder) / "1") != _contents(Path(folder) / "2"):
                sys.exit("one process and two have written different bytes.")
        ratios.append(found[2].wall_s / found[1].wall_s)
        for jobs, m in found.items():
            ratio = f"{ratios[-1]:.2f}" if jobs == 2 else ""
            yield (
                f"| {number} | {jobs} | {m.wall_s:.1f} | {m.cpu_s:.1f} | {m.peak_mib:.0f} "
                f"| {ratio} |"
            )
    yield f"\nTwo processes take {median(ratios):.2f} of the time of one, and write the same bytes."


def _sweep(trace: Path, folder: Path, jobs: int) -> Measured:
    return run(
        [
            *(sys.executable, "-m", "sim", "sweep", "--workload", str(trace), "-o", str(folder)),
            *("--jobs", str(jobs), "--block-size", ",".join(map(str, BLOCK_SIZES))),
            *("--kv-capacity", ",".join(map(str, NUM_TOKENS))),
        ]
    )


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
