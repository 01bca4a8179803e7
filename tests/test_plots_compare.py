"""The picture of a comparison."""

import pandas as pd
import pytest

from sim.plots.compare import draw_comparison

METHOD = ("Bound: made up.", "Intervals: made up.")


def row(policy, difference, reach, verdict, capacity="5%", **more):
    return {
        "workload": "trace", "capacity": capacity, "policy": policy, "policy_args": "",
        "block_size": 16, "num_blocks": 1234, "hit_rate": 0.3 + difference, "reference": "lru",
        "difference": difference, "difference_low": difference - reach,
        "difference_high": difference + reach, "verdict": verdict, "bound": "belady",
        "bound_hit_rate": 0.34, **more,
    }  # fmt: skip


def table(capacity="5%", **more):
    return [
        row("arc", 0.02, 0.01, "better", capacity, **more),
        row("lru", 0.0, 0.0, "reference", capacity, **more),
        row("ttl", 0.0, 0.0, "same", capacity, **more),
        row("clock", -0.01, 0.02, "noise", capacity, **more),
        row("fifo", -0.04, 0.01, "worse", capacity, policy_args="leaf_only=true", **more),
    ]


def draw(rows):
    figure = draw_comparison(pd.DataFrame(rows), method=METHOD)
    figure.draw_without_rendering()
    return figure


def marks(ax):
    return [line for line in ax.lines if len(line.get_xdata()) == 1]


def test_a_point_and_an_interval_per_policy_the_best_on_top():
    figure = draw(table())
    (ax,) = figure.axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["arc", "ttl", "clock", "fifo leaf_only=true"]
    low, high = ax.get_ylim()
    assert low > high
    assert [mark.get_xdata()[0] for mark in marks(ax)] == pytest.approx([2, 0, -1, -4])
    intervals = [line.get_xdata() for line in ax.lines if len(set(line.get_ydata())) == 1]
    assert [1.0, 3.0] in [pytest.approx(list(ends)) for ends in intervals if len(ends) == 2]


def test_a_verdict_shows_without_colour():
    (ax,) = draw(table()).axes
    looks = {(mark.get_marker(), mark.get_markerfacecolor()) for mark in marks(ax)}
    assert len({marker for marker, _ in looks}) == 4


def test_the_reference_and_the_bound_are_named_and_drawn():
    figure = draw(table())
    (ax,) = figure.axes
    title = ax.get_title(loc="left")
    assert title == "5%: 1,234 blocks\nlru 30.0 %\nBelady 34.0 %"
    lines = [line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert 4 in [round(at, 9) for at in lines]
    assert "less that of lru" in figure.get_suptitle()
    assert "Bound: made up." in figure.get_suptitle()


def test_a_bound_far_away_is_named_only():
    (ax,) = draw(table(bound_hit_rate=0.9)).axes
    assert ax.get_xlim()[1] < 10
    assert "Belady 90.0 %" in ax.get_title(loc="left")


def test_panels_share_their_rows_and_wrap():
    rows = [each for share in range(1, 7) for each in table(f"{share}%")]
    figure = draw(rows)
    shown = [ax for ax in figure.axes if ax.axison]
    assert len(shown) == 6
    assert len({ax.get_position().y0 for ax in shown}) == 2


def test_policies_without_an_interval_are_drawn():
    rows = [
        row("lru", 0.0, float("nan"), "reference"),
        row("arc", 0.01, float("nan"), "unknown", bound_hit_rate=float("nan")),
    ]
    (ax,) = draw(rows).axes
    assert [mark.get_xdata()[0] for mark in marks(ax)] == pytest.approx([1])
