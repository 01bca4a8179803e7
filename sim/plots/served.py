"""Predictions against what was measured: requests that were served, published prefills."""

from __future__ import annotations

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from sim.plots.style import GREY, HEIGHT, RC, WIDTH, finish, nth_style


@rc_context(RC)
def served(measured: pd.DataFrame, simulated: pd.DataFrame, setting: str = "") -> Figure:
    """Draw each request's time to first token and latency, simulated against measured.

    Parameters
    ----------
    measured, simulated
        Tables of requests of the same workload, see `sim.columns`.
    setting
        What is held fixed, for the title.
    """
    both = measured.merge(simulated, on="request_id", suffixes=("_measured", "_simulated"))
    figure = Figure(figsize=(WIDTH, 0.75 * HEIGHT), layout="constrained")
    panels = figure.subplots(1, 2)
    style = nth_style(0)
    for ax, name, scale, title in zip(
        panels, ("ttft_ms", "e2e_s"), (1.0, 1e3), ("time to first token", "latency"), strict=True
    ):
        x, y = scale * both[f"{name}_measured"], scale * both[f"{name}_simulated"]
        end = 1.05 * max(x.max(), y.max())
        ax.plot([0, end], [0, end], color=GREY, linewidth=1, zorder=1)
        ax.scatter(x, y, s=18, color=style.colour, marker=style.marker, linewidths=0, alpha=0.8)
        ax.set(xlabel="measured (ms)", ylabel="simulated (ms)", xlim=(0, end), ylim=(0, end))
        ax.set_title(title)
    title = f"{len(both)} requests, simulated against measured; grey: equal"
    finish(figure, title, setting, [])
    return figure


@rc_context(RC)
def prefills(table: pd.DataFrame, prompt_tokens: int) -> Figure:
    """Draw published prefills and what the presets say, by the share of the prompt that is cached.

    Parameters
    ----------
    table
        See `sim.presets.published.prefills`.
    prompt_tokens
        Length of the prompt.
    """
    figure = Figure(figsize=(WIDTH, 0.8 * HEIGHT), layout="constrained")
    ax = figure.subplots()
    handles = []
    for index, (name, rows) in enumerate(table.groupby("preset", sort=False)):
        style = nth_style(index)
        x = 100 * rows["cached_share"]
        ax.plot(x, rows["preset_ms"], color=style.colour, linestyle=style.dashes)
        handles += ax.plot(
            x, rows["published_ms"], color=style.colour, marker=style.marker,
            linestyle="none", label=name,
        )  # fmt: skip
    ax.set(xlabel="cached share of the prompt (%)", ylabel="ms", ylim=(0, None))
    finish(
        figure,
        f"Prefill of {prompt_tokens:,} tokens: points as published, lines by the preset",
        "model and GPU by colour and marker",
        handles,
    )
    return figure
