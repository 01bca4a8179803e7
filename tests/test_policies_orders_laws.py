"""Orders of eviction: their parts against plain twins, the rule on parents, each unlike LRU."""

import numpy as np
import pytest
from helpers import ORDERS, Clock, make, requests_of, serve_in_turn
from hypothesis import given
from hypothesis import strategies as st

import policies
from policies._orders import Blocked, Memory, Queue, Ranked

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "remove", "block", "free", "look"]), KEYS, st.integers(0, 2)
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_a_queue_gives_the_oldest_that_is_not_blocked(steps):
    blocked, plain = Blocked(), []
    queue = Queue(blocked)
    for step, key, _ in steps:
        if step == "push":
            plain = [other for other in plain if other != key] + [key]
            queue.push(key)
        elif step == "remove" and key in plain:
            plain.remove(key)
            queue.remove(key)
        elif step == "block":
            blocked.add(key)
        elif step == "free":
            blocked.discard(key)
        expected = next((other for other in plain if other not in blocked), None)
        assert queue.oldest() == expected
        assert len(queue) == len(plain)
        assert all((other in queue) == (other in plain) for other in range(6))


@given(steps=STEPS)
def test_ranks_give_the_smallest_that_is_not_blocked_and_the_first_of_equals(steps):
    blocked, plain = Blocked(), {}
    ranked = Ranked(blocked)
    for ticket, (step, key, rank) in enumerate(steps):
        if step == "push":
            plain[key] = (rank, ticket)
            ranked.set(key, rank)
        elif step == "remove" and key in plain:
            del plain[key]
            ranked.remove(key)
        elif step == "block":
            blocked.add(key)
        elif step == "free":
            blocked.discard(key)
        free = {other: rank for other, rank in plain.items() if other not in blocked}
        assert ranked.smallest() == (min(free, key=free.get) if free else None)
        assert len(ranked) == len(plain)


def test_a_memory_forgets_the_oldest():
    memory = Memory(2)
    for key, value in ((1, 5), (2, 6), (3, 7)):
        memory.add(key, value)
    assert 1 not in memory
    assert (memory.pop(2), memory.pop(2), len(memory)) == (6, 0, 1)


TRAFFIC = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=25
)


@pytest.mark.parametrize("policy", ORDERS)
@given(traffic=TRAFFIC)
def test_with_leaves_only_no_cached_block_has_lost_its_parent(policy, traffic):
    allocator = make(policy, 8, 2, Clock(), leaf_only=True)
    rows = [([group] * 4 + [index] * length, [9] * n) for index, (group, length, n) in
            enumerate(traffic)]  # fmt: skip
    parents = {}
    for request in requests_of(*rows):
        keys = request.content.block_keys(2).tolist()
        parents |= dict(zip(keys[1:], keys, strict=False))
        serve_in_turn(allocator, [request], Clock())
        assert all(parents[key] in allocator.cached for key in allocator.cached if key in parents)
    assert allocator.num_parents_evicted == 0


def test_without_that_rule_fifo_strands_children_and_lru_does_not():
    rows = [([0, 0, 1, 1], [7] * 9)] + [([0, 0, 1, 1, 2 + i], []) for i in range(4)]
    rows += [([10 + i] * 6, []) for i in range(4)]
    stranded = {}
    for policy in ("fifo", "lru"):
        allocator = make(policy, 8, 2, Clock())
        serve_in_turn(allocator, requests_of(*rows), Clock())
        stranded[policy] = allocator.num_parents_evicted
    assert stranded["fifo"] > 0
    assert stranded["lru"] == 0


def conversations(num_requests):
    """Turns of some conversations, some with much more traffic than others, in random order."""
    generator = np.random.default_rng(1)
    histories = [[100 * i] * 512 for i in range(12)]
    rows = []
    for index in range(num_requests):
        which = int(generator.zipf(1.3)) % len(histories)
        # Some prompts come again as they are.
        grown = int(generator.integers(600)) if generator.random() < 0.6 else 0
        histories[which] = histories[which][:4096] + [1000 + index] * grown
        rows.append((list(histories[which]), [5000 + index] * 3))
    return requests_of(*rows)


CHOICES = [(name, {}) for name in ORDERS if name != "lru"] + [("lfu", {"ageing": True})]
RADIX = ["lfu", "fifo", "mru", "filo", "priority", "slru"]


@pytest.mark.parametrize(
    ("policy", "args", "plain"),
    [(policy, args, {"policy": "lru"}) for policy, args in CHOICES]
    + [("sglang_radix", {"eviction": e}, {"policy": "sglang_radix"}) for e in RADIX],
)
def test_every_order_hits_otherwise_than_lru_somewhere(policy, args, plain):
    requests = conversations(250)
    hits = []
    for name, options in ((policy, args), (plain["policy"], {})):
        clock = Clock()
        allocator = make(name, 60, 128, clock, **options)
        hits.append([])
        for request in requests:
            # Long enough for blocks to expire now and then.
            clock.now_ns += 70 * 10**9
            hits[-1] += serve_in_turn(allocator, [request], clock)
    assert hits[0] != hits[1]


@pytest.mark.parametrize("policy", ORDERS)
def test_an_order_names_its_source(policy):
    assert policies.load(policy).source
