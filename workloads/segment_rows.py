"""What is asked of all segments of all requests, over the columns of a trace.

The plain twins are in `workloads.reuse` and `workloads.structure`, which ask one request after the
other. Here segments of one base are brought together by sorting, a part of all bases at a time, so
that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sim.mapped import pieces
from workloads.content import Ints
from workloads.requests import Requests

Flags = NDArray[np.bool_]

ROOT = -1
AT_ONCE = 1 << 21
"""Segments that are sorted at a time."""


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Segments of some requests in order, as far as they count; arrays of shape ``(segments,)``.

    Attributes
    ----------
    request
        Whose it is.
    bases
        First names.
    starts, ends
        Positions of the first token and after the last.
    parents
        Names of the prefixes before them, `ROOT` for none.
    """

    request: Ints
    bases: Ints
    starts: Ints
    ends: Ints
    parents: Ints

    def take(self, which: Flags) -> SegmentRows:
        """Keep some of them."""
        return SegmentRows(*(getattr(self, name)[which] for name in _COLUMNS))


_COLUMNS = tuple(field.name for field in fields(SegmentRows))


def rows_of(requests: Requests, stops: Ints, part: slice) -> SegmentRows:
    """Lay out the segments of some requests, each as far as the first ``stops`` tokens go."""
    counts = requests.num_segments[part]
    before = np.cumsum(counts) - counts
    of_part = np.repeat(np.arange(len(counts)), counts)
    where = np.arange(len(of_part)) + (requests.first_segment[part] - before)[of_part]
    bases, ends = requests.bases[where], requests.ends[where]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    firsts = before[counts > 0]
    starts[firsts] = 0
    parents = np.full_like(ends, ROOT)
    parents[1:] = bases[:-1] + (ends - starts)[:-1] - 1
    parents[firsts] = ROOT
    stop = stops[part][of_part]
    rows = SegmentRows(of_part + part.start, bases, starts, np.minimum(ends, stop), parents)
    inside = starts < stop
    return rows if inside.all() else rows.take(inside)


def parts_of(requests: Requests, stops: Ints) -> Iterator[SegmentRows]:
    """Yield the segments by parts of a bounded size, all of one base in one, in order."""
    num_parts = -(-int(requests.num_segments.sum()) // AT_ONCE)
    step = max(1, len(requests) // max(1, 8 * num_parts))
    for number in range(num_parts):
        some = [
            _of_part(rows_of(requests, stops, part), number, num_parts)
            for part in pieces(len(requests), step if num_parts > 1 else len(requests))
        ]
        yield some[0] if len(some) == 1 else _joined(some)


def _joined(some: list[SegmentRows]) -> SegmentRows:
    return SegmentRows(
        *(np.concatenate([getattr(rows, name) for rows in some]) for name in _COLUMNS)
    )


def _of_part(rows: SegmentRows, number: int, num_parts: int) -> SegmentRows:
    return rows if num_parts == 1 else rows.take(of_part(rows.bases, number, num_parts))


def of_part(numbers: Ints, number: int, num_parts: int) -> Flags:
    """Say which numbers belong to a part; equal numbers belong to the same."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found: Flags = (mixed >> np.uint64(32)) % np.uint64(num_parts) == np.uint64(number)
    return found


def shared_prefix_tokens(requests: Requests, stops: Ints) -> Ints:
    """Find the longest prefix of each prompt that an earlier request had in its first tokens.

    See `workloads.reuse.shared_prefix_tokens`; ``stops`` are how many tokens of each count.
    """
    shared = np.zeros(len(requests), dtype=np.int64)
    for rows in parts_of(requests, stops):
        # A name stands for one whole prefix: who had a segment had all of those before it, so
        # that the deepest one that was had is the one that goes furthest.
        longest, order = _longest_before(rows)
        had = longest > 0
        lengths = rows.ends[order] - rows.starts[order]
        reach = rows.starts[order] + np.minimum(lengths, longest)
        np.maximum.at(shared, rows.request[order][had], reach[had])
    return np.minimum(shared, requests.num_prompt_tokens)


def _longest_before(rows: SegmentRows) -> tuple[Ints, Ints]:
    """Find how much of each segment an earlier request had; and the order in which these stand."""
    order = np.argsort(rows.bases, kind="stable")
    bases = rows.bases[order]
    lengths = rows.ends[order] - rows.starts[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = bases[1:] != bases[:-1]
    # A running maximum over all groups at once: later groups are lifted above earlier ones.
    lift = (np.cumsum(begins) - 1) << np.int64(32)
    longest = np.zeros(len(order), dtype=np.int64)
    longest[1:] = np.maximum.accumulate(lengths + lift)[:-1] - lift[1:]
    longest[begins] = 0
    return longest, order


def branching(requests: Requests) -> tuple[Ints, Ints]:
    """Find the branching points of the prompts' tree; see `workloads.structure.TreeShape`.

    Returns
    -------
    Ways on from each, and the points on the way of each prompt.
    """
    stops = requests.num_prompt_tokens
    found = [_distinct(rows) for rows in parts_of(requests, stops)]
    bases, parents, longest = (np.concatenate(part) for part in zip(*found, strict=True))
    del found
    names, fan_out = np.unique(parents, return_counts=True)  # a segment begins after one prefix
    del parents
    order = np.argsort(bases)
    bases, longest = bases[order], longest[order]
    # A prefix that is left inside a segment also goes on in that segment, if any prompt does.
    inside = np.searchsorted(bases, names, side="right") - 1
    stop = np.where(inside >= 0, bases[inside] + longest[inside] - 1, names)
    fan_out += (names != ROOT) & (names < stop)
    branches = fan_out > 1
    points = names[branches & (names != ROOT)]
    depth = np.full(len(requests), int(branches[names == ROOT].sum()), dtype=np.int64)
    for part in pieces(len(requests), 1 << 17):
        rows = rows_of(requests, stops, part)
        # Branching points inside what the path has of the segment, its own end included.
        ends = rows.bases + rows.ends - rows.starts
        num_points = np.searchsorted(points, ends) - np.searchsorted(points, rows.bases)
        np.add.at(depth, rows.request, num_points)
    return fan_out[branches], depth


def _distinct(rows: SegmentRows) -> tuple[Ints, Ints, Ints]:
    """Give each segment once: first name, prefix before it, most tokens that a path has of it."""
    order = np.argsort(rows.bases, kind="stable")
    bases = rows.bases[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = bases[1:] != bases[:-1]
    firsts = np.flatnonzero(begins)
    longest = np.maximum.reduceat((rows.ends - rows.starts)[order], firsts)
    return bases[firsts], rows.parents[order][firsts], longest


def names_at(requests: Requests, position: int) -> Ints:
    """Name the prefixes that end with a position, of the prompts that go that far."""
    found = []
    for part in pieces(len(requests), 1 << 17):
        rows = rows_of(requests, requests.num_prompt_tokens, part)
        there = (rows.starts <= position) & (position < rows.ends)
        found.append((rows.bases + position - rows.starts)[there])
    return np.concatenate(found)
