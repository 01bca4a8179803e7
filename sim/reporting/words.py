"""How a report spells numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd


def percent(share: float, digits: int = 1) -> str:
    """Spell a share of 1 in %."""
    return "n/a" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def points(difference: float) -> str:
    """Spell a difference of two shares."""
    value = f"{round(100 * difference, 1):g}"
    return f"{value} point" if value == "1" else f"{value} points"


def milliseconds(value: float) -> str:
    """Spell a time given in ms, in ms or s."""
    if math.isnan(value):
        return "n/a"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    if value >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def number(value: float) -> str:
    """Spell a count, or a rate with as many digits as tell something."""
    if math.isnan(value):
        return "n/a"
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def tokens(value: float) -> str:
    """Spell a number of tokens."""
    return f"{value:,.0f} tokens"


def gibibytes(value: float) -> str:
    """Spell a number of GiB."""
    return f"{value:,.0f} GiB" if value >= 1000 else f"{value:.3g} GiB"


def change(new: float, old: float) -> str:
    """Spell by how many % a value that shall be small differs from another."""
    if not old > 0:
        return "n/a"
    share = new / old - 1
    if abs(share) < 0.0005:
        return "the same"
    return f"{100 * abs(share):.1f} % {'less' if share < 0 else 'more'}"


def listed(items: Sequence[object], last: str = "and") -> str:
    """Join items as prose does."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def counted(count: int, noun: str) -> str:
    """Spell a count of things."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def where_of(row: pd.Series) -> str:
    """Name a row of `sim.reporting.cells.Cells.table`."""
    return (
        f"{row['label']}, block size {row['block_size']}, KV capacity "
        f"{tokens(row['kv_capacity_tokens'])}"
        + (f", mean of {row['num_seeds']} seeds" if row["num_seeds"] > 1 else "")
    )
