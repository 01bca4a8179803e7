"""A figure as SVG inside a page: colours that follow the page's theme, points that can be read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.plots.style import RC, said_of, settle

AnyFigure = Figure
"""So that those who pass figures on need not import Matplotlib."""

_NO_SERIES = ("floor", "no caching", "break-even")
"""Labels of lines that are marks and no measurements."""

_POINTS_PER_INCH = 72
_MIN_GAP = 5
"""Points of a line that can be pointed at are so many units of the picture apart, at least."""

# Colours of the pictures that are too bright or too dark for one of the themes, and the variables
# of the page that take their place.
_THEMED = {
    "#0072b2": "var(--blue)",
    "#009e73": "var(--green)",
    "#000000": "var(--text)",
    "#ffffff": "var(--page)",
    "#e6e6e6": "var(--grid)",
    "#595959": "var(--quiet)",
}


@dataclass(frozen=True, slots=True)
class Series:
    """The lines of one name in a picture.

    Attributes
    ----------
    name
        As the legend has it.
    ids
        Of the SVG's groups that draw it, to be hidden and shown.
    points
        Of each point its place, in units of the picture, and what it says.
    """

    name: str
    ids: tuple[str, ...]
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class Inline:
    """A picture for a page.

    Attributes
    ----------
    svg
        One ``<svg>`` element; its ids begin with the stem.
    series
        What can be pointed at.
    width
        Of the view box, as all places are measured.
    """

    svg: str
    series: tuple[Series, ...]
    width: float


def inline(figure: Figure, stem: str, alt: str) -> Inline:
    """Write a figure as an element of a page; the same figure gives the same text.

    Parameters
    ----------
    figure
        What to write.
    stem
        Begins every id, so that pictures do not get in each other's way.
    alt
        What the picture shows, for those who cannot see it; plain text.
    """
    with rc_context({**RC, "svg.hashsalt": "prefixsim", "svg.fonttype": "none"}):
        settle(figure)
        series = tuple(_series(figure, stem))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    width = figure.get_figwidth() * _POINTS_PER_INCH
    return Inline(_tidied(file.getvalue(), stem, alt), series, round(width, 2))


def _series(figure: Figure, stem: str) -> Iterator[Series]:
    """Name the lines of a figure, and find where their points lie in the SVG."""
    named: dict[str, list[tuple[Axes, Line2D]]] = {}
    for ax in figure.axes:
        for line in ax.lines:
            label = str(line.get_label())
            in_data = line.get_transform() == ax.transData
            if in_data and not label.startswith("_") and label not in _NO_SERIES:
                named.setdefault(label, []).append((ax, line))
    for number, (label, lines) in enumerate(named.items()):
        ids: list[str] = []
        points: list[tuple[float, float, str]] = []
        for part, (ax, line) in enumerate(lines):
            what = said_of(line)
            points += _points(figure, ax, line, f"{label}, {what}" if what else label)
            ids.append(f"{stem}-series-{number}-{part}")
            line.set_gid(f"series-{number}-{part}")
        yield Series(label, tuple(ids), tuple(points))


def _points(
    figure: Figure, ax: Axes, line: Line2D, name: str
) -> Iterator[tuple[float, float, str]]:
    """Give the points of a line that are seen, but for those too close to the one before."""
    scale = _POINTS_PER_INCH / figure.dpi
    height = figure.get_figheight() * _POINTS_PER_INCH
    # Categories would become numbers here; lines of these pictures have numbers.
    data = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata())])
    places = ax.transData.transform(data)
    seen = ax.bbox.padded(1.0)
    xlabel, ylabel = _label(ax, "x"), _label(ax, "y")
    title = ax.get_title(loc="left")
    last = (-np.inf, -np.inf)
    for (x, y), (left, up) in zip(data.tolist(), places.tolist(), strict=True):
        if not (np.isfinite([left, up]).all() and seen.contains(left, up)):
            continue
        at = (round(left * scale, 1), round(height - up * scale, 1))
        if max(abs(at[0] - last[0]), abs(at[1] - last[1])) < _MIN_GAP:
            continue
        last = at
        said = [name, title, f"{xlabel}: {_say(x)}", f"{ylabel}: {_say(y)}"]
        yield (*at, "\n".join(part for part in said if part))


def _label(ax: Axes, axis: str) -> str:
    """Find the label of an axis; of panels that share one, only the outer ones have it."""
    shared = ax.get_shared_x_axes() if axis == "x" else ax.get_shared_y_axes()
    for each in [ax, *shared.get_siblings(ax)]:
        text = each.get_xlabel() if axis == "x" else each.get_ylabel()
        if text:
            return " ".join(text.split())
    return axis


def _say(value: float) -> str:
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _tidied(text: str, stem: str, alt: str) -> str:
    """Keep the element alone, let it grow with the page, and take colours from the page."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sid="', f' id="{stem}-', text)
    text = re.sub(r"url\(#", f"url(#{stem}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{stem}-', text)
    text = re.sub("|".join(_THEMED), lambda found: _THEMED[found[0]], text)
    head, _, rest = text.partition(">")
    (box,) = re.findall(r'viewBox="[^"]*"', head)
    said = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'<svg {box} role="img" aria-label="{said}">{rest}'
