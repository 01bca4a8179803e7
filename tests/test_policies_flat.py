"""Orders of eviction without the prefix rule: figures of libCacheSim, and the bound."""

import json
from functools import cache

import numpy as np
import pytest
from helpers import ORDERS, SHARED, Clock, make, needs, requests_of, sequence_of
from hypothesis import given
from hypothesis import strategies as st

from policies._flat import num_belady_hits, num_flat_hits

TRACES = SHARED / "traces"
CAPACITIES = [("conversation", 1_000), ("conversation", 10_000), ("conversation", 50_000),
              ("synthetic", 1_000), ("synthetic", 10_000)]  # fmt: skip
LIBCACHESIM = {
    "fifo": (0.0435, 0.1865, 0.3400, 0.0787, 0.3990),
    "lfu": (0.0481, 0.1318, 0.3438, 0.0401, 0.3578),
    "sieve": (0.0481, 0.1318, 0.3438, 0.0401, 0.3578),
    "arc": (0.0529, 0.2225, 0.3433, 0.0933, 0.4356),
    "two_q": (0.0541, 0.1849, 0.3423, 0.0859, 0.4195),
    "mq": (0.0777, 0.2320, 0.3555, 0.0884, 0.4420),
    "s3_fifo": (0.0543, 0.1925, 0.2872, 0.0891, 0.4183),
    "clock": (0.0447, 0.2143, 0.3542, 0.0867, 0.4326),
    "lru": (0.0445, 0.2112, 0.3546, 0.0825, 0.4235),
    "belady": (0.1906, 0.3664, 0.3664, 0.2766, 0.6180),
}
"""Hit rates of libCacheSim 0.3.5 with its defaults, over block references in order."""


@cache
def references(trace):
    path = TRACES / f"{trace}_trace.jsonl"
    return [json.loads(row)["hash_ids"] for row in path.read_text().splitlines()]


def order_of(policy, capacity):
    return make(policy, capacity, 512).order


def num_hits(policy, capacity, requests):
    if policy == "belady":
        return num_belady_hits(capacity, requests)
    return num_flat_hits(order_of(policy, capacity), requests)


@needs(TRACES)
@pytest.mark.parametrize("policy", LIBCACHESIM)
@pytest.mark.parametrize("cell", range(len(CAPACITIES)))
def test_hits_what_libcachesim_hits(policy, cell):
    trace, capacity = CAPACITIES[cell]
    requests = references(trace)
    rate = num_hits(policy, capacity, requests) / sum(map(len, requests))
    assert round(rate, 4) == LIBCACHESIM[policy][cell]


PEERS = {"fifo": "FIFO", "lru": "LRU", "clock": "Clock", "sieve": "Sieve", "lfu": "LFU",
         "arc": "ARC", "two_q": "TwoQ", "s3_fifo": "S3FIFO", "mq": "MQ"}  # fmt: skip


@pytest.mark.parametrize("policy", PEERS)
@pytest.mark.parametrize("capacity", [40, 100, 333])
def test_agrees_with_libcachesim_reference_by_reference(policy, capacity):
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    peer = getattr(libcachesim, PEERS[policy])(cache_size=capacity)
    order, cached = order_of(policy, capacity), set()
    for index, key in enumerate((np.random.default_rng(3).zipf(1.2, 20_000) % 3000).tolist()):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = key, 1, index
        assert bool(peer.get(request)) == (key in cached), (index, key)
        if key in cached:
            order.on_hit(key, 0, None)
            continue
        order.on_miss(key)
        if len(cached) == capacity:
            cached.remove(order.victim())
        cached.add(key)
        order.on_insert(key, 0, None)


FLAT = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=25)


@pytest.mark.parametrize("policy", [name for name in ORDERS if name != "ttl"])
@given(requests=FLAT, capacity=st.integers(1, 8))
def test_no_order_hits_more_than_belady_counts(policy, requests, capacity):
    assert num_hits(policy, capacity, requests) <= num_belady_hits(capacity, requests)


@given(requests=st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=4),
       capacity=st.integers(1, 3))  # fmt: skip
def test_belady_counts_the_most_that_any_choice_of_victims_can(requests, capacity):
    references = [key for keys in requests for key in keys]

    @cache
    def best(index, cached):
        if index == len(references):
            return 0
        key = references[index]
        if key in cached:
            return 1 + best(index + 1, cached)
        if len(cached) < capacity:
            return best(index + 1, cached | {key})
        return max(best(index + 1, (cached - {victim}) | {key}) for victim in cached)

    assert num_belady_hits(capacity, requests) == best(0, frozenset())


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=25)


@pytest.mark.parametrize("policy", [*ORDERS, "vllm_v1", "vllm_v1_latest", "sglang_radix"])
@given(turns=TURNS, num_blocks=st.integers(11, 16))
def test_nor_does_any_policy_hit_more_under_the_prefix_rule(policy, turns, num_blocks):
    """Prompts alone, one at a time, as said in docs/policies.md."""
    requests = requests_of(*[([group] * 4 + [group + 4] * n + [9], []) for group, n in turns])
    clock = Clock()
    allocator = make(policy, num_blocks, 1, clock)
    hits = 0
    for request in requests:
        clock.now_ns += 1
        seq = sequence_of(request, 1)
        match = allocator.match_prefix(seq)
        hits += match.num_hit_blocks
        assert allocator.allocate(seq, match, seq.num_tokens - match.num_tokens)
        seq.num_computed_tokens = seq.num_tokens
        allocator.cache_blocks(seq)
        allocator.free(seq)
    stream = [request.content.block_keys(1).tolist() for request in requests]
    assert hits <= num_belady_hits(num_blocks, stream)
