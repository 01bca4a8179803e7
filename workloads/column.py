"""Columns of numbers that grow, in memory or, when they are large, in files that are mapped to it.

A file's pages are the system's to keep or to write out, so that a trace of any size can be read:
what grows with its requests is on disk, in the folder that ``TMPDIR`` names.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError

Ints = NDArray[np.int64]

LARGE = 4 << 20
"""Bytes from which on a column lies in a file."""

_SMALL = 1 << 10


class Column:
    """Whole numbers of 64 bits, one after the other; room that is not filled yet is 0.

    Parameters
    ----------
    large
        Bytes from which on they lie in a file.
    """

    __slots__ = ("_file", "_large", "_room", "_size")

    def __init__(self, large: int | None = None) -> None:
        self._large = LARGE if large is None else large
        self._room: Ints = np.zeros(_SMALL, dtype=np.int64)
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

    def extend(self, values: Ints | list[int]) -> None:
        """Add numbers."""
        stop = self._size + len(values)
        if stop > len(self._room):
            self.reserve(stop)
        self._room[self._size : stop] = values
        self._size = stop

    def reserve(self, size: int) -> Ints:
        """Make room for at least ``size`` numbers and return all of it, filled or not.

        What was returned before is no longer the column's.
        """
        if size > len(self._room):
            self._grow(max(size, 2 * len(self._room)))
        return self._room

    def fill_to(self, size: int) -> None:
        """Take the first ``size`` numbers of the room as filled."""
        assert size <= len(self._room)
        self._size = size

    @property
    def array(self) -> Ints:
        """All numbers, shape ``(len,)``, by reference as long as the column does not grow."""
        return self._room[: self._size]

    def _grow(self, size: int) -> None:
        if size * 8 < self._large:
            room = np.zeros(size, dtype=np.int64)
            room[: self._size] = self._room[: self._size]
            self._room = room
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="prefixsim-")  # noqa: SIM115 - lives on
                self._file.write(self._room[: self._size].data)
                self._file.flush()
            _allocate(self._file.fileno(), size * 8)
            mapped = mmap.mmap(self._file.fileno(), size * 8)
        except OSError as error:
            raise UsageError(
                f"{_folder()} cannot take what the trace needs there, {size * 8:,}"
                f" bytes for one of its columns ({error.strerror or error}); let TMPDIR name a"
                " folder with more room, or read less with --num-requests."
            ) from None
        self._room = np.frombuffer(mapped, dtype=np.int64)


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


def pieces(count: int, size: int = 1 << 20) -> Iterator[slice]:
    """Cut ``count`` rows into slices of a bounded size, to work on one at a time."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
