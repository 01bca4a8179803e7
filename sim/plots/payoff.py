"""From which hit rate on caching pays, against block size."""

from __future__ import annotations

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.breakeven import crossing
from sim.errors import UsageError
from sim.plots.axes import block_axis
from sim.plots.overhead import common, relative_to_floor, say_rates, without_hit_rates
from sim.plots.runs import DIALS, fewer, left_out
from sim.plots.series import MAX_LINES, at_capacity, lines_of
from sim.plots.style import HEIGHT, RC, WIDTH, Style, depths, finish, styles_of

_PANEL = ["cost", "prompt"]
_CELL = ["workload", "workload_group", "cost"]
_KEYS = [*_CELL, "policy", "policy_args"]


def has_break_evens(summary: pd.DataFrame) -> bool:
    """Whether any policy has two block sizes with a baseline at two hit rates each."""
    relative = relative_to_floor(summary)[0].dropna(subset=["ratio", "infinite_hit_rate"])
    rates = relative.groupby([*_KEYS, "block_size"], dropna=False)["infinite_hit_rate"].nunique()
    sizes = (rates > 1).groupby(level=list(range(len(_KEYS)))).sum()
    return bool(len(sizes) and sizes.max() > 1)


@rc_context(RC)
def break_even_vs_block_size(summary: pd.DataFrame) -> Figure:
    """Draw the break-even hit rate against block size: a line per policy.

    Panels stand beside each other by prompt length and above each other by cost preset, as far as
    these vary. An open marker at the top edge stands for a policy that never pays in the data.

    Parameters
    ----------
    summary
        Rows of the summary table. Seeds are averaged; of several capacities one is shown.

    Raises
    ------
    UsageError
        No policy has two block sizes with a baseline at two hit rates each.
    """
    if not has_break_evens(summary):
        sizes = ", ".join(str(size) for size in sorted(summary["block_size"].unique()))
        raise UsageError(
            "--kind break-even needs a policy and the policy none at two block sizes with two hit "
            f"rates each, but these runs have {say_rates(summary)} at block sizes {sizes}; sweep "
            "--policy none,vllm_v1 --block-size 16,64 --workload-arg hit_rate=0,0.05,0.2."
        )
    relative, notes = relative_to_floor(summary)
    relative = relative.dropna(subset=["ratio", "infinite_hit_rate"])
    # Each GPU and workload has capacities of its own.
    cells = [at_capacity(rows)[0] for _, rows in relative.groupby(_CELL)]
    shown = pd.concat(cells, ignore_index=True)
    shown["prompt"] = [_dial(args, "prompt") for args in shown["workload_group"]]
    frame = without_hit_rates(shown).assign(
        workload_args=[_without(args, "prompt") for args in shown["workload_group"]],
        panel_cost=shown["cost"],
        cost="",
    )
    frame = fewer(frame, DIALS, MAX_LINES)
    shown = shown.loc[frame.index]
    notes += left_out(without_hit_rates(relative), without_hit_rates(shown))
    panels = shown[_PANEL].drop_duplicates().sort_values(_PANEL)
    by = ["panel_cost", "prompt", "block_size", "infinite_hit_rate"]
    lines = lines_of(frame, by, ["ratio"])
    styles = styles_of(lines)
    costs, prompts = panels["cost"].unique(), sorted(panels["prompt"].unique())
    height = HEIGHT if len(costs) == 1 else 2.7 * len(costs) + 0.8
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(costs), len(prompts), sharex=True, sharey=True, squeeze=False)
    top = 0.0
    drawn = []
    for row, cost in zip(grid, costs, strict=True):
        for ax, prompt in zip(row, prompts, strict=True):
            curves = {}
            for line in lines:
                mine = (line.points["panel_cost"] == cost) & (line.points["prompt"] == prompt)
                curves[line.label] = _break_evens(line.points[mine])
            top = max(top, *(float(curve.max()) for curve in curves.values() if curve.max() > 0), 0)
            drawn.append((ax, curves))
            _draw(ax, curves, styles)
            parts = [str(cost)] if len(costs) > 1 else []
            if len(prompts) > 1:
                parts.append(f"prompt {prompt:,} tokens")
            ax.set_title("\n".join(parts))
    top = top or 1.0
    for ax, curves in drawn:
        _draw_never(ax, curves, styles, 1.08 * top)
    grid[0, 0].set_ylim(-0.03 * top, 1.15 * top)
    run = sorted(int(size) for size in shown["block_size"].unique())
    block_axis(grid[0, 0], run, len(prompts))
    for ax in grid[:-1].flat:
        ax.set_xlabel("")
    for ax in grid[-1]:
        ax.set_xlabel("block size (tokens)")
    for ax in grid[:, 0]:
        ax.set_ylabel("break-even hit rate (%)")
    handles = [Line2D([], [], label=line.label, **styles[line.label].line()) for line in lines]
    title = "Hit rate from which on prefix caching pays"
    if any(curve.isna().any() for _, curves in drawn for curve in curves.values()):
        title += " (open at the top: it never does, in these runs)"
    if len(prompts) > 1:
        shown["workload_group"] = frame["workload_args"]
    finish(figure, title, common(shown), handles, notes)
    return figure


def _break_evens(points: pd.DataFrame) -> pd.Series[float]:
    """Compute the break-evens in %, by block size."""
    found = {}
    for size, rows in points.groupby("block_size"):
        found[size] = 100 * crossing(rows["infinite_hit_rate"].to_numpy(), rows["ratio"].to_numpy())
    return pd.Series(found, dtype="float64")


def _draw(ax: Axes, curves: dict[str, pd.Series[float]], styles: dict[str, Style]) -> None:
    tolerance = 0.02 * max((float(curve.max()) for curve in curves.values()), default=0)
    for (label, curve), depth in zip(
        curves.items(), depths(list(curves.values()), tolerance), strict=True
    ):
        ax.plot(curve.index, curve, label=label, **styles[label].line(depth))


def _draw_never(
    ax: Axes, curves: dict[str, pd.Series[float]], styles: dict[str, Style], top: float
) -> None:
    """Mark at the top edge where caching never pays."""
    for label, curve in curves.items():
        sizes = curve.index[curve.isna()]
        if len(sizes):
            look = styles[label].line() | {"linestyle": "none", "markerfacecolor": "white"}
            look |= {"markeredgecolor": styles[label].colour, "markeredgewidth": 1.4}
            ax.plot(sizes, [top] * len(sizes), label=f"{label}: never", **look)


def _dial(args: str, name: str) -> int:
    """Read a dial of a generator; 0 where there is none."""
    for part in args.split(","):
        key, _, value = part.partition("=")
        if key == name:
            return int(value)
    return 0


def _without(args: str, name: str) -> str:
    return ",".join(part for part in args.split(",") if not part.startswith(f"{name}="))
