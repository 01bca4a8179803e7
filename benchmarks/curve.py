"""How long ``prefixsim curve`` takes, beside libCacheSim where that is installed.

    python benchmarks/curve.py conversation_trace.jsonl --peer .peers/bin/python
    python benchmarks/curve.py --references agents.npz --sample 128

Every figure is the median of several runs, and ours and the peer's take turns. The peer replays the
same references flat, without the prefix rule, at ten capacities. Reading is timed apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sim.curve import (
    References,
    Release,
    Sample,
    Sizes,
    find_paths,
    measure_curve,
    references_of,
)
from workloads import load

RELEASES = {"vllm_v1": Release(), "vllm_v1_latest": Release(unfilled_first=True)}
PEER_CAPACITIES = (1000, 2000, 5000, 10000, 20000, 30000, 40000, 50000, 80000, 100000)
PEER = """
import json, sys, time
import libcachesim as lcs
path, capacities = sys.argv[1], json.loads(sys.argv[2])
parameters = lcs.ReaderInitParam(ignore_obj_size=True)
reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE, parameters)
seconds = 0.0
for capacity in capacities:
    cache = lcs.LRU(cache_size=capacity, hashpower=18)
    reader.reset()
    start = time.perf_counter()
    cache.process_trace(reader)
    seconds += time.perf_counter() - start
print(json.dumps(seconds))
"""


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, help="Mooncake traces")
    parser.add_argument("--references", type=Path, help="npz with the arrays of References")
    parser.add_argument("--block-sizes", default="512,16")
    parser.add_argument("--sample", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="a Python that has libcachesim")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for path in arguments.traces:
        requests = load(path).requests
        for size in map(int, arguments.block_sizes.split(",")):
            start = time.perf_counter()
            references = references_of(requests, size)
            read_s = time.perf_counter() - start
            print(f"\n{path.name}, block size {size}: names of blocks in {read_s:.2f} s")
            measure(references, arguments.runs, arguments.sample)
            if size == max(map(int, arguments.block_sizes.split(","))):
                compare(references, arguments.runs, arguments.peer)
    if arguments.references is not None:
        start = time.perf_counter()
        references = read_references(arguments.references)
        print(f"\n{arguments.references.name}: read in {time.perf_counter() - start:.2f} s")
        held_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  memory before {held_mib:,.0f} MiB at most")
        measure(references, arguments.runs, arguments.sample)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  memory after {peak_mib:,.0f} MiB at most")


def read_references(path: Path) -> References:
    """Read arrays that somebody saved with ``numpy.savez``."""
    with np.load(path) as data:
        names = ("num_full_blocks", "num_lookup_blocks", "num_held_blocks", "num_prompt_tokens")
        sizes = Sizes(*(data[name] for name in names), block_size=int(data["block_size"]))
        return References(data["blocks"], sizes)


def measure(references: References, runs: int, stride: int) -> None:
    """Time the walk, the curves and the sample, and compare the sample with the curve."""
    count = len(references.blocks)
    paths = find_paths(references)
    walk_s = median(lambda: find_paths(references), runs)
    print(
        f"  {count:,} references of {references.sizes.num_requests:,} requests to "
        f"{paths.num_distinct_blocks:,} blocks, {len(paths.edges):,} edges"
    )
    print(f"  walk {walk_s * 1e3:,.1f} ms")
    for policy, release in RELEASES.items():
        curve = measure_curve(paths, release, small_pools=False)
        one_s = median(lambda r=release: measure_curve(paths, r, small_pools=False), runs)
        all_s = median(lambda r=release: measure_curve(paths, r), runs)
        gap = (curve.most_hit_tokens - curve.least_hit_tokens).max()
        total = references.sizes.num_all_prompt_tokens
        print(
            f"  {policy}: pools that serve all {one_s * 1e3:,.1f} ms, with smaller ones "
            f"{all_s * 1e3:,.1f} ms; {count / (walk_s + one_s) / 1e6:,.0f} and "
            f"{count / (walk_s + all_s) / 1e6:,.0f} million references/s; "
            f"{curve.num_repeated_blocks} blocks made twice, bounds {gap / total:.1e} apart"
        )
        for seed in range(3):
            sample = Sample(stride, seed)
            sample.add(references)
            estimate = measure_curve(sample.paths(), release, small_pools=False)
            sizes = curve.num_blocks
            at = np.searchsorted(estimate.num_blocks, sizes, side="right") - 1
            error = estimate.hit_rate[np.maximum(at, 0)] - curve.hit_rate
            print(
                f"    one in {stride}, seed {seed}: {sample.num_drawn_blocks:,} references, "
                f"error {np.abs(error).max():.5f} at most, {np.abs(error).mean():.5f} on average"
            )

        def sampled(release: Release = release) -> None:
            sample = Sample(stride)
            sample.add(references)
            measure_curve(sample.paths(), release, small_pools=False)

        print(f"    one in {stride}: {median(sampled, runs) * 1e3:,.1f} ms")


def compare(references: References, runs: int, peer: Path | None) -> None:
    """Time all capacities of both releases and, in turns, ten capacities of the peer."""
    if peer is None:
        print("  libCacheSim skipped: name a Python that has it with --peer")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "references.oracleGeneral"
        write_oracle(references, file)
        command = [str(peer), "-c", PEER, str(file), json.dumps(PEER_CAPACITIES)]
        ours, theirs = [], []
        for _ in range(runs):
            start = time.perf_counter()
            measure_curve(find_paths(references), RELEASES["vllm_v1"])
            ours.append(time.perf_counter() - start)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"  libCacheSim skipped: {done.stderr.strip().splitlines()[-1]}")
                return
            theirs.append(float(json.loads(done.stdout.splitlines()[-1])))
    print(
        f"  all capacities {statistics.median(ours) * 1e3:,.0f} ms; libCacheSim, LRU, "
        f"{len(PEER_CAPACITIES)} capacities {statistics.median(theirs) * 1e3:,.0f} ms"
    )


def write_oracle(references: References, path: Path) -> None:
    """Write libCacheSim's oracleGeneral: time, object, size, next access (-1: none)."""
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    _, objects = np.unique(references.blocks, return_inverse=True)
    following = np.full(len(objects), -1, dtype=np.int64)
    order = np.argsort(objects, kind="stable")
    same = objects[order][1:] == objects[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    rows = np.zeros(len(objects), dtype=record)
    counts = references.sizes.num_full_blocks
    rows["time"] = np.repeat(np.arange(len(counts)), counts)
    rows["object"], rows["size"], rows["next"] = objects + 1, 1, following
    rows.tofile(path)


def median(run: Callable[[], object], runs: int) -> float:
    """Time something a few times after once to warm up; seconds."""
    run()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
