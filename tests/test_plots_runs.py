"""Which runs a picture shows: nothing but seeds is averaged, and what is left out is said."""

import math

import pandas as pd
import pytest
from plotted import CAPACITIES, legend, lines, requests_of, summary_of, sweep, texts, title

from sim import plots
from sim.errors import UsageError
from sim.plots.runs import fewer, left_out, told_apart

ONE, OTHER = "aaaaaa1111", "bbbbbb2222"


def two_files(column, name="mine.json", **same):
    """Two files of one name, at 20 and 40 % hits."""
    return [
        row | {column: name, f"{column}_digest": digest, "hit_rate": rate}
        for digest, rate in ((ONE, 0.2), (OTHER, 0.4))
        for row in sweep(["vllm_v1"], **same)
    ]


# Files of one name.


@pytest.mark.parametrize("column", ["workload", "cost", "overhead"])
def test_two_files_of_one_name_are_two_lines(column):
    figure = plots.hit_rate_vs_capacity(summary_of(*two_files(column)))
    drawn = lines(figure.axes[0])
    assert len(drawn) == 2
    for (label, found), digest, percent in zip(
        drawn.items(), ("aaaaaa", "bbbbbb"), (20, 40), strict=True
    ):
        assert f"mine.json ({digest})" in label
        assert [list(line.get_ydata()) for line in found] == [pytest.approx([percent] * 6)]
    assert list(drawn) == legend(figure)
    assert plots.notes_of(figure) == []


def test_a_digest_is_shown_only_where_names_clash():
    rows = [row | {"workload_digest": ONE} for row in sweep(["vllm_v1"], workload="a.jsonl")]
    rows += [row | {"workload_digest": OTHER} for row in sweep(["vllm_v1"], workload="b.jsonl")]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    assert legend(figure) == ["vllm_v1, a.jsonl", "vllm_v1, b.jsonl"]
    rows += [row | {"workload_digest": "cccccc"} for row in sweep(["vllm_v1"], workload="b.jsonl")]
    figure = plots.hit_rate_vs_capacity(summary_of(*rows))
    assert legend(figure) == [
        "vllm_v1, a.jsonl",
        "vllm_v1, b.jsonl (bbbbbb)",
        "vllm_v1, b.jsonl (cccccc)",
    ]


def test_a_file_and_what_has_no_digest_are_told_apart_too():
    rows = two_files("workload")
    rows = [row | {"workload_digest": row["workload_digest"].replace(OTHER, "")} for row in rows]
    names = {label.removeprefix("vllm_v1, ") for label in legend(_capacity(rows))}
    assert names == {"mine.json", "mine.json (aaaaaa)"}


def _capacity(rows):
    return plots.hit_rate_vs_capacity(summary_of(*rows))


def test_telling_apart_twice_changes_nothing():
    once, _ = told_apart(summary_of(*two_files("cost")))
    twice, notes = told_apart(once)
    pd.testing.assert_frame_equal(once, twice)
    assert notes == []


def test_files_of_one_name_are_two_settings_of_gains_too():
    rows = []
    for digest, loss in ((ONE, 0.1), (OTHER, 0.3)):
        for rate in (0.0, 0.5):
            same = {
                "workload": "mine.jsonl",
                "workload_digest": digest,
                "workload_args": f"hit_rate={rate}",
                "infinite_hit_rate": rate,
            }
            rows += [
                same | {"policy": "none", "total_throughput": 100.0},
                same | {"policy": "vllm_v1", "total_throughput": 100.0 * (1 - loss + rate)},
            ]
    figure = plots.overhead_throughput(summary_of(*rows))
    (line,) = lines(figure.axes[0])["vllm_v1"]
    assert list(line.get_ydata()) == pytest.approx([0.9, 1.4])
    assert "mine.jsonl (aaaaaa)" in title(figure)
    assert plots.notes_of(figure) == ["Not shown: workload mine.jsonl (bbbbbb)."]


# Runs that the table does not tell apart.


def test_different_results_of_equal_settings_are_neither_averaged_nor_mixed():
    rows = sweep(["vllm_v1"])
    again = [row | {"hit_rate": 0.1} for row in rows[:2]]
    (drawn,) = lines(_capacity([*rows, *again]).axes[0])["vllm_v1"]
    assert list(drawn.get_xdata()) == CAPACITIES[2:]
    assert list(drawn.get_ydata()) == pytest.approx([100 * row["hit_rate"] for row in rows[2:]])
    figure = _capacity([*again, *rows])
    (note,) = plots.notes_of(figure)
    assert note.startswith("Not shown: 4 runs (run0, run1, run2, run3) that are equal in every")
    assert note.split()[:4] == title(figure).split("\n")[2].split()[:4]
    with pytest.raises(UsageError, match=r"nothing to draw but 4 runs .* run the same sweep again"):
        _capacity([*again, *rows[:2]])


def test_numbers_that_differ_in_the_seventh_digit_are_two_lines():
    rows = [row for scale in (1.0, 1.00000001) for row in sweep(["a"], rate_scale=scale)]
    drawn = lines(_capacity(rows).axes[0])
    assert list(drawn) == ["a, rate_scale 1", "a, rate_scale 1.00000001"]
    assert all(len(found) == 1 for found in drawn.values())


# What is left out.


def many_lines(policies, scales, **same):
    return [
        row | {"rate_scale": float(scale)}
        for scale in range(1, scales + 1)
        for row in sweep([f"policy_{i}" for i in range(policies)], **same)
    ]


def test_sixteen_lines_are_all_shown_and_apart():
    figure = _capacity(many_lines(4, 4))
    assert len(lines(figure.axes[0])) == len(legend(figure)) == 16
    assert plots.notes_of(figure) == []


def test_of_more_lines_than_can_be_told_apart_one_setting_is_shown_and_the_rest_named():
    figure = _capacity(many_lines(3, 8))
    assert legend(figure) == ["policy_0", "policy_1", "policy_2"]
    (note,) = plots.notes_of(figure)
    assert note == "Not shown: rate_scale 2, 3, 4, 5, 6, 7, and 1 more."
    assert note in title(figure)
    assert "rate_scale" not in title(figure).split("\n")[1]


def test_policies_are_never_left_out():
    assert len(legend(_capacity(many_lines(30, 2)))) == 30


def test_fewer_keeps_the_value_with_the_most_runs():
    table = summary_of(*({"rate_scale": s, "seed": n} for n, s in enumerate([2.0, 4.0, 4.0])))
    assert set(fewer(table, ["rate_scale"], 1)["rate_scale"]) == {4.0}
    assert len(fewer(table, ["rate_scale"], 2)) == 3


def test_left_out_names_what_follows_from_another_setting_once():
    table = summary_of(
        {"workload": "a", "workload_args": "x=1"},
        {"workload": "b", "workload_args": "x=2"},
        {"workload": "a", "workload_args": "x=1", "block_size": 64, "kv_capacity_tokens": 99_968},
    )
    assert left_out(table, table) == []
    args = summary_of({"workload_args": "a=1,x=1"}, {"workload_args": "a=1,x=2"})
    assert left_out(args, args.iloc[:1]) == ["Not shown: workload_args x=2."]
    assert left_out(table, table.iloc[:1]) == ["Not shown: workload b; block size 64."]


@pytest.mark.parametrize(("policies", "scales"), [(1, 16), (4, 4), (16, 1), (2, 10), (5, 4)])
def test_legends_of_many_lines_leave_the_panels_free(policies, scales):
    """Warnings of the layout are errors here, as everywhere."""
    long = "llama-3-8b-instruct-of-a-long-name/h100-of-a-long-name"
    rows = many_lines(policies, scales, workload_args="prompt=2048,output=128,num_prefixes=100")
    rows = [
        row | {"cost": long} | {"block_size": size}
        for size in (16, 64)
        for row in rows
        if row["kv_capacity_tokens"] in (CAPACITIES[0], CAPACITIES[-1])
    ]
    table = summary_of(*({"policy_args": "an_option=with_a_long_value"} | row for row in rows))
    for make in (
        plots.hit_rate_vs_capacity,
        plots.block_size_effect,
        lambda each: plots.against(each, "kv_capacity_tokens"),
    ):
        figure = make(table)
        looks = [
            (line.get_color(), line.get_marker(), line.get_markerfacecolor())
            for box in figure.legends
            for line in box.get_lines()
        ]
        assert len(set(looks)) == len(looks) == policies * scales
        figure.set_dpi(100)
        figure.draw_without_rendering()
        (box,) = (found.get_window_extent() for found in figure.legends)
        head = figure._suptitle.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= 800
        for ax in figure.axes:
            assert ax.get_tightbbox().y0 >= box.y1
            assert ax.get_tightbbox().y1 <= head.y0
            assert ax.get_window_extent().height > 100


def test_floors_of_several_rates_are_told_apart():
    rows = [
        row | {"rate_scale": scale, "ttft_ms_mean": 100 * scale}
        for scale in (1.0, 2.0, 4.0)
        for size in (16, 64)
        for row in sweep(["none", "vllm_v1"], [60_032], block_size=size)
    ]
    right = plots.block_size_effect(summary_of(*rows)).axes[1]
    floors = {label: found[0] for label, found in lines(right).items() if label.startswith("none")}
    assert list(floors) == ["none, rate_scale 1", "none, rate_scale 2", "none, rate_scale 4"]
    assert len({line.get_marker() for line in floors.values()}) == 3
    assert len({line.get_color() for line in floors.values()}) == 1


def test_many_ceilings_are_drawn_without_a_name_each():
    rows = [
        row
        for percent in (10, 30, 50, 70)
        for row in sweep(
            ["vllm_v1"], workload_args=f"hit_rate={percent}", infinite_hit_rate=percent / 100
        )
    ]
    (ax,) = _capacity(rows).axes
    heights = sorted(line.get_ydata()[0] for line in lines(ax, guides=True)["ceiling"])
    assert heights == [10, 30, 50, 70]
    assert texts(ax) == ["floor: no caching, 0 %", "ceilings (dashed): infinite cache"]


def test_the_title_says_what_is_held_fixed_away_from_its_default():
    rows = sweep(cost="llama-3-8b/h100", rate_scale=2.0, max_num_seqs=8)
    assert title(_capacity(rows)).split("\n")[1] == (
        "llama-3-8b/h100, conversation, block size 16, rate_scale 2, max_num_seqs 8"
    )


# Choosing runs.


def test_where_keeps_the_runs_that_meet_a_condition():
    table = summary_of(
        {"policy": "none", "arrival": "poisson 4/s", "kv_capacity_tokens": 1000},
        {"policy": "vllm_v1", "workload_args": "rate=8,prompt=64", "kv_capacity_tokens": 2 * 10**9},
        {"policy": "vllm_v1", "rate_scale": 2.5, "seed": 3, "overlap": True},
    )

    def ids(condition):
        return list(plots.where(table, condition)["run_id"])

    assert ids("policy=vllm_v1") == ["run1", "run2"]
    assert ids("rate=4.0") == ["run0"]
    assert ids("rate=8") == ["run1"]
    assert ids("prompt = 64") == ["run1"]
    assert ids("rate-scale=2.5") == ["run2"]
    assert ids("seed=3") == ["run2"]
    assert ids("kv_capacity=1000") == ["run0"]
    assert ids("kv_capacity=infinite") == ["run1"]
    assert ids("overlap=True") == ["run2"]


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("policy", "--where 'policy' must be NAME=VALUE, such as block_size=16."),
        ("policy=lru", "--where policy=lru: no run has it; choose one of vllm_v1."),
        ("block_size=32", "--where block_size=32: no run has it; choose one of 16, 64."),
        ("block_size=x", "--where block_size=x: no run has it; choose one of 16, 64."),
        ("colour=red", "--where colour=red: these runs have no setting 'colour'; theirs are"),
    ],
)
def test_a_condition_that_cannot_be_met_is_said_in_a_sentence(condition, sentence):
    with pytest.raises(UsageError) as error:
        plots.where(summary_of({}, {"block_size": 64}), condition)
    assert str(error.value).startswith(sentence)
    assert str(error.value).endswith(".")


# Against any setting.


def rates(**same):
    return [
        {
            "policy": policy,
            "rate_scale": scale,
            "hit_rate": 0.0 if policy == "none" else 0.4,
            "ttft_ms_mean": 100.0 * scale * factor,
            "ttft_ms_p90": 240.0 * scale * factor,
            "total_throughput": 1000.0 * scale,
            **same,
        }
        for policy, factor in (("none", 2), ("vllm_v1", 1))
        for scale in (0.5, 1.0, 4.0)
    ]


def test_a_sweep_over_rates_is_drawn_against_the_rate():
    table = summary_of(*rates(cost="llama-3-8b/h100"))
    assert plots.applicable(table) == ["ttft"]
    assert plots.settings_to_draw(table) == ["rate_scale"]
    figure = plots.against(table, "rate_scale")
    hits, ttft, throughput = figure.axes
    assert title(figure).split("\n") == [
        "Hit rate, TTFT and throughput against rate_scale",
        "llama-3-8b/h100, conversation, block size 16, KV capacity 100,000 tokens",
    ]
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "hit rate (%)",
        "TTFT (ms)",
        "throughput (tokens/s)",
    ]
    assert throughput.get_xlabel() == "rate_scale (1: arrivals as recorded)"
    assert [label.get_text() for label in throughput.get_xticklabels()] == ["0.5", "1", "4"]
    assert legend(figure) == ["none", "vllm_v1"]
    assert list(lines(hits)) == ["vllm_v1"]
    assert set(lines(hits, guides=True)) == {"floor", "ceiling"}
    mean, p90 = lines(ttft)["none"]
    assert list(mean.get_xdata()) == [0.5, 1, 4]
    assert list(mean.get_ydata()) == [100, 200, 800]
    assert list(p90.get_ydata()) == [240, 480, 1920]
    (line,) = lines(throughput)["vllm_v1"]
    assert list(line.get_ydata()) == [500, 1000, 4000]


SETTINGS = [
    ("rate", {"arrival": "poisson {}/s"}, "arrival rate (requests/s)", "conversation, block"),
    ("rate", {"workload_args": "prompt=64,rate={}"}, "arrival rate (requests/s)", "prompt=64"),
    ("burstiness", {"arrival": "gamma 4/s burstiness={}"}, "burstiness (1: Poi", "gamma 4/s arriv"),
    ("prompt", {"workload_args": "prompt={}"}, "prompt", "conversation"),
    ("window", {"policy_args": "window={}"}, "window", "conversation"),
    ("max_num_seqs", {"max_num_seqs": "{}"}, "max_num_seqs (sequences)", "conversation"),
    ("block_size", {"block_size": "{}"}, "block size (tokens)", "KV capacity 100,000 tokens"),
    ("kv_capacity_tokens", {"kv_capacity_tokens": "{}000"}, "KV capacity (tokens)", "block size"),
]


@pytest.mark.parametrize(("name", "setting", "label", "said"), SETTINGS)
def test_any_number_can_be_an_axis(name, setting, label, said):
    ((column, form),) = setting.items()
    values = [form.format(value) for value in (2, 4, 8)]
    kind = int if column in ("max_num_seqs", "block_size", "kv_capacity_tokens") else str
    table = summary_of(
        *(
            {column: kind(value), "policy": policy, "seed": seed, "total_throughput": 10.0 + seed}
            for value in values
            for policy in ("none", "vllm_v1")
            for seed in (0, 2)
        )
    )
    figure = plots.against(table, name)
    below = figure.axes[-1]
    assert below.get_xlabel().startswith(label)
    factor = 1000 if name == "kv_capacity_tokens" else 1
    for policy in ("none", "vllm_v1"):
        (line,) = lines(below)[policy]
        assert list(line.get_xdata()) == [2 * factor, 4 * factor, 8 * factor]
        assert list(line.get_ydata()) == [11, 11, 11]
    assert legend(figure) == ["none", "vllm_v1"]
    assert said in title(figure)
    assert "mean of 2 seeds" in title(figure).replace("\n", " ")
    if name not in ("block_size", "kv_capacity_tokens"):
        assert plots.settings_to_draw(table) == [name]


def test_with_many_lines_the_axis_keeps_its_values():
    rows = [
        {"policy": policy, "workload_args": f"hit_rate={rate},prompt={prompt}"}
        for policy in ("none", "a", "b")
        for rate in (0, 0.5)
        for prompt in range(1, 9)
    ]
    figure = plots.against(summary_of(*rows), "hit_rate")
    assert [list(line.get_xdata()) for (line,) in lines(figure.axes[-1]).values()] == [[0, 0.5]] * 3
    said = "prompt=2, prompt=3, prompt=4, prompt=5, prompt=6, prompt=7, and 1 more"
    assert plots.notes_of(figure) == [f"Not shown: workload_args {said}."]
    assert "prompt=1" in title(figure)


def test_one_block_size_and_capacity_are_shown_and_the_others_named():
    rows = [
        row
        for size, capacity in ((16, 50_000), (64, 49_984), (16, 9_008), (64, 8_960))
        for row in rates(block_size=size, kv_capacity_tokens=capacity)
    ]
    figure = plots.against(summary_of(*rows), "rate_scale")
    assert plots.notes_of(figure) == ["Not shown: KV capacity 9,008; block size 64."]
    assert "block size 16, KV capacity 50,000 tokens" in title(figure)
    assert [len(found) for found in lines(figure.axes[-1]).values()] == [1, 1]


def test_a_capacity_sweep_without_prefix_information_has_its_picture(tmp_path):
    nothing = {"hit_rate": math.nan, "infinite_hit_rate": math.nan, "total_throughput": 5.0}
    table = summary_of(*(row | nothing for row in sweep()))
    notes = []
    requests = requests_of(**{run: [1.0, 2.0] for run in table["run_id"]})
    paths = plots.draw(table, requests, tmp_path, on_note=notes.append)
    assert [path.name for path in paths[::2]] == ["ttft.png", "against-kv_capacity_tokens.png"]
    said = "without hit rate: conversation carries no prefix information, so that it is not known."
    assert f"against-kv_capacity_tokens: {said}" in notes
    figure = plots.against(table, "kv_capacity_tokens")
    assert [ax.get_ylabel() for ax in figure.axes] == ["TTFT (ms)", "throughput (tokens/s)"]


def test_what_varies_is_drawn_by_default_and_the_same_bytes_twice(tmp_path):
    table = summary_of(*rates())
    requests = requests_of(**{run: [10.0, 20.0] for run in table["run_id"]})
    found = [plots.draw(table, requests, tmp_path / name) for name in "ab"]
    names = ["ttft.png", "ttft.svg", "against-rate_scale.png", "against-rate_scale.svg"]
    assert [path.name for path in found[0]] == names
    for one, other in zip(*found, strict=True):
        assert one.read_bytes() == other.read_bytes()
    only = plots.draw(table, requests, tmp_path / "c", settings=["--rate-scale"])
    assert [path.name for path in only] == names[2:]


NOT_AGAINST = [
    (
        "cascade",
        "--against cascade needs two values of it, all else being equal, but these runs have 0; "
        "what varies is rate_scale.",
    ),
    (
        "colour",
        "--against colour needs two values of it, all else being equal, but these runs have none; "
        "what varies is rate_scale.",
    ),
]


@pytest.mark.parametrize(("name", "sentence"), NOT_AGAINST)
def test_what_is_no_axis_says_what_is(name, sentence):
    with pytest.raises(UsageError) as error:
        plots.against(summary_of(*rates()), name)
    assert str(error.value) == sentence


def test_runs_that_show_nothing_are_said_in_a_sentence(tmp_path):
    nothing = {"num_finished": 0, "ttft_ms_mean": math.nan}
    with pytest.raises(UsageError, match="nothing to draw, for no request finished; raise --kv-c"):
        plots.draw(summary_of(nothing), requests_of(run0=[math.nan]), tmp_path)
    assert not list(tmp_path.iterdir())
