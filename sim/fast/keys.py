"""Block keys as dense numbers, so that the key map is an array.

The keys of a request form runs: within a segment of its content, block after block has the next
number. Runs are far fewer than blocks, and all that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sim.types import Request

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeyRuns:
    """Keys of the full blocks of every request.

    Block ``i`` of request ``r`` has the number ``run_shift[j] + i``, where ``j`` is the first run
    from ``first_run[r]`` on with ``i < run_stop[j]``. Two numbers are equal if and only if the
    keys are.

    Attributes
    ----------
    num_distinct
        Numbers run from 0 up to this.
    num_keys
        Blocks that have a key, shape ``(requests,)``.
    first_run
        Where the runs of each request begin, shape ``(requests + 1,)``.
    run_stop, run_shift
        Of each run, shape ``(runs,)``.
    """

    num_distinct: int
    num_keys: Ints
    first_run: Ints
    run_stop: Ints32
    run_shift: Ints


def column(requests: Sequence[Request], name: str) -> Ints:
    """Lay out a number of each request; whoever keeps requests in columns has it already."""
    found = getattr(requests, name, None)
    if found is None:
        found = [getattr(request, name) for request in requests]
    return np.asarray(found, dtype=np.int64)


def no_keys(num_requests: int) -> KeyRuns:
    """Give the keys of requests none of whose blocks is ever cached."""
    return KeyRuns(
        0,
        np.zeros(num_requests, dtype=np.int64),
        np.zeros(num_requests + 1, dtype=np.int64),
        np.zeros(0, dtype=np.int32),
        np.zeros(0, dtype=np.int64),
    )


def key_runs(requests: Sequence[Request], num_tokens: Ints, block_size: int) -> KeyRuns:
    """Give the keys of requests numbers.

    Parameters
    ----------
    num_tokens
        How far each request's blocks can be cached, tokens, shape ``(requests,)``.
    """
    if not requests:
        return no_keys(0)
    paths = _paths_of(requests)
    if paths is not None:
        return _from_segments(*paths, num_tokens, block_size)
    return _from_keys(requests, num_tokens, block_size)


def _paths_of(requests: Sequence[Request]) -> tuple[Ints, Ints, Ints] | None:
    """Give segments of each request, bases and ends of all, where contents are such paths."""
    if hasattr(requests, "paths"):  # they are kept in columns
        in_columns: tuple[Ints, Ints, Ints] = requests.paths()
        return in_columns
    if not all(hasattr(request.content, "path") for request in requests):
        return None
    paths = [request.content.path() for request in requests]  # type: ignore[attr-defined]
    return (
        np.array([len(bases) for bases, _ in paths], dtype=np.int64),
        np.fromiter(chain.from_iterable(bases for bases, _ in paths), np.int64),
        np.fromiter(chain.from_iterable(ends for _, ends in paths), np.int64),
    )


def _from_segments(
    num_pieces: Ints, bases: Ints, ends: Ints, num_tokens: Ints, block_size: int
) -> KeyRuns:
    of_request = np.repeat(np.arange(len(num_pieces)), num_pieces)
    begins = np.concatenate(([0], ends[:-1]))
    begins[np.cumsum(num_pieces[:-1])[num_pieces[1:] > 0]] = 0
    # What can be cached may end inside a path.
    ends = np.minimum(ends, num_tokens[of_request])
    # A block lies in the segment that its last token lies in.
    stops = ends // block_size
    starts = begins // block_size
    holds_any = stops > starts
    bases, starts, stops = bases[holds_any], starts[holds_any], stops[holds_any]
    # Segments of the same base begin at the same place of the same prefix, and differ in length.
    _, segment = np.unique(bases, return_inverse=True)
    sizes = np.zeros(int(segment.max()) + 1 if len(segment) else 0, dtype=np.int64)
    np.maximum.at(sizes, segment, stops - starts)
    first_numbers = np.cumsum(sizes) - sizes
    num_runs = np.bincount(of_request[holds_any], minlength=len(num_pieces))
    return KeyRuns(
        int(sizes.sum()),
        num_tokens // block_size,
        np.concatenate(([0], np.cumsum(num_runs))),
        stops.astype(np.int32),
        first_numbers[segment] - starts,
    )


def _from_keys(requests: Sequence[Request], num_tokens: Ints, block_size: int) -> KeyRuns:
    keys = [
        request.content.block_keys(block_size)[: stop // block_size]
        for request, stop in zip(requests, num_tokens.tolist(), strict=True)
    ]
    num_keys = np.array([len(part) for part in keys], dtype=np.int64)
    distinct, numbers = np.unique(np.concatenate(keys), return_inverse=True)
    first_key = np.cumsum(num_keys) - num_keys
    index = np.arange(len(numbers)) - np.repeat(first_key, num_keys)
    shifts = numbers - index
    begins = np.ones(len(numbers), dtype=bool)
    begins[1:] = np.diff(shifts) != 0
    begins[first_key[num_keys > 0]] = True
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(numbers))
    return KeyRuns(
        len(distinct),
        num_keys,
        np.searchsorted(starts, np.append(first_key, len(numbers))),
        (index[ends - 1] + 1).astype(np.int32) if len(starts) else np.zeros(0, dtype=np.int32),
        shifts[starts],
    )
