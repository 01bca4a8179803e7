"""Pictures: what they show of the tables, told from the artists that Matplotlib would draw."""

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from plotted import (
    CAPACITIES,
    ZERO,
    hit_rate,
    legend,
    lines,
    requests_of,
    summary_of,
    sweep,
    texts,
    title,
)

from sim import plots
from sim.columns import columns_of
from sim.errors import UsageError
from sim.plots.style import nth_style


def look(line):
    return (line.get_color(), line.get_marker(), line.get_linestyle(), line.get_markerfacecolor())


# Hit rate against capacity.


def test_capacity_draws_one_line_a_policy_in_percent_between_floor_and_ceiling():
    figure = plots.hit_rate_vs_capacity(summary_of(*sweep()))
    (ax,) = figure.axes
    assert ax.get_xlabel() == "KV capacity (tokens)"
    assert ax.get_ylabel() == "hit rate (%)"
    assert ax.get_xscale() == "log"
    assert legend(figure) == ["vllm_v0", "vllm_v1"] == list(lines(ax))
    (line,) = lines(ax)["vllm_v1"]
    assert list(line.get_xdata()) == CAPACITIES
    assert list(line.get_ydata()) == pytest.approx([100 * hit_rate(c) for c in CAPACITIES])
    guides = lines(ax, guides=True)
    assert list(guides["floor"][0].get_ydata()) == [0, 0]
    (ceiling,) = guides["ceiling"]
    assert list(ceiling.get_ydata()) == [45, 45]
    assert ceiling.get_linestyle() == "--"
    assert texts(ax) == ["floor: no caching, 0 %", "ceiling: infinite cache, 45.0 %"]
    low, high = ax.get_ylim()
    assert low < 0
    assert high > 45
    assert "conversation, block size 16" in title(figure)


def test_capacity_is_linear_within_a_decade():
    figure = plots.hit_rate_vs_capacity(summary_of(*sweep(capacities=[40_000, 200_000, 400_000])))
    assert figure.axes[0].get_xscale() == "linear"


def test_equal_curves_differ_in_every_way_and_the_lower_are_larger():
    names = ["a", "b", "c", "d", "e"]
    figure = plots.hit_rate_vs_capacity(summary_of(*sweep(names)))
    drawn = [line for (line,) in lines(figure.axes[0]).values()]
    assert len({line.get_color() for line in drawn}) == 5
    assert len({line.get_marker() for line in drawn}) == 5
    assert len({str(nth_style(index).dashes) for index in range(5)}) == 5
    for one, other in pairwise(drawn):
        assert one.get_zorder() < other.get_zorder()
        assert one.get_markersize() > other.get_markersize()
        assert one.get_linewidth() > other.get_linewidth()


def test_curves_apart_have_one_size():
    rows = [
        {"policy": name, "kv_capacity_tokens": c, "hit_rate": hit_rate(c, half_at)}
        for name, half_at in (("a", 100_000), ("b", 400_000))
        for c in CAPACITIES
    ]
    (ax,) = plots.hit_rate_vs_capacity(summary_of(*rows)).axes
    assert len({line.get_linewidth() for (line,) in lines(ax).values()}) == 1


@pytest.mark.parametrize("sizes", [(16, 64), (16, 32, 64), (16, 32, 64, 512)])
def test_block_sizes_get_a_panel_each_with_their_ceilings(sizes):
    rows = [
        row
        for size in sizes
        for row in sweep(block_size=size, infinite_hit_rate=0.5 - size / 10_000)
    ]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    panels = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in panels] == [f"block size {size}" for size in sizes]
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in panels}) == 1
    for ax, size in zip(panels, sizes, strict=True):
        assert list(lines(ax)) == ["vllm_v0", "vllm_v1"]
        (ceiling,) = lines(ax, guides=True)["ceiling"]
        assert ceiling.get_ydata()[0] == pytest.approx(50 - size / 100)
    assert legend(figure) == ["vllm_v0", "vllm_v1"]


def test_seeds_are_averaged_and_the_title_says_so():
    rows = [
        {"kv_capacity_tokens": c, "seed": seed, "hit_rate": 0.1 + seed / 10}
        for c in CAPACITIES
        for seed in range(3)
    ]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    (line,) = lines(figure.axes[0])["vllm_v1"]
    assert list(line.get_ydata()) == pytest.approx([20] * len(CAPACITIES))
    assert title(figure).endswith("mean of 3 seeds")
    figure = plots.hit_rate_vs_capacity(summary_of(*rows[1:]))
    assert title(figure).endswith("mean of 2 to 3 seeds")
    # The same run twice, as at --kv-capacity auto and at the number that it stands for, is one.
    figure = plots.hit_rate_vs_capacity(summary_of(*rows, rows[0]))
    assert title(figure).endswith("mean of 3 seeds")
    assert plots.notes_of(figure) == []


def test_another_setting_that_varies_gets_lines_of_its_own():
    rows = [row for scale in (1.0, 2.5) for row in sweep(rate_scale=scale)]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    names = [f"{policy}, rate_scale {s}" for policy in ("vllm_v0", "vllm_v1") for s in ("1", "2.5")]
    assert legend(figure) == names == list(lines(figure.axes[0]))
    looks = [look(line) for (line,) in lines(figure.axes[0]).values()]
    assert looks[0][0] == looks[1][0] != looks[2][0]
    assert len({str(one) for one in looks}) == 4


NAMES = [c.name for c in columns_of("summary")]
DIALS = NAMES[1 : NAMES.index("num_requests")]


@pytest.mark.parametrize("name", sorted({*DIALS} - {"num_blocks", "seed", "kv_capacity_tokens"}))
def test_no_setting_ever_makes_a_zigzag(name):
    by_kind = {bool: [False, True], int: [1, 2], float: [1.0, 2.0], str: ["one=1", "two=2"]}
    values = by_kind[type(ZERO[name])]
    rows = [row | {name: value} for value in values for row in sweep(["mine"])]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    drawn = [line for ax in figure.axes for (line,) in lines(ax).values()]
    assert len(drawn) == 2
    for line in drawn:
        assert list(line.get_xdata()) == CAPACITIES


def test_arguments_are_named_by_what_differs_and_have_their_ceilings():
    rows = [
        row
        for share in (0.2, 0.5)
        for row in sweep(
            ["vllm_v1"], workload_args=f"hit_rate={share},prompt=64", infinite_hit_rate=share
        )
    ]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    (ax,) = figure.axes
    assert legend(figure) == ["vllm_v1, hit_rate=0.2", "vllm_v1, hit_rate=0.5"]
    assert sorted(c.get_ydata()[0] for c in lines(ax, guides=True)["ceiling"]) == [20, 50]
    assert "ceiling 20.0 %, hit_rate=0.2" in texts(ax)
    colours = {line.get_color() for (line,) in lines(ax).values()}
    assert {c.get_color() for c in lines(ax, guides=True)["ceiling"]} == colours


def test_options_of_a_policy_are_named_where_the_policy_has_several():
    rows = [*sweep(["a", "b"]), *sweep(["b"], policy_args="lookup=walk")]
    assert legend(plots.hit_rate_vs_capacity(summary_of(*rows))) == ["a", "b", "b, lookup=walk"]


def test_lines_without_prefix_information_have_their_word_in_the_legend():
    rows = [row | {"hit_rate": math.nan, "infinite_hit_rate": math.nan} for row in sweep()]
    mixed = [*sweep(["a"]), *(row | {"workload": "lengths"} for row in rows[:6])]
    mixed[6:] = [row | {"policy": "a"} for row in mixed[6:]]
    figure = plots.hit_rate_vs_capacity(summary_of(*mixed))
    assert list(lines(figure.axes[0])) == ["a, conversation"]
    assert legend(figure) == ["a, conversation", "a, lengths (no prefix information)"]


def test_a_folder_of_no_caching_alone_shows_floor_and_ceiling():
    figure = plots.hit_rate_vs_capacity(summary_of(*sweep(["none"])))
    assert not lines(figure.axes[0])
    assert set(lines(figure.axes[0], guides=True)) == {"floor", "ceiling"}
    assert not figure.legends


# The effect of the block size.


def blocks(sizes=(16, 64, 512), **same):
    return [
        row
        | {
            "block_size": size,
            "kv_capacity_tokens": row["kv_capacity_tokens"] // size * size,
            "infinite_hit_rate": 0.5 - size / 10_000,
            "ttft_ms_mean": 300.0 + size,
        }
        for size in sizes
        for row in sweep(**same)
    ]


def test_block_size_effect_shows_hit_rate_and_ttft():
    figure = plots.block_size_effect(summary_of(*blocks()))
    left, right = figure.axes
    assert left.get_ylabel() == "hit rate (%)"
    assert right.get_ylabel() == "TTFT (ms)"
    for ax in (left, right):
        assert ax.get_xlabel() == "block size (tokens)"
        assert [label.get_text() for label in ax.get_xticklabels()] == ["16", "64", "512"]
    assert list(lines(left)) == ["vllm_v0", "vllm_v1"]
    (ceiling,) = lines(left, guides=True)["ceiling"]
    assert list(ceiling.get_ydata()) == pytest.approx([49.84, 49.36, 44.88])
    assert list(lines(right)) == ["none", "vllm_v0", "vllm_v1"] == legend(figure)
    mean, p90 = lines(right)["none"]
    assert list(mean.get_ydata()) == [316, 364, 812]
    assert list(p90.get_ydata()) == [900, 900, 900]
    assert p90.get_alpha() < 1
    # Whole blocks make capacities differ a little, which must not take any block size away.
    assert f"KV capacity {CAPACITIES[-1]:,} tokens" in title(figure)


def test_long_times_are_in_seconds_and_long_spans_logarithmic():
    rows = [row | {"ttft_ms_p90": 45_000.0} for row in blocks()]
    right = plots.block_size_effect(summary_of(*rows)).axes[1]
    assert right.get_ylabel() == "TTFT (s)"
    assert right.get_yscale() == "log"
    assert lines(right)["none"][1].get_ydata()[0] == 45


def test_block_size_effect_at_a_given_capacity():
    figure = plots.block_size_effect(summary_of(*blocks()), 60_000)
    (line,) = lines(figure.axes[0])["vllm_v1"]
    assert list(line.get_ydata()) == pytest.approx([100 * hit_rate(60_000)] * 3)
    assert "KV capacity 60,000 tokens" in title(figure)


def test_capacities_that_hold_the_workload_are_one_and_not_the_default():
    infinite = [
        {"block_size": s, "kv_capacity_tokens": 2_000 * s, "hit_rate": 0.4} for s in (8, 64)
    ]
    rows = [row | {"num_prompt_tokens": 10_000} for row in infinite]
    figure = plots.block_size_effect(summary_of(*rows))
    assert "KV capacity infinite" in title(figure)
    small = [row | {"kv_capacity_tokens": 640, "hit_rate": 0.1} for row in rows]
    figure = plots.block_size_effect(summary_of(*rows, *small))
    assert "KV capacity 640 tokens" in title(figure)
    (line,) = lines(figure.axes[0])["vllm_v1"]
    assert list(line.get_ydata()) == [10, 10]
    assert "infinite" in title(plots.block_size_effect(summary_of(*rows, *small), math.inf))


def test_block_size_effect_leaves_out_a_panel_that_would_be_empty():
    rows = [row | {"hit_rate": math.nan, "infinite_hit_rate": math.nan} for row in blocks()]
    figure = plots.block_size_effect(summary_of(*rows))
    (ax,) = figure.axes
    assert ax.get_ylabel() == "TTFT (ms)"
    assert len(lines(ax)) == 3
    assert title(figure).startswith("Time to first token against block size")
    said = "Without hit rate: conversation carries no prefix information, so that it is not known."
    assert plots.notes_of(figure)[-1] == said
    rows = [row | {"ttft_ms_mean": math.nan, "ttft_ms_p90": math.nan} for row in blocks()]
    figure = plots.block_size_effect(summary_of(*rows))
    (ax,) = figure.axes
    assert ax.get_ylabel() == "hit rate (%)"
    assert plots.notes_of(figure)[-1].startswith("Without time to first token: no request fini")


@pytest.mark.parametrize(
    "sizes", [(16, 32, 48, 64), (16, 32, 48, 64, 512), (8, 12, 16, 24, 32, 48, 64, 96, 128, 1024)]
)
def test_labels_of_block_sizes_are_apart(sizes):
    figure = plots.block_size_effect(summary_of(*blocks(sizes)))
    figure.draw_without_rendering()
    for ax in figure.axes:
        named = [label for label in ax.get_xticklabels() if label.get_text()]
        assert list(ax.get_xticks()) == list(sizes)
        assert {str(sizes[0]), str(sizes[-1])} <= {label.get_text() for label in named}
        boxes = [label.get_window_extent() for label in named]
        for one, other in pairwise(boxes):
            assert one.x1 <= other.x0


# The distribution of TTFT.


def test_ttft_curves_are_empirical_distributions():
    times = [30.0, 10.0, 20.0, 20.0, math.nan]
    figure = plots.ttft_distribution(requests_of(a=times, b=[50]), {"b": "B"}, setting="here")
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("TTFT (ms)", "share of requests (%)")
    assert ax.get_xscale() == "linear"
    assert legend(figure) == ["B", "a"] == list(lines(ax))
    (line,) = lines(ax)["a"]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == [10, 10, 20, 20, 30]
    assert list(line.get_ydata()) == [0, 25, 50, 75, 100]
    assert set(lines(ax, guides=True)) == {"p50", "p90", "p99"} == set(texts(ax))
    assert title(figure) == "Distribution of time to first token: 2 runs, 5 requests\nhere"


def test_heavy_tails_are_logarithmic_and_thinned_without_losing_the_tail():
    times = np.exp(np.random.default_rng(0).normal(5, 1.5, 100_000))
    figure = plots.ttft_distribution(requests_of(a=times, b=times), {})
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "TTFT (s)"
    (line,), (other,) = lines(ax).values()
    x, share = line.get_xdata(), line.get_ydata()
    assert len(x) <= 2001
    assert x[-1] == times.max() / 1000
    for q in (1, 50, 90, 99, 99.9):
        at = x[np.searchsorted(share, q)]
        assert at == pytest.approx(np.percentile(times, q) / 1000, rel=0.01)
    assert line.get_linewidth() > other.get_linewidth()


def test_no_run_is_hidden():
    frame = requests_of(a=[10, 20], b=[math.nan], c=[30])
    figure = plots.ttft_distribution(frame, {"a": "same", "b": "mine", "c": "same", "d": "gone"})
    assert legend(figure) == [
        "same (a)",
        "mine (no first token)",
        "same (c)",
        "gone (no first token)",
    ]


def test_one_request_is_enough():
    figure = plots.ttft_distribution(requests_of(a=[120]), {})
    assert "1 run, 1 request" in title(figure)


# What can be drawn, and files.


def test_applicable_names_what_the_runs_can_show():
    assert plots.applicable(summary_of({})) == ["ttft"]
    nothing = {"num_finished": 0, "ttft_ms_mean": math.nan}
    assert plots.applicable(summary_of(nothing)) == []
    assert plots.applicable(summary_of(*sweep())) == ["capacity", "ttft"]
    assert plots.applicable(summary_of(*blocks())) == ["capacity", "block-size", "ttft"]
    # One capacity in whole blocks, and different policies, are no sweep.
    rows = blocks(capacities=[60_000])
    assert plots.applicable(summary_of(*rows)) == ["block-size", "ttft"]
    rows = [{"policy": "a", "kv_capacity_tokens": 1}, {"policy": "b", "kv_capacity_tokens": 2}]
    assert plots.applicable(summary_of(*rows)) == ["ttft"]


NO_PREFIXES = {"hit_rate": math.nan, "infinite_hit_rate": math.nan}
NO_PLOT = [
    (
        lambda: plots.hit_rate_vs_capacity(summary_of(*(row | NO_PREFIXES for row in sweep()))),
        "--kind capacity draws hit rates, but conversation carries no prefix information; draw "
        "TTFT and throughput with --against kv_capacity_tokens.",
    ),
    (
        lambda: plots.hit_rate_vs_capacity(summary_of({})),
        "--kind capacity needs two KV capacities at one policy and block size, but these runs "
        "have 100,000 tokens; sweep --kv-capacity over several values.",
    ),
    (
        lambda: plots.block_size_effect(summary_of(*sweep())),
        "--kind block-size needs two block sizes at one policy and KV capacity, but the runs with "
        "4,860,000 tokens have 16; sweep --block-size over several values at an equal "
        "--kv-capacity.",
    ),
    (
        lambda: plots.block_size_effect(summary_of(*blocks(capacities=[60_000])), 5_000),
        "no run has a KV capacity of 5,000 tokens; choose one of 59,904, 59,968, 60,000 tokens.",
    ),
    (
        lambda: plots.ttft_distribution(requests_of(a=[math.nan]), {}),
        "--kind ttft needs requests with a first token, but none of these 1 has one; raise "
        "--kv-capacity so that they fit.",
    ),
]


@pytest.mark.parametrize(("draw", "sentence"), NO_PLOT)
def test_what_cannot_be_drawn_says_what_there_is_and_what_to_do(draw, sentence):
    with pytest.raises(UsageError) as error:
        draw()
    assert str(error.value) == sentence


def test_draw_writes_what_applies_and_the_same_bytes_twice(tmp_path):
    rows = [row | {"workload": "costs $5_$6"} for row in blocks(policies=["none", "vllm_v1"])]
    summary = summary_of(*rows)
    rng = np.random.default_rng(1)
    requests = requests_of(**{run: rng.lognormal(5, 1, 50) for run in summary["run_id"]})
    first = plots.draw(summary, requests, tmp_path / "a" / "deep")
    again = plots.draw(summary, requests, tmp_path / "b")
    assert [path.name for path in first] == [
        f"{kind}.{kind_of_file}"
        for kind in plots.applicable(summary)
        for kind_of_file in ("png", "svg")
    ]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    svg = first[1].read_text()
    assert "KV capacity (tokens)</text>" in svg
    assert "costs $5_$6" in svg
    assert "<dc:date>" not in svg


def test_draw_compares_many_runs_at_one_setting(tmp_path, monkeypatch):
    summary = summary_of(*blocks())
    requests = requests_of(**{run: [10.0, 20.0] for run in summary["run_id"]})
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, *_: figures.append(figure) or [])
    plots.draw(summary, requests, tmp_path, kinds=["ttft"])
    assert legend(figures[0]) == ["none", "vllm_v0", "vllm_v1"]
    said = "Not shown: KV capacity 20,000, 60,000, 180,000, 540,000, 1,620,000; block size 64, 512."
    assert title(figures[0]).split("\n")[1:] == [
        "conversation, block size 16, KV capacity 4,860,000 tokens",
        said,
    ]


def test_draw_refuses_before_it_writes(tmp_path):
    summary, requests = summary_of({}), requests_of(run0=[10.0])
    with pytest.raises(UsageError, match="'pie' is no plot; choose one of capacity, tiers, block-"):
        plots.draw(summary, requests, tmp_path, kinds=["ttft", "pie"])
    with pytest.raises(UsageError, match="needs two KV capacities"):
        plots.draw(summary, requests, tmp_path, kinds=["ttft", "capacity"])
    assert not list(tmp_path.iterdir())
    assert len(plots.draw(summary, requests, tmp_path, kinds=["ttft", "ttft"])) == 2


def test_a_kind_that_nobody_asked_for_and_that_fails_is_left_out(tmp_path, monkeypatch):
    def refuse(summary, requests):
        raise UsageError("it cannot be drawn.")

    monkeypatch.setitem(plots.KINDS, "ttft", refuse)
    summary = summary_of(*blocks())
    requests = requests_of(**{run: [10.0, 20.0] for run in summary["run_id"]})
    notes = []
    paths = plots.draw(summary, requests, tmp_path, on_note=notes.append)
    assert {"capacity.png", "block-size.png"} <= {path.name for path in paths}
    assert "ttft is left out: it cannot be drawn." in notes
    with pytest.raises(UsageError, match="it cannot be drawn"):
        plots.draw(summary, requests, tmp_path, kinds=["capacity", "ttft"])


def test_run_labels_name_what_differs():
    summary = summary_of({}, {"block_size": 32}, {"kv_capacity_tokens": 2_000_000, "seed": 3})
    assert plots.run_labels(summary) == {
        "run0": "vllm_v1, block size 16, 100,000 tokens, seed 0",
        "run1": "vllm_v1, block size 32, 100,000 tokens, seed 0",
        "run2": "vllm_v1, block size 16, 2,000,000 tokens, seed 3",
    }


def test_text_is_inside_the_figure_and_apart():
    """Whole small multiples, laid out: no label leaves the picture or covers another."""
    figure = plots.hit_rate_vs_capacity(summary_of(*blocks((16, 32, 64, 512))))
    figure.set_dpi(100)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for ax in figure.axes for text in ax.texts]
    boxes += [ax.title.get_window_extent() for ax in figure.axes if ax.title.get_text()]
    boxes += [box.get_window_extent() for box in figure.legends]
    for index, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= 800
        assert box.y0 >= 0
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_importing_the_plots_starts_no_pyplot():
    code = "import sys, sim.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
