"""The picture of curves at every capacity."""

import numpy as np
import pandas as pd
import pytest

from sim.plots.curve import CurveLine, draw_curves


def line(label, shift, num_refusing=5):
    tokens = np.arange(1, 5001) * 16
    rate = np.minimum(np.arange(1, 5001) / (2500 + shift), 1) * 0.6
    refused = np.where(np.arange(5000) < num_refusing, 3, 0)
    points = pd.DataFrame({"kv_capacity_tokens": tokens, "hit_rate": rate, "num_refused": refused})
    points.loc[: num_refusing - 1, "hit_rate"] = 0.9
    belady = pd.DataFrame({"kv_capacity_tokens": tokens[[10, 1000]], "hit_rate": [0.3, 0.6]})
    return CurveLine(label, points, 0.6, int(tokens[2499 + shift]), belady)


@pytest.fixture
def axes():
    figure = draw_curves(
        [line("vllm_v1, block size 16", 0), line("vllm_v1_latest, block size 16", 300)],
        setting="made up",
        gib_per_token=2**17 / 2**30,
        model="llama-3-8b",
    )
    figure.draw_without_rendering()
    return figure.axes[0], figure


def test_rates_of_pools_that_refuse_requests_are_left_out(axes):
    ax, _ = axes
    curve = ax.lines[0]
    assert max(curve.get_ydata()) == pytest.approx(60)
    assert min(curve.get_xdata()) == 6 * 16


def test_long_curves_are_thinned_and_end_on_a_plateau(axes):
    ax, _ = axes
    curve = ax.lines[0]
    assert len(curve.get_xdata()) <= 1500
    assert curve.get_ydata()[-1] == curve.get_ydata()[-2] == pytest.approx(60)


def test_floor_ceiling_belady_and_knee_are_marked(axes):
    ax, figure = axes
    texts = [text.get_text() for text in ax.texts]
    assert "floor: no caching, 0 %" in texts
    assert "ceiling: infinite cache, 60.0 %" in texts
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [
        "vllm_v1, block size 16 (mark: knee)",
        "vllm_v1_latest, block size 16 (mark: knee)",
        "Belady's bound",
    ]
    knees = [curve for curve in ax.lines if len(curve.get_xdata()) == 1]
    assert [knee.get_xdata()[0] for knee in knees] == [2500 * 16, 2800 * 16]
    assert knees[0].get_color() != knees[1].get_color()
    assert knees[0].get_marker() != knees[1].get_marker()


def test_axes_have_units(axes):
    ax, _ = axes
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "KV capacity (tokens)"
    assert ax.get_ylabel() == "hit rate (%)"
    (above,) = ax.child_axes
    assert above.get_xlabel() == "KV of llama-3-8b (GiB)"


def test_a_workload_without_a_hit_is_drawn_too():
    nothing = line("x", 0)
    points = nothing.points.assign(hit_rate=0.0)
    flat = CurveLine("x", points, 0.0, None, nothing.belady.assign(hit_rate=0.0))
    figure = draw_curves([flat], setting="", gib_per_token=1e-4, model="m")
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_ylim()
    assert low < 0 < high
