"""What a report says: recommendations by their rules, and no more than the runs show."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotted import requests_of, summary_of

from sim import plots
from sim.errors import UsageError
from sim.plots.runs import told_apart
from sim.reporting import build, render
from sim.reporting.advice import choose_block_size, choose_capacity
from sim.reporting.cells import situations
from sim.reporting.findings import situation_of
from sim.reporting.pictures import QUESTIONS
from sim.reporting.recommended import CurveFacts
from sim.reporting.words import change, gibibytes, listed, milliseconds, number, percent, points
from sim.reporting.zero import find_break_evens, finding_of_zero

NO_REQUESTS = pd.DataFrame({"run_id": pd.Series(dtype="str"), "arrival_s": pd.Series(dtype=float)})
PLAIN = {
    "num_requests": 1000,
    "cost": "llama-3-8b/h100",
    "overhead": "vllm-0.8.5-v1",
    "total_throughput": 1000.0,
    "makespan_s": 100.0,
    "ttft_ms_p99": 2000.0,
    "overhead_share": 0.01,
    "share_requests_hit": 0.5,
}


def cells_of(*rows, requests=NO_REQUESTS):
    frame, _ = told_apart(summary_of(*({**PLAIN, **row} for row in rows)))
    return next(situations(frame, requests))


def sizes(*rows):
    return cells_of(
        *({"block_size": s, "ttft_ms_mean": t, "total_throughput": r} for s, t, r in rows)
    )


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        # Block size, TTFT, throughput: the smallest within 2 % of the best TTFT.
        ([(16, 102.0, 1000.0), (32, 100.0, 1000.0), (64, 130.0, 1000.0)], 16),
        ([(16, 102.1, 1000.0), (32, 100.0, 1000.0), (64, 130.0, 1000.0)], 32),
        # Throughput 2 % below the best is as good; more is not.
        ([(16, 100.0, 980.0), (32, 100.0, 1000.0)], 16),
        ([(16, 100.0, 979.0), (32, 100.0, 1000.0)], 32),
        # None is as good in both: TTFT decides.
        ([(16, 100.0, 900.0), (32, 110.0, 1000.0)], 16),
    ],
)
def test_the_block_size_is_the_smallest_that_is_as_good_as_the_best(rows, chosen):
    assert choose_block_size(sizes(*rows)).row["block_size"] == chosen


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        # Capacity, hit rate, TTFT: within a point of the best hit rate and 5 % of the best TTFT.
        ([(1000, 0.391, 104.0), (2000, 0.4, 100.0)], 1000),
        ([(1000, 0.389, 100.0), (2000, 0.4, 100.0)], 2000),
        ([(1000, 0.4, 106.0), (2000, 0.4, 100.0)], 2000),
        ([(1000, 0.2, 300.0), (2000, 0.395, 101.0), (4000, 0.4, 100.0)], 2000),
    ],
)
def test_the_capacity_is_the_smallest_that_is_as_good_as_the_best(rows, chosen):
    cells = cells_of(
        *({"kv_capacity_tokens": c, "hit_rate": h, "ttft_ms_mean": t} for c, h, t in rows)
    )
    assert choose_capacity(cells, None).row["kv_capacity_tokens"] == chosen


REJECTS = {"hit_rate": 0.9, "infinite_hit_rate": 0.9, "ttft_ms_mean": 10.0, "num_rejected": 400}


def test_a_capacity_that_turns_requests_away_is_not_compared():
    good = {"hit_rate": 0.4, "infinite_hit_rate": 0.405, "ttft_ms_mean": 100.0}
    rows = [
        {"kv_capacity_tokens": 1000, **REJECTS},
        {"kv_capacity_tokens": 2000, **good},
        {"kv_capacity_tokens": 4000, **good},
    ]
    assert choose_capacity(cells_of(*rows), None).row["kv_capacity_tokens"] == 2000
    ((_, text),) = said(texts(*rows), "Capacity")
    assert "the smallest of the 2 capacities compared" in text
    assert "(40.0 %; 40.0 %)" in text
    assert "1 other capacity turns more requests away" in text


def test_where_one_capacity_alone_serves_all_none_is_recommended_and_that_one_is_told():
    rows = [{"kv_capacity_tokens": 1000, **REJECTS}, {"kv_capacity_tokens": 2000, "hit_rate": 0.4}]
    found = texts(*rows)
    ((tone, text),) = said(found, "Capacity")
    assert tone == "unknown"
    assert (
        "of the 2 KV capacities that were run only one, 2,000 tokens, serves all requests" in text
    )
    assert "a KV cache of 2,000 tokens, 40.0 %" in said(found, "Hit rate")[0][1]


def test_capacities_that_all_turn_requests_away_are_not_at_the_ceiling():
    rows = [{"kv_capacity_tokens": size, **REJECTS} for size in (1000, 2000)]
    ((_, text),) = said(texts(*rows), "Capacity")
    assert "All of them turn 400 requests away" in text
    assert "ceiling" not in text
    assert "too small for some" in situation_of(cells_of(*rows)).tiles[-1].note


def test_where_no_request_finished_no_capacity_is_recommended():
    nothing = {"ttft_ms_mean": math.nan, "hit_rate": math.nan, "num_finished": 0}
    rows = [{"kv_capacity_tokens": size, **nothing} for size in (16, 32)]
    assert "no request finished" in choose_capacity(cells_of(*rows), None).missing


def test_a_block_size_or_policy_that_turns_more_requests_away_is_not_compared():
    rows = [{"block_size": 16}, {"block_size": 32}, {"block_size": 64, **REJECTS}]
    choice = choose_block_size(cells_of(*rows))
    assert choice.row["block_size"] == 16
    assert choice.rows["block_size"].tolist() == [16, 32]
    assert "1 other block size turns more requests away" in said(texts(*rows), "Block size")[0][1]
    assert "only one, 16 tokens, serves all" in choose_block_size(cells_of(*rows[::2])).missing
    others = [{"policy": name, **row} for name, row in (("a", {}), ("b", {}), ("c", REJECTS))]
    ((_, text),) = said(texts(*others), "Policies")
    assert "Of the 2 policies that cache" in text
    assert "c turned more requests away: not compared." in text
    doubts = [text for _, text in said(texts({}, {**NONE, "num_rejected": 3}), "Doubts")]
    assert doubts[0].startswith("With caching 0 requests and without 3 requests were turned away")


SIX_SIZES = sizes(*((2 ** (index + 3), 1.0, 1.0) for index in range(6)))


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=2, max_size=6
    )
)  # fmt: skip
def test_no_smaller_block_is_as_good_and_the_choice_is(values):
    rows = [(2 ** (index + 3), ttft, rate) for index, (ttft, rate) in enumerate(values)]
    # The table of six sizes is made once; only the figures are new.
    table = SIX_SIZES.table.iloc[: len(rows)].copy()
    table[["block_size", "ttft_ms_mean", "total_throughput"]] = rows
    row = choose_block_size(replace(SIX_SIZES, table=table.astype({"block_size": "int64"}))).row
    best = min(ttft for ttft, _ in values)
    most = max(rate for _, rate in values)
    good = [s for s, ttft, rate in rows if ttft <= 1.02 * best and rate >= 0.98 * most]
    fast = [s for s, ttft, _ in rows if ttft <= 1.02 * best]
    assert row["block_size"] == min(good or fast)


def texts(*rows, requests=NO_REQUESTS, **more):
    found = situation_of(cells_of(*rows, requests=requests), **more)
    return [(finding.topic, finding.tone, finding.text) for finding in found.findings]


def said(found, topic):
    return [(tone, text) for name, tone, text in found if name.startswith(topic)]


NONE = {
    "policy": "none", "overhead": "vllm-0.8.5-v1-off", "hit_rate": 0.0, "ttft_ms_mean": 600.0,
    "ttft_ms_p99": 4000.0, "total_throughput": 800.0, "overhead_share": 0.004,
}  # fmt: skip


def test_what_caching_buys_is_set_against_none():
    found = texts({}, NONE)
    ((tone, hits),) = said(found, "Hit rate")
    assert tone == "known"
    assert hits.startswith(
        "With vllm_v1, blocks of 16 and a KV cache of 100,000 tokens, 30.0 % of the prompt tokens "
        "are found in the cache and not computed again (15 points below the 45.0 % of a cache that "
        "never evicts)"
    )
    (latency, throughput) = said(found, "What it buys")
    assert latency == (
        "known",
        "The first token comes after 300 ms on average instead of 600 ms without caching: 50.0 % "
        "less. One request in a hundred waits longer than 2.00 s; without caching, longer than "
        "4.00 s.",
    )
    assert throughput == (
        "known",
        "Throughput is 1,000 tokens/s with caching and 800 without: 25.0 % more.",
    )
    (cost,) = said(found, "What it costs")
    assert "takes 1.00 % of the engine's time" in cost[1]
    assert "without caching, managing blocks takes 0.40 %" in cost[1]


def at_rates(*rates, arrivals_s=0.0, **tiers):
    """Runs under full load that differ in what an infinite cache hits: rate and throughput."""
    rows = []
    for rate, throughput in rates:
        same = {"infinite_hit_rate": rate, "workload_args": f"hit_rate={rate}"}
        rows += [{**same, **tiers, "total_throughput": throughput}, {**NONE, **same}]
    summary = summary_of(*({**PLAIN, **row} for row in rows))
    requests = arrivals(arrivals_s, *summary["run_id"])
    frame, _ = told_apart(summary)
    zero = find_break_evens(frame, requests)
    return finding_of_zero_of(next(situations(frame, requests)), zero)


def finding_of_zero_of(cells, zero):
    return finding_of_zero(cells.of_main_policy().iloc[0], cells, zero)


def test_what_caching_costs_where_nothing_hits():
    # At 0 it loses 1 % of 800, at 0.1 it gains 1 %: it pays from the middle on.
    found = at_rates((0.0, 792.0), (0.1, 808.0))
    assert found.text == (
        "Where 0.0 % can hit, throughput under full load is 1.0 % less than without caching; "
        "caching pays from a hit rate of 5.0 % on."
    )
    assert "it does not pay" in at_rates((0.0, 792.0), (0.1, 796.0)).text
    assert at_rates((0.0, 800.0)).text == (
        "Where 0.0 % can hit, throughput under full load is the same as without caching."
    )
    assert at_rates((0.1, 800.0), (0.2, 900.0)).tone == "unknown"
    assert at_rates((0.0, 792.0), (0.1, 808.0), arrivals_s=95.0).tone == "unknown"


def test_without_none_nothing_is_said_of_what_caching_buys():
    ((tone, text),) = said(texts({}), "What it buys")
    assert tone == "unknown"
    assert "What caching buys cannot be said" in text
    assert "--policy none" in text


def test_one_block_size_and_one_capacity_recommend_nothing():
    found = texts({}, NONE)
    ((tone, text),) = said(found, "Block size")
    assert tone == "unknown"
    assert "No block size can be recommended: at this capacity only one block size, 16" in text
    ((tone, text),) = said(found, "Capacity")
    assert tone == "unknown"
    assert "No KV capacity can be recommended: only one KV capacity was run" in text


def test_runs_of_none_alone_say_that_nothing_is_cached():
    found = texts(NONE)
    assert said(found, "Hit rate")[0][0] == "unknown"
    assert said(found, "What it buys") == []
    assert "the only policy that was run is none" in said(found, "Block size")[0][1]


def test_lengths_alone_have_no_hit_rate_and_it_is_not_zero():
    unknown = {"hit_rate": math.nan, "infinite_hit_rate": math.nan}
    found = texts({**unknown, "block_size": 16}, {**unknown, "block_size": 32}, {**NONE, **unknown})
    ((tone, text),) = said(found, "Hit rate")
    assert tone == "unknown"
    assert "That is not a hit rate of 0" in text
    assert "no prefix information" in said(found, "Block size")[0][1]
    tiles = situation_of(cells_of({**unknown}, {**NONE, **unknown})).tiles
    assert (tiles[0].title, tiles[0].value) == ("Hit rate", "n/a")


def arrivals(last_s, *run_ids):
    return pd.DataFrame({"run_id": run_ids, "arrival_s": [last_s] * len(run_ids)})


def test_throughput_of_arrivals_is_not_taken_for_the_engine_s():
    at_rest = arrivals(95.0, "run0", "run1")
    ((_, _), (tone, text)) = said(texts({}, NONE, requests=at_rest), "What it buys")
    assert tone == "unknown"
    assert text.startswith("Throughput is that of the arrivals, 1,000 tokens/s")
    # In a closed loop requests come as they are served.
    closed = {"arrival": "8 users, closed loop"}
    found = texts(closed, {**NONE, **closed}, requests=at_rest)
    assert said(found, "What it buys")[1][0] == "known"
    # Served long after the last came: full load.
    found = texts({}, NONE, requests=arrivals(50.0, "run0", "run1"))
    assert said(found, "What it buys")[1][0] == "known"


def test_waiting_preemptions_and_rejections_are_doubts():
    found = texts(
        {"queue_ms_mean": 200.0, "num_preemptions": 7, "num_rejected": 3},
        {**NONE, "num_rejected": 3, "num_preemptions": 9},
    )
    doubts = [text for tone, text in said(found, "Doubts")]
    assert doubts[0].startswith("3 requests of 1,000 can never fit")
    assert doubts[1].startswith("Requests spend 67 % with caching and 0 % without of their time")
    assert doubts[2].startswith(
        "Running requests lost their blocks 7 times, without caching 9 times, and were computed"
    )


def test_a_trace_with_coarse_ids_says_what_it_cannot_tell():
    rows = [{"block_size": size, "trace_block_size": 512} for size in (16, 512)]
    (_, doubt) = said(texts(*rows), "Block size")
    assert doubt[0] == "doubt"
    assert (
        "blocks of 512 tokens, so what block size 16 would hit beyond that does not show"
        in doubt[1]
    )


def test_larger_caches_may_pay_where_the_best_run_is_below_the_ceiling():
    rows = [
        {"kv_capacity_tokens": 1000, "hit_rate": 0.2, "ttft_ms_mean": 200.0},
        {"kv_capacity_tokens": 2000, "hit_rate": 0.3, "ttft_ms_mean": 100.0},
    ]
    (text,) = (text for _, text in said(texts(*rows), "Capacity"))
    assert text.startswith("Recommended: 2,000 tokens (125 blocks of 16, 0.244 GiB).")
    assert "still lies 15 points below a cache that never evicts" in text


def test_the_largest_capacity_that_was_run_is_not_called_recommended_in_short():
    rows = [
        {"kv_capacity_tokens": 1000, "hit_rate": 0.2, "ttft_ms_mean": 200.0},
        {"kv_capacity_tokens": 2000, "hit_rate": 0.3, "ttft_ms_mean": 100.0},
    ]
    assert situation_of(cells_of(*rows)).tiles[-1].note.endswith("the largest that was run")
    rows[1]["infinite_hit_rate"] = 0.305
    assert situation_of(cells_of(*rows)).tiles[-1].note.endswith("recommended")


def test_no_gib_where_the_model_is_not_known():
    rows = [{"kv_capacity_tokens": size, "cost": "mine.json"} for size in (1000, 2000)]
    (text,) = (text for _, text in said(texts(*rows), "Capacity"))
    assert "1,000 tokens (62 blocks of 16)" in text


def test_the_curve_is_told_in_every_unit():
    curve = CurveFacts("vllm_v1", 16, 0.5, 8192, 0.4, 16384, 12000, 0.45, "llama-3-8b on h100")
    (_, (_, text)) = said(texts({}, curve=curve), "Capacity")
    assert "8,192 tokens (512 blocks of 16, 1 GiB), the knee, with 40.0 % hit" in text
    assert "16,384 tokens (1,024 blocks of 16, 2 GiB) come within 1 point of the 50.0 %" in text
    assert "room for 12,000 tokens beside the weights, where 45.0 % hit" in text
    assert "would gain up to 5 points" in text


def test_every_sentence_that_is_known_rests_on_figures():
    for finding in situation_of(cells_of({}, NONE)).findings:
        assert bool(finding.rests_on) or finding.tone == "unknown"


def test_the_policy_that_is_fastest_and_the_one_that_hits_most():
    found = texts(
        {"ttft_ms_mean": 300.0, "hit_rate": 0.3},
        {"policy": "vllm_v0", "overhead": "vllm-0.8.5-v0", "ttft_ms_mean": 320.0, "hit_rate": 0.31},
    )
    ((_, text),) = said(found, "Policies")
    assert "Of the 2 policies that cache" in text
    assert (
        "vllm_v1 has the lowest mean TTFT (300 ms); vllm_v0 has the highest hit rate (31.0 %)"
        in text
    )


def test_policies_that_cache_are_not_called_the_fastest_where_none_is_faster():
    rows = [{}, {"policy": "vllm_v0", "ttft_ms_mean": 320.0}, {**NONE, "ttft_ms_mean": 200.0}]
    ((_, text),) = said(texts(*rows), "Policies")
    assert "without caching it is lower still (200 ms)" in text
    rows[-1] = NONE
    assert "without caching" not in said(texts(*rows), "Policies")[0][1]


@pytest.mark.parametrize(
    ("hits", "sentence"),
    [
        ((0.40, 0.35, 0.30), " Smaller blocks hit more."),
        ((0.40, 0.40, 0.40), " All hit the same."),
        ((0.30, 0.35, 0.40), ""),
        ((0.30, 0.40, 0.35), ""),
    ],
)
def test_what_block_sizes_change_is_said_as_the_figures_show_it(hits, sentence):
    rows = [{"block_size": 16 * 2**i, "hit_rate": hit} for i, hit in enumerate(hits)]
    text = said(texts(*rows), "Block size")[0][1]
    assert text.endswith(f"it is the smallest.{sentence}")


def test_larger_blocks_cost_less_and_smaller_waste_less_where_they_do():
    rows = [
        {"block_size": size, "hit_rate": 0.3, "overhead_share": cost}
        for size, cost in ((16, 0.02), (32, 0.01))
    ]
    unfilled = pd.Series([0.01, 0.02], index=["run0", "run1"])
    text = said(texts(*rows, unfilled=unfilled), "Block size")[0][1]
    assert text.endswith(
        "All hit the same; smaller blocks waste less memory in their last block; larger ones cost "
        "less to manage."
    )
    text = said(texts(*rows, unfilled=unfilled[::-1].set_axis(unfilled.index)), "Block size")[0][1]
    assert text.endswith("All hit the same; larger blocks cost less to manage.")


def test_every_kind_of_plot_has_a_question():
    assert set(plots.KINDS) <= set(QUESTIONS)


TIERED = {"host_capacity_tokens": 8192}


def test_none_is_the_baseline_whatever_the_tiers():
    rows = [
        {**TIERED, "kv_capacity_tokens": 1000, "tier_write": "evict"},
        {**TIERED, "kv_capacity_tokens": 2000, "tier_write": "evict"},
        {**NONE, "kv_capacity_tokens": 1000},
        {**NONE, "kv_capacity_tokens": 2000, "ttft_ms_mean": 700.0},
    ]
    frame, _ = told_apart(summary_of(*({**PLAIN, **row} for row in rows)))
    (cells,) = situations(frame, NO_REQUESTS)
    assert cells.caching["none_ttft_ms_mean"].tolist() == [600.0, 700.0]
    # With tiers and without: each situation has it, and none is of `none` alone.
    rows = [{}, TIERED, {**TIERED, "block_size": 32}, NONE]
    frame, _ = told_apart(summary_of(*({**PLAIN, **row} for row in rows)))
    found = list(situations(frame, NO_REQUESTS))
    assert [cells.runs["policy"].tolist().count("none") for cells in found] == [1, 1]
    assert [len(cells.caching) for cells in found] == [2, 1]
    assert found[1].caching["none_ttft_ms_mean"].tolist() == [600.0]


def test_runs_of_none_alone_are_not_told_first_where_others_cache():
    rows = [{**NONE, "rate_scale": 2.0, "block_size": size} for size in (16, 32, 64)]
    report = report_of({}, *rows)
    assert "vllm_v1" in report.situations[0].findings[0].text
    assert "the one with the most runs that cache" in report.lead


def test_what_caching_costs_where_nothing_hits_is_known_with_tiers_too():
    assert at_rates((0.0, 792.0), (0.1, 808.0), **TIERED).tone == "known"


def test_both_sides_are_averaged_over_common_seeds_only():
    rows = [{"seed": seed, "ttft_ms_mean": 100.0 * (1 + seed)} for seed in (0, 1, 2)]
    cells = cells_of(*rows, {**NONE, "seed": 0})
    assert cells.table["ttft_ms_mean"].tolist() == [600.0, 100.0]
    assert cells.seeds_left_out == (1, 2)
    ((_, doubt),) = said(texts(*rows, {**NONE, "seed": 0}), "Doubts")
    assert doubt == (
        "Of 3 seeds 1 was run with every policy, block size and capacity; runs of the other 2 "
        "seeds count in no figure here."
    )
    # Block sizes too are compared over the same seeds.
    cells = cells_of(*rows, {"block_size": 32, "seed": 1}, {"block_size": 32, "seed": 2})
    assert cells.table["ttft_ms_mean"].tolist() == [250.0, 300.0]
    assert cells.table["num_seeds"].tolist() == [2, 2]


def test_without_a_seed_common_to_all_what_caching_buys_is_over_those_of_both_sides():
    rows = [
        *({"seed": seed, "ttft_ms_mean": 100.0 * (1 + seed)} for seed in (0, 1)),
        {"seed": 2, "block_size": 32},
        *({**NONE, "seed": seed, "ttft_ms_mean": 600.0 + seed} for seed in (1, 2)),
    ]
    row = cells_of(*rows).caching.iloc[0]
    assert (row["ttft_ms_mean"], row["none_ttft_ms_mean"], row["num_seeds"]) == (200.0, 601.0, 1)
    assert said(texts(*rows), "Doubts")[0][1].startswith("No seed was run with every policy")


def test_situations_are_kept_apart():
    rows = [{**PLAIN, "rate_scale": scale} for scale in (1.0, 2.0, 2.0)]
    rows[2]["block_size"] = 32
    frame, _ = told_apart(summary_of(*rows))
    found = list(situations(frame, NO_REQUESTS))
    assert [cells.runs["rate_scale"].unique().tolist() for cells in found] == [[2.0], [1.0]]


def test_seeds_are_averaged():
    cells = cells_of({"seed": 0, "hit_rate": 0.2}, {"seed": 1, "hit_rate": 0.4})
    assert cells.table["hit_rate"].tolist() == pytest.approx([0.3])
    assert cells.table["num_seeds"].tolist() == [2]


def report_of(*rows, **more):
    summary = summary_of(*({**PLAIN, **row} for row in rows))
    requests = requests_of(run0=[10.0, 20.0]).assign(arrival_s=1.0)
    return build(summary, requests, command="prefixsim report <x> & more", **more)


def test_a_page_is_escaped_and_the_same_again():
    args = [{"workload": "a </script><b>.jsonl"}, {**NONE, "workload": "a </script><b>.jsonl"}]
    page = render(report_of(*args))
    assert page == render(report_of(*args))
    assert "a &lt;/script&gt;&lt;b&gt;.jsonl" in page
    assert "<b>.jsonl" not in page
    assert "prefixsim report &lt;x&gt; &amp; more" in page
    assert "http" not in page.replace("http://www.w3.org/", "")
    assert page.count("</script>") == 3


def test_what_a_sweep_lacks_is_said_first():
    report = report_of({}, NONE, missing=["--block-size 32", "--block-size 64"])
    assert report.doubts[0] == (
        "The sweep is not finished: 2 runs are there and 2 points are missing (--block-size 32; "
        "--block-size 64). Run the same sweep again to go on where it stopped."
    )


def test_a_picture_that_cannot_be_drawn_does_not_keep_the_others(monkeypatch):
    def refuse(summary, requests):
        raise UsageError("it cannot.")

    monkeypatch.setitem(plots.KINDS, "ttft", refuse)
    rows = [
        {"kv_capacity_tokens": capacity, **row} for capacity in (1000, 2000) for row in ({}, NONE)
    ]
    report = report_of(*rows)
    assert "capacity" in [picture.stem for picture in report.pictures]
    assert "The picture ttft is not drawn: it cannot." in report.doubts


@pytest.mark.parametrize(
    ("spelt", "text"),
    [
        (percent(0.1234), "12.3 %"),
        (percent(math.nan), "n/a"),
        (points(0.01), "1 point"),
        (points(0.0123), "1.2 points"),
        (milliseconds(3.456), "3.46 ms"),
        (milliseconds(34.56), "34.6 ms"),
        (milliseconds(345.6), "346 ms"),
        (milliseconds(3456.0), "3.46 s"),
        (milliseconds(34567.0), "34.6 s"),
        (gibibytes(0.24414), "0.244 GiB"),
        (gibibytes(2050.4), "2,050 GiB"),
        (number(1234.5), "1,234"),
        (number(1.2345), "1.23"),
        (change(50.0, 100.0), "50.0 % less"),
        (change(125.0, 100.0), "25.0 % more"),
        (change(100.0, 100.0), "the same"),
        (listed(["a"]), "a"),
        (listed([1, 2, 3]), "1, 2 and 3"),
    ],
)
def test_numbers_are_spelt(spelt, text):
    assert spelt == text
