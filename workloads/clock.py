"""What the time stamps of a trace mean, and whether that makes sense."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.mapped import pieces
from workloads.content import Ints
from workloads.fields import UNITS_NS, RowError, epoch_unit, number, show, time_ns, unit_name

_TEN_DAYS_NS = 10 * 86_400 * 10**9

_SLOWEST = 1 / 600
"""Requests a second of a trace below which its unit of time is doubted."""
_FASTEST, _FASTEST_FRACTIONAL = 500, 100
"""The same for too many, and for time stamps with a fraction, as seconds have."""


class Clock:
    """Reads the time stamps of one trace.

    Attributes
    ----------
    unit_ns
        Their unit.
    common
        Whether those of all rows count from the same moment.
    dated
        Whether they are dates, which cannot be in a wrong unit.
    said
        Clauses about what was made of them.
    """

    def __init__(self, chosen_unit: str | None) -> None:
        self._chosen_unit = chosen_unit
        self.unit_ns = UNITS_NS[chosen_unit or "ms"]
        self.common = True
        self.dated = False
        self.said: list[str] = []
        self._fractional = False
        self._unit_is_settled = False
        self._num_stamped = self._num_unstamped = 0
        # Unit in which messages spell times, which is that of the field last read.
        self._spelt_ns: int | None = None

    def state(self) -> tuple[object, ...]:
        """Give all that reading a time stamp changes, for `restore`."""
        return (
            self.unit_ns, self._fractional, self._unit_is_settled, self._num_stamped,
            self._num_unstamped, self._spelt_ns, len(self.said),
        )  # fmt: skip

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget what was read since `state` was called."""
        (
            self.unit_ns, self._fractional, self._unit_is_settled, self._num_stamped,
            self._num_unstamped, self._spelt_ns, num_said,
        ) = state  # fmt: skip
        del self.said[num_said:]

    def expect(self, unit: str) -> None:
        """Set the unit of the format, unless the user chose one."""
        self.unit_ns = UNITS_NS[self._chosen_unit or unit]

    def read(self, name: str, value: object) -> int:
        """Read a time stamp, ns."""
        if not self._unit_is_settled:
            self._settle_unit(value)
        result = time_ns(name, value, self.unit_ns)
        self._spelt_ns = self.unit_ns
        if isinstance(value, float) and not value.is_integer():
            self._fractional = True
        return result

    def read_ns(self, name: str, value: object) -> int:
        """Read a time stamp of a field whose name says that it is in nanoseconds."""
        result = time_ns(name, value, 1)
        self._spelt_ns = 1
        return result

    @property
    def is_settled(self) -> bool:
        """Whether the first time stamp was read, after which the unit stays."""
        return self._unit_is_settled

    def took(self, unit_ns: int, *, fractions: bool) -> None:
        """Take note of time stamps that were read elsewhere, and of their unit."""
        self._fractional |= fractions
        self._spelt_ns = unit_ns

    def has_stamp(self, name: str, value: object) -> bool:
        """Whether a row has a time stamp, where a format may lack them: all rows do, or none.

        Raises
        ------
        RowError
            If it has one though rows before it have none.
        """
        if value is None and not self._num_stamped:
            self._num_unstamped += 1
            return False
        if self._num_unstamped:
            raise RowError(f"{name} is given, but the rows before have none")
        self._num_stamped += 1
        return True

    def _settle_unit(self, value: object) -> None:
        """Follow the first time stamp where it is one since 1970 in another unit than expected.

        Read in the expected one it would lie ten days or more from the start of the trace, or
        thousands of years.
        """
        stamp = number(value)
        if stamp is None:
            return
        self._unit_is_settled = True
        unit = epoch_unit(stamp)
        if (
            self._chosen_unit is None
            and not self.dated
            and unit is not None
            and UNITS_NS[unit] != self.unit_ns
            and stamp * self.unit_ns >= _TEN_DAYS_NS
        ):
            self.said.append(
                f"the first timestamp, {show(value)}, looks like {unit_name(UNITS_NS[unit])} since"
                f" 1970, so all are taken to be {unit_name(UNITS_NS[unit])}, not"
                f" {unit_name(self.unit_ns)}; --time-unit {_unit_key(self.unit_ns)} takes them as"
                " such"
            )
            self.unit_ns = UNITS_NS[unit]

    def warnings(self, arrivals: Ints, *, timed: bool) -> list[str]:
        """Say what was done with the arrivals, ns in the order of rows, and what is doubtful."""
        said = list(self.said)
        if not self.common:
            return said
        start_ns = int(arrivals.min())
        unit_ns = self._spelt_ns or self.unit_ns
        if num_late := _num_late(arrivals):
            said.append(f"{rows(num_late)} out of order, sorted by timestamp")
        if self._num_unstamped and timed:
            said.append(
                "no timestamps, so that all requests arrive at once; make arrivals with"
                " --arrival and --rate"
            )
        if start_ns and not self.dated:
            said.append(
                f"the earliest timestamp is {_spelt(start_ns, unit_ns)}, which was taken as 0"
            )
        return said + self._doubts(arrivals, start_ns, unit_ns)

    def _doubts(self, arrivals: Ints, start_ns: int, unit_ns: int) -> list[str]:
        """Say where a unit of time makes no sense: nobody sends so little or so much."""
        if self.dated:
            return []
        spelt = unit_name(unit_ns)
        unit = epoch_unit(start_ns / unit_ns) if start_ns else None
        if unit is not None and UNITS_NS[unit] != unit_ns:
            return [
                f"timestamps were read as {spelt}, but look like {unit_name(UNITS_NS[unit])} since"
                f" 1970; if they are, give --time-unit {unit}"
            ]
        span_s = int(arrivals.max() - start_ns) / 1e9
        num_gaps = len(arrivals) - 1
        if span_s <= 0:
            return []
        rate = num_gaps / span_s
        if rate < _SLOWEST:
            return [
                f"{len(arrivals)} requests spread over {span_s:g} s, read as {spelt}, come"
                f" {span_s / num_gaps:.6g} s apart, which makes little sense; if the unit is"
                " another, give --time-unit"
            ]
        if rate > (_FASTEST_FRACTIONAL if self._fractional else _FASTEST):
            return [
                f"{len(arrivals)} requests within {span_s:g} s, read as {spelt}, are {rate:.6g} a"
                " second, which makes little sense; if the unit is another, give --time-unit"
            ]
        return []


def _spelt(time_ns: int, unit_ns: int) -> str:
    """Spell a time in a unit, a whole number with all of its digits."""
    whole, rest = divmod(time_ns, unit_ns)
    return f"{time_ns / unit_ns:.15g}" if rest else str(whole)


def _unit_key(unit_ns: int) -> str:
    return next(name for name, value in UNITS_NS.items() if value == unit_ns)


def _num_late(arrivals: Ints) -> int:
    """Count the arrivals that are earlier than one before them."""
    num_late, latest = 0, 0
    for part in pieces(len(arrivals)):
        so_far = np.maximum.accumulate(arrivals[part])
        num_late += int((arrivals[part] < np.maximum(so_far, latest)).sum())
        latest = max(latest, int(so_far[-1]))
    return num_late


def rows(count: int) -> str:
    """Spell a count of rows."""
    return f"{count} row" if count == 1 else f"{count} rows"
