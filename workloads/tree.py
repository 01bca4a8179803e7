"""Prefix tree: turns streams of ids into segments, so that equal prefixes have equal names.

Memory grows with what is distinct, not with what is read: a prompt that repeats a thousand ids of
an earlier one costs a few numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from workloads.column import pieces
from workloads.content import Ints, Segments, cut

_SMALL = 1 << 10
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


@dataclass(frozen=True, slots=True)
class Paths:
    """Prompts and answers of several requests: segments of one behind those of the other.

    Attributes
    ----------
    counts
        Segments of each.
    bases, ends
        Of all, see `Segments`.
    """

    counts: Ints
    bases: Ints
    ends: Ints


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
        "_fill",
        "_last",
        "_length",
        "_names",
        "_pool",
        "_start",
        "_unit",
    )

    def __init__(self, names: Names, unit: int = 1) -> None:
        self._names = names
        self._unit = unit
        # The segment that goes on with an id after a prefix: by the name of the prefix, which is
        # that of its last token, and the id. Roots have names too.
        self._child: dict[tuple[int, int], int] = {}
        # The ids of all segments, one behind the other.
        self._pool: Ints = np.empty(_SMALL, dtype=np.int64)
        self._fill = 0
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
        child_of, starts, lengths, first_names = self._child, self._start, self._length, self._base
        while at < num_ids:
            key = (name, int(ids[at]))
            child = child_of.get(key)
            if child is None:
                child = child_of[key] = self._add(ids[at:])
                common = num_ids - at
            else:
                start = starts[child]
                common = min(lengths[child], num_ids - at)
                own, wanted = self._pool[start : start + common], ids[at : at + common]
                # Most segments are followed to their ends: comparing bytes tells that soonest.
                if own.data != wanted.data:
                    common = int((own != wanted).argmax())
            at += common
            base = first_names[child]
            bases.append(base)
            ends.append(at * unit)
            name = base + common * unit - 1
        self._last = (root, ids, bases, ends)
        return bases, ends

    def insert_many(
        self,
        ids: Ints,
        num_ids: Ints,
        root: int,
        num_prompt_tokens: Ints,
        num_output_tokens: Ints,
    ) -> Paths:
        """Follow prompts from a root, add what is new, and let each go on with an answer of its own.

        Parameters
        ----------
        ids
            Of all prompts, one behind the other.
        num_ids
            Of each prompt, as many as its tokens need; the last may stand for less than ``unit``.
        root
            Of `root`.
        num_prompt_tokens, num_output_tokens
            Of each, shape ``(n,)``.
        """
        counts: list[int] = []
        all_bases: list[int] = []
        all_ends: list[int] = []
        first = 0
        for count, prompt, output in zip(
            num_ids.tolist(), num_prompt_tokens.tolist(), num_output_tokens.tolist(), strict=True
        ):
            bases, ends = self.insert(ids[first : first + count], root)
            first += count
            all_bases += bases
            all_ends += ends
            all_ends[-1] = prompt
            if output:
                all_bases.append(self._names.take(output))
                all_ends.append(prompt + output)
            counts.append(len(bases) + (output > 0))
        return Paths(
            np.array(counts, dtype=np.int64),
            np.array(all_bases, dtype=np.int64),
            np.array(all_ends, dtype=np.int64),
        )

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
        return num_repeated(self._pool[: self._fill])

    def _add(self, ids: Ints) -> int:
        length = len(ids)
        start, stop = self._fill, self._fill + length
        if stop > len(self._pool):
            pool = np.empty(max(stop, 2 * len(self._pool)), dtype=np.int64)
            pool[:start] = self._pool[:start]
            self._pool = pool
        self._pool[start:stop] = ids
        self._start.append(start)
        self._length.append(length)
        self._base.append(self._names.take(length * self._unit))
        self._fill = stop
        return len(self._start) - 1


_AT_ONCE = 1 << 22
"""Numbers that are sorted at a time."""


def num_repeated(ids: Ints) -> int:
    """Count the different numbers that occur more than once, in bounded memory."""
    num_parts = -(-len(ids) // _AT_ONCE)
    count = 0
    for part in range(num_parts):
        # Equal numbers fall into the same part.
        some = [_of_part(ids[piece], part, num_parts) for piece in pieces(len(ids))]
        count += int((np.unique(np.concatenate(some), return_counts=True)[1] > 1).sum())
    return count


def _of_part(ids: Ints, part: int, num_parts: int) -> Ints:
    if num_parts == 1:
        return ids
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ids[(mixed >> np.uint64(32)) % np.uint64(num_parts) == part]


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
