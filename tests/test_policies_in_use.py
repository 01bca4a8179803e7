"""Policies against plain twins of them, while requests run together and hold blocks."""

import math

import pytest
from helpers import ORDERS, Clock, make, requests_of, sequence_of, serve_in_turn
from hypothesis import event, given
from hypothesis import strategies as st
from plain_orders import (
    PlainGreedyDual,
    PlainLengthAware,
    PlainLru,
    PlainMq,
    PlainPool,
    PlainTailLru,
    PlainWorkloadAware,
    Told,
)
from plain_radix import PlainRadix

from policies._orders import Access
from policies._radix_tree import EVICTIONS
from sim.cost import LinearCost
from sim.engine import Engine
from sim.errors import UsageError
from sim.recorder import Recorder
from sim.scheduler import SchedulerConfig
from sim.types import NO_MATCH

PROMPTS = st.lists(
    st.tuples(
        st.sampled_from(["new", "again", "next turn", "branch"]),
        st.integers(0, 9),
        st.lists(st.integers(0, 1), min_size=1, max_size=6),
        st.integers(0, 4),
        st.sampled_from([0, 0, 1, 10, 100]),
    ),
    min_size=1,
    max_size=20,
)
POOLS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(1, 16),
        "block_size": st.sampled_from([1, 2, 3]),
        "leaf_only": st.booleans(),
    }
)
LIMITS = st.builds(
    SchedulerConfig,
    max_num_seqs=st.sampled_from([1, 2, 8]),
    max_num_batched_tokens=st.sampled_from([1, 3, 100]),
)


def workload(prompts):
    """Make requests that repeat, continue or leave others somewhere."""
    rows, arrivals_ns, now_ns = [], [], 0
    for kind, which, tokens, num_outputs, gap_ns in prompts:
        before, output = rows[which % len(rows)] if rows else ([], [])
        prompt = {
            "new": tokens,
            "again": before or tokens,
            "next turn": [*before, *output, *tokens],
            "branch": [*before[: len(before) // 2], *tokens],
        }[kind]
        now_ns += gap_ns
        rows.append((prompt, tokens[:num_outputs]))
        arrivals_ns.append(now_ns)
    return requests_of(*rows, arrivals_ns=arrivals_ns)


def served(make_allocator, requests, limits, reuse):
    """Serve all; what each hit, what was in use after every step, and the allocator."""
    recorder, usages, made = Recorder(), [], []

    def make_and_keep(clock):
        made.append(make_allocator(clock))
        return made[0]

    engine = Engine(
        make_and_keep, limits, LinearCost(3, 1), recorder, reuse=reuse,
        on_step=lambda start_ns, step, scheduler: usages.append(scheduler.allocator.usage()),
    )  # fmt: skip
    engine.run(requests)
    columns = recorder.request_columns()
    cached, preempted = columns.num_cached_tokens.tolist(), columns.num_preemptions.tolist()
    return (cached, preempted, recorder.num_block_hits, recorder.end_ns, usages), made[0]


def assert_same(policy, plain_order, *, pool, limits, reuse, prompts, options):
    requests, evicted = workload(prompts), []

    def make_policy(clock):
        allocator = make(
            policy, pool["num_blocks"], pool["block_size"], clock,
            leaf_only=pool["leaf_only"], **options,
        )  # fmt: skip
        allocator.tell_evictions(evicted.append)
        return allocator

    def make_plain(clock):
        told = {"victims": iter(evicted)} if plain_order is Told else options
        order = plain_order(pool["num_blocks"], pool["block_size"], **told)
        return PlainPool(clock=clock, order=order, **pool)

    found, _ = served(make_policy, requests, limits, reuse)
    expected, plain = served(make_plain, requests, limits, reuse)
    assert found == expected
    assert evicted == plain.evicted
    event(f"evicted: {bool(evicted)}, preempted: {any(found[1])}, hit: {any(found[0])}")


@pytest.mark.parametrize("policy", ORDERS)
@given(pool=POOLS, limits=LIMITS, reuse=st.sampled_from(["all", "prefill"]), prompts=PROMPTS)
def test_any_order_evicts_what_may_go_and_hits_what_is_left(policy, **case):
    # Without an end to their life: what has expired is cached and cannot be hit.
    options = {"ttl_s": 1e9} if policy == "ttl" else {}
    assert_same(policy, Told, options=options, **case)


TWINS = {
    "lru": (PlainLru, {}),
    "lfu": (PlainGreedyDual, {"ageing": st.booleans()}),
    "gdsf": (PlainGreedyDual, {"attention": st.sampled_from([0.0, 3.3e-5, 0.01, 0.5])}),
    "length_aware": (PlainLengthAware, {}),
    "mq": (
        PlainMq,
        {
            "queues": st.sampled_from([1, 2, 3, 8]),
            "lifetime": st.sampled_from([0, 1, 3, 10, 10_000]),
            "history": st.sampled_from([0.0, 0.3, 4.0]),
        },
    ),
    "tail_lru": (
        PlainTailLru,
        {"threshold": st.integers(0, 12), "next_prompt": st.integers(0, 12)},
    ),
    "workload_aware": (PlainWorkloadAware, {"max_turn": st.integers(1, 4)}),
}


@pytest.mark.parametrize("policy", TWINS)
@given(
    pool=POOLS,
    limits=LIMITS,
    reuse=st.sampled_from(["all", "prefill"]),
    prompts=PROMPTS,
    data=st.data(),
)
def test_an_order_evicts_as_it_is_defined(policy, data, **case):
    plain_order, options = TWINS[policy]
    assert_same(policy, plain_order, options=data.draw(st.fixed_dictionaries(options)), **case)


@pytest.mark.parametrize("eviction", EVICTIONS)
@given(
    size=st.tuples(st.integers(1, 16), st.sampled_from([1, 2, 3])),
    limits=LIMITS,
    reuse=st.sampled_from(["all", "prefill"]),
    prompts=PROMPTS,
)
def test_sglang_evicts_unlocked_leaves_and_hits_what_is_left(
    eviction, size, limits, reuse, prompts
):
    requests, keys, evictions = workload(prompts), [], []

    def make_policy(clock):
        allocator = make("sglang_radix", *size, clock, eviction=eviction)
        evict = allocator.tree.evict

        def evict_and_tell(num_pages):
            keys.clear()
            freed = evict(num_pages)
            evictions.append(list(keys))
            return freed

        allocator.tell_evictions(keys.append)
        allocator.tree.evict = evict_and_tell
        return allocator

    def make_plain(clock):
        return PlainRadix(*size, iter(evictions))

    found, allocator = served(make_policy, requests, limits, reuse)
    expected, plain = served(make_plain, requests, limits, reuse)
    assert found == expected
    assert next(plain.evictions, None) is None
    assert allocator.usage().used == 0


def test_random_draws_each_of_those_that_may_go_as_often():
    """Four free blocks and two that are held; who goes, by seed."""
    *free, held, new = requests_of(*[([i], []) for i in range(4)], ([7, 8], []), ([9], []))
    keys = [sequence_of(request, 1).block_keys[0] for request in free]
    evicted = []
    for seed in range(2000):
        allocator = make("random", 6, 1, seed=seed)
        serve_in_turn(allocator, free, Clock())
        assert allocator.allocate(sequence_of(held, 1), NO_MATCH, 2)
        allocator.tell_evictions(evicted.append)
        assert allocator.allocate(sequence_of(new, 1), NO_MATCH, 1)
    assert len(evicted) == 2000
    assert all(abs(evicted.count(key) - 500) < 80 for key in keys)


@pytest.mark.parametrize(("policy", "options"), [("gdsf", {}), ("lfu", {"ageing": True})])
def test_the_clock_of_greedy_dual_never_goes_back(policy, options):
    """1 was asked for once, 2 three times, 3 four times; 2 goes first, since 1 is in use.

    The clock is 3 then and stays so when 1, of rank 1, goes: 4 begins with 3 + 1, behind 3.
    """
    order = make(policy, 4, 1, **options).order
    for key, num_accesses in ((1, 1), (2, 3), (3, 4)):
        order.on_insert(key, 0, Access())
        for _ in range(num_accesses - 1):
            order.on_hit(key, 0, Access())
    order.blocked.add(1)
    assert order.victim() == 2
    order.blocked.discard(1)
    assert order.victim() == 1
    order.on_insert(4, 0, Access())
    assert [order.victim(), order.victim()] == [3, 4]


@pytest.mark.parametrize(("now_ns", "victims"), [(110, [2, 3]), (200, [3, 2]), (10**6, [3, 2])])
def test_reuse_is_judged_by_the_time_of_the_eviction(now_ns, victims):
    """2, of a second turn, comes again after 100 ns, 3, of a first one, after 10 ns.

    Both were just used at 110: the mass of the next moment is larger for 3. It falls faster, and
    after a millisecond both are too small for a float, but not the same.
    """
    clock = Clock()
    order = make("workload_aware", 4, 1, clock).order
    order.on_insert(1, 0, Access(0))
    order.blocked.add(1)
    order.on_insert(2, 1, Access(0, last_hit=1))
    order.on_hit(2, 1, Access(100, last_hit=1))
    order.on_insert(3, 0, Access(100))
    order.on_hit(3, 0, Access(110))
    clock.now_ns = now_ns
    assert [order.victim(), order.victim()] == victims


def test_before_anything_was_reused_the_block_used_longest_ago_goes():
    """Of whatever turn and position."""
    order = make("workload_aware", 4, 1).order
    order.on_insert(1, 0, Access(0))
    order.on_insert(2, 5, Access(1, last_hit=1))
    order.on_insert(3, 2, Access(2))
    assert [order.victim() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "option", "value", "allowed"),
    [
        ("mq", "queues", 0, "from 1 to 64"),
        ("mq", "lifetime", -1, "from 0 to"),
        ("mq", "history", math.nan, "from 0 to 1,000"),
        ("gdsf", "attention", math.inf, "from 0 to 1,000"),
        ("tail_lru", "threshold", -1, "from 0 to 1,000,000,000"),
        ("tail_lru", "next_prompt", -1, "from 0 to 1,000,000,000"),
        ("workload_aware", "max_turn", 0, "from 1 to 1,000"),
        ("random", "seed", -1, "from 0 to"),
        ("slru", "protected", 1.5, "from 0 to 1"),
        ("w_tinylfu", "window", -0.1, "from 0 to 1"),
        ("w_tinylfu", "protected", 2.0, "from 0 to 1"),
        ("w_tinylfu", "sample", 0, "from 1 to"),
        ("s3_fifo", "small", math.nan, "from 0 to 1"),
        ("s3_fifo", "ghost", -1.0, "from 0 to 1,000"),
        ("s3_fifo", "threshold", 0, "from 1 to"),
        ("two_q", "a1in", -1.0, "from 0 to 1"),
        ("two_q", "a1out", math.inf, "from 0 to 1,000"),
        ("ttl", "ttl_s", math.inf, "from 0 to 1,000,000,000"),
    ],
)
def test_an_option_out_of_its_range_is_refused(policy, option, value, allowed):
    with pytest.raises(UsageError, match=f"--policy-arg {option}={value} must be {allowed}"):
        make(policy, 4, 1, **{option: value})
