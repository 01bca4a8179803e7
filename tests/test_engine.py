"""Whole runs in simulated time, with times and hit rates worked out by hand."""

import json
from dataclasses import astuple, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, Clock, make, needs, policy_cases, requests_of, serve_in_two_calls
from hypothesis import given
from hypothesis import strategies as st

from sim.cost import LinearCost
from sim.engine import Engine
from sim.recorder import UNKNOWN, Recorder
from sim.results import request_table, step_table, summarize
from sim.scheduler import SchedulerConfig
from sim.types import Request
from workloads import infinite_hit_rate, load, read_mooncake
from workloads.content import Segments

SECOND = 10**9
MS = 10**6


class Cost:
    """A step takes ``base_ns + per_token_ns * tokens``; too many steps are an error."""

    def __init__(self, base_ns, per_token_ns=0, max_steps=100_000):
        self.base_ns = base_ns
        self.per_token_ns = per_token_ns
        self.num_steps_left = max_steps

    def step_ns(self, batch):
        self.num_steps_left -= 1
        assert self.num_steps_left >= 0, "the run does not end"
        return self.base_ns + self.per_token_ns * batch.num_new_tokens


def run(
    requests,
    *,
    policy="vllm_v1",
    num_blocks=1000,
    block_size=4,
    cost=None,
    args=None,
    limits=None,
    **options,
):
    """Run an engine to the end; return its records by request id, in order of arrival."""
    recorder = Recorder(keep_steps=True)
    engine = Engine(
        lambda clock: make(policy, num_blocks, block_size, clock, **(args or {})),
        SchedulerConfig(**(limits or {})),
        cost or Cost(10),
        recorder,
        **options,
    )
    engine.run(requests)
    assert not engine.scheduler.has_work()
    assert engine.allocator.usage().used == 0
    return SimpleNamespace(
        records={record.request.request_id: record for record in recorder.requests},
        recorder=recorder,
        steps=recorder.steps,
    )


def summary_of(result, block_size=4):
    return summarize(result.recorder, block_size, has_prefix_info=True)


def turns(*rows, interner=None):
    """Make turns of one session from (arrival_ns, think_ns); each is a single step."""
    requests = requests_of(
        *[([index], [100 + index]) for index in range(len(rows))],
        arrivals_ns=[arrival_ns for arrival_ns, _ in rows],
    )
    return [
        replace(request, session_id="s", think_ns=think_ns)
        for request, (_, think_ns) in zip(requests, rows, strict=True)
    ]


# Time


def test_times_of_two_requests_that_share_steps():
    """A step takes 10 ms and 1 ms per token.

    ====  ========  ==============  ========================================
    step  time, ms  tokens          what comes out at its end
    ====  ========  ==============  ========================================
    1     0 - 14    r0 4            r0's first token
    2     14 - 31   r0 1, r1 6      r0's second, r1's first
    3     31 - 43   r0 1, r1 1      r0's third and last, r1's second and last
    ====  ========  ==============  ========================================
    """
    requests = requests_of(
        (range(4), range(10, 13)), (range(20, 26), range(30, 32)), arrivals_ns=[0, 5 * MS]
    )
    result = run(requests, cost=Cost(10 * MS, 1 * MS))
    table = request_table(result.recorder, "run").set_index("request_id")
    columns = ["arrival_s", "admitted_s", "first_token_s", "finished_s", "e2e_s"]
    assert table.loc["r0", columns].tolist() == [0.0, 0.0, 0.014, 0.043, 0.043]
    assert table.loc["r1", columns].tolist() == [0.005, 0.014, 0.031, 0.043, 0.038]
    columns = ["queue_ms", "ttft_ms", "tpot_ms"]
    # TPOT: (E2E - TTFT) / (output tokens - 1).
    assert table.loc["r0", columns].tolist() == [0.0, 14.0, (43 - 14) / 2]
    assert table.loc["r1", columns].tolist() == [9.0, 26.0, (38 - 26) / 1]
    summary = summary_of(result)
    expected = {
        "num_requests": 2,
        "num_finished": 2,
        "num_rejected": 0,
        "num_steps": 3,
        "num_prompt_tokens": 10,
        "num_output_tokens": 5,
        "makespan_s": 0.043,
        "request_throughput": 2 / 0.043,
        "output_throughput": 5 / 0.043,
        "total_throughput": 15 / 0.043,
        "queue_ms_mean": 4.5,
        "ttft_ms_mean": 20.0,
        "ttft_ms_p50": 20.0,
        "ttft_ms_p90": 14 + 0.9 * 12,
        "tpot_ms_mean": (14.5 + 12) / 2,
        "e2e_s_mean": 0.0405,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    steps = step_table(result.recorder, "run")
    assert steps["start_s"].tolist() == [0.0, 0.014, 0.031]
    assert steps["duration_ms"].tolist() == [14.0, 17.0, 12.0]
    assert steps["num_new_tokens"].tolist() == [4, 7, 2]
    assert steps["num_scheduled_seqs"].tolist() == [1, 2, 2]
    assert steps["num_admitted"].tolist() == [1, 1, 0]
    assert steps["num_running"].tolist() == [1, 2, 2]
    # r0's 4, 5 and 6 tokens take 1, 2 and 2 blocks; r1's 6 and 7 take 2.
    assert steps["num_used_blocks"].tolist() == [1, 4, 4]
    # Full blocks: r0's first, then r1's first.
    assert steps["num_cached_blocks"].tolist() == [1, 2, 2]


def test_a_cost_by_sequences_sees_the_step_before_it_ends():
    seen = []

    class BySequence:
        def sequences_ns(self, scheduled):
            for seq, num_new_tokens in scheduled:
                table = engine.allocator.block_table(seq)
                seen.append((seq.request_id, num_new_tokens, seq.num_computed_tokens, len(table)))
            return 7 * len(scheduled)

    recorder = Recorder()
    engine = Engine(
        lambda clock: make("vllm_v1", 100, 4, clock), SchedulerConfig(), BySequence(), recorder
    )
    engine.run(requests_of((range(6), range(100, 102)), (range(6, 9), [200])))
    # In the last step r0 still holds its blocks; r1 ended in the first one.
    assert seen == [("r0", 6, 0, 2), ("r1", 3, 0, 1), ("r0", 1, 6, 2)]
    assert recorder.end_ns == 14 + 7


def test_scheduled_ahead_a_request_joins_the_step_after_the_next():
    # Steps of 10 ns. r0 runs in the first and, scheduled at 0 as well, the second; r1 comes at 5,
    # is taken in at 10, when the third step is scheduled, and has its token when that ends.
    requests = requests_of((range(3), [50, 51, 52, 53]), ([9, 8], [7]), arrivals_ns=[0, 5])
    sync = run(requests, cost=Cost(10))
    ahead = run(requests, cost=Cost(10), ahead=True)
    assert times_of(sync) == {"r0": (0, 10, 40), "r1": (10, 20, 20)}
    assert times_of(ahead) == {"r0": (0, 10, 40), "r1": (10, 30, 30)}


def test_scheduled_ahead_blocks_of_who_ends_are_missed_for_a_step():
    # Two blocks: r0 holds both until its step ends at 10; what is scheduled at 0 and cannot run
    # is scheduled again then.
    requests = requests_of((range(8), [50]), (range(20, 28), [60]))
    ahead = run(requests, num_blocks=2, cost=Cost(10), ahead=True)
    assert times_of(ahead) == {"r0": (0, 10, 10), "r1": (10, 20, 20)}
    # With a third request running on, it waits for a step longer than without.
    requests = requests_of((range(8), [50]), (range(40, 43), [1, 2, 3, 4]), (range(20, 28), [60]))
    limits = {"max_num_batched_tokens": 11}
    sync = run(requests, num_blocks=4, cost=Cost(10), limits=limits)
    ahead = run(requests, num_blocks=4, cost=Cost(10), limits=limits, ahead=True)
    assert times_of(sync)["r2"] == (10, 20, 20)
    assert times_of(ahead)["r2"] == (10, 30, 30)


def times_of(result):
    return {
        name: (record.admitted_ns, record.first_token_ns, record.finished_ns)
        for name, record in result.records.items()
    }


def test_outputs_of_0_and_1_tokens_have_no_time_per_output_token():
    requests = requests_of((range(4), []), (range(10, 14), [1]))
    table = request_table(run(requests).recorder, "run")
    assert table["tpot_ms"].isna().all()
    assert table["ttft_ms"].isna().tolist() == [True, False]
    assert table["finished_s"].tolist() == [1e-8, 1e-8]


def test_whoever_arrives_when_a_step_begins_takes_part_in_it():
    requests = requests_of(
        *[([index], [7, 8, 9]) for index in range(5)], arrivals_ns=[0, 0, 10, 11, 500]
    )
    records = run(requests).records
    # Steps begin at 0, 10, 20, 30, 40; then the engine sleeps until 500.
    assert [record.admitted_ns for record in records.values()] == [0, 0, 10, 20, 500]
    assert [record.first_token_ns for record in records.values()] == [10, 10, 20, 30, 510]
    assert [record.finished_ns for record in records.values()] == [30, 30, 40, 50, 530]


def test_all_who_wake_an_idle_engine_together_share_the_step():
    requests = requests_of(*[([index], [7]) for index in range(4)], arrivals_ns=[50] * 4)
    result = run(requests)
    assert [record.admitted_ns for record in result.records.values()] == [50] * 4
    assert len(result.steps) == 1


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.integers(1, 3))
def test_with_room_everybody_joins_the_first_step_after_arrival(gaps, num_output_tokens):
    arrivals = np.cumsum(gaps).tolist()
    rows = [([index], [7] * num_output_tokens) for index in range(len(arrivals))]
    result = run(requests_of(*rows, arrivals_ns=arrivals))
    starts = np.array([step.start_ns for step in result.steps])
    for record in result.records.values():
        assert record.admitted_ns == starts[np.searchsorted(starts, record.arrival_ns)]
        assert record.finished_ns == record.admitted_ns + 10 * num_output_tokens


def test_one_at_a_time_with_constant_service():
    """Service 10: starts at 0, 10, 20, 40; hence waits of 0, 7, 5 and 0."""
    requests = requests_of(*[([index], [7]) for index in range(4)], arrivals_ns=[0, 3, 15, 40])
    result = run(requests, limits={"max_num_seqs": 1})
    records = result.records.values()
    assert [record.admitted_ns - record.arrival_ns for record in records] == [0, 7, 5, 0]
    table = request_table(result.recorder, "run")
    assert (table["queue_ms"] * MS).round().tolist() == [0, 7, 5, 0]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 4))
def test_waits_of_one_server_follow_lindley(gaps, num_output_tokens):
    """wait' = max(0, wait + service - gap), the law of every queue with one server."""
    arrivals = np.cumsum(gaps).tolist()
    service_ns = 10 * num_output_tokens
    rows = [([index], [7] * num_output_tokens) for index in range(len(arrivals))]
    requests = requests_of(*rows, arrivals_ns=arrivals)
    records = run(requests, limits={"max_num_seqs": 1}).records.values()
    wait_ns = 0
    for index, record in enumerate(records):
        if index:
            wait_ns = max(0, wait_ns + service_ns - gaps[index])
        assert record.admitted_ns - record.arrival_ns == wait_ns
        assert record.finished_ns - record.admitted_ns == service_ns


def test_time_is_whole_nanoseconds_and_exact_far_from_zero():
    late = 3 * 10**17 + 1  # beyond what a float holds exactly
    requests = requests_of(([1], [2, 3]), ([4], [5]), arrivals_ns=[late, late + 1])
    result = run(requests, cost=LinearCost(step_base_ns=3, step_per_token_ns=1))
    times = [
        (record.arrival_ns, record.admitted_ns, record.first_token_ns, record.finished_ns)
        for record in result.records.values()
    ]
    assert times == [
        (late, late, late + 4, late + 9),
        (late + 1, late + 4, late + 9, late + 9),
    ]
    values = [value for row in times for value in row]
    values += [value for step in result.steps for value in astuple(step)]
    assert all(type(value) is int for value in values)
    assert type(result.recorder.end_ns) is int


# Termination and preemption


def test_a_request_that_can_never_fit_is_rejected_and_the_run_goes_on():
    """A21, case 1: 12 + 8 - 1 = 19 tokens need five blocks of four."""
    requests = requests_of(
        (range(12), range(50, 58)), (range(20, 32), range(60, 64)), names=["X", "Y"]
    )
    result = run(requests, num_blocks=4)
    x, y = result.records["X"], result.records["Y"]
    assert x.rejection == "needs 5 of 4 blocks"
    assert (x.admitted_ns, x.first_token_ns, x.finished_ns) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert y.finished_ns == 40
    table = request_table(result.recorder, "run").set_index("request_id")
    assert table["status"].to_dict() == {"X": "rejected", "Y": "finished"}
    assert table.loc["X", ["admitted_s", "first_token_s", "finished_s", "ttft_ms"]].isna().all()
    summary = summary_of(result)
    assert (summary["num_requests"], summary["num_finished"], summary["num_rejected"]) == (2, 1, 1)
    # A rejected request counts in no rate.
    assert (summary["num_prompt_tokens"], summary["num_output_tokens"]) == (12, 4)


def test_nothing_but_rejections():
    (request,) = requests_of((range(12), range(50, 58)), names=["X"])
    result = run([request], num_blocks=4)
    summary = summary_of(result)
    assert (summary["num_finished"], summary["num_rejected"], summary["num_steps"]) == (0, 1, 0)
    assert np.isnan(summary["hit_rate"])
    assert np.isnan(summary["request_throughput"])
    assert len(step_table(result.recorder, "run")) == 0


def test_no_requests():
    result = run([])
    assert request_table(result.recorder, "run").empty
    assert summary_of(result)["num_requests"] == 0


@pytest.mark.parametrize("policy", ["none", "vllm_v0", "vllm_v0_scan", "vllm_v1", "vllm_v1_latest"])
def test_two_that_do_not_fit_together_both_complete(policy):
    """A21, case 2: each needs four blocks of four in the end, and there are four."""
    requests = requests_of(
        (range(8), range(50, 58)), (range(20, 28), range(60, 68)), names=["A", "B"]
    )
    result = run(requests, policy=policy, num_blocks=4)
    a, b = result.records["A"], result.records["B"]
    assert UNKNOWN < a.finished_ns < b.finished_ns
    assert b.num_preemptions >= 1
    assert result.recorder.num_preemptions == a.num_preemptions + b.num_preemptions


def test_the_times_of_a_preempted_request():
    """As above without caching: A ends with step 8, B computes nine tokens again in step 9."""
    requests = requests_of(
        (range(8), range(50, 58)), (range(20, 28), range(60, 68)), names=["A", "B"]
    )
    result = run(requests, policy="none", num_blocks=4)
    a, b = result.records["A"], result.records["B"]
    assert (a.admitted_ns, a.first_token_ns, a.finished_ns, a.num_preemptions) == (0, 10, 80, 0)
    assert (b.admitted_ns, b.first_token_ns, b.finished_ns, b.num_preemptions) == (0, 10, 150, 1)
    assert [step.num_new_tokens for step in result.steps] == [16, *[1] * 7, 9, *[1] * 6]
    assert [step.num_preempted for step in result.steps] == [0, 1, *[0] * 13]


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=4),  # path of shared segments
        st.integers(0, 12),  # output tokens
        st.integers(0, 30),  # gap to the arrival before
    ),
    min_size=1,
    max_size=10,
)


def requests_from(rows, segment_size=5):
    prompts = [
        [10 * step + offset for step in path for offset in range(segment_size)]
        for path, _, _ in rows
    ]
    return requests_of(
        *[
            (p, [0, 1] * (n // 2) + [2] * (n % 2))
            for p, (_, n, _) in zip(prompts, rows, strict=True)
        ],
        arrivals_ns=np.cumsum([gap for _, _, gap in rows]).tolist(),
    )


LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(1, 24),
        "long_prefill_token_threshold": st.integers(0, 6),
    }
)


@pytest.mark.parametrize(
    ("policy", "args"),
    [pytest.param(name, args, id=case_id) for case_id, name, args, _ in policy_cases()],
)
@given(rows=ROWS, limits=LIMITS, num_blocks=st.integers(1, 14), block_size=st.integers(1, 8))
def test_every_run_ends_with_every_request_served_or_rejected(
    *, policy, args, rows, limits, num_blocks, block_size
):
    """However tight the pool: whoever fits alone gets through, since the oldest makes progress."""
    requests = requests_from(rows)
    num_tokens = sum(request.num_kv_tokens for request in requests)
    cost = Cost(10, max_steps=100 + 10 * num_tokens * len(requests))
    result = run(
        requests,
        policy=policy,
        args=args,
        num_blocks=num_blocks,
        block_size=block_size,
        cost=cost,
        limits=limits,
    )
    room = make(policy, num_blocks, block_size, **args).max_request_blocks() * block_size
    assert len(result.records) == len(requests)
    for record in result.records.values():
        request = record.request
        if request.num_kv_tokens > room:
            assert record.rejection
            continue
        assert record.arrival_ns <= record.admitted_ns < record.finished_ns
        if request.num_output_tokens:
            assert record.admitted_ns < record.first_token_ns <= record.finished_ns
        assert 0 <= record.num_cached_tokens < request.num_prompt_tokens
    for step in result.steps:
        assert step.num_running <= limits["max_num_seqs"]
        assert step.num_new_tokens <= limits["max_num_batched_tokens"]
        assert 0 <= step.num_used_blocks <= num_blocks
    if not result.recorder.num_preemptions:
        served = [record for record in result.records.values() if not record.rejection]
        assert sum(step.num_new_tokens for step in result.steps) == sum(
            record.request.num_kv_tokens - record.num_cached_tokens for record in served
        )


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1"])
def test_a_run_twice_gives_equal_tables(policy):
    rows = [([index % 3, (index * 7) % 3], index % 13, index % 4) for index in range(60)]

    def tables():
        result = run(
            requests_from(rows), policy=policy, num_blocks=8, limits={"max_num_batched_tokens": 16}
        )
        assert result.recorder.num_preemptions > 0
        requests = request_table(result.recorder, "run")
        summary = summarize(result.recorder, 4, has_prefix_info=True)
        return requests, step_table(result.recorder, "run"), pd.DataFrame([summary])

    for first, second in zip(tables(), tables(), strict=True):
        pd.testing.assert_frame_equal(first, second, check_exact=True)


# Sessions


def test_turns_in_an_open_and_in_a_closed_loop():
    """E19: service takes 8 s; turn 2 is recorded at 5 s, with 2 s to think."""
    requests = turns((0, None), (5 * SECOND, 2 * SECOND))
    opened = run(requests, cost=Cost(8 * SECOND)).records
    assert opened["r1"].arrival_ns == 5 * SECOND
    closed = run(requests, cost=Cost(8 * SECOND), closed_loop=True).records
    assert closed["r0"].finished_ns == 8 * SECOND
    assert closed["r1"].arrival_ns == 10 * SECOND
    assert closed["r1"].admitted_ns == 10 * SECOND
    assert closed["r1"].finished_ns == 18 * SECOND


@pytest.mark.parametrize(("stamp_s", "arrival_s"), [(5, 8), (8, 8), (20, 20)])
def test_without_a_think_time_a_turn_waits_for_its_time_stamp_and_for_the_turn_before(
    stamp_s, arrival_s
):
    requests = turns((0, None), (stamp_s * SECOND, None))
    records = run(requests, cost=Cost(8 * SECOND), closed_loop=True).records
    assert records["r1"].arrival_ns == arrival_s * SECOND
    assert records["r1"].admitted_ns == arrival_s * SECOND


def test_a_turn_without_thinking_joins_the_very_next_step():
    requests = turns((0, None), (0, 0), (0, 0))
    (other,) = requests_of((range(4), range(50, 60)), names=["other"])
    records = run([*requests, other], closed_loop=True).records
    assert [records[f"r{index}"].admitted_ns for index in range(3)] == [0, 10, 20]


def test_after_a_rejected_turn_the_session_goes_on():
    first, second, third = turns((0, None), (0, 3), (0, 4))
    (large,) = requests_of((range(100), []), names=["r1"])
    second = replace(large, session_id="s", think_ns=3)
    result = run([first, second, third], num_blocks=5, closed_loop=True)
    records = result.records
    assert records["r1"].rejection == "needs 25 of 5 blocks"
    assert (records["r1"].arrival_ns, records["r2"].arrival_ns) == (13, 17)
    assert records["r2"].finished_ns == 27


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["s0", "s1", None]),
            st.integers(0, 40),  # gap
            st.none() | st.integers(0, 40),  # think time
            st.integers(0, 4),  # output tokens
        ),
        min_size=1,
        max_size=15,
    ),
    max_num_seqs=st.integers(1, 3),
)
def test_a_closed_loop_never_overlaps_turns(rows, max_num_seqs):
    arrivals = np.cumsum([gap for _, gap, _, _ in rows]).tolist()
    requests = [
        replace(request, session_id=session, think_ns=think_ns)
        for request, (session, _, think_ns, _) in zip(
            requests_of(*[([1, 2], [3] * n) for _, _, _, n in rows], arrivals_ns=arrivals),
            rows,
            strict=True,
        )
    ]
    records = run(requests, limits={"max_num_seqs": max_num_seqs}, closed_loop=True).records
    assert len(records) == len(requests)
    last_turn = {}
    for request in requests:
        record = records[request.request_id]
        before = last_turn.get(request.session_id)
        if before is None:
            assert record.arrival_ns == request.arrival_ns
        elif request.think_ns is None:
            assert record.arrival_ns == max(request.arrival_ns, before.finished_ns)
        else:
            assert record.arrival_ns == before.finished_ns + request.think_ns
        if request.session_id is not None:
            last_turn[request.session_id] = record


# Hit rates

SERIAL = {"max_num_seqs": 1, "max_num_batched_tokens": 10**6}


def test_the_conventions_of_hit_rates():
    """C01: prompts of 40, 40, 17 and 17 tokens in pairs; blocks of 16. Hits: 0, 32, 0, 16."""
    forty, seventeen = (range(40), [99]), (range(100, 117), [99])
    result = run(requests_of(forty, forty, seventeen, seventeen), block_size=16, limits=SERIAL)
    records = result.records.values()
    assert [record.num_cached_tokens for record in records] == [0, 32, 0, 16]
    summary = summary_of(result, block_size=16)
    assert (summary["num_cached_tokens"], summary["num_prompt_tokens"]) == (48, 114)
    assert summary["hit_rate"] == 48 / 114
    # Full blocks: 2 + 2 + 1 + 1, of which 2 + 1 were hit.
    assert summary["block_hit_rate"] == 0.5
    assert summary["mean_request_hit_rate"] == pytest.approx((32 / 40 + 16 / 17) / 4)
    assert round(summary["mean_request_hit_rate"], 6) == 0.435294
    assert summary["share_requests_hit"] == 0.5
    # The last two of four: 16 of 34 tokens.
    assert summary["last_half_hit_rate"] == 16 / 34


def test_retries_count_in_vllms_counters_only():
    """C02 through the engine: while B runs, C is looked up in vain at every step."""
    rows = [(range(8), []), (range(100, 108), [9, 9, 9]), (range(16), [])]
    result = run(requests_of(*rows, arrivals_ns=[0, 15, 25]), num_blocks=4, limits={})
    a, b, c = result.records.values()
    # A: step 0-10. B: 15-45, in its second step it takes a third block, A's second.
    assert (a.finished_ns, b.admitted_ns, b.finished_ns, c.admitted_ns) == (10, 15, 45, 45)
    summary = summary_of(result)
    # C finds one block, at 25, 35 and 45; it was admitted at 45.
    assert (a.num_cached_tokens, b.num_cached_tokens, c.num_cached_tokens) == (0, 0, 4)
    assert summary["hit_rate"] == 4 / 32
    assert (summary["num_block_queries"], summary["num_block_hits"]) == (1 + 1 + 3 * 3, 3)
    assert summary["lookup_hit_rate"] == 3 / 11


def test_without_prefix_information_no_hit_rate_is_claimed():
    result = run(requests_of((range(8), []), (range(8), [])))
    summary = summarize(result.recorder, 4, has_prefix_info=False)
    rates = [name for name in summary if name.endswith("hit_rate")]
    assert "hit_rate" in rates
    assert all(np.isnan(summary[name]) for name in rates)


@pytest.mark.parametrize(
    ("block_size", "cached", "rate"),
    [
        (1, 240, 0.727273),
        (16, 240, 0.727273),
        (64, 192, 0.581818),
        (128, 128, 0.387879),
        (256, 0, 0.0),
        (784, 0, 0.0),
    ],
)
@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v1_latest", "vllm_v0", "vllm_v0_scan"])
def test_hits_are_cut_to_whole_blocks(policy, block_size, cached, rate):
    """C07: eleven requests share 240 tokens and have 60 of their own."""
    shared = range(240)
    rows = [([*shared, *range(1000 * i, 1000 * i + 60)], [1]) for i in range(1, 12)]
    requests = requests_of(*rows)
    result = run(requests, policy=policy, num_blocks=5000, block_size=block_size, limits=SERIAL)
    hits = [record.num_cached_tokens for record in result.records.values()]
    assert hits == [0, *[cached] * 10]
    assert round(summary_of(result, block_size)["hit_rate"], 6) == rate
    assert round(infinite_hit_rate(requests, block_size), 6) == rate


@pytest.mark.parametrize(
    ("block_size", "row_2", "repeat"),
    [(16, 6656, 6752), (48, 6624, None), (512, 6656, 6656), (1024, 6144, 6144)],
)
@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v1_latest", "vllm_v0_scan"])
def test_engine_blocks_of_other_sizes_than_the_traces(tmp_path, policy, block_size, row_2, repeat):
    """D01: 13 shared trace blocks of 512 tokens, 6656 in all."""
    ids = list(range(13))
    rows = [
        {"timestamp": 0, "input_length": 6758, "output_length": 1, "hash_ids": [*ids, 13]},
        {
            "timestamp": 60000,
            "input_length": 7322,
            "output_length": 1,
            "hash_ids": [*ids, 100, 101],
        },
    ]
    if repeat is not None:
        rows.append({**rows[0], "timestamp": 120000})
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    workload = read_mooncake(trace, trace_block_size=512)
    result = run(
        workload.requests, policy=policy, num_blocks=5000, block_size=block_size, limits=SERIAL
    )
    hits = [record.num_cached_tokens for record in result.records.values()]
    assert hits == [0, row_2, repeat][: len(rows)]


def test_generated_blocks_are_cached_unless_told_otherwise():
    """Prompt 6, output 3: tokens 7 and 8 fill the second block; a second turn brings them back."""
    rows = [(range(6), [21, 22, 23]), ([*range(6), 21, 22, 23, 31, 32, 33], [])]
    for reuse, cached in (("all", 8), ("prefill", 4)):
        result = run(requests_of(*rows), reuse=reuse, limits=SERIAL)
        assert result.records["r1"].num_cached_tokens == cached


def test_observers_see_every_step_and_every_end():
    seen, done = [], []
    recorder = Recorder(on_done=done.append)
    engine = Engine(
        lambda clock: make("vllm_v1", 4, 4, clock),
        SchedulerConfig(),
        LinearCost(10),
        recorder,
        on_step=lambda start_ns, step, scheduler: seen.append(
            (start_ns, len(step.scheduled), len(scheduler.running), engine.now())
        ),
    )
    engine.run(requests_of((range(4), [1, 2]), (range(100), []), (range(50, 54), [1])))
    assert seen == [(0, 2, 1, 10), (10, 1, 0, 20)]
    assert done == [1, 2, 3]
    assert recorder.steps == []


# Real traces, one request at a time, 10,000 blocks of 512 tokens

CONVERSATION = SHARED / "traces" / "conversation_trace.jsonl"
SYNTHETIC = SHARED / "traces" / "synthetic_trace.jsonl"


@needs(CONVERSATION)
def test_hit_rates_on_the_conversation_trace():
    requests = load(CONVERSATION).requests
    assert sum(request.num_prompt_tokens for request in requests) == 144_793_823
    assert round(infinite_hit_rate(requests, 512), 6) == 0.373380
    assert cached_on(requests) == {
        "vllm_v1": (30_314_496, 0.209363),
        "vllm_v1_latest": (31_353_856, 0.216541),
        "vllm_v0": (31_353_856, 0.216541),
    }


@needs(SYNTHETIC)
def test_hit_rates_on_the_synthetic_trace():
    requests = load(SYNTHETIC).requests
    assert round(infinite_hit_rate(requests, 512), 6) == 0.650431
    rates = {policy: rate for policy, (_, rate) in cached_on(requests).items()}
    assert rates == {"vllm_v1": 0.430210, "vllm_v1_latest": 0.440785, "vllm_v0": 0.440785}


def cached_on(requests):
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    found = {}
    for policy in ("vllm_v1", "vllm_v1_latest", "vllm_v0"):
        clock = Clock()
        allocator = make(policy, 10_000, 512, clock)
        num_cached = sum(serve_in_two_calls(allocator, requests, clock))
        found[policy] = num_cached, round(num_cached / num_prompt_tokens, 6)
    return found


@needs(SYNTHETIC)
def test_the_engine_hits_the_same_on_a_real_trace():
    requests = load(SYNTHETIC).requests[:400]
    result = run(requests, num_blocks=2000, block_size=512, cost=LinearCost(1), limits=SERIAL)
    clock = Clock()
    expected = serve_in_two_calls(make("vllm_v1", 2000, 512, clock), requests, clock)
    assert sum(expected) > 0
    assert [record.num_cached_tokens for record in result.records.values()] == expected


def test_content_given_by_segments_hits_as_tokens_do():
    """Segments 0 (30 tokens) and 30 or 60 (20 tokens each), one after the other."""
    ends = np.array([30, 50])
    requests = [
        Request(f"r{i}", i * 1000, Segments(np.array([0, 30 * (1 + i % 2)]), ends), 49, 1)
        for i in range(4)
    ]
    hits = [record.num_cached_tokens for record in run(requests).records.values()]
    assert hits == [0, 28, 48, 48]
