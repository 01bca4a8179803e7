"""Generators do what their dials say, within the tolerance that each test states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from workloads import GENERATORS, dials, infinite_hit_rate, read, shared_prefix_tokens, write_trace
from workloads.dials import draw_popular
from workloads.documents import few_shot, rag, uniform
from workloads.multi_turn import TOKEN_S, agent, multi_turn
from workloads.shared_prefix import shared_prefix

every_generator = pytest.mark.parametrize("name", GENERATORS)


def replayed_hit_rate(requests, block_size):
    """Replay through an infinite cache, block by block, answers kept."""
    cache, cached, total = set(), 0, 0
    for request in requests:
        keys = request.content.block_keys(block_size).tolist()
        hits = 0
        while hits < (request.num_prompt_tokens - 1) // block_size and keys[hits] in cache:
            hits += 1
        cached += hits * block_size
        total += request.num_prompt_tokens
        cache.update(keys[: request.num_kv_tokens // block_size])
    return cached / total


@every_generator
@pytest.mark.parametrize("block_size", [1, 16, 100])
def test_the_closed_form_equals_a_replay(name, block_size):
    requests = GENERATORS[name](num_requests=60).requests
    assert infinite_hit_rate(requests, block_size) == pytest.approx(
        replayed_hit_rate(requests, block_size), abs=1e-12
    )


@every_generator
def test_the_seed_decides(name):
    def facts(seed):
        requests = GENERATORS[name](num_requests=40, seed=seed).requests
        return [(r.arrival_ns, r.content.block_keys(99).tolist()) for r in requests]

    assert facts(3) == facts(3)
    assert facts(3) != facts(4)


@every_generator
def test_requests_are_in_order_and_whole(name):
    requests = GENERATORS[name](num_requests=101).requests
    assert len(requests) == 101
    times = [request.arrival_ns for request in requests]
    assert times == sorted(times)
    assert times[0] == 0
    assert len({request.request_id for request in requests}) == 101
    for request in requests:
        assert request.content.num_tokens == request.num_prompt_tokens + request.num_output_tokens


@every_generator
@pytest.mark.parametrize("form", ["mooncake", "bailian", "tokens"])
@pytest.mark.parametrize("key", [None, "secret"])
def test_a_generator_writes_itself_as_a_trace_and_keeps_every_hit(name, form, key, tmp_path):
    lengths = {"system", "task", "result", "example", "document", "prompt", "output"}
    short = dict.fromkeys(lengths & dials(name).keys(), 40)
    workload = GENERATORS[name](num_requests=30, **short)
    path = tmp_path / "trace.jsonl"
    size = 1
    assert write_trace(workload, path, form, trace_block_size=size, key=key) == ()
    again = read(path, form, trace_block_size=None if form == "tokens" else size)
    assert [r.arrival_ns for r in again.requests] == [r.arrival_ns for r in workload.requests]
    assert [r.think_ns for r in again.requests] == [r.think_ns for r in workload.requests]
    for outputs in (False, True):
        assert shared_prefix_tokens(again.requests, outputs=outputs).tolist() == (
            shared_prefix_tokens(workload.requests, outputs=outputs).tolist()
        )
    sessions = [r.session_id for r in workload.requests]
    sessions_again = [r.session_id for r in again.requests]
    assert len(set(zip(sessions, sessions_again, strict=True))) == len(set(sessions)) or (
        form == "bailian"
    )
    if key is not None:
        assert not set(sessions) & set(sessions_again) - {None}


@every_generator
def test_bad_dials_are_refused_in_one_sentence(name):
    for dial in dials(name):
        for value in (-1,) if "rate" in dial and dial != "hit_rate" else (-1, 10**30):
            with pytest.raises(UsageError) as caught:
                GENERATORS[name](**{dial: value})
            assert "\n" not in str(caught.value)
            assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("make", "rate"),
    [(shared_prefix, 7), (few_shot, 7), (rag, 7), (uniform, 7)],
)
def test_the_rate_is_met(make, rate):
    """Within 5 % at 5,000 requests; Poisson, so gaps vary as much as they last."""
    requests = make(num_requests=5000, rate=rate).requests
    gaps = np.diff([request.arrival_ns for request in requests]) / 1e9
    assert 1 / gaps.mean() == pytest.approx(rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("make", [multi_turn, agent])
def test_the_rate_and_the_pauses_of_sessions_are_met(make):
    """Within 5 % at 2,000 sessions."""
    count = {"turns": 3} if make is multi_turn else {"steps": 3}
    requests = make(num_requests=6000, session_rate=2, think=4, output=50, **count).requests
    starts = {}
    for request in requests:
        starts.setdefault(request.session_id, request.arrival_ns)
    gaps = np.diff(list(starts.values())) / 1e9
    assert len(starts) == 2000
    assert 1 / gaps.mean() == pytest.approx(2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)
    thinks = [request.think_ns / 1e9 for request in requests if request.think_ns is not None]
    assert len(thinks) == 4000
    assert np.mean(thinks) == pytest.approx(4, rel=0.05)
    last = {}
    for request in requests:
        before = last.get(request.session_id)
        if before is not None:
            gap_s = (request.arrival_ns - before) / 1e9
            assert gap_s == pytest.approx(50 * TOKEN_S + request.think_ns / 1e9)
        last[request.session_id] = request.arrival_ns


def test_a_conversation_worked_by_hand():
    workload = multi_turn(
        num_requests=3, turns=3, system=100, num_prefixes=1, prompt=10, output=20, think=0
    )
    prompts = [request.num_prompt_tokens for request in workload.requests]
    assert prompts == [110, 140, 170]
    # The last token of an answer is never fed back.
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 129, 159]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 110, 140]
    assert f"{(129 + 159) / 420:.6f}" in workload.notes[0]


def test_an_agent_that_always_goes_back():
    workload = agent(
        num_requests=40, steps=4, branch=1, system=0, task=100, result=10, output=20, think=0
    )
    for session in range(10):
        turns = [r for r in workload.requests if r.session_id == str(session)]
        assert turns[1].num_prompt_tokens == 100 + 30 + 10
        assert turns[2].num_prompt_tokens == 140, "from the first step again"
        assert turns[3].num_prompt_tokens in (140, 170)
    straight = agent(num_requests=4, steps=4, branch=0, system=0, task=100, result=10, output=20)
    assert [r.num_prompt_tokens for r in straight.requests] == [110, 140, 170, 200]


def test_documents_in_varying_order_cannot_be_reused():
    """Of 8 examples in one order all hit; shuffled, what follows another prefix does not."""
    ordered = few_shot(num_requests=500, examples=8, pool=8, shuffle=0, example=100, prompt=50)
    assert infinite_hit_rate(ordered.requests, 1) == pytest.approx(800 / 850 * 499 / 500)
    shuffled = few_shot(num_requests=500, examples=8, pool=8, shuffle=1, example=100, prompt=50)
    assert 0.1 < infinite_hit_rate(shuffled.requests, 1) < 0.4
    half = few_shot(num_requests=500, examples=8, pool=8, shuffle=0.5, example=100, prompt=50)
    low, high = infinite_hit_rate(shuffled.requests, 1), infinite_hit_rate(ordered.requests, 1)
    assert infinite_hit_rate(half.requests, 1) == pytest.approx((low + high) / 2, abs=0.05)


def test_the_note_of_rag_is_true():
    workload = rag(num_requests=200, documents=3, pool=20, document=10, prompt=5)
    repeated, hit = (
        float(word.rstrip(",")) for word in workload.notes[0].split() if word[0] == "0"
    )
    assert hit == pytest.approx(infinite_hit_rate(workload.requests, 1), abs=1e-6)
    assert hit < repeated < 30 / 35


def test_uniform_prompts_share_nothing():
    assert infinite_hit_rate(uniform(num_requests=300).requests, 1) == 0


@pytest.mark.parametrize("zipf", [0, 0.5, 1, 2])
def test_popularity(zipf):
    """Each share within five standard deviations of 100,000 draws."""
    counts = np.bincount(draw_popular(50, zipf, 100_000, np.random.default_rng(1)), minlength=50)
    weights = np.arange(1, 51.0) ** -zipf
    expected = 100_000 * weights / weights.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


@given(st.integers(1, 30), st.floats(0, 0.9), st.floats(0, 3), st.integers(1, 8))
def test_the_hit_rate_dial_holds_whatever_the_popularity(num_requests, hit_rate, zipf, prefixes):
    try:
        workload = shared_prefix(
            num_requests=num_requests,
            hit_rate=hit_rate,
            zipf=zipf,
            num_prefixes=prefixes,
            prompt=50,
        )
    except UsageError:
        return
    achieved = infinite_hit_rate(workload.requests, 1)
    assert achieved == pytest.approx(hit_rate, abs=0.5 / 50)
