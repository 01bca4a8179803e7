"""Ids of any width, or texts, in 64 bits."""

from __future__ import annotations

import numpy as np

from workloads.content import Ints
from workloads.fields import RowError, show


class IdReader:
    """Reads ids of any width, or texts, as int64: equal if and only if the ids are."""

    def __init__(self) -> None:
        self._odd: dict[int | str, int] = {}

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
        return np.array([self._id(name, one) for one in value], dtype=np.int64)

    def unheard_of(self, count: int) -> Ints:
        """Make ids that stand nowhere else; none for a negative count."""
        first = len(self._odd)
        for number in range(first, first + count):
            self._odd[f"\0{number}"] = number
        return np.arange(-1 - first, -1 - first - max(count, 0), -1, dtype=np.int64)

    def _id(self, name: str, value: object) -> int:
        if type(value) is int and value >= 0:  # `type`, since True is an int too
            if value < 2**63:
                return value
        elif type(value) is not str:
            raise RowError(
                f"{name} holds {show(value)}, which is neither text nor a whole number of at"
                " least 0"
            )
        return -1 - self._odd.setdefault(value, len(self._odd))
