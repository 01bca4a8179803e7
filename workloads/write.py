"""Writing a workload as a Mooncake trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from sim.errors import UsageError
from sim.types import Request
from workloads.content import prefix_names
from workloads.reuse import infinite_hit_rate
from workloads.workload import Workload


def write_mooncake(
    workload: Workload, path: str | PathLike[str], *, trace_block_size: int = 512
) -> tuple[str, ...]:
    """Write a Mooncake trace that `read_mooncake` reads back, given the same block size.

    Where the workload's identity is a multiple of ``trace_block_size``, nothing is lost: hits are
    the same at every engine block size. Otherwise two prompts share whole trace blocks only, so
    hits are the same at multiples of ``trace_block_size``, and at block sizes that divide it the
    remainder of a shared prefix is lost. What outputs share is never kept, since a Mooncake trace
    has no ids for them.

    Parameters
    ----------
    workload
        What to write; its order becomes the order of lines.
    path
        Replaced in one step when all is written, so that it never holds half a trace.
    trace_block_size
        Tokens that an id stands for.

    Returns
    -------
    Sentences about what the file cannot hold; empty where it holds all.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    if trace_block_size < 1:
        raise UsageError(
            f"--trace-block-size is {trace_block_size}, but a block has at least 1 token; raise it."
        )
    path = Path(path)
    part = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        try:
            with part.open("x", encoding="utf-8", newline="\n") as file:
                for line in _lines(workload, trace_block_size):
                    file.write(line + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}); give a file in a folder that"
            " exists and may be written to."
        ) from None
    return tuple(_losses(workload, trace_block_size))


def _lines(workload: Workload, trace_block_size: int) -> Iterator[str]:
    id_of: dict[int, int] = {}
    # A block inside one unit of identity is known by its first token, so that a partial block
    # matches the same block in full. Otherwise only its last token tells the whole of it.
    first = workload.identity_block_size % trace_block_size == 0
    for index, request in enumerate(workload.requests):
        row: dict[str, object] = {
            "timestamp": _milliseconds(request.arrival_ns),
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
        }
        if workload.has_prefix_info:
            names = _block_names(request, trace_block_size, first=first)
            row["hash_ids"] = [id_of.setdefault(name, len(id_of)) for name in names]
        if request.request_id != str(index):
            row["request_id"] = request.request_id
        if request.session_id is not None:
            row["session_id"] = request.session_id
        if request.think_ns is not None:
            row["delay"] = _milliseconds(request.think_ns)
        yield json.dumps(row)


def _block_names(request: Request, trace_block_size: int, *, first: bool) -> list[int]:
    starts = np.arange(0, request.num_prompt_tokens, trace_block_size, dtype=np.int64)
    ends = np.minimum(starts + trace_block_size, request.num_prompt_tokens)
    names: list[int] = prefix_names(request.content, starts if first else ends - 1).tolist()
    return names


def _milliseconds(time_ns: int) -> int | float:
    whole, rest = divmod(time_ns, 10**6)
    return time_ns / 10**6 if rest else whole


def _losses(workload: Workload, trace_block_size: int) -> Iterator[str]:
    if not workload.has_prefix_info:
        return
    requests = workload.requests
    exact = infinite_hit_rate(requests, 1, outputs=False)
    with_outputs = infinite_hit_rate(requests, 1)
    if with_outputs > exact:
        yield (
            "A Mooncake trace has no ids for outputs: where a prompt repeats what an earlier"
            f" request generated, the hit is lost, and an infinite cache hits {exact:.6f} of prompt"
            f" tokens instead of {with_outputs:.6f}."
        )
    if workload.identity_block_size % trace_block_size:
        kept = infinite_hit_rate(requests, trace_block_size, outputs=False)
        if kept < exact:
            yield (
                f"Prefixes are shared by whole trace blocks of {trace_block_size} tokens only: an"
                f" infinite cache hits {kept:.6f} of prompt tokens instead of {exact:.6f}; a"
                " smaller trace block size keeps more."
            )
