"""Ours and NVIDIA Dynamo's replay of the same trace, in turn, as whole processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.process import Measured, medians, run

SIZES = ((16, 320_000), (512, 10_000))
"""Block sizes and pools: the same 5,120,000 tokens."""


def compare(trace: Path, peers: Path, num_runs: int) -> Iterable[str]:
    """Run everything ``num_runs`` times, one after the other, and yield lines of a table."""
    python = peers / "dynamo" / "bin" / "python"
    if not python.is_file():
        yield f"no Dynamo in {python}: left out; benchmarks/README.md says how to install it."
    yield (
        "| block size | blocks | | wall s | CPU s | peak MiB | hit rate |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for block_size, num_blocks in SIZES:
        size = (str(block_size), str(num_blocks))
        commands = {"prefixsim": _ours(trace, block_size, num_blocks)}
        if python.is_file():
            script = str(Path(__file__).with_name("peer_dynamo.py"))
            commands["Dynamo"] = [str(python), script, str(trace), *size]
        runs: dict[str, list[Measured]] = {name: [] for name in commands}
        for command in commands.values():
            run(command)  # compiles, and brings files into memory
        for _ in range(num_runs):
            for name, command in commands.items():
                runs[name].append(run(command))
        found = {name: medians(measured) for name, measured in runs.items()}
        for name, m in found.items():
            yield (
                f"| {block_size} | {num_blocks} | {name} | {m.wall_s:.2f} | {m.cpu_s:.2f} "
                f"| {m.peak_mib:.0f} | {m.printed['hit_rate']:.4f} |"
            )
        if "Dynamo" in found:
            ours, peer = found["prefixsim"], found["Dynamo"]
            yield (
                f"| {block_size} | {num_blocks} | ratio | {ours.wall_s / peer.wall_s:.2f} "
                f"| {ours.cpu_s / peer.cpu_s:.2f} | {ours.peak_mib / peer.peak_mib:.2f} | |"
            )
            yield f"  (Dynamo's call alone took {peer.printed['call_s']:.2f} s in the last run)"


def _ours(trace: Path, block_size: int, num_blocks: int) -> list[str]:
    return [
        *(sys.executable, "-m", "sim", "run", str(trace), "--json", "--engine", "fast"),
        *("--block-size", str(block_size), "--kv-capacity", f"{num_blocks}blocks"),
    ]
