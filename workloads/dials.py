"""What generators share: checks of their dials, popularity, requests from pieces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sim.errors import UsageError
from sim.types import Request
from workloads.content import Ints, Segments
from workloads.fields import MAX_NS
from workloads.tree import Names

MAX_REQUESTS = 10**9


def check_dial(dial: str, value: float, low: float, high: float) -> None:
    """Refuse a value out of range.

    Raises
    ------
    UsageError
        Naming the dial and its range.
    """
    if not low <= value <= high:
        raise UsageError(f"{dial} is {value:g}, but must lie from {low:g} to {high:g}; change it.")


def check_rate(rate: float, dial: str = "rate", things: str = "requests") -> None:
    """Refuse a rate at which nothing would ever arrive."""
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"{dial} is {rate:g}, but must be above 0 {things} per second; raise it.")


def draw_popular(num_things: int, zipf: float, size: int, rng: np.random.Generator) -> Ints:
    """Draw things, the k-th of which is ``k ** -zipf`` times as likely as the first.

    ``zipf`` 0 draws all alike.

    Returns
    -------
    int64 array of shape ``(size,)``, each from 0 to ``num_things - 1``.
    """
    if zipf == 0:
        return rng.integers(num_things, size=size)
    weights = np.arange(1, num_things + 1, dtype=np.float64) ** -zipf
    edges = np.cumsum(weights) / weights.sum()
    drawn = np.searchsorted(edges, rng.random(size), side="right")
    return np.minimum(drawn, num_things - 1).astype(np.int64)


class Stream:
    """A growing history: pieces of text, each new unless it is given."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.bases: list[int] = []
        self.ends: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Length so far."""
        return self.ends[-1] if self.ends else 0

    def add(self, num_tokens: int, base: int | None = None) -> None:
        """Go on with a piece; ``base`` names one that others have after the same prefix."""
        if num_tokens:
            self.bases.append(self._names.take(num_tokens) if base is None else base)
            self.ends.append(self.num_tokens + num_tokens)

    def copy(self) -> Stream:
        """Make a stream that goes on from here by itself."""
        other = Stream(self._names)
        other.bases, other.ends = list(self.bases), list(self.ends)
        return other

    def content(self) -> Segments:
        """Make the stream so far a content."""
        return Segments(np.array(self.bases, np.int64), np.array(self.ends, np.int64))


def sorted_requests(requests: list[Request]) -> tuple[Request, ...]:
    """Put requests in order of arrival and name them by their place.

    Raises
    ------
    UsageError
        If the last arrives later than can be simulated.
    """
    requests.sort(key=lambda request: request.arrival_ns)
    if requests and requests[-1].arrival_ns > MAX_NS:
        raise UsageError(
            "the workload lasts longer than 292 years; raise session_rate or lower think."
        )
    return tuple(replace(request, request_id=str(index)) for index, request in enumerate(requests))


def to_ns(seconds: float) -> int:
    """Round a time to whole ns."""
    return round(seconds * 1e9)
