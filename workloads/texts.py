"""Texts in columns of bytes, decoded when asked for; and which number a text has among them.

Ids and names of sessions grow with the rows of a trace, so they lie where its other columns do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from sim import mapped
from sim.mapped import Column, counted, picked
from workloads.content import Ints

if TYPE_CHECKING:
    from workloads.compiled_texts import CompiledNumbers

Bytes = NDArray[np.uint8]

_AT_ONCE = 1 << 12
"""Texts that are decoded together."""


class Texts(Sequence[str]):
    """Texts that lie in arrays.

    Parameters
    ----------
    data
        All texts, one behind the other, as `encode` spells them.
    stops
        Where each ends, shape ``(n,)``.
    order
        The numbers of those that this sequence holds, in its order; None for all.
    """

    __slots__ = ("data", "order", "stops")

    def __init__(self, data: Bytes, stops: Ints, order: Ints | None = None) -> None:
        self.data = data
        self.stops = stops
        self.order = order

    def __len__(self) -> int:
        return len(self.stops if self.order is None else self.order)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Texts: ...
    def __getitem__(self, index: int | slice) -> str | Texts:
        if isinstance(index, slice):
            return self.take(index)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        number = int(index) % len(self)
        if self.order is not None:
            number = int(self.order[number])
        start = self.stops[number - 1] if number else 0
        return decode(self.data[start : self.stops[number]].tobytes())

    def __iter__(self) -> Iterator[str]:
        for part in mapped.pieces(len(self), _AT_ONCE):
            if self.order is None:
                yield from self._in_a_row(part)
            else:
                yield from map(self.__getitem__, range(part.start, part.stop))

    def _in_a_row(self, part: slice) -> Iterator[str]:
        stops = self.stops[part]
        first = int(self.stops[part.start - 1]) if part.start else 0
        whole = self.data[first : int(stops[-1])].tobytes()
        start = 0
        for stop in (stops - first).tolist():
            yield decode(whole[start:stop])
            start = stop

    def take(self, which: slice | Ints) -> Texts:
        """Give some of them, or all in another order; the texts are shared with these."""
        if self.order is not None:
            order = picked(self.order, which)
        elif isinstance(which, slice):
            order = counted(len(self))[which]
        else:
            order = which
        return Texts(self.data, self.stops, order)

    def in_a_row(self) -> Texts:
        """Lay the texts out in their own order, one behind the other, and no others."""
        if self.order is None:
            first = int(self.stops[-1]) if len(self.stops) else 0
            return Texts(self.data[:first], self.stops)
        return column_of(self).texts()


class TextColumn:
    """Texts that are added to one another; see `Texts`."""

    __slots__ = ("data", "stops")

    def __init__(self) -> None:
        self.data = Column(dtype=np.uint8)
        self.stops = Column()

    def __len__(self) -> int:
        return len(self.stops)

    def append(self, text: str) -> None:
        """Add a text."""
        self.extend_encoded(*encode([text]))

    def extend(self, texts: Iterable[str]) -> None:
        """Add texts."""
        self.extend_encoded(*encode(texts))

    def extend_encoded(self, data: Bytes, stops: Ints) -> None:
        """Add texts that `encode` has spelt."""
        start = len(self.data)
        self.data.extend(data)
        self.stops.extend(stops + start)

    def __getitem__(self, number: int) -> str:
        return self.texts()[number]

    def texts(self) -> Texts:
        """All of them, by reference as long as no other is added."""
        return Texts(self.data.array, self.stops.array)


def encode(texts: Iterable[str]) -> tuple[Bytes, Ints]:
    """Spell texts in UTF-8, one behind the other, and say where each ends.

    A trace may hold lone surrogates, which UTF-8 has no room for.
    """
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    stops = np.fromiter(accumulate(map(len, parts)), np.int64, len(parts))
    return np.frombuffer(bytearray().join(parts), dtype=np.uint8), stops


def decode(data: bytes) -> str:
    """Read a text that `encode` has spelt."""
    return data.decode("utf-8", "surrogatepass")


class TextNumbers:
    """Numbers different texts in the order in which they come: equal numbers for equal texts only.

    Texts are compared as such, so that different ones stay different.

    Parameters
    ----------
    compile_from
        Texts from which on they are looked for in compiled code, and no longer take memory of
        their own.
    """

    def __init__(self, compile_from: int = 50_000) -> None:
        self._compile_from = compile_from
        self._number_of: dict[str, int] = {}
        self._column = TextColumn()
        self._compiled: CompiledNumbers | None = None

    def __len__(self) -> int:
        return len(self._column) if self._compiled is not None else len(self._number_of)

    def find(self, text: str) -> int:
        """Give the number of a text; -1 for one that was not there yet."""
        if self._compiled is None:
            return self._number_of.get(text, -1)
        return int(self._compiled.find(*encode([text]))[0])

    def add(self, text: str) -> int:
        """Give the number of a text, which is the next one if it was not there yet."""
        if self._compiled is None:
            number = self._number_of.setdefault(text, len(self._number_of))
            if number >= self._compile_from:
                self._compile()
            return number
        return int(self._compiled.add(*encode([text]))[0])

    def find_many(self, texts: Sequence[str]) -> Ints:
        """Give the number of each text; see `find`."""
        if self._compiled is None:
            return np.fromiter(
                (self._number_of.get(text, -1) for text in texts), np.int64, len(texts)
            )
        return self._compiled.find(*encode(texts))

    def add_many(self, texts: Sequence[str]) -> Ints:
        """Give the number of each text; see `add`."""
        if self._compiled is None:
            numbers = self._number_of
            found = np.fromiter(
                (numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts)
            )
            if len(numbers) > self._compile_from:
                self._compile()
            return found
        return self._compiled.add(*encode(texts))

    def texts(self) -> Texts:
        """All texts by number, by reference as long as no other is added."""
        if self._compiled is None:
            return column_of(self._number_of).texts()
        return self._column.texts()

    def _compile(self) -> None:
        """Go on in compiled code, which takes half a second to load."""
        from workloads.compiled_texts import CompiledNumbers  # noqa: PLC0415 - slow to import

        self._column = column_of(self._number_of)
        self._compiled = CompiledNumbers(self._column)
        self._number_of = {}


class KeyNumbers:
    """Numbers different whole numbers of 64 bits in the order in which they come.

    Parameters
    ----------
    compile_from
        See `TextNumbers`.
    """

    def __init__(self, compile_from: int = 50_000) -> None:
        self._compile_from = compile_from
        self._number_of: dict[int, int] = {}
        self._column = TextColumn()
        self._compiled: CompiledNumbers | None = None

    def __len__(self) -> int:
        return len(self._column) if self._compiled is not None else len(self._number_of)

    def add(self, keys: Ints) -> Ints:
        """Give the number of each key, which is the next one if it was not there yet."""
        if self._compiled is None and len(self._number_of) + len(keys) > self._compile_from:
            from workloads.compiled_texts import CompiledNumbers  # noqa: PLC0415 - slow to import

            self._column.extend_encoded(
                *_spelt(np.fromiter(self._number_of, np.int64, len(self._number_of)))
            )
            self._compiled = CompiledNumbers(self._column)
            self._number_of = {}
        if self._compiled is not None:
            return self._compiled.add(*_spelt(keys))
        numbers = self._number_of
        return np.fromiter(
            (numbers.setdefault(key, len(numbers)) for key in keys.tolist()), np.int64, len(keys)
        )


def _spelt(keys: Ints) -> tuple[Bytes, Ints]:
    """Take whole numbers for texts of 8 bytes each."""
    data = np.ascontiguousarray(keys).view(np.uint8)
    return data, np.arange(8, 8 * len(keys) + 1, 8, dtype=np.int64)


def column_of(texts: Iterable[str]) -> TextColumn:
    """Lay texts out in a column."""
    column = TextColumn()
    rest = iter(texts)
    while some := list(islice(rest, _AT_ONCE)):
        column.extend(some)
    return column
