"""Requests in columns: a sequence that makes a `Request` when it is asked for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from sim.mapped import filled, picked, pieces, zeros
from sim.types import Request
from workloads.content import Ints, Segments
from workloads.texts import Texts


@dataclass(frozen=True, eq=False, slots=True)
class Requests(Sequence[Request]):
    """Requests of a trace, a few numbers each.

    Two requests made of one row are alike, but not the same object. Every array has the shape
    ``(requests,)`` unless said otherwise.

    Attributes
    ----------
    arrival_ns, num_prompt_tokens, num_output_tokens
        See `Request`.
    first_segment, num_segments
        Where the path of each begins among ``bases`` and ``ends``, and its segments.
    bases, ends
        Of the segments of all paths, shape ``(segments,)``; see `Segments`.
    numbers
        What names the requests that have no id; None for their places.
    ids
        Names, where any request has one.
    sessions
        Where there are any: the number of each one's session, -1 for none; and their names.
    think_ns
        Where any is known; -1 for none.
    as_read
        Where paths were put in the place of others: the segments of those, as ``first_segment``
        and ``num_segments`` say it; see `Segments.as_read`.
    """

    arrival_ns: Ints
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    first_segment: Ints
    num_segments: Ints
    bases: Ints
    ends: Ints
    numbers: Ints | None = None
    ids: Sequence[str] | None = None
    sessions: tuple[Ints, Sequence[str]] | None = None
    think_ns: Ints | None = None
    as_read: tuple[Ints, Ints] | None = None

    @property
    def num_kv_tokens(self) -> Ints:
        """Tokens whose KV is computed by the end, see `Request.num_kv_tokens`."""
        prompts, outputs = self.num_prompt_tokens, self.num_output_tokens
        return filled(len(self), lambda part: prompts[part] + np.maximum(outputs[part] - 1, 0))

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Requests: ...
    def __getitem__(self, index: int | slice) -> Request | Requests:
        if isinstance(index, slice):
            return self.take(index)
        content = self._segments(self.first_segment[index], self.num_segments[index])
        if self.as_read is not None and self.as_read[0][index] != self.first_segment[index]:
            content.as_read = self._segments(*(column[index] for column in self.as_read))
        session = think_ns = None
        if self.sessions is not None and (number := self.sessions[0][index]) >= 0:
            session = self.sessions[1][number]
        if self.think_ns is not None and self.think_ns[index] >= 0:
            think_ns = int(self.think_ns[index])
        return Request(
            request_id=self._name(index),
            arrival_ns=int(self.arrival_ns[index]),
            content=content,
            num_prompt_tokens=int(self.num_prompt_tokens[index]),
            num_output_tokens=int(self.num_output_tokens[index]),
            session_id=session,
            think_ns=think_ns,
        )

    def __iter__(self) -> Iterator[Request]:
        for index in range(len(self)):
            yield self[index]

    def _segments(self, first: np.int64, count: np.int64) -> Segments:
        return Segments(self.bases[first : first + count], self.ends[first : first + count])

    def _name(self, index: int) -> str:
        if self.ids is not None:
            return self.ids[index]
        if self.numbers is not None:
            return str(int(self.numbers[index]))
        return str(index if index >= 0 else index + len(self))

    def names(self, which: Ints) -> list[str]:
        """Name some of them, as each request has it."""
        if self.ids is not None:
            return [self.ids[index] for index in which.tolist()]
        return list(map(str, (which if self.numbers is None else self.numbers[which]).tolist()))

    @property
    def request_ids(self) -> list[str]:
        """Names of all."""
        return self.names(np.arange(len(self), dtype=np.int64))

    def session_numbers(self, part: slice) -> Ints:
        """Give the number of the session of some of them; -1 for none."""
        if self.sessions is None:
            return np.full(len(range(len(self))[part]), -1, dtype=np.int64)
        return self.sessions[0][part]

    def paths(self, part: slice = slice(None)) -> tuple[Ints, Ints, Ints]:
        """Give paths of some: how many segments each has, and bases and ends of all of them."""
        counts, first_segment = self.num_segments[part], self.first_segment[part]
        firsts = np.cumsum(counts) - counts
        if len(firsts) and np.array_equal(first_segment, firsts + first_segment[0]):
            run = slice(int(first_segment[0]), int(first_segment[0] + counts.sum()))
            return counts, self.bases[run], self.ends[run]
        places = np.arange(int(counts.sum())) + np.repeat(first_segment - firsts, counts)
        return counts, self.bases[places], self.ends[places]

    def take(self, which: slice | Ints) -> Requests:
        """Give some requests, or all in another order; paths are shared with these."""
        numbers = None if self.numbers is None else picked(self.numbers, which)
        if numbers is None and self.ids is None:
            numbers = np.arange(*which.indices(len(self))) if isinstance(which, slice) else which
        sessions, as_read = self.sessions, self.as_read
        return Requests(
            picked(self.arrival_ns, which),
            picked(self.num_prompt_tokens, which),
            picked(self.num_output_tokens, which),
            picked(self.first_segment, which),
            picked(self.num_segments, which),
            self.bases,
            self.ends,
            numbers,
            None if self.ids is None else _some(self.ids, which),
            sessions and (picked(sessions[0], which), sessions[1]),
            None if self.think_ns is None else picked(self.think_ns, which),
            as_read and (picked(as_read[0], which), picked(as_read[1], which)),
        )

    def by_their_rows(self) -> Requests:
        """Give the same requests with the paths of ``as_read``."""
        if self.as_read is None:
            return self
        first, count = self.as_read
        return replace(self, first_segment=first, num_segments=count, as_read=None)

    def at(self, arrival_ns: Ints) -> Requests:
        """Give the same requests with other arrivals, in the order in which they stand."""
        return replace(self, arrival_ns=arrival_ns)


def _some(texts: Sequence[str], which: slice | Ints) -> Sequence[str]:
    if isinstance(texts, Texts):
        return texts.take(which)
    indices = range(len(texts))[which] if isinstance(which, slice) else which.tolist()
    return [texts[index] for index in indices]


def taken(requests: Sequence[Request], which: Ints) -> Sequence[Request]:
    """Take some requests, by their places."""
    if isinstance(requests, Requests):
        return requests.take(which)
    return tuple(requests[index] for index in which.tolist())


def as_requests(requests: Sequence[Request]) -> Requests:
    """Lay out requests in columns, whose contents must be paths of segments."""
    if isinstance(requests, Requests):
        return requests
    contents = [request.content for request in requests]
    paths = [content for content in contents if isinstance(content, Segments)]
    assert len(paths) == len(contents)
    counts = np.array([len(content.bases) for content in paths], dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    return Requests(
        arrivals_ns(requests),
        prompt_tokens(requests),
        output_tokens(requests),
        np.cumsum(counts) - counts,
        counts,
        np.concatenate([nothing, *(content.bases for content in paths)]),
        np.concatenate([nothing, *(content.ends for content in paths)]),
        ids=[request.request_id for request in requests],
        sessions=sessions_of(requests),
        think_ns=np.array([-1 if r.think_ns is None else r.think_ns for r in requests], np.int64),
    )


def prompt_tokens(requests: Sequence[Request]) -> Ints:
    """Lay out the lengths of prompts, shape ``(requests,)``."""
    if isinstance(requests, Requests):
        return requests.num_prompt_tokens
    return np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)


def output_tokens(requests: Sequence[Request]) -> Ints:
    """Lay out the lengths of answers, shape ``(requests,)``."""
    if isinstance(requests, Requests):
        return requests.num_output_tokens
    return np.array([request.num_output_tokens for request in requests], dtype=np.int64)


def arrivals_ns(requests: Sequence[Request]) -> Ints:
    """Lay out the arrivals, shape ``(requests,)``."""
    if isinstance(requests, Requests):
        return requests.arrival_ns
    return np.array([request.arrival_ns for request in requests], dtype=np.int64)


def sessions_of(requests: Sequence[Request]) -> tuple[Ints, Sequence[str]]:
    """Give each one's session by number, shape ``(requests,)``, -1 for none; and their names."""
    if isinstance(requests, Requests):
        return requests.sessions or (requests.session_numbers(slice(None)), ())
    number_of: dict[str, int] = {}
    numbers = [
        -1 if r.session_id is None else number_of.setdefault(r.session_id, len(number_of))
        for r in requests
    ]
    return np.array(numbers, dtype=np.int64), list(number_of)


def num_sessions(requests: Sequence[Request]) -> int:
    """Count the different sessions."""
    if isinstance(requests, Requests):
        if requests.sessions is None:
            return 0
        numbers, names = requests.sessions
        is_used = zeros(len(names), np.bool_)
        for part in pieces(len(numbers)):
            is_used[numbers[part][numbers[part] >= 0]] = True
        return int(is_used.sum())
    return len({request.session_id for request in requests} - {None})
