"""Published times of steps beside the presets, and pictures of predictions against measurements."""

import pandas as pd
import pytest

from sim.errors import UsageError
from sim.plots.served import prefills as draw_prefills
from sim.plots.served import served
from sim.presets import load_preset
from sim.presets.published import errors, fitted_pairs, prefills, published_steps


@pytest.mark.parametrize("pair", fitted_pairs(), ids="/".join)
def test_errors_are_those_that_the_preset_states(pair):
    steps = published_steps(*pair)
    stated = load_preset(*pair).residuals
    assert len(steps) == stated["num_points"]
    found = errors().loc["/".join(pair)]
    assert found["steps"] == stated["num_points"]
    assert found["median"] == pytest.approx(stated["median"], rel=1e-3)
    assert found["worst"] == pytest.approx(stated["worst"], rel=1e-3)


def test_a_prefill_is_that_of_the_published_table():
    table = prefills([("llama-3-8b", "a100-80g"), ("llama-3-8b", "h100")], 8192)
    assert table["preset"].tolist() == ["llama-3-8b/a100-80g"] * 5 + ["llama-3-8b/h100"] * 5
    assert table["cached_share"].tolist() == [0, 0.25, 0.5, 0.75, 0.9375] * 2
    published = [557.0, 437.2, 304.8, 160.1, 46.8, 199.7, 154.4, 103.5, 53.4, 14.9]
    assert table["published_ms"].tolist() == pytest.approx(published)
    assert (table["preset_ms"] / table["published_ms"] - 1).tolist() == pytest.approx(
        table["error"].tolist()
    )


def test_a_derived_preset_has_no_table():
    with pytest.raises(UsageError, match="qwen3-8b/h100 has no published table; choose from"):
        published_steps("qwen3-8b", "h100")


def test_prefills_are_drawn_as_points_and_lines():
    table = prefills([("llama-3-8b", "h100")], 8192)
    (ax,) = draw_prefills(table, 8192).axes
    line, points = ax.lines
    assert line.get_ydata().tolist() == table["preset_ms"].tolist()
    assert points.get_ydata().tolist() == table["published_ms"].tolist()
    assert points.get_label() == "llama-3-8b/h100"
    assert ax.get_xlabel() == "cached share of the prompt (%)"


def test_requests_are_matched_by_their_ids():
    measured = pd.DataFrame({"request_id": ["a", "b"], "ttft_ms": [1.0, 2.0], "e2e_s": [0.1, 0.2]})
    simulated = pd.DataFrame({"request_id": ["b", "a"], "ttft_ms": [4.0, 3.0], "e2e_s": [0.4, 0.3]})
    figure = served(measured, simulated, "tiny")
    first, latency = figure.axes
    assert first.collections[0].get_offsets().tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert latency.collections[0].get_offsets().tolist() == [[100.0, 300.0], [200.0, 400.0]]
    assert first.get_xlim() == first.get_ylim()
