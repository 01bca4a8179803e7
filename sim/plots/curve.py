"""Hit rate against every capacity, with floor, ceiling, Belady's bound and the knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator
from numpy.typing import ArrayLike, NDArray

from sim.plots.axes import log_axis
from sim.plots.style import GREY, HEIGHT, RC, WIDTH, finish, nth_style, says

_MAX_POINTS = 1500
"""A drawn line needs no more; the file has all."""
_BEYOND = 1.3
"""How far behind the last capacity a line goes on, as a multiple of it."""


@dataclass(frozen=True, slots=True)
class CurveLine:
    """One curve.

    Attributes
    ----------
    label
        What the legend says.
    points
        Columns ``kv_capacity_tokens``, ascending, ``hit_rate`` and ``num_refused``.
    ceiling
        Hit rate of a cache that never evicts.
    knee_tokens
        Capacity at the knee; None where nothing is hit.
    belady
        Columns ``kv_capacity_tokens`` and ``hit_rate``.
    """

    label: str
    points: pd.DataFrame
    ceiling: float
    knee_tokens: int | None
    belady: pd.DataFrame


@rc_context(RC)
def draw_curves(
    lines: Sequence[CurveLine], *, setting: str, gib_per_token: float, model: str
) -> Figure:
    """Draw the curves over capacity in tokens and, above, in GiB of a model's KV.

    Pools that refuse some request are left out, since their rates are those of other requests.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    ax = figure.subplots()
    for index, line in enumerate(lines):
        _draw_line(ax, line, index, width=1.8 + 1.2 * min(len(lines) - 1 - index, 4))
    top = 100 * max(line.ceiling for line in lines)
    _draw_limits(ax, lines, top or 10.0)
    log_axis(ax, pd.concat([_serving(line)["kv_capacity_tokens"] for line in lines]))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlabel("KV capacity (tokens)")
    ax.set_ylabel("hit rate (%)")
    above = ax.secondary_xaxis("top", functions=(_Times(gib_per_token), _Times(1 / gib_per_token)))
    above.xaxis.set_major_locator(LogLocator(numticks=12))
    above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    above.set_xlabel(f"KV of {model} (GiB)")
    finish(figure, "Hit rate against KV capacity, every capacity", setting, _handles(lines))
    return figure


@dataclass(frozen=True, slots=True)
class _Times:
    factor: float

    def __call__(self, values: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(values, dtype=np.float64) * self.factor


def _serving(line: CurveLine) -> pd.DataFrame:
    """Keep the pools that serve every request, and show that the last rate stays."""
    columns = ["kv_capacity_tokens", "hit_rate"]
    points = line.points.loc[line.points["num_refused"] == 0, columns]
    points = points.iloc[shown(points["kv_capacity_tokens"].to_numpy())]
    return pd.concat([points, points.tail(1) * [_BEYOND, 1.0]], ignore_index=True)


def _draw_line(ax: Axes, line: CurveLine, index: int, *, width: float) -> None:
    """Draw a curve; the lower of curves that lie upon each other are wider, so that each shows."""
    style = nth_style(index)
    points = _serving(line)
    ax.plot(
        points["kv_capacity_tokens"],
        100 * points["hit_rate"],
        color=style.colour,
        linestyle=style.dashes,
        linewidth=width,
        drawstyle="steps-post",
        label=line.label,
    )
    bound = line.belady
    (best,) = ax.plot(
        bound["kv_capacity_tokens"], 100 * bound["hit_rate"], color=style.colour, linewidth=1.1,
        linestyle=":", label=line.label,
    )  # fmt: skip
    says(best, "Belady's bound")
    if line.knee_tokens is not None:
        at = points["kv_capacity_tokens"].searchsorted(line.knee_tokens, side="right") - 1
        (knee,) = ax.plot(
            [line.knee_tokens],
            [100 * points["hit_rate"].iloc[at]],
            marker=style.marker,
            markersize=7 + 1.2 * width,
            color=style.colour,
            markeredgecolor="white",
            zorder=4,
            label=line.label,
        )
        says(knee, "knee")


def shown(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose what a line needs of ascending capacities that serve every request."""
    if len(tokens) < _MAX_POINTS:
        return np.arange(len(tokens))
    # Evenly over the axis, which is logarithmic; the last is drawn twice, see `_serving`.
    wanted = np.geomspace(tokens[0], _BEYOND * tokens[-1], _MAX_POINTS)
    # Among whole numbers, the first from a bound on is the first from the next whole one on.
    chosen = np.searchsorted(tokens, np.ceil(wanted[:-1]).astype(np.int64))
    return np.unique(np.minimum(chosen, len(tokens) - 1))


def _draw_limits(ax: Axes, lines: Sequence[CurveLine], top: float) -> None:
    ax.axhline(0, color=GREY, linewidth=1)
    where = ax.get_yaxis_transform()
    ax.text(0.99, -0.01 * top, "floor: no caching, 0 %", transform=where, ha="right", va="top",
            fontsize=9, color=GREY)  # fmt: skip
    rates = sorted({round(100 * line.ceiling, 1) for line in lines})
    for rate in rates:
        ax.axhline(rate, color=GREY, linewidth=1.2, linestyle="--", zorder=1.5)
    said = " and ".join(f"{rate:.1f} %" for rate in rates) if len(rates) < 4 else "by block size"
    ax.text(0.01, max(rates) + 0.02 * top, f"ceiling: infinite cache, {said}", transform=where,
            va="bottom", fontsize=9, color=GREY)  # fmt: skip
    ax.set_ylim(-0.1 * top, 1.13 * top)


def _handles(lines: Sequence[CurveLine]) -> list[Line2D]:
    handles = []
    for index, line in enumerate(lines):
        style = nth_style(index)
        handles.append(
            Line2D(
                [],
                [],
                color=style.colour,
                linestyle=style.dashes,
                marker=style.marker,
                markeredgecolor="white",
                linewidth=1.8,
                label=f"{line.label} (mark: knee)",
            )
        )
    handles.append(Line2D([], [], color=GREY, linestyle=":", label="Belady's bound"))
    return handles
