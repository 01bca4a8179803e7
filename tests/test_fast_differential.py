"""The fast engine against the plain one: the same columns, to the last bit, whatever comes."""

from dataclasses import fields, replace

import numpy as np
import pytest
from helpers import requests_of
from hypothesis import event, given
from hypothesis import strategies as st

import policies
from sim.cost import LinearCost, StepCost
from sim.engine import Engine
from sim.fast.engine import FastEngine
from sim.fast.record import FastRecord
from sim.fast.state import WORK
from sim.fast.support import make_rules, pool_rules_of, why_not
from sim.overhead import OverheadProfile
from sim.recorder import Recorder, RequestColumns
from sim.scheduler import SchedulerConfig
from sim.types import CacheWork, Request
from workloads.content import Segments

FAST_POLICIES = [name for name in policies.names() if pool_rules_of(policies.load(name))]


def test_these_policies_have_a_compiled_form():
    assert FAST_POLICIES == ["none", "vllm_v1", "vllm_v1_latest"]


SUMS = (
    "num_steps", "num_block_queries", "num_block_hits", "end_ns", "gpu_ns",
    "overhead_ns",
)  # fmt: skip


def columns_of(recorder):
    """All that a run leaves behind, arrays as bytes with their type."""
    requests = {f.name: getattr(recorder.request_columns(), f.name) for f in fields(RequestColumns)}
    columns = {**requests, **recorder.step_columns()}
    return {name: getattr(recorder, name) for name in SUMS} | {
        name: (column.dtype, column.tolist()) if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
    }


def run_plain(requests, pool, limits, cost, *, reuse, closed_loop, until_ns, **prices):
    policy, num_blocks, block_size = pool
    recorder = Recorder(keep_steps=True)
    engine = Engine(
        lambda clock: policies.make(
            policy, num_blocks=num_blocks, block_size=block_size, clock=clock
        ),
        limits,
        cost,
        recorder,
        reuse=reuse,
        closed_loop=closed_loop,
        until_ns=until_ns,
        **prices,
    )
    engine.run(requests)
    return recorder


def run_fast(requests, pool, limits, cost, *, reuse, closed_loop, until_ns, **prices):
    policy, num_blocks, block_size = pool
    assert not why_not(policies.load(policy), limits, cost, prices.get("overhead"))
    rules = make_rules(
        pool_rules_of(policies.load(policy)),
        limits,
        cost,
        num_blocks=num_blocks,
        block_size=block_size,
        keeps_steps=True,
        **prices,
    )
    record = FastRecord(keep_steps=True)
    loop = {"closed_loop": closed_loop, "until_ns": until_ns}
    FastEngine(rules, record, reuse=reuse, **loop).run(requests)
    return record


def assert_same(
    requests, pool, limits, cost, *, reuse="all", closed_loop=False, until_ns=None, **prices
):
    options = {"reuse": reuse, "closed_loop": closed_loop, "until_ns": until_ns, **prices}
    expected = columns_of(run_plain(requests, pool, limits, cost, **options))
    assert columns_of(run_fast(requests, pool, limits, cost, **options)) == expected
    return expected


def segmented(rows, segment_size):
    """Make requests of rows (segment ids, tokens cut off, tokens of their own, output tokens).

    A third of them is of segments of uniform length, the rest of segments with listed ends.
    """
    numbers = {}
    tail_base = 10**6
    contents = []
    for ids, cut, own, output in rows:
        path, bases = (), []
        for name in ids:
            path = (*path, name)
            bases.append(numbers.setdefault(path, len(numbers)) * segment_size)
        num_head = max(1, len(ids) * segment_size - cut) if ids else 0
        bases = bases[: -(-num_head // segment_size)]
        prompt = num_head + own if num_head + own else 1
        total = prompt + output
        starts = np.arange(len(bases)) * segment_size
        ends = np.append(starts[1:], [num_head, total][: (num_head > 0) + (total > num_head)])
        if num_head == 0:
            ends = np.array([total])
        all_bases = [*bases, tail_base] if total > num_head else bases
        content = Segments(np.array(all_bases, np.int64), ends.astype(np.int64))
        tail_base += total
        assert content.num_tokens == total
        contents.append((content, prompt, output))
    return [Request(f"r{i}", 0, *content) for i, content in enumerate(contents)]


gaps_ns = st.sampled_from([0, 0, 0, 1, 5, 10, 20, 100])
sessions = st.sampled_from([None, None, "a", "b"])
thinks_ns = st.sampled_from([None, None, 0, 3, 10])


@st.composite
def workloads(draw):
    """Draw requests that share prefixes, arrive together, and follow each other in sessions."""
    rows = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 1), min_size=1, max_size=5),
                st.integers(0, 3),
                st.sampled_from([0, 0, 1, 4]),
                st.sampled_from([0, 1, 2, 5, 12]),
                gaps_ns,
                sessions,
                thinks_ns,
            ),
            max_size=14,
        )
    )
    shapes = [row[:4] for row in rows]
    if draw(st.booleans()):
        requests = segmented(shapes, draw(st.sampled_from([1, 3, 4, 6])))
    else:
        requests = requests_of(
            *[([i for i in ids for _ in range(3)], [7] * output) for ids, _, _, output in shapes]
        )
    now_ns, timed = 0, []
    for request, (*_, gap_ns, session_id, think_ns) in zip(requests, rows, strict=True):
        now_ns += gap_ns
        timed.append(replace(request, arrival_ns=now_ns, session_id=session_id, think_ns=think_ns))
    return timed


limits = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(1, 40),
    long_prefill_token_threshold=st.sampled_from([0, 0, 1, 3, 7]),
)
whole = st.integers(0, 10)
linear = st.builds(LinearCost, whole, whole, whole)
rates = st.floats(0, 50, allow_subnormal=False)
step_costs = st.builds(StepCost, rates, rates, rates, rates, rates, rates)
profiles = st.none() | st.builds(OverheadProfile, *[rates] * len(WORK))


@pytest.mark.parametrize("policy", FAST_POLICIES)
@given(
    requests=workloads(),
    size=st.tuples(st.integers(1, 25), st.sampled_from([1, 2, 3, 4, 6, 4096])),
    config=limits,
    cost=linear | step_costs,
    options=st.fixed_dictionaries(
        {
            "reuse": st.sampled_from(["all", "prefill"]),
            "closed_loop": st.booleans(),
            "until_ns": st.sampled_from([None, None, 0, 1, 20, 200]),
            "overhead": profiles,
            "overlap": st.booleans(),
            "cascade": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        }
    ),
)
def test_any_workload(policy, requests, size, config, **rest):
    result = assert_same(requests, (policy, *size), config, rest["cost"], **rest["options"])
    event(f"preempted: {result['num_preemptions'][1] != [0] * len(requests)}")
    event(f"cached: {any(result['num_cached_tokens'][1])}")
    event(f"rejected: {any(result['rejection'])}")


@pytest.mark.parametrize("policy", FAST_POLICIES)
@given(
    common=st.integers(200, 700),
    outputs=st.lists(st.integers(1, 12), min_size=7, max_size=20),
    block_size=st.sampled_from([16, 64]),
    cascade=st.sampled_from([0.3, 1.0]),
    cost=step_costs,
)
def test_a_common_prefix(policy, common, outputs, block_size, **price):
    requests = segmented([([0], 0, 1, output) for output in outputs], common)
    assert_same(requests, (policy, 1000, block_size), SchedulerConfig(), **price)


def test_all_work_is_priced_in_the_order_of_the_profile():
    assert sorted(WORK) == sorted(CacheWork.__slots__)
    assert len(fields(OverheadProfile)) == len(WORK)
    work = CacheWork()
    for place, name in enumerate(WORK):
        setattr(work, name, 10**place)
    for place, field in enumerate(fields(OverheadProfile)):
        assert OverheadProfile(**{field.name: 1.0}).work_ns(work) == 10**place


@pytest.mark.parametrize("closed_loop", [False, True])
@given(requests=workloads(), config=limits)
def test_pauses_change_nothing(closed_loop, requests, config):
    # A call of compiled code that does no more than a step.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.fast.engine._MAX_WORK", 1)
        assert_same(
            requests, ("vllm_v1", 12, 2), config, LinearCost(3, 1, 1), closed_loop=closed_loop
        )


def test_a_long_run_keeps_every_step():
    (request,) = requests_of(([1], [2] * 9000))
    result = assert_same([request], ("none", 9001, 1), SchedulerConfig(), LinearCost(1))
    assert len(result["start_ns"][1]) == result["num_steps"] == 9000
