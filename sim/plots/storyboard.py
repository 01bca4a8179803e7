"""A story as one picture: a row per event, the block pool as tiles."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from sim.errors import UsageError
from sim.explain.story import Moment, Slot, Story

MAX_BLOCKS, MAX_MOMENTS = 24, 40
"""More would be too small to read, or longer than a page."""

# Okabe and Ito's colours, readable by the colour-blind.
_HELD, _CACHED, _FREE = "#0072B2", "#F3D9A0", "#FFFFFF"
_HIT, _NEW, _LOST = "#009E73", "#56B4E9", "#D55E00"
_TEXT_WIDTH, _TILE, _LINE = 3.9, 0.62, 0.17  # inches
_COLUMNS_OF_TEXT = 58
_LETTER = 0.066
"""Width of a letter of the text below the blocks, inches."""
_FONT_SIZE = 8.5


def storyboard(stories: Sequence[Story], title: str) -> Figure:
    """Draw every moment of some stories, one column a story.

    Raises
    ------
    UsageError
        The pool or the story is too large for a picture.
    """
    num_blocks = max(story.num_blocks for story in stories)
    num_moments = max(len(story.moments) for story in stories)
    if num_blocks > MAX_BLOCKS or num_moments > MAX_MOMENTS:
        raise UsageError(
            f"a storyboard shows at most {MAX_BLOCKS} blocks and {MAX_MOMENTS} events, and this "
            f"has {num_blocks} and {num_moments}; lower --kv-capacity or --limit, or write a page "
            "with -o FILE.html."
        )
    texts = [[_lines(moment) for moment in story.moments] for story in stories]
    heights = [
        max(
            _height(story.moments[row], texts[column][row])
            for column, story in enumerate(stories)
            if row < len(story.moments)
        )
        for row in range(num_moments)
    ]
    width = _TEXT_WIDTH + _TILE * num_blocks + 0.3
    top = 0.9
    whole_width, whole_height = width * len(stories), sum(heights) + top
    figure = Figure(figsize=(whole_width, whole_height))
    figure.suptitle(title, x=0.15 / whole_width, y=1 - 0.1 / whole_height, ha="left", va="top")
    _legend(figure)
    for column, story in enumerate(stories):
        axes = figure.add_axes((column / len(stories), 0, 1 / len(stories), 1))
        axes.set_xlim(0, width)
        axes.set_ylim(whole_height, 0)
        axes.axis("off")
        axes.text(0.15, top - 0.15, story.policy, weight="bold", va="bottom")
        below = top
        for row, moment in enumerate(story.moments):
            _draw(axes, moment, texts[column][row], below)
            below += heights[row]
    return figure


def _lines(moment: Moment) -> list[str]:
    tables = (f"Blocks of {name}: {' '.join(map(str, ids))}" for name, ids in moment.tables.items())
    texts = [*moment.sentences, *tables]
    return [line for text in texts for line in textwrap.wrap(text, _COLUMNS_OF_TEXT)]


def _free_lines(moment: Moment) -> list[str]:
    """Spell what is free in order, in lines as wide as the blocks are."""
    room = max(30, int(len(moment.slots) * _TILE / _LETTER))
    lines = []
    for name, entries in moment.free.items():
        joint = " ⇄ " if name == "free queue" else " · "
        whole = [entry.replace(" ", "\N{NO-BREAK SPACE}") for entry in entries]
        text = f"{name}: {joint.join(whole) or 'empty'}"
        lines += textwrap.wrap(text, room, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def _height(moment: Moment, lines: Sequence[str]) -> float:
    below = _LINE * (len(_free_lines(moment)) + 1.2)
    return max(_LINE * (len(lines) + 2.2), 0.1 + _TILE * 0.85 + below)


def _draw(axes: Axes, moment: Moment, lines: Sequence[str], top: float) -> None:
    axes.plot([0.15, axes.get_xlim()[1] - 0.15], [top, top], color="0.85", linewidth=0.8)
    headline = f"{moment.time_ns / 1e6:g} ms: request {moment.request_id} {moment.event}"
    axes.text(0.15, top + _LINE, headline, weight="bold", size=_FONT_SIZE, va="center")
    for index, line in enumerate(lines):
        axes.text(0.15, top + (index + 2) * _LINE, line, size=_FONT_SIZE, va="center")
    for index, slot in enumerate(moment.slots):
        _draw_tile(axes, moment, slot, _TEXT_WIDTH + index * _TILE, top + 0.1)
    below = top + 0.1 + _TILE * 0.85 + _LINE
    for line in _free_lines(moment):
        axes.text(_TEXT_WIDTH, below, line, size=_FONT_SIZE - 0.5, va="center")
        below += _LINE


def _draw_tile(axes: Axes, moment: Moment, slot: Slot, left: float, top: float) -> None:
    lost = {block_id for block_id, _ in moment.evicted}
    edge, width = "0.6", 0.8
    for colour, blocks in ((_NEW, moment.new_blocks), (_LOST, lost), (_HIT, moment.hit_blocks)):
        if slot.block_id in blocks:
            edge, width = colour, 2.6
    face = _HELD if slot.holders else _CACHED if slot.is_cached else _FREE
    tile = Rectangle(
        (left, top), _TILE * 0.88, _TILE * 0.85, facecolor=face, edgecolor=edge, linewidth=width
    )
    axes.add_patch(tile)
    count = f"×{len(slot.holders)}" if slot.holders else ""
    mark = "#" if slot.is_cached else ""
    label = "\n".join(textwrap.wrap(slot.label, 7))
    middle: dict[str, Any] = {
        "x": left + _TILE * 0.44,
        "color": "white" if slot.holders else "black",
        "ha": "center",
        "va": "center",
    }
    axes.text(y=top + _TILE * 0.2, s=f"{slot.block_id}{mark}{count}", size=7, **middle)
    size = 8 if len(slot.label) <= 6 else 5.5
    axes.text(y=top + _TILE * 0.55, s=label, size=size, family="monospace", **middle)


def _legend(figure: Figure) -> None:
    handles = [
        Patch(facecolor=_HELD, edgecolor="0.6", label="held, × requests"),
        Patch(facecolor=_CACHED, edgecolor="0.6", label="free, cached (#)"),
        Patch(facecolor=_FREE, edgecolor="0.6", label="free"),
        *(
            Patch(facecolor="white", edgecolor=colour, linewidth=2.6, label=label)
            for colour, label in ((_HIT, "hit"), (_NEW, "taken"), (_LOST, "evicted and taken"))
        ),
    ]
    height = figure.get_figheight()
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1 - 0.3 / height),
        ncols=6,
        frameon=False,
        fontsize=_FONT_SIZE,
        borderaxespad=0.1,
        columnspacing=1.2,
        handlelength=1.4,
    )
