"""X axes: tokens, block sizes, any values that were run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from sim.plots.runs import say_number
from sim.plots.style import WIDTH


def log_axis(ax: Axes, values: pd.Series[float], columns: int = 1) -> None:
    """Make the x axis logarithmic, with plain numbers at 1, 2 and 5 as far as they fit."""
    low, high = float(values.min()), float(values.max())
    ax.set_xscale("log")
    subs = (1.0, 2.0, 5.0) if high / low < (500 if columns < 3 else 30) else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.xaxis.set_minor_formatter(NullFormatter())
    if len(subs) > 1:
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")


def token_axis(ax: Axes, values: pd.Series[float], columns: int) -> None:
    """Make the x axis one of tokens, logarithmic where the values span more than a decade."""
    low, high = float(values.min()), float(values.max())
    if high > 10 * low > 0:
        log_axis(ax, values, columns)
        room = (high / low) ** 0.05
        ax.set_xlim(low / room, high * room)
    else:
        room = 0.05 * (high - low)
        ax.set_xlim(low - room, high + room)
        ax.xaxis.set_major_locator(MaxNLocator(9 // columns))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def block_axis(ax: Axes, values: Sequence[int], columns: int = 1) -> None:
    """Make the x axis one of block sizes, in as many columns of panels."""
    value_axis(ax, values, columns, base=2)
    ax.set_xlabel("block size (tokens)")


def value_axis(
    ax: Axes, values: Sequence[float], columns: int = 1, *, base: int | None = None
) -> None:
    """Make an x axis with ticks at the values that were run.

    Labels that would run into each other are turned upright; those that still would are left
    out, the last and then the first being kept.

    Parameters
    ----------
    ax
        Its limits are set.
    values
        Ascending.
    columns
        Of panels beside each other.
    base
        Of a logarithmic axis; by default it is one, of base 10, where positive values span more
        than a decade.
    """
    low, high = values[0], values[-1]
    logarithmic = base is not None or (low > 0 and high > 10 * low)
    if logarithmic:
        ax.set_xscale("log", base=base or 10)
        room = (high / low) ** 0.08 if high > low else 2.0
        ax.set_xlim(low / room, high * room)
    else:
        room = 0.06 * (high - low) or 1.0
        ax.set_xlim(low - room, high + room)
    places = [math.log(value) if logarithmic else value for value in values]
    # Panels take some 0.8 of the width; a digit of 9 points is 6 wide.
    points = 0.68 * WIDTH * 72 / columns / ((places[-1] - places[0]) or 1.0)
    at = [points * place for place in places]
    texts = [say_number(value) for value in values]
    widths = [6.0 * len(text) + 5 for text in texts]
    upright = any(
        (one + other) / 2 > right - left
        for (left, right), (one, other) in zip(pairwise(at), pairwise(widths), strict=True)
    )
    if upright:
        widths = [12.0] * len(widths)
    kept: list[int] = []
    for index in [len(values) - 1, *range(len(values) - 1)]:
        if all(abs(at[index] - at[other]) >= (widths[index] + widths[other]) / 2 for other in kept):
            kept.append(index)
    labels = [text if index in kept else "" for index, text in enumerate(texts)]
    ax.set_xticks(list(values), labels, rotation=90 if upright else 0)
    ax.xaxis.set_minor_locator(NullLocator())
