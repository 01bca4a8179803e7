"""Large arrays in files that are mapped to memory, so that what does not fit it lies on disk.

A file's pages are the system's to keep or to write out. What grows with the requests of a trace is
kept so, in files without a name in the folder that ``TMPDIR`` names; they are gone when nobody has
the array any more, and when the process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sim.errors import UsageError

LARGE = 4 << 20
"""Bytes from which on an array lies in a file."""

AT_ONCE = 1 << 18
"""Rows of a few numbers that are worked on at a time."""

_SMALL = 1 << 10
"""Rows that a column has room for when it is new."""


def zeros(count: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Make an array of zeros, shape ``(count,)``, in a file if it is large.

    Raises
    ------
    UsageError
        There is no room on disk.
    """
    dtype = np.dtype(dtype)
    num_bytes = count * dtype.itemsize
    if num_bytes < LARGE:
        return np.zeros(count, dtype=dtype)
    with new_file() as file:
        return np.frombuffer(map_file(file, num_bytes), dtype=dtype)


def copy(values: NDArray[Any]) -> NDArray[Any]:
    """Copy an array of one dimension, into a file if it is large."""
    copied = zeros(len(values), values.dtype)
    copied[:] = values
    return copied


def full(count: int, value: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Make an array of one number throughout, in a file if it is large."""
    made = zeros(count, dtype)
    made.fill(value)
    return made


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Put arrays of one kind one behind the other, in a file if they are large together."""
    whole = zeros(sum(map(len, parts)), parts[0].dtype)
    return np.concatenate(parts, out=whole)


def filled(
    count: int, make: Callable[[slice], NDArray[Any]], dtype: DTypeLike = np.int64
) -> NDArray[Any]:
    """Make an array piece by piece, in a file if it is large.

    Parameters
    ----------
    count
        Its length.
    make
        Gives the numbers of a slice. What it works on in between is as short.
    dtype
        Of the numbers.
    """
    made = zeros(count, dtype)
    for part in pieces(count):
        made[part] = make(part)
    return made


def new_file() -> IO[bytes]:
    """Make a file without a name, gone when it is closed and no longer mapped."""
    try:
        file: IO[bytes] = tempfile.TemporaryFile(prefix="prefixsim-")  # noqa: SIM115 - the caller's
    except OSError as error:
        raise _no_room(0, error) from None
    return file


def write(file: IO[bytes], values: NDArray[Any]) -> None:
    """Let a file begin with the bytes of an array.

    Raises
    ------
    UsageError
        There is no room on disk.
    """
    try:
        file.write(values.data)
        file.flush()
    except OSError as error:
        raise _no_room(values.nbytes, error) from None


def map_file(file: IO[bytes], num_bytes: int) -> mmap.mmap:
    """Give a file a size, on disk too, and map all of it; what is added is 0.

    Raises
    ------
    UsageError
        There is no room on disk.
    """
    try:
        _allocate(file.fileno(), num_bytes)
        return mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise _no_room(num_bytes, error) from None


def pieces(count: int, size: int | None = None) -> Iterator[slice]:
    """Cut ``count`` rows into slices of a bounded size, to work on one at a time."""
    size = AT_ONCE if size is None else size
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def counted(count: int) -> NDArray[np.int64]:
    """Give the numbers from 0 up, shape ``(count,)``."""
    numbers = zeros(count)
    for part in pieces(count):
        numbers[part] = np.arange(part.start, part.stop)
    return numbers


def picked(values: NDArray[Any], which: slice | NDArray[np.int64]) -> NDArray[Any]:
    """Give some of an array, in a file if they are many; of a slice by reference."""
    if isinstance(which, slice):
        return values[which]
    found = zeros(len(which), values.dtype)
    for part in pieces(len(which)):
        found[part] = values[which[part]]
    return found


def is_sorted(values: NDArray[np.int64]) -> bool:
    """Whether numbers ascend."""
    return all(
        bool((np.diff(values[max(part.start - 1, 0) : part.stop]) >= 0).all())
        for part in pieces(len(values))
    )


def stable_order(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the places of numbers in ascending order; of equal ones in their own."""
    if is_sorted(values):
        return counted(len(values))
    return copy(np.argsort(values, kind="stable"))


class Column:
    """Numbers or records of one kind that come one after the other.

    They lie in memory or, when they are many, in a file. Room that is not filled yet is 0.

    Parameters
    ----------
    large
        Bytes from which on they lie in a file.
    dtype
        Of each, by default a whole number of 64 bits.
    """

    __slots__ = ("_file", "_large", "_room", "_size")

    def __init__(self, large: int | None = None, dtype: DTypeLike = np.int64) -> None:
        self._large = LARGE if large is None else large
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

    def append(self, value: int | NDArray[Any]) -> None:
        """Add a number, or a record as an array without dimensions."""
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
            self._file = new_file()
            self._room = self._room[: self._size]
            write(self._file, self._room)
        self._room = np.frombuffer(map_file(self._file, num_bytes), dtype=dtype)


def _no_room(num_bytes: int, error: OSError) -> UsageError:
    return UsageError(
        f"{_folder()} cannot take what the trace needs there, {num_bytes:,} bytes for one of its"
        f" columns ({error.strerror or error}); let TMPDIR name a folder with more room, or read"
        " less with --num-requests."
    )


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "no temporary folder"


def _allocate(file: int, size: int) -> None:
    """Take room on disk at once: a page without any would end the process when it is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:  # macOS
        os.ftruncate(file, size)
