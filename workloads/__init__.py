"""Workloads: readers of trace formats, generators, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from os.path import exists
from typing import Any

from sim.errors import UsageError
from workloads.added_sharing import add_sharing
from workloads.arrivals import ARRIVALS, cut_duration, retime, scale_rate
from workloads.columns import Columns, from_columns, to_columns
from workloads.describe import MEANINGS, describe, doubt_about_block_size
from workloads.formats import FORMATS
from workloads.generators import GENERATORS, dials, generate
from workloads.mooncake import read_mooncake
from workloads.reader import CheckedTrace, check_trace, read
from workloads.requests import num_sessions, taken
from workloads.reuse import infinite_hit_rate, shared_prefix_tokens
from workloads.source import STDIN
from workloads.workload import Workload
from workloads.write import write_mooncake, write_trace

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "GENERATORS",
    "MEANINGS",
    "CheckedTrace",
    "Columns",
    "Workload",
    "check_trace",
    "cut_duration",
    "describe",
    "dials",
    "doubt_about_block_size",
    "from_columns",
    "infinite_hit_rate",
    "is_source",
    "load",
    "num_sessions",
    "read",
    "read_mooncake",
    "retime",
    "scale_rate",
    "shared_prefix_tokens",
    "taken",
    "to_columns",
    "write_mooncake",
    "write_trace",
]


def is_source(source: str | PathLike[str]) -> bool:
    """Whether there is such a generator, file or folder; ``-`` is standard input."""
    name = fspath(source)
    return name in GENERATORS or name == STDIN or exists(name)


def load(
    source: str | PathLike[str],
    *,
    num_requests: int | None = None,
    args: Mapping[str, object] | None = None,
    format_name: str = "auto",
    lenient: bool = False,
    **options: Any,  # noqa: ANN401
) -> Workload:
    """Make a workload from a generator's name or a trace.

    Parameters
    ----------
    source
        A key of ``GENERATORS``, or a path; ``./name`` is a file even if a generator has the name.
    num_requests
        Requests to generate, or to read at most.
    args
        Dials of the generator, see `generate`; of `add_sharing` for a trace of lengths only.
    format_name, lenient, **options
        How to read a trace; see `workloads.reader.read` and `workloads.intake.ReadOptions`.
        Generators have no use for them.

    Raises
    ------
    UsageError
        If there is no such source, or it cannot be used.
    """
    name = fspath(source)
    args = dict(args or {})
    if not is_source(name):
        raise UsageError(
            f"{name!r} is neither a generator ({', '.join(GENERATORS)}) nor a file that exists;"
            " check its name and folder."
        )
    if name in GENERATORS:
        if num_requests is not None:
            if "num_requests" in args:
                raise UsageError(
                    f"num_requests is given twice, as {num_requests} by --num-requests and as"
                    f" {args['num_requests']} as a dial; leave one out."
                )
            args["num_requests"] = num_requests
        _refuse_options_of_traces(name, {"format_name": format_name, "lenient": lenient, **options})
        return generate(name, args)
    mode = "lenient" if lenient else "strict"
    workload = read(name, format_name, num_requests=num_requests, mode=mode, **options)
    if args and workload.has_prefix_info:
        raise UsageError(
            f"{name} is a trace file, which has no dials, but {', '.join(args)} was given; leave it"
            f" out or use a generator ({', '.join(GENERATORS)})."
        )
    return add_sharing(workload, args) if args else workload


_UNUSED = (None, False, 0, "auto", "own")


def _refuse_options_of_traces(name: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if option != "timed" and value not in _UNUSED:
            spelt = "--" + option.removesuffix("_name").replace("_", "-")
            given = spelt if value is True else f"{spelt} {value}"
            raise UsageError(
                f"{given} is about reading a trace, but {name} is a generator; leave it out."
            )
