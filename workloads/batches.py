"""Rows of JSON lines many at a time, as columns, where nothing about them is odd.

What is taken here is what a reader's ``row`` would make of the same lines, one by one; a batch with
a line that is not plain is left to it, so that there is one home of checks and of what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import numpy as np
import orjson

from workloads.content import Ints
from workloads.fields import MAX_NS, MAX_TOKENS, RowError
from workloads.source import DamagedError, Part, lines

NUM_LINES = 512
"""Lines of a batch at most."""
_NUM_BYTES = 1 << 20
"""Bytes of a batch from which on it takes no other line."""

Row = dict[str, object]

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
NAMES = frozenset({"request_id", "session_id", "delay", "turns"})
"""Fields that say which request and session a row is."""
NO_MATTER = frozenset({"type", "turn", "priority"})
"""Fields that other tools write and nobody reads."""
_EXACT = 2**53
"""Up to which a float is told apart from the next whole number."""


def batches(
    part: Part, num_wanted: Callable[[], int | None]
) -> Generator[tuple[int, list[bytes] | RowError], None, None]:
    """Yield runs of lines, each with the number of its first; what breaks off is said last.

    The first line comes alone, since the first time stamp tells what all of them mean.

    Parameters
    ----------
    part
        The file; read no further than asked.
    num_wanted
        Says how many rows are still wanted, None for all.
    """
    at_most = 1
    batch: list[bytes] = []
    number = num_bytes = 0
    try:
        for number, line in lines(part):
            batch.append(line)
            num_bytes += len(line)
            if len(batch) == at_most or num_bytes >= _NUM_BYTES:
                yield number - len(batch) + 1, batch
                batch = []
                num_bytes = 0
                at_most = min(num_wanted() or NUM_LINES, NUM_LINES)
    except DamagedError as fault:
        if batch:
            yield number - len(batch) + 1, batch
        yield number + 1, RowError(f"{fault}, which ends here", "fetch the file anew")
        return
    if batch:
        yield number - len(batch) + 1, batch


@dataclass(frozen=True, slots=True)
class Columns:
    """Plain rows, column by column.

    Attributes
    ----------
    rows
        As they were parsed.
    arrival_ns, num_prompt_tokens, num_output_tokens, num_ids
        Shape ``(rows,)``.
    ids
        Of all rows, one behind the other.
    has_fractions
        Whether some time stamp has a fraction.
    knows_answers
        Whether ids spell the answers too.
    stamp_unit_ns
        Of the time stamps.
    """

    rows: Sequence[Row]
    arrival_ns: Ints
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    num_ids: Ints
    ids: Ints
    has_fractions: bool
    knows_answers: bool
    stamp_unit_ns: int


@dataclass(frozen=True, slots=True)
class Named:
    """Who the requests of plain rows are.

    Attributes
    ----------
    first_line
        On which the first of them stands; each has a line.
    request_ids, session_ids
        Of each, None for none; or None where none has any.
    think_ns
        Shape ``(rows,)``, -1 for unknown; or None where all are.
    """

    first_line: int
    request_ids: Sequence[str | None] | None = None
    session_ids: Sequence[str | None] | None = None
    think_ns: Ints | None = None


def named(rows: Sequence[Row], first_line: int) -> Named | None:
    """Read ids, sessions and delays of rows; None where one is not plain."""
    request_ids, session_ids = texts(rows, "request_id"), texts(rows, "session_id")
    think_ns = _delays_ns(rows)
    if request_ids is None or session_ids is None or think_ns is None:
        return None
    return Named(
        first_line,
        request_ids if any(one is not None for one in request_ids) else None,
        session_ids if any(one is not None for one in session_ids) else None,
        think_ns if (think_ns >= 0).any() else None,
    )


def texts(rows: Sequence[Row], name: str) -> list[str | None] | None:
    """Read a field that is text, or a whole number, or missing; None where one is neither."""
    values = [row.get(name) for row in rows]
    kinds = set(map(type, values))
    if not kinds <= {str, int, type(None)}:
        return None
    if "" in values:  # as tables write what they lack
        values = [None if value == "" else value for value in values]
    if int in kinds:
        return [str(value) if type(value) is int else value for value in values]  # type: ignore[misc]
    return values  # type: ignore[return-value]


def _delays_ns(rows: Sequence[Row]) -> Ints | None:
    found = np.full(len(rows), -1, dtype=np.int64)
    given = [index for index, row in enumerate(rows) if row.get("delay") is not None]
    if given:
        delays = times_ns([rows[index]["delay"] for index in given], 10**6)
        if delays is None:
            return None
        found[given] = delays
    return found


def columns(
    batch: Sequence[bytes],
    unit: int,
    unit_ns: int,
    *,
    needed: frozenset[str] = frozenset(),
    allowed: frozenset[str] = NAMES,
) -> Columns | None:
    """Parse lines that are all plain; None where one is not.

    Plain is a row that has the four fields of Mooncake, and no other that means anything but who
    it is: a time stamp that is a number; lengths and ids that are whole numbers in range, as many
    ids as the length of the prompt needs.

    Parameters
    ----------
    batch
        At least one line.
    unit
        Tokens that an id stands for.
    unit_ns
        Unit of the time stamps.
    needed, allowed
        Other fields that every row has, or may have; the caller looks at what they hold.
    """
    rows = objects(batch)
    if rows is None:
        return None
    required = needed.union(_FIELDS)
    for fields in map(frozenset, set(map(tuple, rows))):
        if not (fields >= required and fields - required <= allowed | NO_MATTER):
            return None
    stamps, prompts, outputs, lists = zip(*map(itemgetter(*_FIELDS), rows), strict=True)
    flat = list(chain.from_iterable(lists)) if set(map(type, lists)) == {list} else [None]
    arrivals = times_ns(stamps, unit_ns)
    if arrivals is None or not {*map(type, flat), *map(type, prompts), *map(type, outputs)} <= {
        int
    }:
        return None
    try:
        num_prompt_tokens = np.array(prompts, dtype=np.int64)
        num_output_tokens = np.array(outputs, dtype=np.int64)
        ids = np.array(flat, dtype=np.int64)
    except OverflowError:
        return None
    num_ids = np.fromiter(map(len, lists), np.int64, len(lists))
    is_plain = (
        (num_prompt_tokens >= 1).all()
        and (num_prompt_tokens <= MAX_TOKENS).all()
        and (num_output_tokens >= 0).all()
        and (num_output_tokens <= MAX_TOKENS).all()
        and (ids >= 0).all()
        and (num_ids == -(-num_prompt_tokens // unit)).all()
    )
    found = Columns(
        rows, arrivals, num_prompt_tokens, num_output_tokens, num_ids, ids,
        has_fractions=has_fractions(stamps), knows_answers=False, stamp_unit_ns=unit_ns,
    )  # fmt: skip
    return found if is_plain else None


def whole(values: Sequence[object], least: int, most: int) -> Ints | None:
    """Read whole numbers in a range; None where one is none."""
    if not set(map(type, values)) <= {int}:
        return None
    try:
        found = np.array(values, dtype=np.int64)
    except OverflowError:
        return None
    return found if ((found >= least) & (found <= most)).all() else None


def has_fractions(stamps: Sequence[object]) -> bool:
    """Whether some time stamp has a fraction."""
    return any(type(stamp) is float and not stamp.is_integer() for stamp in stamps)


def objects(batch: Sequence[bytes]) -> list[Row] | None:
    """Parse lines that are all objects; None where one is not."""
    try:
        # Whole numbers that 64 bits do not hold become floats here, which are not plain.
        rows = list(map(orjson.loads, batch))
    except orjson.JSONDecodeError:
        return None
    return rows if set(map(type, rows)) == {dict} else None


def times_ns(stamps: Sequence[object], unit_ns: int) -> Ints | None:
    """Read time stamps as `workloads.fields.time_ns` does; None where one is not plain."""
    kinds = set(map(type, stamps))
    if not kinds <= {int, float}:
        return None
    if kinds == {int}:
        times = whole(stamps, 0, MAX_NS // unit_ns)
        return None if times is None else times * unit_ns
    exact = np.array(stamps, dtype=np.float64)
    # A float holds the largest time only nearly, and whole numbers only up to a point.
    if not ((exact >= 0) & (exact < min(_EXACT, MAX_NS // unit_ns // 2))).all():
        return None
    units = np.floor(exact)
    return units.astype(np.int64) * unit_ns + np.rint((exact - units) * unit_ns).astype(np.int64)
