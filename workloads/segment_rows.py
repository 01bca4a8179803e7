"""What is asked of all segments of all requests, over the columns of a trace.

The plain twins are in `workloads.reuse` and `workloads.structure`, which ask one request after the
other. Here requests are taken some at a time, and what earlier ones had of a segment is kept by the
place of its base among all that there are, so that memory of our own is bounded; see `sim.mapped`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sim.mapped import Column, filled, pieces, zeros
from workloads.content import Ints
from workloads.requests import Requests
from workloads.runs import distinct

Flags = NDArray[np.bool_]

ROOT = -1
AT_ONCE = 1 << 18
"""Segments that are laid out at a time."""


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


def parts_of(requests: Requests) -> Iterator[slice]:
    """Cut requests into runs that have a bounded number of segments, each at least one request."""
    first = 0
    while first < len(requests):
        upto = np.cumsum(requests.num_segments[first : first + AT_ONCE])
        stop = first + max(1, int(np.searchsorted(upto, AT_ONCE, side="right")))
        yield slice(first, stop)
        first = stop


def bases_of(requests: Requests, stops: Ints) -> Ints:
    """List the first names of all segments, as far as the first ``stops`` tokens go; ascending.

    Where a base stands among them is the number of its segment.
    """
    bases = Column()
    for part in parts_of(requests):
        bases.extend(rows_of(requests, stops, part).bases)
    return distinct(bases.array)[0]


def shared_prefix_tokens(requests: Requests, stops: Ints) -> Ints:
    """Find the longest prefix of each prompt that an earlier request had in its first tokens.

    See `workloads.reuse.shared_prefix_tokens`; ``stops`` are how many tokens of each count.
    """
    all_bases = bases_of(requests, stops)
    longest = zeros(len(all_bases))  # tokens of each segment that some earlier request had
    shared = zeros(len(requests))
    for part in parts_of(requests):
        rows = rows_of(requests, stops, part)
        order = np.argsort(rows.bases, kind="stable")
        bases = rows.bases[order]
        lengths = (rows.ends - rows.starts)[order]
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = bases[1:] != bases[:-1]
        firsts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
        if not len(firsts):
            continue
        segments = np.searchsorted(all_bases, bases[firsts])
        carried = longest[segments]
        before = np.maximum(_longest_before(lengths, begins), carried[group])
        longest[segments] = np.maximum(carried, np.maximum.reduceat(lengths, firsts))
        # A name stands for one whole prefix: who had a segment had all of those before it, so
        # that the deepest one that was had is the one that goes furthest.
        had = before > 0
        reach = rows.starts[order] + np.minimum(lengths, before)
        np.maximum.at(shared, rows.request[order][had], reach[had])
    np.minimum(shared, requests.num_prompt_tokens, out=shared)
    return shared


def _longest_before(lengths: Ints, begins: Flags) -> Ints:
    """Find the largest of those before each in its group, 0 for the first; of groups in a row."""
    # A running maximum over all groups at once: later groups are lifted above earlier ones.
    lift = (np.cumsum(begins) - 1) << np.int64(32)
    longest = np.zeros(len(lengths), dtype=np.int64)
    longest[1:] = np.maximum.accumulate(lengths + lift)[:-1] - lift[1:]
    longest[begins] = 0
    return longest


def branching(requests: Requests) -> tuple[Ints, Ints]:
    """Find the branching points of the prompts' tree; see `workloads.structure.TreeShape`.

    Returns
    -------
    Ways on from each, and the points on the way of each prompt.
    """
    stops = requests.num_prompt_tokens
    bases = bases_of(requests, stops)
    # Of each segment: the prefix before it, of which it has one, and the most that a path has.
    parents, longest = zeros(len(bases)), zeros(len(bases))
    for part in parts_of(requests):
        rows = rows_of(requests, stops, part)
        segments = np.searchsorted(bases, rows.bases)
        parents[segments] = rows.parents
        np.maximum.at(longest, segments, rows.ends - rows.starts)
    names, ways = distinct(parents)

    def with_inside(part: slice) -> Ints:
        # A prefix that is left inside a segment also goes on in that segment, if any prompt does.
        inside = np.searchsorted(bases, names[part], side="right") - 1
        stop = np.where(inside >= 0, bases[inside] + longest[inside] - 1, names[part])
        goes_on: Flags = (names[part] != ROOT) & (names[part] < stop)
        return ways[part] + goes_on.astype(np.int64)

    fan_out = filled(len(names), with_inside)
    branches, points = Column(), Column()
    for part in pieces(len(names), AT_ONCE):
        some = fan_out[part] > 1
        branches.extend(fan_out[part][some])
        points.extend(names[part][some & (names[part] != ROOT)])
    depth = zeros(len(requests))
    depth += len(branches) - len(points)  # the root may be one
    for part in parts_of(requests):
        rows = rows_of(requests, stops, part)
        # Branching points inside what the path has of the segment, its own end included.
        ends = rows.bases + rows.ends - rows.starts
        num_points = np.searchsorted(points.array, ends) - np.searchsorted(points.array, rows.bases)
        np.add.at(depth, rows.request, num_points)
    return branches.array, depth


def names_at(requests: Requests, position: int) -> Ints:
    """Name the prefixes that end with a position, of the prompts that go that far."""
    found = Column()
    for part in parts_of(requests):
        rows = rows_of(requests, requests.num_prompt_tokens, part)
        there = (rows.starts <= position) & (position < rows.ends)
        found.extend((rows.bases + position - rows.starts)[there])
    return found.array
