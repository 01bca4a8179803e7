"""Prefix tree: turns streams of ids into segments, so that equal prefixes have equal names.

Memory grows with what is distinct, not with what is read: a prompt that repeats a thousand ids of
an earlier one costs a few numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from workloads.content import Ints, Segments, cut

_CHUNK = 1 << 18
_LONG = 64
"""Ids from which on a comparison with the stream before takes less than a walk."""


class Names:
    """Gives out ranges of names that do not overlap; one for a workload."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0

    def take(self, count: int) -> int:
        """Take ``count`` names and return the first."""
        first = self.next
        self.next += count
        return first


class PrefixTree:
    """A radix tree over ids, each of which stands for ``unit`` tokens after the ids before it.

    Parameters
    ----------
    names
        The workload's own.
    unit
        Tokens that an id stands for.
    """

    __slots__ = (
        "_base",
        "_child",
        "_chunks",
        "_fill",
        "_last",
        "_length",
        "_names",
        "_start",
        "_unit",
    )

    def __init__(self, names: Names, unit: int = 1) -> None:
        self._names = names
        self._unit = unit
        # The segment that goes on with an id after a prefix: by the name of the prefix, which is
        # that of its last token, and the id. Roots have names too.
        self._child: dict[tuple[int, int], int] = {}
        self._chunks: list[Ints] = []
        self._fill = _CHUNK
        self._last: tuple[int, Ints, list[int], list[int]] = (-1, np.empty(0, np.int64), [], [])
        self._start, self._length, self._base = array("q"), array("q"), array("q")

    def root(self) -> int:
        """Make a root of its own: what is inserted under different roots shares nothing."""
        return self._names.take(1)

    def insert(self, ids: Ints, root: int) -> tuple[list[int], list[int]]:
        """Follow a stream from a root and add what is new.

        Parameters
        ----------
        ids
            Shape ``(n,)``, any int64 values.
        root
            Of `root`, or the name of the last token of a stream that this one continues.

        Returns
        -------
        bases, ends
            Of the segments, in tokens.
        """
        unit, num_ids = self._unit, len(ids)
        at, bases, ends = self._as_before(ids, root)
        name = bases[-1] + ends[-1] - (ends[-2] if len(ends) > 1 else 0) - 1 if at else root
        while at < num_ids:
            child = self._child.get((name, int(ids[at])))
            if child is None:
                child = self._child[(name, int(ids[at]))] = self._add(ids[at:])
                common = num_ids - at
            else:
                own = self._ids(child)[: num_ids - at]
                differs = own != ids[at : at + len(own)]
                common = int(differs.argmax())
                if not differs[common]:
                    common = len(own)
            at += common
            base = self._base[child]
            bases.append(base)
            ends.append(at * unit)
            name = base + common * unit - 1
        self._last = (root, ids, bases, ends)
        return bases, ends

    def _as_before(self, ids: Ints, root: int) -> tuple[int, list[int], list[int]]:
        """Take over segments that a stream has in common with the one before it.

        Turns of a session follow one another and differ in their ends. The last common segment is
        left to be walked, since it may go on further than the stream before did.
        """
        last_root, last_ids, bases, ends = self._last
        if root != last_root or len(ids) < _LONG:
            return 0, [], []
        num_common = min(len(ids), len(last_ids))
        if num_common:
            differs = ids[:num_common] != last_ids[:num_common]
            first = int(differs.argmax())
            num_common = first if differs[first] else num_common
        count = bisect_left(ends, num_common * self._unit)
        at = ends[count - 1] // self._unit if count else 0
        return at, bases[:count], ends[:count]

    def num_ids_after_several_prefixes(self) -> int:
        """Count the different ids that stand after more than one prefix."""
        if not len(self._start):
            return 0
        ids = np.concatenate([self._ids(segment) for segment in range(len(self._start))])
        return int((np.unique(ids, return_counts=True)[1] > 1).sum())

    def _add(self, ids: Ints) -> int:
        length = len(ids)
        if self._fill + length > _CHUNK:
            self._chunks.append(np.empty(max(length, _CHUNK), dtype=np.int64))
            self._fill = 0
        self._chunks[-1][self._fill : self._fill + length] = ids
        self._start.append((len(self._chunks) - 1) << 32 | self._fill)
        self._length.append(length)
        self._base.append(self._names.take(length * self._unit))
        self._fill += length
        return len(self._start) - 1

    def _ids(self, segment: int) -> Ints:
        chunk, first = divmod(self._start[segment], 1 << 32)
        return self._chunks[chunk][first : first + self._length[segment]]


def with_tail(bases: list[int], ends: list[int], num_tokens: int, names: Names) -> Segments:
    """Make a path a content of ``num_tokens``: cut it, or go on with tokens nobody else has."""
    bases, ends = cut(bases, ends, num_tokens)
    num_named = ends[-1] if ends else 0
    if num_named < num_tokens:
        bases = [*bases, names.take(num_tokens - num_named)]
        ends = [*ends, num_tokens]
    # One array for both: a trace holds a million of these.
    both = np.array(bases + ends, dtype=np.int64)
    return Segments(both[: len(bases)], both[len(bases) :])
