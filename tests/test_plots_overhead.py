"""Pictures of what caching gains and loses: told from the artists, with numbers made by hand."""

import math
import re

import pandas as pd
import pytest
from plotted import ZERO, legend, texts

from sim import plots
from sim.errors import UsageError
from sim.results import make_frame

RATES = [0.0, 0.1, 0.5, 0.9]
OVERHEADS = {"vllm_v0": "vllm-0.8.5-v0", "vllm_v1": "vllm-0.8.5-v1"}
LOSSES = {"vllm_v0": 0.04, "vllm_v1": 0.01}


def row_of(policy, rate, throughput, **same):
    return {
        **ZERO,
        "workload": "shared-prefix",
        "workload_args": f"hit_rate={rate},num_prefixes=1,prompt=2048",
        "cost": "llama-3-8b/h100",
        "policy": policy,
        "block_size": 16,
        "kv_capacity_tokens": 100_000,
        "num_prompt_tokens": 10**9,
        "num_finished": 400,
        "infinite_hit_rate": rate,
        "hit_rate": rate,
        "ttft_ms_mean": 100.0,
        "ttft_ms_p90": 200.0,
        "overhead_share": 0.02,
        "total_throughput": throughput,
        **same,
    }


def rows_of(losses=None, rates=RATES, **same):
    """Lines that rise by the hit rate itself from a loss: break-even is at the loss."""
    rows = []
    for rate in rates:
        for policy, loss in (losses or LOSSES).items():
            overhead = OVERHEADS[policy]
            rows.append(row_of("none", rate, 500.0, overhead=f"{overhead}-off", **same))
            ratio = 1 - loss + rate
            share = 0.02 + loss
            mine = {"overhead": overhead, "overhead_share": share, **same}
            rows.append(row_of(policy, rate, 500.0 * ratio, **mine))
    return rows


def summary_of(rows):
    return make_frame("summary", [{**row, "run_id": f"run{i}"} for i, row in enumerate(rows)])


def many():
    """Two prompts, two GPUs, three block sizes; the loss halves with each."""
    return [
        row
        for prompt in (1024, 16384)
        for cost, factor in (("llama-3-8b/a100-80g", 0.5), ("llama-3-8b/h100", 1.0))
        for size in (16, 32, 64)
        for rate in RATES
        for row in rows_of(
            {name: factor * loss * 16 / size for name, loss in LOSSES.items()},
            [rate],
            block_size=size,
            cost=cost,
            workload_args=f"hit_rate={rate},prompt={prompt}",
        )
    ]


def lines(ax):
    found = {}
    for line in ax.lines:
        if line.get_label() not in ("no caching", "break-even"):
            assert line.get_label() not in found
            found[line.get_label()] = line
    return found


def marks(ax):
    return [line for line in ax.lines if line.get_label() == "break-even"]


# Throughput relative to no caching.


def test_throughput_is_relative_to_no_caching_by_hit_rate_in_percent():
    figure = plots.overhead_throughput(summary_of(rows_of()))
    whole, near, below = figure.axes
    assert legend(figure) == ["vllm_v0", "vllm_v1"] == list(lines(whole))
    for ax in (whole, near):
        line = lines(ax)["vllm_v0"]
        assert list(line.get_xdata()) == pytest.approx([0, 10, 50, 90])
        assert list(line.get_ydata()) == pytest.approx([0.96, 1.06, 1.46, 1.86])
        (one,) = (line for line in ax.lines if line.get_label() == "no caching")
        assert list(one.get_ydata()) == [1, 1]
    assert list(lines(below)["vllm_v0"].get_ydata()) == pytest.approx([6, 6, 6, 6])
    assert list(lines(below)["vllm_v1"].get_ydata()) == pytest.approx([3, 3, 3, 3])
    assert {ax.get_xlabel() for ax in figure.axes} == {"hit rate of the workload (%)"}
    assert "throughput" in whole.get_ylabel()
    assert "% of step time" in below.get_ylabel()
    assert "llama-3-8b/h100, shared-prefix, block size 16" in figure.get_suptitle()
    assert "prompt=2048" in figure.get_suptitle()
    assert "hit_rate" not in figure.get_suptitle()
    assert "mean of" not in figure.get_suptitle()


def test_the_enlarged_row_shows_losses_and_break_evens():
    near = plots.overhead_throughput(summary_of(rows_of())).axes[1]
    assert [mark.get_xdata()[0] for mark in marks(near)] == pytest.approx([4, 1])
    assert "vllm_v0: −4.0 %; 4.0 %" in texts(near)
    assert "vllm_v1: −1.0 %; 1.0 %" in texts(near)
    assert "change at 0 %; pays from" in texts(near)
    left, right = near.get_xlim()
    assert left < 0
    assert 4 < right < 10
    low, high = near.get_ylim()
    assert 0.9 < low < 0.96
    assert 1 < high < 1.04
    colours = {mark.get_color() for mark in marks(near)}
    assert colours == {line.get_color() for line in lines(near).values()}
    assert len(colours) == 2


@pytest.mark.parametrize(("loss", "said"), [(0.95, "never"), (-0.2, "0.0 %"), (0.0, "0.0 %")])
def test_policies_that_never_or_always_pay(loss, said):
    near = plots.overhead_throughput(summary_of(rows_of({"vllm_v1": loss}))).axes[1]
    assert f"vllm_v1: {0.0 - 100 * loss:+.1f} %; {said}".replace("-", "−") in texts(near)
    low, high = near.get_ylim()
    assert low < 1 - loss or loss < 0
    assert low < 1 < high


def test_caching_that_pays_from_the_first_rate_on_may_pay_before():
    figure = plots.overhead_throughput(summary_of(rows_of({"vllm_v1": -0.01}, rates=(0.3, 0.6))))
    (near,) = [ax for ax in figure.axes if any("pays from" in text for text in texts(ax))]
    assert any("at most 30.0 %" in text for text in texts(near))
    assert marks(near) == []


def test_rates_at_capacities_of_their_own_make_no_curve():
    rows = [
        row for rate, tokens in ((0.3, 40_000), (0.6, 30_000))
        for row in rows_of({"vllm_v1": 0.01}, rates=(rate,), kv_capacity_tokens=tokens)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="needs two hit rates at one KV capacity and block size"):
        plots.overhead_throughput(summary_of(rows))


def test_block_sizes_have_a_column_each_and_at_most_three():
    rows = [row for size in (16, 64) for row in rows_of(block_size=size)]
    figure = plots.overhead_throughput(summary_of(rows))
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == [
        "block size 16",
        "block size 64",
    ]
    assert len(figure.axes) == 6
    rows = [row for size in (8, 16, 32, 64, 128) for row in rows_of(block_size=size)]
    figure = plots.overhead_throughput(summary_of(rows))
    titles = [ax.get_title(loc="left") for ax in figure.axes[:3]]
    assert titles == ["block size 8", "block size 32", "block size 128"]


def test_seeds_are_averaged_and_the_title_says_so():
    rows = [*rows_of(seed=0), *rows_of({"vllm_v0": 0.06, "vllm_v1": 0.03}, seed=1)]
    figure = plots.overhead_throughput(summary_of(rows))
    assert lines(figure.axes[0])["vllm_v0"].get_ydata()[0] == pytest.approx(0.95)
    assert "mean of 2 seeds" in figure.get_suptitle().replace("\n", " ")


def test_of_several_workloads_and_gpus_that_with_most_hit_rates_is_shown():
    rows = rows_of(rates=RATES[:2], cost="llama-3-8b/a100-80g") + rows_of()
    figure = plots.overhead_throughput(summary_of(rows))
    assert "llama-3-8b/h100" in figure.get_suptitle()
    assert len(lines(figure.axes[0])["vllm_v1"].get_xdata()) == 4


def test_another_setting_that_varies_makes_lines_of_its_own():
    rows = rows_of({"vllm_v1": 0.01}, cascade=0.0) + rows_of({"vllm_v1": 0.02}, cascade=0.85)
    figure = plots.overhead_throughput(summary_of(rows))
    assert legend(figure) == ["vllm_v1, cascade 0", "vllm_v1, cascade 0.85"]


# Published points.


def test_published_points_are_open_markers_without_a_line():
    reference = pd.DataFrame({"label": "theirs", "hit_rate": [0.0, 0.5], "ratio": [0.99, 1.7]})
    figure = plots.overhead_throughput(summary_of(rows_of()), reference)
    whole, near, below = figure.axes
    for ax in (whole, near):
        points = lines(ax)["theirs"]
        assert list(points.get_xdata()) == [0, 50]
        assert list(points.get_ydata()) == [0.99, 1.7]
        assert points.get_linestyle() == "None"
        assert points.get_markerfacecolor() == "none"
    assert "theirs" not in lines(below)
    assert legend(figure) == ["vllm_v0", "vllm_v1", "theirs"]


def test_the_figures_of_the_v1_alpha():
    alpha = plots.REFERENCES["vllm-v1-alpha"]
    assert alpha["hit_rate"].tolist() == [0, 0.25, 0.5, 0.75]
    assert alpha["ratio"].tolist() == [0.997, 1.228, 1.701, 2.889]


def test_a_reference_is_drawn_by_name(tmp_path):
    def draw(kinds, reference):
        summary, requests = summary_of(rows_of()), make_frame("requests", {})
        return plots.draw(summary, requests, tmp_path, kinds=kinds, reference=reference)

    paths = draw(["overhead"], "vllm-v1-alpha")
    assert "published: vLLM V1 alpha" in paths[1].read_text()
    with pytest.raises(UsageError, match=r"'mine' is not known; choose vllm-v1-alpha\."):
        draw(["overhead"], "mine")
    with pytest.raises(UsageError, match="these runs give capacity; add --kind overhead"):
        draw(["capacity"], "vllm-v1-alpha")


# Break-even against block size.


def test_break_even_by_block_size_prompt_and_gpu():
    figure = plots.break_even_vs_block_size(summary_of(many()))
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        f"llama-3-8b/{gpu}\nprompt {prompt} tokens"
        for gpu in ("a100-80g", "h100")
        for prompt in ("1,024", "16,384")
    ]
    for ax, factor in zip(figure.axes, (0.5, 0.5, 1, 1), strict=True):
        assert list(lines(ax)) == ["vllm_v0", "vllm_v1"]
        assert list(lines(ax)["vllm_v0"].get_xdata()) == [16, 32, 64]
        expected = [factor * percent for percent in (4, 2, 1)]
        assert list(lines(ax)["vllm_v0"].get_ydata()) == pytest.approx(expected)
    assert figure.axes[0].get_ylabel() == "break-even hit rate (%)"
    assert figure.axes[-1].get_xlabel() == "block size (tokens)"
    assert "prompt" not in figure.get_suptitle()
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels == ["16", "32", "64"]
    assert legend(figure) == ["vllm_v0", "vllm_v1"]


def test_one_gpu_and_one_prompt_make_one_panel():
    rows = [row for size in (16, 64) for row in rows_of(block_size=size)]
    (ax,) = plots.break_even_vs_block_size(summary_of(rows)).axes
    assert ax.get_title(loc="left") == ""
    assert list(lines(ax)["vllm_v1"].get_ydata()) == pytest.approx([1, 1])


def test_never_is_an_open_marker_at_the_top():
    rows = [
        row
        for size, loss in ((16, 0.95), (64, 0.04))
        for row in rows_of({"vllm_v0": loss, "vllm_v1": 0.01}, block_size=size)
    ]
    figure = plots.break_even_vs_block_size(summary_of(rows))
    (ax,) = figure.axes
    never = lines(ax)["vllm_v0: never"]
    assert list(never.get_xdata()) == [16]
    assert never.get_ydata()[0] > 4
    assert never.get_markerfacecolor() == "white"
    first, second = lines(ax)["vllm_v0"].get_ydata()
    assert math.isnan(first)
    assert second == pytest.approx(4)
    assert "open at the top: it never does, in these runs" in figure.get_suptitle()


def test_the_table_of_break_evens_is_written_beside_the_picture(tmp_path):
    summary, requests = summary_of(many()), make_frame("requests", {})
    paths = plots.draw(summary, requests, tmp_path, kinds=["break-even"])
    names = ["break-even.png", "break-even.svg", "break_even.csv"]
    assert [path.name for path in paths] == names
    table = pd.read_csv(paths[2])
    assert len(table) == 2 * 2 * 2 * 3
    row = table[
        (table["policy"] == "vllm_v0")
        & (table["block_size"] == 16)
        & (table["cost"] == "llama-3-8b/h100")
    ]
    assert row["break_even"].tolist() == pytest.approx([0.04, 0.04])


# What can be drawn, and how it is written.


def test_applicable():
    both = [row for size in (16, 64) for row in rows_of(block_size=size)]
    assert plots.applicable(summary_of(both)) == ["block-size", "ttft", "overhead", "break-even"]
    assert plots.applicable(summary_of(rows_of())) == ["ttft", "overhead"]
    assert plots.applicable(summary_of(rows_of(rates=[0.0]))) == ["ttft"]
    unpaired = [row for row in rows_of() if row["policy"] != "none"]
    assert plots.applicable(summary_of(unpaired)) == ["ttft"]
    unknown = rows_of(infinite_hit_rate=math.nan)
    assert plots.applicable(summary_of(unknown)) == ["ttft"]


@pytest.mark.parametrize(
    ("draw", "rows", "said"),
    [
        (
            plots.overhead_throughput,
            [row for row in rows_of() if row["policy"] != "none"],
            "these runs have vllm_v0, vllm_v1 at 0, 10, 50, 90 %; sweep --policy none",
        ),
        (plots.overhead_throughput, rows_of(rates=[0.1]), "have none, vllm_v0, vllm_v1 at 10 %;"),
        (
            plots.overhead_throughput,
            rows_of(infinite_hit_rate=math.nan),
            "have none, vllm_v0, vllm_v1 and no prefix information; sweep",
        ),
        (
            plots.break_even_vs_block_size,
            rows_of(),
            "at 0, 10, 50, 90 % at block sizes 16; sweep --policy none",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(draw, rows, said):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        draw(summary_of(rows))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_same_runs_give_the_same_bytes(tmp_path):
    summary, requests = summary_of(many()), make_frame("requests", {})
    found = []
    for folder in ("a", "b"):
        paths = plots.draw(
            summary,
            requests,
            tmp_path / folder,
            kinds=["overhead", "break-even"],
            reference="vllm-v1-alpha",
        )
        found.append([path.read_bytes() for path in paths])
        assert len(paths) == 5
    assert found[0] == found[1]


def test_the_order_of_the_rows_does_not_matter():
    rows = many()
    for draw in (plots.overhead_throughput, plots.break_even_vs_block_size):
        one, other = draw(summary_of(rows)), draw(summary_of(rows[::-1]))
        for ax, mirrored in zip(one.axes, other.axes, strict=True):
            assert list(lines(ax)) == list(lines(mirrored))
            for label, line in lines(ax).items():
                again = lines(mirrored)[label]
                assert list(line.get_ydata()) == pytest.approx(list(again.get_ydata()))


@pytest.mark.parametrize("draw", [plots.overhead_throughput, plots.break_even_vs_block_size])
def test_nothing_overlaps_at_800_pixels(draw):
    figure = draw(summary_of(many()))
    figure.set_dpi(100)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for ax in figure.axes for text in ax.texts]
    for ax in figure.axes:
        low, high = ax.get_xlim()
        ticks = [
            tick
            for tick in ax.xaxis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_visible()
        ]
        named = [*(tick.label1 for tick in ticks), ax.xaxis.label, ax.yaxis.label, ax._left_title]
        boxes += [text.get_window_extent() for text in named if text.get_text()]
    boxes += [box.get_window_extent() for box in [*figure.legends, figure._suptitle]]
    for index, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= 800
        assert box.y0 >= 0
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
