"""A calibration: measured against fitted, and how much cheaper cached prompts are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from sim.cost import StepCost, cost_from_document
from sim.cost_fit import OPTIONAL_COLUMNS, batch_of
from sim.plots.axes import log_axis
from sim.plots.style import GREY, HEIGHT, RC, WIDTH, finish, nth_style


@rc_context(RC)
def calibration(document: dict[str, Any]) -> Figure:
    """Draw the file of a calibration.

    Left, the time of every measured step against what the fitted model says. Right, one prompt of
    which more and more is cached: measured, and the model's line.

    Parameters
    ----------
    document
        What `sim.calibrate.calibrate` wrote.
    """
    points = pd.DataFrame(document["points"])
    kept = {name: document[name] for name in ("form", "coefficients")}
    cost = cost_from_document(kept, "calibration")
    assert isinstance(cost, StepCost)
    figure = Figure(figsize=(1.25 * WIDTH, HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    scale = 1e3
    kinds = {
        "prefill": (points["decodes"] == 0) & (points["new_tokens"] > 1),
        "decode": (points["decodes"] == 0) & (points["new_tokens"] == 1),
        "both": points["decodes"] > 0,
    }
    measured = scale * points["seconds"]
    model = measured * (1 + points["error"])
    handles = []
    for index, (kind, rows) in enumerate(kinds.items()):
        style = nth_style(index)
        handles.append(
            left.scatter(
                measured[rows], model[rows], s=18, color=style.colour, marker=style.marker,
                linewidths=0, alpha=0.8, label=kind,
            )
        )  # fmt: skip
    ends = np.array([min(measured.min(), model.min()), max(measured.max(), model.max())])
    left.plot(ends, ends, color=GREY, linewidth=1, zorder=1)
    log_axis(left, measured, columns=2)
    left.set(yscale="log", xlabel="measured (ms)", ylabel="model (ms)")
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_title("time of a step")
    _draw_hit_rate(right, points, cost)
    held_out = document["held_out"]
    finish(
        figure,
        f"{document['model']['name']} on {document['machine']['name']}",
        f"{len(points)} steps; points left out: median error {held_out['median']:.1%}, worst "
        f"{held_out['worst']:.1%}",
        handles,
    )
    return figure


def _draw_hit_rate(ax: Any, points: pd.DataFrame, cost: StepCost) -> None:  # noqa: ANN401
    alone = points[(points["decodes"] == 0) & (points["sequences"] == 1)]
    lengths = alone["new_tokens"] + alone["cached_tokens"]
    # The prompt of which the most shares were measured.
    prompt = int(lengths.mode().max())
    rows = alone[lengths == prompt].sort_values("cached_tokens")
    style = nth_style(0)
    ax.plot(
        rows["cached_tokens"] / prompt, 1e3 * rows["seconds"], linestyle="none",
        color=style.colour, marker=style.marker, label="measured",
    )  # fmt: skip
    cached = np.arange(0, prompt - 1, max(1, prompt // 64))
    ms = [
        cost.step_ns(batch_of({**OPTIONAL_COLUMNS, "new_tokens": prompt - c, "cached_tokens": c}))
        / 1e6
        for c in cached.tolist()
    ]
    ax.plot(cached / prompt, ms, color=GREY, label="model")
    ax.set(xlabel="share of the prompt that is cached", ylabel="ms", ylim=(0, None))
    ax.set_title(f"prefill of {prompt:,} tokens")
    ax.legend()
