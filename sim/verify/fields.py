"""What the fields of a recorded log may hold, and what is said of one that holds something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_WHOLE: Final = 2**63 - 1
"""Token ids are kept as 64-bit integers; no count and no time of a log is larger either."""

MAX_SETTING: Final = 10**15 - 1
"""As `sim.cost.MAX_COEFFICIENT`: a step does not take more than eleven days."""

MAX_SECONDS: Final = 1e12
"""Thirty thousand years: counted from whenever an engine may count, but no overflow."""

SHOWN = 60
"""Characters of a wrong value that an error quotes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field holds.

    Attributes
    ----------
    rule
        The end of a sentence that begins with "must be".
    holds
        Whether a value, as JSON gave it, is of this kind; ``True`` and ``1.0`` are no whole number.
    item
        Kind of each element, where the value is a list or an object.
    """

    rule: str
    holds: Callable[[Any], bool]
    item: Kind | None = None

    def fault(self, field: str, what: str, value: object) -> str | None:
        """Say what is wrong with the value of a field of ``what``; None where nothing is."""
        if not self.holds(value):
            return f"{field} of {what} is {_cut(json.dumps(value))} but must be {self.rule}"
        if self.item is None:
            return None
        parts = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for key, part in parts:
            if not self.item.holds(part):
                return self.item.fault(f"{field}[{key!r}]", what, part)
        return None


def shown(value: object) -> str:
    """Quote a value in an error, the beginning of a long one."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def whole(minimum: int = 0, maximum: int = MAX_WHOLE) -> Kind:
    """Make the kind of whole numbers from ``minimum`` up."""
    return Kind(
        f"a whole number from {minimum} to {maximum}",
        lambda value: type(value) is int and minimum <= value <= maximum,
    )


def _is_number(value: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    """Whether it is a number; infinity and NaN are refused where JSON is read."""
    return type(value) is float or (type(value) is int and abs(value) <= MAX_WHOLE)


WHOLE = whole()
INTEGER = Kind("a whole number", lambda value: type(value) is int and abs(value) <= MAX_WHOLE)
POSITIVE = whole(1)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", lambda value: isinstance(value, str))
NUMBER = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
SHARE = Kind("a share from 0 to below 1", lambda value: _is_number(value) and 0 <= value < 1)
SECONDS = Kind(
    f"a number of seconds from 0 to {MAX_SECONDS:g}",
    lambda value: _is_number(value) and 0 <= value <= MAX_SECONDS,
)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
ANYTHING = Kind("anything", lambda value: True)
BLOCK_IDS = Kind("a list of block ids", lambda value: isinstance(value, list), WHOLE)
REQUEST_IDS = Kind("a list of request ids", lambda value: isinstance(value, list), TEXT)
TOKENS = Kind(
    "a list of at least one token id", lambda value: isinstance(value, list) and value != [], WHOLE
)
ANY_TOKENS = Kind("a list of token ids", lambda value: isinstance(value, list), WHOLE)
PATHS = Kind("a list of lists of token ids", lambda value: isinstance(value, list), ANY_TOKENS)
COUNTS = Kind("an object of counts by request", lambda value: isinstance(value, dict), WHOLE)
STATUS = Kind("'OK' or 'LATER'", lambda value: value in ("OK", "LATER"))
