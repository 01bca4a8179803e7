"""Rows of Mooncake's form many at a time, as columns, where nothing about them is odd.

What is taken here is what `workloads.mooncake.MooncakeReader.row` would make of the same lines, one
by one; a batch with a line that is not plain is left to it, so that there is one home of checks and
of what they say.
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

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_REQUIRED = frozenset(_FIELDS)
_NO_MATTER = frozenset({"type", "turn", "priority"})
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
    number = 0
    try:
        for number, line in lines(part):
            batch.append(line)
            if len(batch) == at_most:
                yield number - len(batch) + 1, batch
                batch = []
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
    arrival_ns, num_prompt_tokens, num_output_tokens, num_ids
        Shape ``(rows,)``.
    ids
        Of all rows, one behind the other.
    has_fractions
        Whether some time stamp has a fraction.
    """

    arrival_ns: Ints
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    num_ids: Ints
    ids: Ints
    has_fractions: bool


def columns(batch: Sequence[bytes], unit: int, unit_ns: int) -> Columns | None:
    """Parse lines that are all plain; None where one is not.

    Plain is a row that has the four fields of Mooncake, and no other that means anything: a time
    stamp that is a number; lengths and ids that are whole numbers in range, as many ids as the
    length of the prompt needs.

    Parameters
    ----------
    batch
        At least one line.
    unit
        Tokens that an id stands for.
    unit_ns
        Unit of the time stamps.
    """
    rows = _plain_objects(batch)
    if rows is None:
        return None
    stamps, prompts, outputs, lists = zip(*map(itemgetter(*_FIELDS), rows), strict=True)
    flat = list(chain.from_iterable(lists)) if set(map(type, lists)) == {list} else [None]
    arrivals = _times_ns(stamps, unit_ns)
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
    has_fractions = any(type(stamp) is float and not stamp.is_integer() for stamp in stamps)
    found = Columns(arrivals, num_prompt_tokens, num_output_tokens, num_ids, ids, has_fractions)
    return found if is_plain else None


def _plain_objects(batch: Sequence[bytes]) -> list[dict[str, object]] | None:
    """Parse lines that are all objects with the fields of Mooncake and no other that matters."""
    try:
        # Whole numbers that 64 bits do not hold become floats here, which are not plain.
        rows = list(map(orjson.loads, batch))
    except orjson.JSONDecodeError:
        return None
    if set(map(type, rows)) != {dict}:
        return None
    for fields in map(frozenset, set(map(tuple, rows))):
        if not (fields >= _REQUIRED and fields - _REQUIRED <= _NO_MATTER):
            return None
    return rows


def _times_ns(stamps: Sequence[object], unit_ns: int) -> Ints | None:
    """Read time stamps as `workloads.fields.time_ns` does; None where one is not plain."""
    kinds = set(map(type, stamps))
    if not kinds <= {int, float}:
        return None
    exact = np.array(stamps, dtype=np.float64)
    # A float holds the largest time only nearly, and whole numbers only up to a point.
    if not ((exact >= 0) & (exact < min(_EXACT, MAX_NS // unit_ns // 2))).all():
        return None
    units = np.floor(exact)
    return units.astype(np.int64) * unit_ns + np.rint((exact - units) * unit_ns).astype(np.int64)
