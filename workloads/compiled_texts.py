"""The numbers of many texts: `workloads.texts.TextNumbers` over columns, compiled.

A text is found in an open table of slots, each the number of a text plus 1, by a hash of its bytes;
where hashes agree, the bytes are compared. Columns that grow large lie in files.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.mapped import Column
from workloads.compiled_tree import Integer
from workloads.compiling import compiled, entry
from workloads.content import Ints
from workloads.texts import Bytes, TextColumn


class _Room(NamedTuple):
    """The table with room for what is to come.

    Attributes
    ----------
    slots
        A power of two of them; 0 for a free one.
    hashes
        Of each text.
    data, stops
        See `workloads.texts.Texts`.
    """

    slots: Ints
    hashes: Ints
    data: Bytes
    stops: Ints


class CompiledNumbers:
    """Takes over numbers that have become many.

    Parameters
    ----------
    column
        The texts so far, all different; gets those that are added.
    """

    def __init__(self, column: TextColumn) -> None:
        self._column = column
        self._hashes = Column()
        self._slots = Column()
        hashes = self._hashes.reserve(len(column))
        _hash_all(column.data.array, column.stops.array, hashes)
        self._hashes.fill_to(len(column))

    def find(self, data: Bytes, stops: Ints) -> Ints:
        """Give the number of each text, as `workloads.texts.encode` spells it; -1 for none."""
        numbers = np.empty(len(stops), dtype=np.int64)
        _find(self._room(0, 0), data, stops, numbers)
        return numbers

    def add(self, data: Bytes, stops: Ints) -> Ints:
        """Give the number of each text; those that were not there yet are added."""
        numbers = np.empty(len(stops), dtype=np.int64)
        room = self._room(len(stops), len(data))
        counts = np.array([len(self._column.stops), len(self._column.data)], dtype=np.int64)
        _add(room, data, stops, numbers, counts)
        num_texts, num_bytes = counts.tolist()
        self._hashes.fill_to(num_texts)
        self._column.stops.fill_to(num_texts)
        self._column.data.fill_to(num_bytes)
        return numbers

    def _room(self, num_texts: int, num_bytes: int) -> _Room:
        """Make room for texts that are added."""
        size = len(self._hashes) + num_texts
        hashes = self._hashes.reserve(size)
        data = self._column.data.reserve(len(self._column.data) + num_bytes)
        stops = self._column.stops.reserve(size)
        if not len(self._slots) or 2 * size > len(self._slots):
            num_slots = max(1 << 10, len(self._slots))
            while 2 * size > num_slots:
                num_slots *= 2
            self._slots = Column()
            self._slots.reserve(num_slots)
            self._slots.fill_to(num_slots)
            _fill_slots(self._slots.array, self._hashes.array)
        return _Room(self._slots.array, hashes, data, stops)


@compiled
def _hash(data: Bytes, start: Integer, stop: Integer) -> Integer:
    """Mix the bytes of a text into 64 bits (FNV-1a, whose low bits are then stirred)."""
    mixed = np.uint64(0xCBF29CE484222325)
    for at in range(start, stop):
        mixed = (mixed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed ^ (mixed >> np.uint64(29)))


@compiled
def _slot_of(room: _Room, mixed: Integer, data: Bytes, start: Integer, stop: Integer) -> Integer:
    """Find the slot of a text, or the free one where it belongs."""
    mask = np.uint64(len(room.slots) - 1)
    slot = np.uint64(mixed) & mask
    while room.slots[slot]:
        number = room.slots[slot] - 1
        if room.hashes[number] == mixed:
            there = room.stops[number - 1] if number else 0
            if room.stops[number] - there == stop - start:
                same = 0
                while same < stop - start and room.data[there + same] == data[start + same]:
                    same += 1
                if same == stop - start:
                    break
        slot = (slot + np.uint64(1)) & mask
    return slot


@entry
def _hash_all(data: Bytes, stops: Ints, hashes: Ints) -> None:
    start: Integer = 0
    for number in range(len(stops)):
        hashes[number] = _hash(data, start, stops[number])
        start = stops[number]


@entry
def _fill_slots(slots: Ints, hashes: Ints) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(len(hashes)):
        slot = np.uint64(hashes[number]) & mask
        while slots[slot]:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number + 1


@entry
def _find(room: _Room, data: Bytes, stops: Ints, numbers: Ints) -> None:
    start: Integer = 0
    for index in range(len(stops)):
        slot = _slot_of(room, _hash(data, start, stops[index]), data, start, stops[index])
        numbers[index] = room.slots[slot] - 1
        start = stops[index]


@entry
def _add(room: _Room, data: Bytes, stops: Ints, numbers: Ints, counts: Ints) -> None:
    """Give texts their numbers; ``counts`` are texts and bytes in the table."""
    start: Integer = 0
    for index in range(len(stops)):
        stop = stops[index]
        mixed = _hash(data, start, stop)
        slot = _slot_of(room, mixed, data, start, stop)
        if not room.slots[slot]:
            number, at = counts[0], counts[1]
            for offset in range(stop - start):
                room.data[at + offset] = data[start + offset]
            room.stops[number] = at + stop - start
            room.hashes[number] = mixed
            room.slots[slot] = number + 1
            counts[0] += 1
            counts[1] += stop - start
        numbers[index] = room.slots[slot] - 1
        start = stop
