"""Rows of token ids many at a time; see `workloads.batches`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from workloads.batches import (
    NAMES,
    NO_MATTER,
    Columns,
    Row,
    has_fractions,
    objects,
    times_ns,
    whole,
)
from workloads.content import Ints
from workloads.fields import MAX_NS, MAX_TOKENS

STAMPS = ("timestamp", "arrival_time_ns")
PROMPTS = ("token_ids", "prompt_token_ids", "input_token_ids", "input_tok_ids")
OUTPUTS = ("output_token_ids", "output_tok_ids")
NUM_PROMPT = ("input_length", "input_toks")
NUM_OUTPUT = ("output_length", "output_toks")
_GROUPS = (STAMPS, PROMPTS, OUTPUTS, NUM_PROMPT, NUM_OUTPUT)


def token_columns(batch: Sequence[bytes], unit_ns: int) -> Columns | None:
    """Parse lines of token ids that are all plain; None where one is not.

    Plain are rows that all have the same fields, each by one of its names: a time stamp that is a
    number; a prompt of at least one id; an answer, or its length; lengths that fit the ids; ids
    that are whole numbers in range.

    Parameters
    ----------
    batch
        At least one line.
    unit_ns
        Unit of the time stamps, but for those whose name says it.
    """
    rows = objects(batch)
    names = None if rows is None else _names(rows)
    if rows is None or names is None:
        return None
    stamps, prompts, outputs, num_prompt, num_output = (
        None if name is None else [row[name] for row in rows] for name in names
    )
    if stamps is None or prompts is None:
        return None
    if names[0] == "arrival_time_ns":
        unit_ns = 1
    arrivals = times_ns(stamps, unit_ns)
    stated = whole(num_prompt or [], 0, MAX_TOKENS), whole(num_output or [], 0, MAX_TOKENS)
    found = _streams(prompts, outputs)
    if arrivals is None or found is None or stated[0] is None or stated[1] is None:
        return None
    ids, lengths, answers = found
    if outputs is None:
        answers = stated[1]
    is_plain = (
        lengths.all()
        and len(answers) == len(rows)
        and (num_prompt is None or np.array_equal(stated[0], lengths))
        and (num_output is None or np.array_equal(stated[1], answers))
    )
    columns = Columns(
        rows,
        arrivals,
        lengths,
        answers,
        lengths if outputs is None else lengths + answers,
        ids,
        has_fractions=has_fractions(stamps),
        knows_answers=outputs is not None,
        stamp_unit_ns=unit_ns,
    )
    return columns if is_plain else None


def _names(rows: Sequence[Row]) -> list[str | None] | None:
    """Find the name of each of ``_GROUPS`` that all rows have, if any; None where one is odd."""
    kinds = {frozenset(fields) - NAMES - NO_MATTER for fields in set(map(tuple, rows))}
    fields = kinds.pop()
    names = [[name for name in group if name in fields] for group in _GROUPS]
    if kinds or max(map(len, names)) > 1 or sum(map(len, names)) < len(fields):
        return None
    return [found[0] if found else None for found in names]


def _streams(
    prompts: Sequence[object], outputs: Sequence[object] | None
) -> tuple[Ints, Ints, Ints] | None:
    """Give all ids, row by row, and those of each prompt and answer; None where one is odd."""
    lists = prompts
    if outputs is not None:
        lists = [one for both in zip(prompts, outputs, strict=True) for one in both]
    if set(map(type, lists)) != {list}:
        return None
    flat: list[object] = list(chain.from_iterable(lists))  # type: ignore[arg-type]
    ids = whole(flat, 0, MAX_NS)
    counts = np.fromiter(map(len, lists), np.int64, len(lists))  # type: ignore[arg-type]
    if ids is None:
        return None
    return (ids, counts, counts[:0]) if outputs is None else (ids, counts[::2], counts[1::2])
