"""Pages that need nothing from elsewhere: what `explain` and `report` share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files


def read(package: str, name: str) -> str:
    """Read a file that lies beside the code of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Put parts of HTML into the places of a template, and the style and script of every page.

    Parameters
    ----------
    template
        HTML with places such as ``%%TITLE%%``.
    parts
        What goes there, escaped already; a part is not searched for places of others.
    """
    parts = {
        "BASE_CSS": read("sim.pages", "base.css"),
        "THEME_JS": read("sim.pages", "theme.js"),
        **parts,
    }
    pieces = template.split("%%")
    for index in range(1, len(pieces), 2):
        pieces[index] = parts[pieces[index]]
    return "".join(pieces)


def as_data(value: object) -> str:
    """Write data for a ``<script type="application/json">``, which nothing in it can end."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
