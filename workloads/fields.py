"""Reading one value that somebody else wrote."""

from __future__ import annotations

import math

MAX_TOKENS = 2**31 - 1
MAX_NS = 2**63 - 1


class RowError(Exception):
    """Why a row cannot be used, and what to do about it; the reader adds where it stands."""

    def __init__(self, reason: str, next_step: str = "correct the line") -> None:
        super().__init__(reason)
        self.next_step = next_step


def show(value: object) -> str:
    """Quote a value in a message, shortened; never holds a character that cannot be printed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits has no repr
        return "a value too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def number(value: object) -> int | float | None:
    """Read a finite number, as such or as text; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
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
        unit = {10**6: "milliseconds", 10**9: "seconds"}[unit_ns]
        raise RowError(
            f"{field} is {show(value)}, which is not a number of {unit} from 0 to"
            f" {MAX_NS / unit_ns:.2g}"
        )
    return time


def text(field: str, value: object) -> str:
    """Read a name, which may be a number; lone surrogates become escapes, so that it prints.

    Raises
    ------
    RowError
        If it is neither text nor a whole number.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError(f"{field} is {show(value)}, which is neither text nor a whole number")
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
