"""What is asked of all segments of all requests, over the columns of a trace.

The plain twins are in `workloads.reuse` and `workloads.structure`, which ask one request after the
other. Here segments of one base are brought together by sorting, a part of all bases at a time, so
that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.column import pieces
from workloads.content import Ints
from workloads.requests import Requests

Flags = NDArray[np.bool_]

AT_ONCE = 1 << 22
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
    """

    request: Ints
    bases: Ints
    starts: Ints
    ends: Ints

    def take(self, which: Flags) -> SegmentRows:
        """Keep some of them."""
        return SegmentRows(
            self.request[which], self.bases[which], self.starts[which], self.ends[which]
        )


def rows_of(requests: Requests, stops: Ints, part: slice) -> SegmentRows:
    """Lay out the segments of some requests, each as far as the first ``stops`` tokens go."""
    counts = requests.num_segments[part]
    before = np.cumsum(counts) - counts
    of_part = np.repeat(np.arange(len(counts)), counts)
    where = np.arange(len(of_part)) + (requests.first_segment[part] - before)[of_part]
    bases, ends = requests.bases[where], requests.ends[where]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    starts[before[counts > 0]] = 0
    stop = stops[part][of_part]
    rows = SegmentRows(of_part + part.start, bases, starts, np.minimum(ends, stop))
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
        *(
            np.concatenate([getattr(rows, name) for rows in some])
            for name in ("request", "bases", "starts", "ends")
        )
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
