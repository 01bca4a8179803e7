"""Prefix tree: turns streams of ids into segments, so that equal prefixes have equal names.

Memory grows with what is distinct, not with what is read: a prompt that repeats a thousand ids of
an earlier one costs a few numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.mapped import Column, copy, pieces, zeros
from workloads.content import Ints, Segments, cut
from workloads.runs import distinct

if TYPE_CHECKING:
    from workloads.compiled_tree import CompiledTree

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
    compile_from
        Prompts from which on the tree goes on as a `CompiledTree`.

    Attributes
    ----------
    root_of
        Roots by what keeps the streams of each apart.
    """

    __slots__ = (
        "_base",
        "_child",
        "_compile_from",
        "_compiled",
        "_last",
        "_length",
        "_names",
        "_num_prompts",
        "_pool",
        "_start",
        "_unit",
        "root_of",
    )

    def __init__(self, names: Names, unit: int = 1, compile_from: int = 50_000) -> None:
        self._names = names
        self._unit = unit
        self._compile_from = compile_from
        self._compiled: CompiledTree | None = None
        self._num_prompts = 0
        self.root_of: dict[object, int] = {}
        # The segment that goes on with an id after a prefix: by the name of the prefix, which is
        # that of its last token, and the id. Roots have names too.
        self._child: dict[tuple[int, bytes], int] = {}
        # The ids of all segments, one behind the other: bytes are the quickest to compare. Where
        # each segment begins and how long it is, in bytes; and its first name.
        self._pool = bytearray()
        self._start, self._length, self._base = array("q"), array("q"), array("q")
        self._last: tuple[int, Ints, list[int], list[int]] = (-1, np.empty(0, np.int64), [], [])

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
            Of `root`, or the name of the last token of a stream that this one continues; see
            `extend` where that may lie inside a segment.

        Returns
        -------
        bases, ends
            Of the segments, in tokens.
        """
        self._count(bool(len(ids)))
        if self._compiled is not None:
            return self._compiled.insert(ids, root)
        num_done, bases, ends = self._as_before(ids, root)
        name = root
        if num_done:
            name = bases[-1] + ends[-1] - (ends[-2] if len(ends) > 1 else 0) - 1
        rest = ids[num_done:].tobytes()
        self._walk(
            rest, 0, len(rest), name=name, num_tokens=num_done * self._unit, bases=bases, ends=ends
        )
        self._last = (root, ids, bases, ends)
        return bases, ends

    def extend(self, bases: list[int], ends: list[int], ids: Ints) -> tuple[list[int], list[int]]:
        """Follow ids on from the end of a path, and add what is new.

        Parameters
        ----------
        bases, ends
            Of at least one segment. Where the last is left inside, at the end of an id, what
            others have there is followed too.
        ids
            Shape ``(n,)``, any int64 values.

        Returns
        -------
        bases, ends
            Of the whole path, in tokens.
        """
        bases, ends = list(bases), list(ends)
        name = bases[-1] + ends[-1] - (ends[-2] if len(ends) > 1 else 0) - 1
        rest = self._ids_from(name + 1, within_segment_of=name)
        num_common = min(len(rest), len(ids))
        differs = np.flatnonzero(rest[:num_common] != ids[:num_common])
        num_common = int(differs[0]) if len(differs) else num_common
        ends[-1] += num_common * self._unit
        start = ends[-1]
        more_bases, more_ends = self.insert(ids[num_common:], name + num_common * self._unit)
        return [*bases, *more_bases], [*ends, *(start + end for end in more_ends)]

    def ids_of(self, bases: list[int], ends: list[int], count: int) -> Ints:
        """Give back the first ids of a path that was inserted from a root."""
        found: list[Ints] = []
        start = 0
        for base, end in zip(bases, ends, strict=True):
            wanted = min(count, -(-(end - start) // self._unit))
            if not wanted:
                break
            found.append(self._ids_from(base)[:wanted])
            count -= wanted
            start = end
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _ids_from(self, name: int, within_segment_of: int | None = None) -> Ints:
        """Give the ids of a segment from the one on whose first token has a name, if there is."""
        if self._compiled is not None:
            base, start, length = self._compiled.segment_of(name)
        else:
            segment = bisect_right(self._base, name) - 1
            if segment < 0:
                return np.empty(0, dtype=np.int64)
            base = self._base[segment]
            start, length = self._start[segment] // _ID, self._length[segment] // _ID
        offset = name - base
        if offset % self._unit or (within_segment_of is not None and within_segment_of < base):
            return np.empty(0, dtype=np.int64)
        first = min(offset // self._unit, length)
        if self._compiled is not None:
            return self._compiled.ids[start + first : start + length]
        part = self._pool[(start + first) * _ID : (start + length) * _ID]
        return np.frombuffer(bytes(part), dtype=np.int64)

    def _walk(
        self,
        ids: bytes,
        at: int,
        stop: int,
        *,
        name: int,
        num_tokens: int,
        bases: list[int],
        ends: list[int],
    ) -> None:
        """Follow ``ids[at:stop]`` on from a prefix of a name and a length; add to its path."""
        child_of, pool, unit = self._child, self._pool, self._unit
        while at < stop:
            key = (name, ids[at : at + _ID])
            child = child_of.get(key)
            if child is None:
                child = child_of[key] = len(self._start)
                common = stop - at
                self._start.append(len(pool))
                self._length.append(common)
                self._base.append(self._names.take(common // _ID * unit))
                pool += ids[at:stop]
            else:
                start = self._start[child]
                common = min(self._length[child], stop - at)
                if pool[start : start + common] != ids[at : at + common]:
                    common = _num_common(pool, start, ids, at, common)
            at += common
            num_new_tokens = common // _ID * unit
            num_tokens += num_new_tokens
            base = self._base[child]
            bases.append(base)
            ends.append(num_tokens)
            name = base + num_new_tokens - 1

    def insert_many(
        self,
        ids: Ints,
        num_ids: Ints,
        root: int,
        *,
        num_prompt_tokens: Ints,
        num_output_tokens: Ints,
    ) -> Paths:
        """Follow prompts from a root, add what is new, and let each have an answer of its own.

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
        self._count(len(num_ids))
        if self._compiled is not None:
            return self._compiled.insert_many(
                ids,
                num_ids,
                root,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=num_output_tokens,
            )
        counts: list[int] = []
        bases: list[int] = []
        ends: list[int] = []
        whole = ids.tobytes()
        at = 0
        for count, prompt, output in zip(
            num_ids.tolist(), num_prompt_tokens.tolist(), num_output_tokens.tolist(), strict=True
        ):
            first = len(bases)
            stop = at + count * _ID
            self._walk(whole, at, stop, name=root, num_tokens=0, bases=bases, ends=ends)
            at = stop
            ends[-1] = prompt
            if output:
                bases.append(self._names.take(output))
                ends.append(prompt + output)
            counts.append(len(bases) - first)
        return Paths(
            np.array(counts, dtype=np.int64),
            np.array(bases, dtype=np.int64),
            np.array(ends, dtype=np.int64),
        )

    def _count(self, num_prompts: int) -> None:
        """Take note of prompts that come now."""
        self._num_prompts += num_prompts
        if self._compiled is None and self._num_prompts >= self._compile_from:
            self._compile()

    def _compile(self) -> None:
        """Go on in compiled code, which takes half a second to load."""
        from workloads.compiled_tree import CompiledTree  # noqa: PLC0415 - slow to import

        segments = [np.array(part, dtype=np.int64) for part in (self._start, self._length)]
        self._compiled = CompiledTree(
            self._names,
            self._unit,
            pool=np.frombuffer(self._pool, dtype=np.int64),
            starts=segments[0] // _ID,
            lengths=segments[1] // _ID,
            bases=np.array(self._base, dtype=np.int64),
            parents=np.fromiter((name for name, _ in self._child), np.int64, len(self._child)),
        )
        self._child = {}
        self._pool = bytearray()
        self._start, self._length, self._base = array("q"), array("q"), array("q")

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

    def num_ids_after_several_prefixes(
        self, used: Iterable[tuple[Ints, Ints]] | None = None
    ) -> int:
        """Count the different ids that stand after more than one prefix.

        Parameters
        ----------
        used
            First names of segments and the tokens that are had of each, where not all that was
            inserted counts; other names may be among them.
        """
        if self._compiled is not None:
            ids = self._compiled.ids
            lengths, bases = self._compiled.lengths, self._compiled.bases
        else:
            ids = np.frombuffer(bytes(self._pool), dtype=np.int64)
            lengths = np.array(self._length, dtype=np.int64) // _ID
            bases = np.array(self._base, dtype=np.int64)
        if used is None or not len(bases):
            return num_repeated(ids)
        longest = zeros(len(bases))
        for names, num_tokens in used:
            segment = np.searchsorted(bases, names, side="right") - 1
            is_one = bases[segment] == names
            np.maximum.at(longest, segment[is_one], -(-num_tokens[is_one] // self._unit))
        kept = Column()
        at = 0
        for part in pieces(len(bases), 1 << 14):
            counts = lengths[part]
            offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            some = ids[at : at + len(offset)]
            kept.extend(some[offset < np.repeat(longest[part], counts)])
            at += len(offset)
        return num_repeated(kept.array)


_ID = 8
"""Bytes of an id."""


def _num_common(pool: bytearray, start: int, ids: bytes, at: int, most: int) -> int:
    """Count the bytes of whole ids that two runs have in common; they do not have all of them."""
    low, high = 0, most // _ID - 1
    while low < high:
        middle = (low + high + 1) // 2
        if (
            pool[start + low * _ID : start + middle * _ID]
            == ids[at + low * _ID : at + middle * _ID]
        ):
            low = middle
        else:
            high = middle - 1
    return low * _ID


def num_repeated(ids: Ints) -> int:
    """Count the different numbers that occur more than once, in bounded memory."""
    counts = distinct(copy(ids))[1]
    return sum(int((counts[part] > 1).sum()) for part in pieces(len(counts)))


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


def with_answer(
    bases: list[int], ends: list[int], num_prompt_tokens: int, num_output_tokens: int, names: Names
) -> Segments:
    """Make a path a prompt, and let it go on with an answer that nobody else has."""
    prompt = with_tail(bases, ends, num_prompt_tokens, names)
    if not num_output_tokens:
        return prompt
    return with_tail(*prompt.path(), num_prompt_tokens + num_output_tokens, names)
