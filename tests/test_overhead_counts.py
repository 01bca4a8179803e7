"""What policies count: in proportion to what they do, and nothing for a look."""

from dataclasses import asdict

import pytest
from helpers import Clock, make, policy_cases, requests_of, sequence_of, serve_in_turn

from policies._evictors import BlockMetadata, HeapEvictor, ScanEvictor
from sim.types import NO_MATCH, OperationCounts

BLOCK = 4
V1 = ("vllm_v1", "vllm_v1_latest")
V0 = ("vllm_v0", "vllm_v0_scan")
every_policy = pytest.mark.parametrize(
    ("policy", "args"), [pytest.param(p, a, id=i) for i, p, a, _ in policy_cases()]
)


def counts_of(allocator):
    return asdict(allocator.counts)


def admit(allocator, seq):
    match = allocator.match_prefix(seq)
    assert allocator.allocate(seq, match, seq.num_tokens - match.num_tokens)
    seq.num_computed_tokens = seq.num_tokens
    allocator.cache_blocks(seq)
    return match


def distinct(*lengths):
    """Prompts of these lengths in blocks that share nothing."""
    rows = [(list(range(1000 * i, 1000 * i + n * BLOCK)), []) for i, n in enumerate(lengths)]
    return [sequence_of(request, BLOCK) for request in requests_of(*rows)]


def difference(after, before):
    return {name: after[name] - before[name] for name in after}


@every_policy
def test_a_new_policy_has_counted_nothing(policy, args):
    assert make(policy, 8, BLOCK, **args).counts == OperationCounts()


@every_policy
def test_lookups_and_refusals_count_nothing(policy, args):
    clock = Clock()
    allocator = make(policy, 12, BLOCK, clock, **args)
    requests = requests_of(*[([i] * 17 + [9] * 8, [1, 2]) for i in range(5)])
    serve_in_turn(allocator, requests, clock)
    before = counts_of(allocator)
    for request in requests:
        allocator.match_prefix(sequence_of(request, BLOCK))
    assert counts_of(allocator) == before
    (giant,) = distinct(13)
    assert not allocator.allocate(giant, NO_MATCH, giant.num_tokens)
    assert counts_of(allocator) == before


def test_the_rehearsal_of_a_scan_is_not_counted():
    # A gap in a cached prefix makes 0.6.4's lookup rehearse the allocation, with its evictions.
    clock = Clock()
    allocator = make("vllm_v0_scan", 4, BLOCK, clock, watermark=0.0)
    long, other = distinct(3, 2)
    admit(allocator, long)
    clock.now_ns += 1
    allocator.free(long)
    admit(allocator, other)
    allocator.free(other)
    # Make the gap by hand: the head of the prefix is gone, its tail is there.
    cached = [key for key in long.block_keys if key in allocator.cached]
    assert cached
    twin = sequence_of(long.request, BLOCK)
    twin.block_keys = [-1, *cached]
    twin.num_tokens = (len(twin.block_keys) + 1) * BLOCK
    before = counts_of(allocator)
    match = allocator.match_prefix(twin)
    assert match.block_ids == ()
    assert match.num_hit_blocks > 0
    assert counts_of(allocator) == before


@pytest.mark.parametrize("policy", V1)
@pytest.mark.parametrize("num_blocks", [1, 2, 5, 11])
def test_v1_counts_are_linear_in_blocks(policy, num_blocks):
    allocator = make(policy, 64, BLOCK)
    first, twin = distinct(num_blocks, num_blocks)
    twin.block_keys, twin.num_tokens = first.block_keys, first.num_tokens
    admit(allocator, first)
    # Each block left the queue, four pointers, and was registered: its key, itself.
    assert counts_of(allocator) == {
        **asdict(OperationCounts()),
        "pointer_updates": 4 * num_blocks,
        "dict_operations": 1 + 2 + 1 + 2 + 2 * num_blocks,
        "objects_created": 1 + num_blocks,
    }
    before = counts_of(allocator)
    allocator.free(first)
    spent = difference(counts_of(allocator), before)
    assert (spent["pointer_updates"], spent["dict_operations"]) == (4 * num_blocks, 2)
    before = counts_of(allocator)
    num_hits = len(admit(allocator, twin).block_ids)
    # The last block is computed again, and both are kept.
    assert num_hits == num_blocks - 1
    spent = difference(counts_of(allocator), before)
    assert spent["pointer_updates"] == 4 * num_blocks
    assert spent["dict_operations"] == 1 + 2 + 1 + 2 + 2
    assert spent["objects_created"] == 2
    before = counts_of(allocator)
    allocator.free(twin)
    assert difference(counts_of(allocator), before)["pointer_updates"] == 4 * num_blocks


@pytest.mark.parametrize("policy", V1)
def test_a_v1_hit_on_a_block_in_use_moves_no_pointer(policy):
    allocator = make(policy, 64, BLOCK)
    shared = list(range(4 * BLOCK))
    first, second = (
        sequence_of(request, BLOCK)
        for request in requests_of(([*shared, 50], []), ([*shared, 51], []))
    )
    admit(allocator, first)
    before = counts_of(allocator)
    assert len(admit(allocator, second).block_ids) == 4
    assert difference(counts_of(allocator), before)["pointer_updates"] == 4
    before = counts_of(allocator)
    allocator.free(second)
    assert difference(counts_of(allocator), before)["pointer_updates"] == 4


@pytest.mark.parametrize("policy", [*V0, *V1])
def test_evictions_are_cached_blocks_that_lost_their_content(policy):
    clock = Clock()
    args = {"watermark": 0.0} if policy in V0 else {}
    allocator = make(policy, 8, BLOCK, clock, **args)
    first, second, third = distinct(5, 3, 4)
    for seq, num_evicted in ((first, 0), (second, 0), (third, 4)):
        before = allocator.counts.evictions
        clock.now_ns += 1
        num_cached = allocator.usage().cached
        admit(allocator, seq)
        assert allocator.counts.evictions - before == num_evicted
        assert allocator.usage().cached == num_cached + len(seq.block_keys) - num_evicted
        allocator.free(seq)


@pytest.mark.parametrize("policy", V0)
@pytest.mark.parametrize("num_blocks", [1, 3, 10])
def test_v0_makes_a_tracker_and_then_metadata_per_block(policy, num_blocks):
    allocator = make(policy, 64, BLOCK)
    (seq,) = distinct(num_blocks)
    admit(allocator, seq)
    assert allocator.counts.objects_created == 1 + num_blocks
    # A request: looked up, noted in four maps, its promoted blocks read and written. A block:
    # looked up twice, registered, tracked, computed.
    assert allocator.counts.dict_operations == 1 + 4 + 2 + 5 * num_blocks
    before = counts_of(allocator)
    allocator.free(seq)
    spent = difference(counts_of(allocator), before)
    assert spent["objects_created"] == num_blocks
    assert spent["heap_pushes"] == (num_blocks if policy == "vllm_v0" else 0)
    # Four maps; a block: time, tracker, free table.
    assert spent["dict_operations"] == 4 + 3 * num_blocks


def test_a_scan_looks_at_all_blocks_of_one_time_stamp_and_one_more():
    for num_blocks in (1, 5, 20):
        counts = OperationCounts()
        evictor = ScanEvictor(counts)
        for block in range(num_blocks):
            evictor.add(block, BlockMetadata(block, block, 1))
        evictor.add(99, BlockMetadata(99, 1, 2))
        evictor.add(100, BlockMetadata(100, 1, 3))
        evictor.evict()
        assert counts.entries_scanned == num_blocks + 1


@pytest.mark.parametrize("policy", [*V0, *V1])
def test_only_the_scan_grows_with_blocks_of_one_time_stamp(policy):
    def scanned_by_evictions(num_blocks):
        clock = Clock()
        args = {"watermark": 0.0} if policy in V0 else {}
        allocator = make(policy, 2 * num_blocks, BLOCK, clock, **args)
        first, second, third = distinct(num_blocks, num_blocks, 2)
        for seq in (first, second, third):
            clock.now_ns += 1
            admit(allocator, seq)
            allocator.free(seq)
        assert allocator.counts.evictions == 2
        return allocator.counts.entries_scanned

    if policy == "vllm_v0_scan":
        # n and then n - 1 of the first request, each time with the first of the second.
        assert [scanned_by_evictions(n) for n in (4, 8, 16)] == [9, 17, 33]
    else:
        assert [scanned_by_evictions(n) for n in (4, 8, 16)] == [0, 0, 0]


def test_a_heap_counts_what_it_pops_in_vain():
    counts = OperationCounts()
    evictor = HeapEvictor(counts)
    for block in range(4):
        evictor.add(block, BlockMetadata(block, 1, block))
    evictor.remove(0)
    evictor.remove(1)
    assert evictor.evict() == (2, 2)
    evictor.count(num_added=4, num_removed=2, num_evicted=1)
    # Added, removed, three entries looked up, the victim removed.
    assert counts.dict_operations == 4 + 2 + 3 + 1
    assert (counts.heap_pushes, counts.heap_pops, counts.stale_entries_skipped) == (4, 3, 2)
    assert counts.entries_scanned == 0


def test_a_heap_that_is_cleaned_up_counts_no_pops_for_it():
    counts = OperationCounts()
    evictor = HeapEvictor(counts)
    # One block comes and goes until its stale entries are too many.
    for time in range(51):
        evictor.add(7, BlockMetadata(7, 1, time))
        if time < 50:
            evictor.remove(7)
    assert len(evictor.heap) == 1
    assert evictor.evict() == (7, 7)
    evictor.count(num_added=51, num_removed=50, num_evicted=1)
    # 51 pushes, and one for the entry that the clean-up put back.
    assert (counts.heap_pushes, counts.heap_pops, counts.stale_entries_skipped) == (52, 1, 0)


def test_without_caching_only_the_map_of_requests_is_touched():
    allocator = make("none", 64, BLOCK)
    (seq,) = distinct(7)
    admit(allocator, seq)
    allocator.free(seq)
    assert allocator.counts == OperationCounts(dict_operations=3, objects_created=1)
