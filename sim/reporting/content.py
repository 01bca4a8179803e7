"""What a report holds, before it is laid out.

A new kind of result is shown by making `Finding`, `Picture` or `Table` of it; see
`sim.reporting.build`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sim.plots.inline import Series

Tone = Literal["known", "unknown", "doubt"]
"""A figure that is known, one that the runs cannot tell, and what makes the others doubtful."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the figures that a reader looks for first."""

    title: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence in plain words, and the figures that it rests on."""

    topic: str
    text: str
    rests_on: str = ""
    tone: Tone = "known"


@dataclass(frozen=True, slots=True)
class Situation:
    """What is said of the runs that differ in policy, block size, capacity and seed alone."""

    setting: str
    tiles: tuple[Tile, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture with the question that it answers."""

    stem: str
    question: str
    caption: str
    svg: str
    series: tuple[Series, ...]
    width: float


@dataclass(frozen=True, slots=True)
class Table:
    """A table; cells are numbers, sorted as such, or text."""

    stem: str
    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    meanings: tuple[str, ...] = ()
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a page shows.

    Attributes
    ----------
    title, lead
        Heading, and one sentence on what was run.
    situations
        The most important first.
    pictures, tables
        In the order of the page.
    doubts
        Sentences on what is missing or doubtful in the whole.
    command
        What made it.
    versions
        Name and version of what it was made with.
    """

    title: str
    lead: str
    situations: tuple[Situation, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    doubts: tuple[str, ...] = ()
    command: str = ""
    versions: tuple[tuple[str, str], ...] = field(default=())
