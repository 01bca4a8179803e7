"""The pictures of a report: those of `prefixsim plot`, as elements of a page."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sim import plots
from sim.plots.inline import AnyFigure, inline
from sim.plots.series import has_capacities, has_ttft
from sim.reporting.content import Picture

_QUESTIONS = {
    "capacity": (
        "How does the hit rate grow with the KV cache?",
        "Where a line turns level, more memory gains little; the dashed line is a cache that never "
        "evicts.",
    ),
    "block-size": (
        "What does the block size change?",
        "Smaller blocks share more of a prefix; what that is worth shows in the time to first "
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


def pictures_of(summary: pd.DataFrame, requests: pd.DataFrame) -> Iterator[Picture]:
    """Draw everything that the runs can show."""
    for kind in plots.applicable(summary):
        question, caption = _QUESTIONS[kind]
        rows = _with_capacities(summary) if kind == "capacity" else summary
        figure = plots.KINDS[kind](rows, requests)
        yield _picture(figure, kind, question, caption)
        if kind == "block-size" and (summary["num_finished"] > 0).all():
            yield _picture(
                plots.block_size_trade_off(summary, requests),
                "trade-off",
                "What do smaller blocks gain and cost?",
                "Hits above, what they cost below: time to manage the cache, and memory in last "
                "blocks that is never filled.",
            )
    settings = plots.settings_to_draw(summary)
    for name in settings if has_ttft(summary) else []:
        yield _picture(
            plots.against(summary, name),
            f"against-{name.replace('_', '-')}",
            f"What does {name} change?",
            "Hit rate, time to first token and throughput, all else being equal.",
        )


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
