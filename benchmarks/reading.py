"""How long reading takes beside ``json.loads`` in a plain loop, and the memory that it takes."""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.process import Measured, medians, run

SHAPES = {"5 ids": (5, 2, False), "5 ids, named": (5, 2, True), "20 ids": (20, 8, False)}
"""Ids of a row, those of them that other rows begin with too, and whether rows name themselves."""

_PLAIN_LOOP = """
import json, sys
count = 0
for line in open(sys.argv[1], "rb"):
    json.loads(line)
    count += 1
print(json.dumps({"num_requests": count}))
"""
_TOOL = (sys.executable, "-m", "sim")
_NUM_CONVERSATION_COPIES = 10


def write_rows(
    path: Path, num_rows: int, num_ids: int, num_shared: int, *, named: bool = False
) -> None:
    """Write made-up Mooncake rows: a popular beginning, then ids of their own.

    Rows that are named have an id and a session, some five rows to each.
    """
    rng = random.Random(1)
    time_ms, next_id = 0, 1000
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            time_ms += rng.randrange(20)
            first = int(rng.paretovariate(0.6)) % 1000 * 10**8
            own = num_ids - num_shared
            row: dict[str, object] = {
                "timestamp": time_ms,
                "input_length": 512 * num_ids - rng.randrange(512),
                "output_length": rng.randrange(1, 500),
                "hash_ids": [*range(first, first + num_shared), *range(next_id, next_id + own)],
            }
            next_id += own
            if named:
                row["request_id"] = f"request-{number:012x}"
                row["session_id"] = f"session-{number % (num_rows // 5 or 1):012x}"
                row["turns"] = "cumulative"
            file.write(json.dumps(row) + "\n")


def write_copies(trace: Path, path: Path, num_copies: int) -> None:
    """Put copies of a trace one behind the other, ids made disjoint."""
    rows = [json.loads(line) for line in trace.open("rb")]
    num_ids = 1 + max(max(row["hash_ids"]) for row in rows)
    length_ms = 1 + rows[-1]["timestamp"]
    with path.open("w", encoding="utf-8") as file:
        for copy in range(num_copies):
            for row in rows:
                ids = [name + copy * num_ids for name in row["hash_ids"]]
                moved = {"timestamp": row["timestamp"] + copy * length_ms, "hash_ids": ids}
                file.write(json.dumps({**row, **moved}) + "\n")


def read(trace: Path, num_rows: int, num_runs: int) -> Iterator[str]:
    """Measure and yield lines of tables."""
    yield "| rows | command | CPU s | beside `json.loads` | peak MiB |\n" + "| - " * 5 + "|"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        for shape, (num_ids, num_shared, named) in SHAPES.items():
            write_rows(path, num_rows, num_ids, num_shared, named=named)
            name = f"{num_rows:,} of {shape}"
            loop = _measure([sys.executable, "-c", _PLAIN_LOOP, str(path)], num_runs)
            yield _line(name, "`json.loads` in a loop", loop, loop)
            for command, options in (
                ("workload check", ["--json"]),
                ("workload describe", ["--json", "--block-size", "512"]),
                ("workload check", ["--json", "--num-requests", "1000"]),
            ):
                words = [*_TOOL, *command.split(), str(path), *options]
                shown = " ".join([command, *options[1:]])
                found = _measure(words, num_runs)
                yield _line(name, f"`{shown}`", found, loop)
                if options == ["--json"]:
                    yield from _limited(name, words, found, loop)
        yield "\n| replayed, 16-token blocks, 320,000 of them | CPU s | peak MiB |\n| - | - | - |"
        write_copies(trace, path, _NUM_CONVERSATION_COPIES)
        for what, source in ((trace.name, trace), (f"{_NUM_CONVERSATION_COPIES} copies", path)):
            words = [*_TOOL, "run", str(source), "--kv-capacity", "320000blocks", "--json"]
            found = _measure(words, num_runs)
            yield f"| {what} | {found.cpu_s:.1f} | {found.peak_mib:,.0f} |"


def _limited(name: str, words: list[str], free: Measured, loop: Measured) -> Iterator[str]:
    """Run a command again with little memory of its own, which mapped files are not."""
    limit_mib = 400
    found = run(words, before=_limit(limit_mib))
    if found.printed != free.printed:
        sys.exit(f"{' '.join(words)} prints something else with {limit_mib} MiB of data")
    yield _line(name, f"the same with at most {limit_mib} MiB of data", found, loop)


def _limit(mib: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (mib << 20, mib << 20))


def _measure(words: list[str], num_runs: int) -> Measured:
    return medians([run(words) for _ in range(num_runs)])


def _line(name: str, what: str, found: Measured, loop: Measured) -> str:
    ratio = found.cpu_s / loop.cpu_s
    return f"| {name} | {what} | {found.cpu_s:.1f} | {ratio:.2f} | {found.peak_mib:,.0f} |"
