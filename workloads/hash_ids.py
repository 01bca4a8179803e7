"""Ids of any width, or texts, in 64 bits."""

from __future__ import annotations

import numpy as np

from workloads.content import Ints
from workloads.fields import RowError, is_exact_float, show
from workloads.texts import TextNumbers


class IdReader:
    """Reads ids of any width and sign, or texts, as int64: equal if and only if the ids are.

    Parameters
    ----------
    signed
        Whether negative numbers are ids, as tools write hashes of 64 bits that have a sign; -1
        never is one, since it stands for "none" in many a format.
    """

    def __init__(self, *, signed: bool = False) -> None:
        self._signed = signed
        self._odd = TextNumbers()

    def read(self, name: str, value: object) -> Ints:
        """Read a list of ids.

        Raises
        ------
        RowError
            If it is no list, or holds something that is no id.
        """
        if not isinstance(value, list):
            raise RowError(f"{name} is {show(value)}, which is not a list of ids")
        if set(map(type, value)) <= {int}:
            try:
                ids = np.array(value, dtype=np.int64)
            except OverflowError:
                pass
            else:
                if not value or (min(value) if len(value) < 100 else ids.min()) >= 0:
                    return ids
        ids = np.empty(len(value), dtype=np.int64)
        odd: list[str] = []
        places: list[int] = []
        for place, one in enumerate(value):
            spelt = _spelt(name, one, signed=self._signed)
            if spelt is None:
                ids[place] = one
            else:
                odd.append(spelt)
                places.append(place)
        ids[places] = -1 - self._odd.add_many(odd)
        return ids

    def unheard_of(self, count: int) -> Ints:
        """Make ids that stand nowhere else; none for a negative count."""
        first = len(self._odd)
        self._odd.add_many([f"?{number}" for number in range(first, first + count)])
        return np.arange(-1 - first, -1 - first - max(count, 0), -1, dtype=np.int64)


def _spelt(name: str, value: object, *, signed: bool) -> str | None:
    """Spell an id that is no whole number of 63 bits, each kind its own way; None for one that is.

    Raises
    ------
    RowError
        If it is no id.
    """
    if is_exact_float(value):
        value = int(value)
    if type(value) is int:  # `type`, since True is an int too
        if value == -1 or (value < 0 and not signed):
            raise RowError(f"{name} holds {show(value)}, which is no id")
        return None if 0 <= value < 2**63 else f"#{value:x}"
    if isinstance(value, float) and value.is_integer():
        raise RowError(
            f"{name} holds {show(value)}, a number that was written with a fraction and keeps"
            " no more than 16 digits, so that different ids may have become one",
            "write ids as whole numbers or as text",
        )
    if type(value) is not str:
        raise RowError(f"{name} holds {show(value)}, which is neither text nor a whole number")
    return f"'{value}"
