"""Reading one value that somebody else wrote."""

from __future__ import annotations

import math
import re
from typing import TypeGuard

MAX_TOKENS = 2**31 - 1
MAX_NS = 2**63 - 1
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Units of time by name, in ns."""

_UNIT_NAMES = {10**9: "seconds", 10**6: "milliseconds", 10**3: "microseconds", 1: "nanoseconds"}
_EXACT_FLOATS = 2**53
"""From which on a float may stand for several whole numbers."""
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


class RowError(Exception):
    """Why a row cannot be used, and what can be done about it; the reader adds where it stands."""

    def __init__(self, reason: str, *next_steps: str) -> None:
        super().__init__(reason)
        self.next_steps = next_steps or ("correct the line",)


def show(value: object) -> str:
    """Quote a value in a message, shortened; never holds a character that cannot be printed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits has no repr
        return "a value too long to show"
    if len(text) <= 60:
        return text
    quote = text[0] if text[0] == text[-1] and text[0] in "'\"" else ""
    return text[: 57 - len(quote)] + "..." + quote


def number(value: object) -> int | float | None:
    """Read a finite number, as such or as text; None for anything else."""
    if isinstance(value, str):
        # Python's own rule is wider: 1_000, other scripts' digits, nan.
        if len(value) > 400 or not _NUMBER.fullmatch(value):
            return None
        try:
            value = int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def whole(value: object) -> int | None:
    """Read a whole number, as such, as 10.0 or as text; None for anything else."""
    result = number(value)
    if result is None or result != int(result):
        return None
    return int(result)


def num_tokens(field: str, value: object, minimum: int) -> int:
    """Read a count of tokens.

    Raises
    ------
    RowError
        If it is not a whole number from ``minimum`` to ``MAX_TOKENS``.
    """
    result = whole(value)
    if result is None or not minimum <= result <= MAX_TOKENS:
        raise RowError(
            f"{field} is {show(value)}, which is not a whole number of tokens of at least {minimum}"
            f" and at most {MAX_TOKENS}"
        )
    return result


def unit_name(unit_ns: int) -> str:
    """Spell a unit of time out."""
    return _UNIT_NAMES[unit_ns]


def epoch_unit(value: float) -> str | None:
    """Name the unit in which a value is a time between 2001 and 2096 counted from 1970, if any."""
    for name, unit_ns in UNITS_NS.items():
        if 1e18 <= value * unit_ns < 4e18:
            return name
    return None


def _epoch_hint(value: float, unit_ns: int) -> str:
    unit = epoch_unit(value)
    if unit is None or UNITS_NS[unit] == unit_ns:
        return ""
    return f" (it looks like {unit_name(UNITS_NS[unit])} since 1970: see --time-unit {unit})"


def time_ns(field: str, value: object, unit_ns: int) -> int:
    """Read a time of ``unit_ns`` nanoseconds to the unit, rounded to a nanosecond.

    Raises
    ------
    RowError
        If it is not a number, is negative, or does not fit 64 bits in nanoseconds.
    """
    result = number(value)
    if result is None:
        result = -1
    # A float times 10**6 is off by 100 ns where times are counted from 1970: scale in two parts.
    units = int(result)
    time = units * unit_ns + round((result - units) * unit_ns)
    if result < 0 or time > MAX_NS:
        raise RowError(
            f"{field} is {show(value)}, which is not a number of {unit_name(unit_ns)} from 0 to"
            f" {MAX_NS / unit_ns:.2g}{_epoch_hint(result, unit_ns)}"
        )
    return time


def text(field: str, value: object) -> str:
    """Read a name, which may be a number; lone surrogates become escapes, so that it prints.

    Raises
    ------
    RowError
        If it is neither text nor a whole number.
    """
    if is_exact_float(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError(f"{field} is {show(value)}, which is neither text nor a whole number")
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def text_or_none(field: str, value: object) -> str | None:
    """Read a name that a row may lack: null and the empty text, as tables write it, are none.

    Raises
    ------
    RowError
        If there is one that is neither text nor a whole number.
    """
    return None if value is None or value == "" else text(field, value)


def is_exact_float(value: object) -> TypeGuard[float]:
    """Whether a value is a whole number that was written as 7.0 and cannot have lost a digit."""
    return isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS
