"""How the pictures look, and how they are written."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.errors import UsageError
from sim.plots.runs import FLOOR
from sim.plots.series import Line

RC: Any = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.handlelength": 3.4,
    "figure.facecolor": "white",
    "text.parse_math": False,  # a $ in the name of a file is no formula
}
WIDTH, HEIGHT = 8.0, 5.0
GREY = "0.35"

# Okabe and Ito's palette, without the yellow that white swallows.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))


@dataclass(frozen=True, slots=True)
class Style:
    """Colour, marker and dashes of a line."""

    colour: str
    marker: str
    dashes: Any
    filled: bool = True

    def line(self, depth: int = 0) -> dict[str, Any]:
        """Make the arguments of ``Axes.plot`` for a line with ``depth`` equal lines above it.

        The lower of equal lines are wider and their markers larger, so that each one shows.
        """
        depth = min(depth, 5)
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "linewidth": 1.6 + 1.1 * depth,
            "markersize": 5.5 + 2.6 * depth,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgecolor": "white" if self.filled else self.colour,
            "markeredgewidth": 0.7 if self.filled else 1.4,
            "zorder": 3 - depth / 10,
        }


def styles_of(lines: Sequence[Line]) -> dict[str, Style]:
    """Choose a style per label: colour by policy, dashes by what else differs."""
    policies = list(dict.fromkeys(line.policy for line in lines if line.policy != FLOOR))
    variants = list(dict.fromkeys(line.variant for line in lines))
    found = {}
    for line in lines:
        variant = variants.index(line.variant)
        dashes = _DASHES[variant % len(_DASHES)]
        if line.policy == FLOOR:
            found[line.label] = floor_style(variant, many=len(variants) > 1)
        elif len(policies) == 1:
            found[line.label] = nth_style(variant)
        elif len(variants) == 1:
            found[line.label] = nth_style(policies.index(line.policy))
        else:
            # Two variants leave the markers to the policies; of more, each has its own.
            base = nth_style(policies.index(line.policy))
            marker = base.marker if len(variants) <= 2 else nth_style(variant).marker
            found[line.label] = Style(base.colour, marker, dashes, filled=_is_filled(variant))
    return found


def nth_style(index: int) -> Style:
    """Choose one of many styles; colours, markers and dashes repeat at different lengths."""
    return Style(
        _COLOURS[index % len(_COLOURS)],
        _MARKERS[index % len(_MARKERS)],
        _DASHES[index % len(_DASHES)],
    )


def floor_style(index: int, *, many: bool = False) -> Style:
    """Choose one of the styles of no caching, which is grey; of many, each has its own marker."""
    marker = _MARKERS[index % len(_MARKERS)] if many else "p"
    return Style(GREY, marker, _DASHES[index % len(_DASHES)], filled=not many or _is_filled(index))


def _is_filled(variant: int) -> bool:
    """Tell the first variant from the others, and those whose markers come again."""
    return variant == 0 or variant > len(_MARKERS)


def depths(curves: Sequence[pd.Series[float]], tolerance: float) -> list[int]:
    """Count for each curve the later ones that lie upon it wherever both have points."""

    def same(one: pd.Series[float], other: pd.Series[float]) -> bool:
        gap = (one - other).abs().dropna()
        return len(gap) > 0 and bool(gap.max() <= tolerance)

    return [sum(same(one, other) for other in curves[i + 1 :]) for i, one in enumerate(curves)]


def finish(
    figure: Figure, title: str, setting: str, handles: Sequence[Artist], notes: Sequence[str] = ()
) -> None:
    """Set the title and a legend below, and make room for both.

    Parameters
    ----------
    figure
        With its panels, whose heights stay.
    title, setting
        What is drawn, and what is held fixed.
    handles
        Of the legend.
    notes
        Sentences on what is not shown; they follow the title, and `notes_of` gives them.
    """
    lines = [title, *textwrap.wrap(setting, 88)]
    lines += [line for note in notes for line in textwrap.wrap(note, 88)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", linespacing=1.4)
    figure.set_label("\n".join(notes))
    rows = 0
    if handles:
        size = 9 if len(handles) <= 8 else 8
        labels = [textwrap.fill(str(handle.get_label()), 95) for handle in handles]
        # A letter is 0.57 of the size wide, a handle with its gaps 55 points.
        widths = [0.57 * size * max(map(len, text.split("\n"))) + 55 for text in labels]
        room = WIDTH * 72 - 8
        columns = len(widths) if sum(widths) < room else max(int(room / max(widths)), 1)
        columns = -(-len(handles) // -(-len(handles) // columns))
        rows = -(-len(handles) // columns) + sum(text.count("\n") for text in labels)
        figure.legend(
            list(handles),
            labels,
            loc="outside lower center",
            ncols=columns,
            columnspacing=1.6,
            fontsize=size,
        )
    figure.set_figheight(figure.get_figheight() + 0.21 * (max(rows - 2, 0) + len(lines) - 2))


def notes_of(figure: Figure) -> list[str]:
    """Give the sentences on what a figure does not show."""
    return str(figure.get_label()).splitlines()


def says(line: Line2D, what: str) -> None:
    """Note which of several figures of its series a line shows, such as p90; see `said_of`."""
    vars(line)["prefixsim_says"] = what


def said_of(line: Line2D) -> str:
    """Give what was noted; empty where the series has one line only."""
    return str(vars(line).get("prefixsim_says", ""))


def time_unit(milliseconds: pd.Series[float]) -> tuple[str, float]:
    """Choose ms or s by size; returns the unit and how many ms it has."""
    return ("s", 1000.0) if milliseconds.max() >= 2000 else ("ms", 1.0)


def save(figure: Figure, directory: Path, stem: str) -> list[Path]:
    """Write a figure as PNG and SVG; the same figure gives the same bytes.

    Parameters
    ----------
    figure
        What to write.
    directory
        Where to; made if missing.
    stem
        Name of the files, without their suffix.

    Returns
    -------
    list[Path]
        The two files.

    Raises
    ------
    UsageError
        They cannot be written.
    """
    png, svg = directory / f"{stem}.png", directory / f"{stem}.svg"
    with rc_context({**RC, "svg.hashsalt": "prefixsim", "svg.fonttype": "none"}):
        settle(figure)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            figure.savefig(png, dpi=150, metadata={"Software": None})
            figure.savefig(svg, metadata={"Date": None, "Creator": None})
        except OSError as error:
            raise unwritable(error, directory) from error
    return [png, svg]


def unwritable(error: OSError, directory: Path) -> UsageError:
    """Say that pictures cannot be written, and which file or folder is in the way."""
    return UsageError(
        f"{error.filename or directory} cannot be written ({error.strerror}); move it out of the "
        "way, or name another folder for the pictures with --output."
    )


def settle(figure: Figure) -> None:
    """Lay out once and round: the solver's last digits vary, and an SVG has ids made of them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        left, bottom, width, height = (round(value, 6) for value in ax.get_position().bounds)
        ax.set_position((left, bottom, width, height))
