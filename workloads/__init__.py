"""Workloads: readers of trace formats, generators, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from os.path import exists
from pathlib import Path

from sim.errors import UsageError
from workloads.arrivals import ARRIVALS, retime, scale_rate
from workloads.describe import describe
from workloads.generators import GENERATORS, dials, generate
from workloads.mooncake import read_mooncake
from workloads.reuse import infinite_hit_rate, shared_prefix_tokens
from workloads.workload import Workload
from workloads.write import write_mooncake

__all__ = [
    "ARRIVALS",
    "GENERATORS",
    "Workload",
    "describe",
    "dials",
    "infinite_hit_rate",
    "load",
    "read_mooncake",
    "retime",
    "scale_rate",
    "shared_prefix_tokens",
    "write_mooncake",
]


def load(
    source: str | PathLike[str],
    *,
    num_requests: int | None = None,
    trace_block_size: int = 512,
    lenient: bool = False,
    timed: bool = True,
    partial_blocks: str = "own",
    system_prompt: int = 0,
    args: Mapping[str, object] | None = None,
) -> Workload:
    """Make a workload from a generator's name or a trace file.

    Parameters
    ----------
    source
        A key of ``GENERATORS``, or a path; ``./name`` is a file even if a generator has the name.
    num_requests
        Requests to generate, or to read at most.
    trace_block_size, lenient, timed, partial_blocks, system_prompt
        See `read_mooncake`; generators have no use for them.
    args
        Dials of the generator; see `generate`.

    Raises
    ------
    UsageError
        If there is no such source, or it cannot be used.
    """
    name = fspath(source)
    args = dict(args or {})
    if name in GENERATORS:
        if num_requests is not None:
            if "num_requests" in args:
                raise UsageError(
                    f"num_requests is given twice, as {num_requests} by --num-requests and as"
                    f" {args['num_requests']} as a dial; leave one out."
                )
            args["num_requests"] = num_requests
        return generate(name, args)
    path = Path(name)
    if not exists(path):
        raise UsageError(
            f"{name!r} is neither a generator ({', '.join(GENERATORS)}) nor a file that exists;"
            " check its name and folder."
        )
    if args:
        raise UsageError(
            f"{name} is a trace file, which has no dials, but {', '.join(args)} was given; leave it"
            f" out or use a generator ({', '.join(GENERATORS)})."
        )
    return read_mooncake(
        path,
        num_requests=num_requests,
        trace_block_size=trace_block_size,
        lenient=lenient,
        timed=timed,
        partial_blocks=partial_blocks,
        system_prompt=system_prompt,
    )
