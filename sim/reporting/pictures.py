"""The pictures of a report: those of `prefixsim plot`, as elements of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd

from sim import plots
from sim.errors import UsageError
from sim.plots.inline import AnyFigure, inline
from sim.plots.series import has_capacities, has_ttft
from sim.reporting.content import Picture

QUESTIONS = {
    "capacity": (
        "How does the hit rate grow with the KV cache?",
        "Where a line turns level, more memory gains little; the dashed line is a cache that never "
        "evicts.",
    ),
    "tiers": (
        "Where do hits come from, and what does memory below the GPU add?",
        "What a bar gains in height is found in host memory or on the SSD and is loaded, which "
        "takes time; the dashed line is a cache that never evicts.",
    ),
    "block-size": (
        "What does the block size change?",
        "Smaller blocks can share more of a prefix; what that is worth shows in the time to first "
        "token, which includes the time of cache management.",
    ),
    "ttft": (
        "How long do requests wait for their first token?",
        "The further left a line, the sooner; at 99 % is what all but one in a hundred see.",
    ),
    "overhead": (
        "What does caching gain and lose?",
        "Throughput against serving without caching, by the hit rate of the workload; below 1 "
        "caching loses.",
    ),
    "break-even": (
        "From which hit rate does caching pay?",
        "The hit rate of the workload at which caching is as fast as none.",
    ),
}
"""What each of `sim.plots.KINDS` answers, and how it is read."""

_TRADE_OFF = (
    "What do smaller blocks gain and cost?",
    "Hits above, what they cost below: time to manage the cache, and memory in last blocks that is "
    "never filled.",
)


def pictures_of(
    summary: pd.DataFrame, requests: pd.DataFrame, on_missing: Callable[[str], None]
) -> Iterator[Picture]:
    """Draw everything that the runs can show.

    Parameters
    ----------
    summary, requests
        Rows of the tables of these names.
    on_missing
        Told why a picture cannot be drawn; the others still are.
    """
    draws: list[tuple[str, str, str, Callable[[], AnyFigure]]] = []
    for kind in plots.applicable(summary):
        question, caption = QUESTIONS[kind]
        rows = _with_capacities(summary) if kind == "capacity" else summary
        draws.append((kind, question, caption, partial(plots.KINDS[kind], rows, requests)))
        if kind == "block-size" and (summary["num_finished"] > 0).all():
            question, caption = _TRADE_OFF
            trade_off = partial(plots.block_size_trade_off, summary, requests)
            draws.append(("trade-off", question, caption, trade_off))
    for name in plots.settings_to_draw(summary) if has_ttft(summary) else []:
        draws.append(
            (
                f"against-{name.replace('_', '-')}",
                f"What does {name} change?",
                "Hit rate, time to first token and throughput, all else being equal.",
                partial(plots.against, summary, name),
            )
        )
    for stem, question, caption, draw in draws:
        try:
            figure = draw()
        except UsageError as error:
            on_missing(f"The picture {stem} is not drawn: {error}")
        else:
            yield _picture(figure, stem, question, caption)


def _with_capacities(summary: pd.DataFrame) -> pd.DataFrame:
    """Keep the block sizes that were run at several capacities; the others are no lines."""
    sizes = [
        size
        for size in summary["block_size"].unique()
        if has_capacities(summary[summary["block_size"] == size])
    ]
    return summary[summary["block_size"].isin(sizes)]


def picture_of_curves(figure: AnyFigure) -> Picture:
    """Put the picture of the hit rate at every capacity into a report."""
    return _picture(
        figure,
        "curve",
        "How much KV cache is enough, and could another policy do better?",
        "Hit rate at every capacity, requests served one at a time. The mark is the knee; dotted "
        "is Belady's bound, which no policy exceeds.",
    )


def picture_of_workload(figure: AnyFigure) -> Picture:
    """Put the picture of a workload into a report."""
    return _picture(
        figure,
        "workload",
        "What is the traffic like?",
        "Lengths, arrivals, what a cache that never evicts would hit, and how long after a prefix "
        "comes again.",
    )


def _picture(figure: AnyFigure, stem: str, question: str, caption: str) -> Picture:
    drawn = inline(figure, stem, f"{question} {caption}")
    return Picture(stem, question, caption, drawn.svg, drawn.series, drawn.width)
