"""A report as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from sim.pages import as_data, fill, read
from sim.reporting.content import Finding, Picture, Report, Situation, Table
from sim.reporting.tables import show

_FILTERED = 8
"""Tables of more rows can be filtered."""
_PROSE = 48
"""Texts of more characters are broken into lines."""


def render(report: Report) -> str:
    """Lay a report out.

    Returns
    -------
    HTML that needs nothing from elsewhere: no network, no other file. The same report gives the
    same text.
    """
    data = {
        picture.stem: {
            "series": [{"ids": one.ids, "points": one.points} for one in picture.series],
            "width": picture.width,
        }
        for picture in report.pictures
    }
    versions = ", ".join(f"{name} {version}" for name, version in report.versions)
    return fill(
        read("sim.reporting", "page.html"),
        {
            "TITLE": escape(report.title),
            "LEAD": escape(report.lead),
            "CSS": read("sim.reporting", "page.css"),
            "JS": read("sim.reporting", "page.js"),
            "CONTENTS": _contents(report),
            "DOUBTS": _doubts(report.doubts),
            "SITUATIONS": _situations(report.situations),
            "PICTURES": "\n".join(_picture(picture) for picture in report.pictures)
            or "<p>These runs have nothing to draw.</p>",
            "TABLES": "\n".join(_table(table) for table in report.tables),
            "COMMAND": escape(report.command),
            "VERSIONS": escape(versions),
            "DATA": as_data(data),
        },
    )


def _contents(report: Report) -> str:
    links = [("summary", "In short"), ("pictures", "Pictures")]
    links += [(f"table-{table.stem}", table.title) for table in report.tables]
    links.append(("made", "How this was made"))
    return "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in links)


def _doubts(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="doubts">{items}</ul>' if items else ""


def _situations(situations: tuple[Situation, ...]) -> str:
    parts = []
    for index, situation in enumerate(situations):
        inner = _tiles(situation) + "".join(map(_finding, situation.findings))
        setting = escape(situation.setting)
        if index == 0:
            parts.append(f'<p class="setting">{setting}</p>{inner}')
        else:
            parts.append(f"<details><summary>{setting}</summary>{inner}</details>")
    return "\n".join(parts)


def _tiles(situation: Situation) -> str:
    tiles = "".join(
        f'<div class="tile"><dt>{escape(tile.title)}</dt><dd>{escape(tile.value)}</dd>'
        f"<dd>{escape(tile.note)}</dd></div>"
        for tile in situation.tiles
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _finding(finding: Finding) -> str:
    rests = f'<p class="rests">{escape(finding.rests_on)}</p>' if finding.rests_on else ""
    return (
        f'<div class="finding {finding.tone}"><h4>{escape(finding.topic)}</h4>'
        f"<p>{escape(finding.text)}</p>{rests}</div>"
    )


def _picture(picture: Picture) -> str:
    # A picture with one line has nothing to hide.
    names = [series.name for series in picture.series] if len(picture.series) > 1 else []
    chips = "".join(
        f'<button type="button" aria-pressed="true">{escape(name)}</button>' for name in names
    )
    group = f'<div class="chips screen" role="group" aria-label="lines">{chips}</div>' * bool(chips)
    return (
        f'<figure id="picture-{picture.stem}"><h3>{escape(picture.question)}</h3>'
        f"<figcaption>{escape(picture.caption)}</figcaption>"
        f'<div class="picture scroll" tabindex="0" role="group" '
        f'aria-label="{escape(picture.question)} Arrow keys read the values.">{picture.svg}</div>'
        f"{group}</figure>"
    )


def _table(table: Table) -> str:
    numeric = [
        all(_is_number(row[index]) for row in table.rows) for index in range(len(table.headings))
    ]
    head = "".join(
        f'<th scope="col"{_class(is_number)}{_title(table, index)}>'
        f'<button type="button">{_breakable(heading)}</button></th>'
        for index, (heading, is_number) in enumerate(zip(table.headings, numeric, strict=True))
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>" for row in table.rows)
    name = f"rows-{table.stem}"
    long = " long" if table.is_long else ""
    search = (
        f'<input class="filter screen" type="search" placeholder="filter rows" '
        f'aria-label="filter the rows of: {escape(table.title)}" aria-controls="{name}">'
        if len(table.rows) > _FILTERED
        else ""
    )
    return (
        f'<h3 id="table-{table.stem}">{escape(table.title)}</h3>'
        f'<p class="note">{escape(table.note)}</p>{search}'
        f'<div class="scroll{long}" tabindex="0" role="group" aria-label="{escape(table.title)}">'
        f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: object, is_number: bool) -> str:
    if not is_number:
        is_prose = isinstance(value, str) and len(value) > _PROSE
        kind = ' class="prose"' if is_prose else _class(_is_number(value) and value is not None)
        return f"<td{kind}>{escape(show(value))}</td>"
    known = isinstance(value, int | float) and not math.isnan(value)
    sorted_by = f"{value!r}" if known else ""
    return f'<td class="number" data-value="{sorted_by}">{escape(show(value))}</td>'


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _breakable(heading: str) -> str:
    """Let a name of several words be broken into lines."""
    return escape(heading).replace("_", "_<wbr>")


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _title(table: Table, index: int) -> str:
    if not table.meanings:
        return ""
    return f' title="{escape(table.meanings[index])}"'
