"""Block keys as dense numbers, so that the key map is an array.

The keys of a request form runs: within a segment of its content, block after block has the next
number. Runs are far fewer than blocks, and all that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.mapped import pieces, zeros
from sim.types import Request

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]

_AT_ONCE = 1 << 16
"""Requests whose segments are laid out at a time."""


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
        return _from_segments(paths, num_tokens, block_size)
    return _from_keys(requests, num_tokens, block_size)


class _Paths(Protocol):
    """Requests as paths of segments; see `workloads.requests`."""

    @property
    def num_segments(self) -> Ints:
        """Of each request, shape ``(requests,)``."""
        ...

    def paths(self, part: slice) -> tuple[Ints, Ints, Ints]:
        """Give segments of each of some requests, and bases and ends of all of these."""
        ...


@dataclass(frozen=True, slots=True)
class _PathsOfObjects:
    """The same of requests that are objects."""

    requests: Sequence[Request]

    @property
    def num_segments(self) -> Ints:
        return np.array([len(bases) for bases, _ in self._all(slice(None))], dtype=np.int64)

    def paths(self, part: slice) -> tuple[Ints, Ints, Ints]:
        paths = self._all(part)
        return (
            np.array([len(bases) for bases, _ in paths], dtype=np.int64),
            np.fromiter(chain.from_iterable(bases for bases, _ in paths), np.int64),
            np.fromiter(chain.from_iterable(ends for _, ends in paths), np.int64),
        )

    def _all(self, part: slice) -> list[tuple[list[int], list[int]]]:
        return [request.content.path() for request in self.requests[part]]  # type: ignore[attr-defined]


def _paths_of(requests: Sequence[Request]) -> _Paths | None:
    """Give the paths of requests, where contents are paths."""
    if hasattr(requests, "paths"):
        return requests  # type: ignore[return-value]
    if not all(hasattr(request.content, "path") for request in requests):
        return None
    return _PathsOfObjects(requests)


def _from_segments(paths: _Paths, num_tokens: Ints, block_size: int) -> KeyRuns:
    """Give the blocks of segments numbers, some requests at a time.

    Segments of the same base begin at the same place of the same prefix, and differ in length: each
    base gets as many numbers as the longest one has blocks.
    """
    parts = list(pieces(len(num_tokens), _AT_ONCE))
    num_segments = int(paths.num_segments.sum())
    all_bases = zeros(num_segments)
    num_runs = 0
    for part in parts:
        bases, _, _, _ = _blocks_of(paths, part, num_tokens, block_size)
        all_bases[num_runs : num_runs + len(bases)] = bases
        num_runs += len(bases)
    distinct = _distinct(all_bases[:num_runs])
    sizes = zeros(len(distinct))
    for part in parts:
        bases, starts, stops, _ = _blocks_of(paths, part, num_tokens, block_size)
        np.maximum.at(sizes, np.searchsorted(distinct, bases), stops - starts)
    first_numbers = zeros(len(distinct))
    num_distinct = 0
    for some in pieces(len(sizes)):
        first_numbers[some] = num_distinct + np.cumsum(sizes[some]) - sizes[some]
        num_distinct += int(sizes[some].sum())
    keys = KeyRuns(
        num_distinct,
        zeros(len(num_tokens)),
        zeros(len(num_tokens) + 1),
        zeros(num_runs, np.int32),
        zeros(num_runs),
    )
    first = 0
    for part in parts:
        bases, starts, stops, counts = _blocks_of(paths, part, num_tokens, block_size)
        keys.num_keys[part] = num_tokens[part] // block_size
        keys.first_run[part.start + 1 : part.stop + 1] = first + np.cumsum(counts)
        runs = slice(first, first + len(bases))
        keys.run_stop[runs] = stops
        keys.run_shift[runs] = first_numbers[np.searchsorted(distinct, bases)] - starts
        first = runs.stop
    return keys


def _blocks_of(
    paths: _Paths, part: slice, num_tokens: Ints, block_size: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """List the segments of some requests that a block that can be cached ends in.

    Returns
    -------
    Their bases, their first blocks and those after their last; and how many each request has.
    """
    counts, bases, ends = paths.paths(part)
    of_request = np.repeat(np.arange(len(counts)), counts)
    begins = np.concatenate(([0], ends[:-1]))
    begins[np.cumsum(counts[:-1])[counts[1:] > 0]] = 0
    # What can be cached may end inside a path.
    ends = np.minimum(ends, num_tokens[part][of_request])
    # A block lies in the segment that its last token lies in.
    stops = ends // block_size
    starts = begins // block_size
    holds_any = stops > starts
    num_runs = np.bincount(of_request[holds_any], minlength=len(counts))
    return bases[holds_any], starts[holds_any], stops[holds_any], num_runs


def _distinct(numbers: Ints) -> Ints:
    """Sort numbers where they lie and keep one of each there."""
    numbers.sort()
    size = 0
    for part in pieces(len(numbers)):
        some = numbers[part]
        is_new = np.ones(len(some), dtype=bool)
        is_new[1:] = some[1:] != some[:-1]
        is_new[0] = not size or some[0] != numbers[size - 1]
        kept = some[is_new]
        numbers[size : size + len(kept)] = kept
        size += len(kept)
    return numbers[:size]


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
