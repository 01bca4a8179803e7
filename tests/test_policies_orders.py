"""The structures that decide what is reused next, against plain models of them."""

import pytest
from helpers import Clock, make, requests_of, sequence_of
from hypothesis import given
from hypothesis import strategies as st

from policies._evictors import BlockMetadata, HeapEvictor, ScanEvictor
from policies._free_queue import Block, FreeQueue
from sim.types import NO_MATCH

# Blocks come with a prefix length and at a time that never goes back.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("evict")),
    ),
    max_size=60,
)


def oldest_deepest_lowest(free):
    return min(free, key=lambda block: (free[block][0], -free[block][1], block))


def oldest_deepest_first_added(free):
    return min(free, key=lambda block: (free[block][0], -free[block][1]))


@pytest.mark.parametrize(
    ("evictor_class", "victim_of"),
    [(HeapEvictor, oldest_deepest_lowest), (ScanEvictor, oldest_deepest_first_added)],
)
@given(events=EVENTS)
def test_evictors_follow_their_rule(evictor_class, victim_of, events):
    evictor, free, now_ns, key = evictor_class(), {}, 0, 0
    for name, *arguments in events:
        if name == "add" and arguments[0] not in free:
            block, num_hashed_tokens, gap_ns = arguments
            now_ns += gap_ns
            key += 1
            free[block] = now_ns, num_hashed_tokens, key
            evictor.add(block, BlockMetadata(key, num_hashed_tokens, now_ns))
        elif name == "remove" and arguments[0] in free:
            del free[arguments[0]]
            evictor.remove(arguments[0])
        elif name == "evict" and free:
            victim = victim_of(free)
            assert evictor.evict() == (victim, free.pop(victim)[2])
        assert set(evictor.free_table) == set(free)
        assert sorted(evictor.snapshot()) == sorted(free)


def test_the_heap_shows_the_order_of_eviction():
    evictor = HeapEvictor()
    for block, (last_accessed_ns, num_hashed_tokens) in enumerate([(2, 8), (1, 4), (1, 8), (1, 8)]):
        evictor.add(block, BlockMetadata(block, num_hashed_tokens, last_accessed_ns))
    assert evictor.snapshot() == [2, 3, 1, 0]
    assert [evictor.evict()[0] for _ in range(4)] == [2, 3, 1, 0]


def test_a_block_that_is_back_within_one_time_stamp_goes_under_its_new_key():
    evictor = HeapEvictor()
    evictor.add(0, BlockMetadata(71, 4, 5))
    evictor.remove(0)
    evictor.add(0, BlockMetadata(72, 4, 5))
    assert evictor.evict() == (0, 72)


def test_the_heap_is_cleaned_up():
    """A block that is hit and released over and over leaves no more than 50 entries."""
    evictor = HeapEvictor()
    for now_ns in range(1000):
        evictor.add(0, BlockMetadata(7, 4, now_ns))
        assert len(evictor.heap) <= HeapEvictor.CLEANUP_THRESHOLD
        evictor.remove(0)
    evictor.add(0, BlockMetadata(7, 4, 1000))
    assert evictor.evict() == (0, 7)


@pytest.mark.parametrize(("policy", "left"), [("vllm_v0", [4, 0]), ("vllm_v0_scan", [0, 4])])
def test_v0_goes_by_the_time_that_a_request_was_last_scheduled(policy, left):
    """Not by when it came or went: a comes first and goes first, but was scheduled last.

    0.6.4 does not notice: its scan begins with what was released first and never looks for an
    older block behind it.
    """
    clock = Clock()
    pool = make(policy, 4, 4, clock, watermark=0.0)
    a, b, c = (
        sequence_of(request, 4)
        for request in requests_of((range(4), [7, 7]), (range(10, 14), [7]), (range(20, 32), []))
    )
    for now_ns, seq in ((1, a), (2, b)):
        clock.now_ns = now_ns
        assert pool.allocate(seq, NO_MATCH, 4)
        seq.num_computed_tokens = 4
        pool.cache_blocks(seq)
    clock.now_ns = 3
    a.num_tokens = 5
    assert pool.allocate(a, NO_MATCH, 1)
    for now_ns, seq in ((5, a), (6, b)):
        clock.now_ns = now_ns
        pool.free(seq)
    # c takes the block that was never used, a's second, which never filled, and evicts one.
    clock.now_ns = 7
    assert pool.allocate(c, NO_MATCH, 12)
    b.num_tokens = 5
    assert [pool.match_prefix(seq).num_tokens for seq in (a, b)] == left


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "prepend", "remove", "popleft"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_the_free_queue_is_a_list(operations):
    blocks = [Block(block_id) for block_id in range(6)]
    queue, model = FreeQueue(blocks[:3]), [0, 1, 2]
    for name, block_id in operations:
        if name == "popleft":
            if model:
                assert queue.popleft().block_id == model.pop(0)
            else:
                with pytest.raises(IndexError, match="empty"):
                    queue.popleft()
        elif name == "remove":
            if block_id in model:
                queue.remove(blocks[block_id])
                model.remove(block_id)
        elif block_id not in model:
            getattr(queue, name)(blocks[block_id])
            model.insert(0 if name == "prepend" else len(model), block_id)
        assert [block.block_id for block in queue] == model
        assert queue.num_blocks == len(model)
        assert all((block.prev is None) == (block.block_id not in model) for block in blocks)
