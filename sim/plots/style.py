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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from sim.plots.series import FLOOR, Line

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
            found[line.label] = floor_style(variant)
        elif len(policies) == 1:
            found[line.label] = nth_style(variant)
        elif len(variants) == 1:
            found[line.label] = nth_style(policies.index(line.policy))
        else:
            base = nth_style(policies.index(line.policy))
            found[line.label] = Style(base.colour, base.marker, dashes, filled=variant == 0)
    return found


def nth_style(index: int) -> Style:
    """Choose one of many styles; colours, markers and dashes repeat at different lengths."""
    return Style(
        _COLOURS[index % len(_COLOURS)],
        _MARKERS[index % len(_MARKERS)],
        _DASHES[index % len(_DASHES)],
    )


def floor_style(index: int) -> Style:
    """Choose one of the styles of no caching, which is grey."""
    return Style(GREY, "p", _DASHES[index % len(_DASHES)])


def depths(curves: Sequence[pd.Series[float]], tolerance: float) -> list[int]:
    """Count for each curve the later ones that lie upon it wherever both have points."""

    def same(one: pd.Series[float], other: pd.Series[float]) -> bool:
        gap = (one - other).abs().dropna()
        return len(gap) > 0 and bool(gap.max() <= tolerance)

    return [sum(same(one, other) for other in curves[i + 1 :]) for i, one in enumerate(curves)]


def finish(figure: Figure, title: str, setting: str, handles: Sequence[Artist]) -> None:
    """Set the title and a legend below, and make room for both."""
    lines = [title, *textwrap.wrap(setting, 80)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", linespacing=1.4)
    rows = 0
    if handles:
        # A letter is 5 points wide, a handle with its gaps 55.
        widths = [5 * len(str(handle.get_label())) + 55 for handle in handles]
        fit = len(widths) if sum(widths) < WIDTH * 72 else int(WIDTH * 72 / max(widths))
        rows = -(-len(handles) // max(fit, 1))
        columns = -(-len(handles) // rows)
        figure.legend(
            handles=list(handles), loc="outside lower center", ncols=columns, columnspacing=1.6
        )
    figure.set_figheight(figure.get_figheight() + 0.21 * (max(rows - 2, 0) + len(lines) - 2))


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


def block_axis(ax: Axes, values: Sequence[int]) -> None:
    """Make the x axis one of block sizes."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(values), [str(value) for value in values])
    ax.xaxis.set_minor_locator(NullLocator())
    room = (max(values) / min(values)) ** 0.08
    ax.set_xlim(min(values) / room, max(values) * room)
    ax.set_xlabel("block size (tokens)")


def time_unit(milliseconds: pd.Series[float]) -> tuple[str, float]:
    """Choose ms or s by size; returns the unit and how many ms it has."""
    return ("s", 1000.0) if milliseconds.max() >= 2000 else ("ms", 1.0)


def annotate(ax: Axes, text: str) -> None:
    """Say in the middle of a panel why it shows nothing."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.grid(visible=False)
    ax.tick_params(left=False, labelleft=False)


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
    """
    directory.mkdir(parents=True, exist_ok=True)
    png, svg = directory / f"{stem}.png", directory / f"{stem}.svg"
    with rc_context({**RC, "svg.hashsalt": "prefixsim", "svg.fonttype": "none"}):
        _settle(figure)
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def _settle(figure: Figure) -> None:
    """Lay out once and round: the solver's last digits vary, and an SVG has ids made of them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        left, bottom, width, height = (round(value, 6) for value in ax.get_position().bounds)
        ax.set_position((left, bottom, width, height))
