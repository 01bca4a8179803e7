"""The prefix tree of large traces: `workloads.tree.PrefixTree` over columns, compiled.

The child of a prefix is found in an open table of slots, each the number of a segment plus 1, by
the name of the prefix and the segment's first id. Columns that grow large lie in files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.mapped import Column
from workloads.compiling import compiled, entry
from workloads.content import Ints

if TYPE_CHECKING:
    from workloads.tree import Names, Paths

Integer = int | np.integer[Any]
"""What a compiled function takes or returns as a number."""


class _Room(NamedTuple):
    """Columns of the tree with room for what is to come.

    Attributes
    ----------
    slots
        A power of two of them; 0 for a free one.
    pool
        Ids of all segments, one behind the other.
    starts, lengths
        Of each segment in the pool, ids.
    bases, parents
        Its first name, and the name of the prefix before it.
    """

    slots: Ints
    pool: Ints
    starts: Ints
    lengths: Ints
    bases: Ints
    parents: Ints


class CompiledTree:
    """Takes over from a tree that has grown.

    Parameters
    ----------
    names
        The workload's own.
    unit
        Tokens that an id stands for.
    pool, starts, lengths, bases, parents
        Segments so far, in the order in which they were added.
    """

    def __init__(
        self,
        names: Names,
        unit: int,
        *,
        pool: Ints,
        starts: Ints,
        lengths: Ints,
        bases: Ints,
        parents: Ints,
    ) -> None:
        self._names = names
        self._unit = unit
        self._slots = Column()
        self._num_slots = 1 << 10
        self._pool = Column()
        self._segments = tuple(Column() for _ in range(4))
        self._pool.extend(pool)
        for column, values in zip(self._segments, (starts, lengths, bases, parents), strict=True):
            column.extend(values)

    @property
    def ids(self) -> Ints:
        """Ids of all segments."""
        return self._pool.array

    @property
    def lengths(self) -> Ints:
        """Of each segment, ids."""
        return self._segments[1].array

    @property
    def bases(self) -> Ints:
        """First name of each segment, ascending."""
        return self._segments[2].array

    def segment_of(self, name: int) -> tuple[int, int, int]:
        """Give base, place among all ids and length of the last segment that begins by a name."""
        segment = int(np.searchsorted(self.bases, name, side="right")) - 1
        if segment < 0:
            return name, 0, 0
        starts, lengths, bases, _ = self._segments
        return bases[segment], starts[segment], lengths[segment]

    def insert(self, ids: Ints, root: int) -> tuple[list[int], list[int]]:
        """Follow a stream from a root and add what is new; see `PrefixTree.insert`."""
        room = self._room(1, len(ids))
        bases, ends = np.empty((2, len(ids)), dtype=np.int64)
        counts = self._counts()
        count = _walk(ids, 0, len(ids), root, self._unit, room, counts, bases, ends, 0)
        self._take(counts)
        return bases[:count].tolist(), ends[:count].tolist()

    def insert_many(
        self,
        ids: Ints,
        num_ids: Ints,
        root: int,
        *,
        num_prompt_tokens: Ints,
        num_output_tokens: Ints,
    ) -> Paths:
        """Follow prompts from a root; see `PrefixTree.insert_many`."""
        from workloads.tree import Paths  # noqa: PLC0415 - it imports this module

        room = self._room(len(num_ids), len(ids))
        bases, ends = np.empty((2, len(ids) + len(num_ids)), dtype=np.int64)
        num_segments = np.empty(len(num_ids), dtype=np.int64)
        counts = self._counts()
        total = _walk_many(
            ids,
            num_ids,
            root,
            num_prompt_tokens,
            num_output_tokens,
            self._unit,
            room,
            counts,
            bases,
            ends,
            num_segments,
        )
        self._take(counts)
        return Paths(num_segments, bases[:total], ends[:total])

    def _room(self, num_streams: int, num_ids: int) -> _Room:
        """Make room for streams, each of which adds one segment at most."""
        size = len(self._segments[0]) + num_streams
        segments = [column.reserve(size) for column in self._segments]
        pool = self._pool.reserve(len(self._pool) + num_ids)
        if not len(self._slots) or 2 * size > self._num_slots:
            while 2 * size > self._num_slots:
                self._num_slots *= 2
            self._slots = Column()
            self._slots.fill_to(len(self._slots.reserve(self._num_slots)))
            _fill_slots(
                _Room(self._slots.array[: self._num_slots], pool, *segments),
                len(self._segments[0]),
            )
        return _Room(self._slots.array[: self._num_slots], pool, *segments)

    def _counts(self) -> Ints:
        return np.array([len(self._segments[0]), len(self._pool), self._names.next], np.int64)

    def _take(self, counts: Ints) -> None:
        num_segments, num_ids, self._names.next = counts.tolist()
        for column in self._segments:
            column.fill_to(num_segments)
        self._pool.fill_to(num_ids)


@compiled
def _slot_of(room: _Room, name: Integer, first: Integer) -> Integer:
    """Find the slot of the segment that goes on with an id after a prefix, or a free one."""
    mask = np.uint64(len(room.slots) - 1)
    mixed = np.uint64(name) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ np.uint64(first)) * np.uint64(0xC2B2AE3D27D4EB4F)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while room.slots[slot]:
        segment = room.slots[slot] - 1
        if room.parents[segment] == name and room.pool[room.starts[segment]] == first:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@entry
def _fill_slots(room: _Room, num_segments: Integer) -> None:
    for segment in range(num_segments):
        slot = _slot_of(room, room.parents[segment], room.pool[room.starts[segment]])
        room.slots[slot] = segment + 1


@entry
def _walk(
    ids: Ints,
    at: Integer,
    stop: Integer,
    name: Integer,
    unit: Integer,
    room: _Room,
    counts: Ints,
    out_bases: Ints,
    out_ends: Ints,
    out: Integer,
) -> Integer:
    """Follow ``ids[at:stop]`` from a root and write its path from ``out`` on; return its end.

    ``counts`` are segments, ids in the pool and names given out.
    """
    num_tokens = 0
    while at < stop:
        slot = _slot_of(room, name, ids[at])
        if room.slots[slot]:
            segment = room.slots[slot] - 1
            start = room.starts[segment]
            most = min(room.lengths[segment], stop - at)
            common = 1
            while common < most and room.pool[start + common] == ids[at + common]:
                common += 1
        else:
            segment, start = counts[0], counts[1]
            common = stop - at
            for offset in range(common):
                room.pool[start + offset] = ids[at + offset]
            room.starts[segment] = start
            room.lengths[segment] = common
            room.bases[segment] = counts[2]
            room.parents[segment] = name
            room.slots[slot] = segment + 1
            counts[0] += 1
            counts[1] += common
            counts[2] += common * unit
        at += common
        num_tokens += common * unit
        out_bases[out] = room.bases[segment]
        out_ends[out] = num_tokens
        out += 1
        name = room.bases[segment] + common * unit - 1
    return out


@entry
def _walk_many(
    ids: Ints,
    num_ids: Ints,
    root: Integer,
    num_prompt_tokens: Ints,
    num_output_tokens: Ints,
    unit: Integer,
    room: _Room,
    counts: Ints,
    out_bases: Ints,
    out_ends: Ints,
    num_segments: Ints,
) -> Integer:
    at: Integer = 0
    out: Integer = 0
    for index in range(len(num_ids)):
        first = out
        stop = at + num_ids[index]
        out = _walk(ids, at, stop, root, unit, room, counts, out_bases, out_ends, out)
        at = stop
        out_ends[out - 1] = num_prompt_tokens[index]
        if num_output_tokens[index]:
            out_bases[out] = counts[2]
            out_ends[out] = num_prompt_tokens[index] + num_output_tokens[index]
            counts[2] += num_output_tokens[index]
            out += 1
        num_segments[index] = out - first
    return out
