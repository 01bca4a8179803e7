"""Columns of numbers that grow, in memory or, when they are large, in files: see `sim.mapped`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sim import mapped

_SMALL = 1 << 10


class Column:
    """Numbers of one kind, one after the other; room that is not filled yet is 0.

    Parameters
    ----------
    large
        Bytes from which on they lie in a file.
    dtype
        Of the numbers, by default whole ones of 64 bits.
    """

    __slots__ = ("_file", "_large", "_room", "_size")

    def __init__(self, large: int | None = None, dtype: DTypeLike = np.int64) -> None:
        self._large = mapped.LARGE if large is None else large
        self._room: NDArray[Any] = np.zeros(_SMALL, dtype=dtype)
        self._size = 0
        self._file: Any = None

    def __del__(self) -> None:
        # The pages stay for as long as anybody has the numbers.
        if getattr(self, "_file", None) is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return int(self._room[index if index >= 0 else index + self._size])

    def __setitem__(self, index: int, value: int) -> None:
        if not 0 <= index < self._size:
            raise IndexError(index)
        self._room[index] = value

    def append(self, value: int) -> None:
        """Add a number."""
        if self._size == len(self._room):
            self.reserve(self._size + 1)
        self._room[self._size] = value
        self._size += 1

    def extend(self, values: NDArray[Any] | list[int]) -> None:
        """Add numbers."""
        stop = self._size + len(values)
        if stop > len(self._room):
            self.reserve(stop)
        self._room[self._size : stop] = values
        self._size = stop

    def reserve(self, size: int) -> NDArray[Any]:
        """Make room for at least ``size`` numbers and return all of it, filled or not.

        What was returned before is no longer the column's.

        Raises
        ------
        UsageError
            There is no room on disk.
        """
        if size > len(self._room):
            self._grow(max(size, 2 * len(self._room)))
        return self._room

    def fill_to(self, size: int) -> None:
        """Take the first ``size`` numbers of the room as filled."""
        assert size <= len(self._room)
        self._size = size

    @property
    def array(self) -> NDArray[Any]:
        """All numbers, shape ``(len,)``, by reference as long as the column does not grow."""
        return self._room[: self._size]

    def _grow(self, size: int) -> None:
        dtype = self._room.dtype
        num_bytes = size * dtype.itemsize
        if num_bytes < self._large:
            room = np.zeros(size, dtype=dtype)
            room[: self._size] = self._room[: self._size]
            self._room = room
            return
        if self._file is None:
            self._file = mapped.new_file()
            self._room = self._room[: self._size]
            mapped.write(self._file, self._room)
        self._room = np.frombuffer(mapped.map_file(self._file, num_bytes), dtype=dtype)


def counted(count: int) -> NDArray[np.int64]:
    """Give the numbers from 0 up, shape ``(count,)``."""
    numbers = mapped.zeros(count)
    for part in mapped.pieces(count):
        numbers[part] = np.arange(part.start, part.stop)
    return numbers


def picked(values: NDArray[Any], which: slice | NDArray[np.int64]) -> NDArray[Any]:
    """Give some of an array, in a file if they are many; of a slice by reference."""
    if isinstance(which, slice):
        return values[which]
    found = mapped.zeros(len(which), values.dtype)
    for part in mapped.pieces(len(which)):
        found[part] = values[which[part]]
    return found


def is_sorted(values: NDArray[np.int64]) -> bool:
    """Whether numbers ascend."""
    return all(
        bool((np.diff(values[max(part.start - 1, 0) : part.stop]) >= 0).all())
        for part in mapped.pieces(len(values))
    )


def stable_order(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the places of numbers in ascending order; of equal ones in their own."""
    if is_sorted(values):
        return counted(len(values))
    return mapped.copy(np.argsort(values, kind="stable"))
