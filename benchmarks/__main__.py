"""``python -m benchmarks [TRACE]``: ours beside peers; or one of these instead.

``--growth``: how the time grows. ``--sweep``: 100 points on one process and on two. ``--reading``:
how long reading takes beside ``json.loads``, and the memory of large traces.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import beside_peers, growth, reading, sweep

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run what the command line asks for and print Markdown tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "trace",
        nargs="?",
        type=Path,
        default=ROOT.parent / "shared" / "traces" / "conversation_trace.jsonl",
        help="Mooncake trace (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=3, help="median of so many (default: 3)")
    parser.add_argument(
        "--peers", type=Path, default=ROOT / ".peers", help="environments of the peers"
    )
    parser.add_argument("--growth", action="store_true", help="how the time grows, instead")
    parser.add_argument(
        "--sweep", action="store_true", help="100 points on one process and on two, instead"
    )
    parser.add_argument("--reading", action="store_true", help="reading and memory, instead")
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows that --reading makes up (default: 10^6)"
    )
    args = parser.parse_args()
    if not args.trace.is_file():
        parser.error(f"{args.trace} is not there; name a Mooncake trace.")
    if args.runs < 1:
        parser.error("--runs must be at least 1.")
    if args.growth:
        lines = growth.grow(args.trace, args.runs)
    elif args.sweep:
        lines = sweep.one_and_two(args.trace, args.runs)
    elif args.reading:
        lines = reading.read(args.trace, args.rows, args.runs)
    else:
        lines = beside_peers.compare(args.trace, args.peers, args.runs)
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
