"""A story in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sim.cli.output import out
from sim.explain.story import Moment, Story

_HELD, _CACHED = "bold white on blue", "black on yellow"


def print_story(story: Story) -> None:
    """Print every moment: what happened, the pool, the free structures, map and tables."""
    console = out()
    console.print(
        Text.assemble(
            (story.policy, "bold"),
            f": {story.num_blocks} blocks of {story.block_size} tokens; ",
            ("held", _HELD),
            " by so many requests, ",
            ("free but cached", _CACHED),
            ", free; # can be hit",
        )
    )
    for moment in story.moments:
        console.print(_headline(moment))
        for sentence in moment.sentences:
            console.print(Text(f"   {sentence}"))
        console.print(_state(moment))


def _headline(moment: Moment) -> Text:
    return Text(
        f"{moment.number:>2} {moment.time_ns / 1e6:g} ms: request {moment.request_id} "
        f"{moment.event}",
        style="bold",
    )


def _state(moment: Moment) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim")
    grid.add_column()
    grid.add_row("pool", _pool(moment))
    for name, entries in moment.free.items():
        joint = " ⇄ " if name == "free queue" else " · "
        grid.add_row(name, joint.join(entries) or "empty")
    cached = (f"{label}→{','.join(map(str, ids))}" for label, ids in moment.cached.items())
    grid.add_row("map", "  ".join(cached) or "empty")
    for request_id, table in moment.tables.items():
        grid.add_row(f"table of {request_id}", " ".join(map(str, table)))
    return grid


def _pool(moment: Moment) -> Text:
    line = Text()
    for slot in moment.slots:
        count = len(slot.holders)
        style = _HELD if count else _CACHED if slot.is_cached else ""
        mark = "#" if slot.is_cached else ""
        text = f"{slot.block_id}:{slot.label or '-'}{mark}" + (f"×{count}" if count else "")
        line.append(text, style=style).append(" ")
    return line
