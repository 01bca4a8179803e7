"""Which request follows which in its session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.mapped import pieces, zeros
from sim.types import Request

Ints = NDArray[np.int64]

NONE = -1


def following_turns(requests: Sequence[Request]) -> tuple[Ints, NDArray[np.bool_]]:
    """Find the turn that follows each request.

    Parameters
    ----------
    requests
        The turns of a session in their order, other sessions in between.

    Returns
    -------
    following, is_first
        The place of the next turn among ``requests``, `NONE` for none, and whether no turn comes
        before; both of shape ``(requests,)``.
    """
    following = zeros(len(requests))
    is_first = zeros(len(requests), np.bool_)
    latest = _Latest()
    for part in pieces(len(requests)):
        following[part] = NONE
        is_first[part] = True
        sessions = _sessions_of(requests, part, latest)
        order = np.argsort(sessions, kind="stable")
        order = order[sessions[order] >= 0]
        sessions, places = sessions[order], order + part.start
        before = np.full(len(places), NONE)
        before[1:] = np.where(sessions[1:] == sessions[:-1], places[:-1], NONE)
        begins = before == NONE
        before[begins] = latest.of(sessions[begins])
        later = before != NONE
        following[before[later]] = places[later]
        is_first[places[later]] = False
        ends = np.append(begins[1:], True)[: len(places)]
        latest.set(sessions[ends], places[ends])
    return following, is_first


def places_of(flags: NDArray[np.bool_]) -> Iterator[int]:
    """Yield the places that are set, in order."""
    for part in pieces(len(flags)):
        yield from (np.flatnonzero(flags[part]) + part.start).tolist()


class _Latest:
    """The latest request of each session, by its number; numbers of those that have names only."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {}
        self._place = np.zeros(0, dtype=np.int64)

    def of(self, sessions: Ints) -> Ints:
        self._make_room(int(sessions.max(initial=NONE)) + 1)
        return self._place[sessions] - 1

    def set(self, sessions: Ints, places: Ints) -> None:
        self._place[sessions] = places + 1

    def _make_room(self, size: int) -> None:
        if size > len(self._place):
            room = zeros(max(size, 2 * len(self._place)))
            room[: len(self._place)] = self._place
            self._place = room


def _sessions_of(requests: Sequence[Request], part: slice, latest: _Latest) -> Ints:
    """Give the sessions of some requests numbers; `NONE` for none."""
    numbers = getattr(requests, "session_numbers", None)  # of whoever keeps requests in columns
    if numbers is not None:
        in_columns: Ints = numbers(part)
        return in_columns
    number_of = latest.number_of
    ids = (requests[index].session_id for index in range(part.start, part.stop))
    return np.array(
        [NONE if name is None else number_of.setdefault(name, len(number_of)) for name in ids],
        dtype=np.int64,
    )
