"""The one-pass curve against examples worked by hand and against the plain policies."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from helpers import SHARED, Clock, make, needs, requests_of, serve_in_two_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.curve import (
    References,
    Release,
    Sizes,
    find_paths,
    measure_curve,
    measure_pool,
    most_hits,
    references_of,
)
from sim.curve.pools import replay_blocks, replay_paths
from sim.curve.stack import hits_by_capacity
from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import Sequence
from workloads import load

RELEASES = {"vllm_v1": Release(), "vllm_v1_latest": Release(unfilled_first=True)}
every_policy = pytest.mark.parametrize("policy", RELEASES)


def replay(policy, requests, block_size, num_blocks, outputs=True):
    """Serve requests one at a time by the plain policy; give tokens hit and prompt tokens."""
    allocator = make(policy, num_blocks, block_size, Clock())
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=7), allocator)
    cached = prompts = 0
    for request in requests:
        if scheduler.num_missing_blocks(request):
            continue
        num_tokens = request.num_kv_tokens if outputs else request.num_prompt_tokens
        keys = request.content.block_keys(block_size)[: num_tokens // block_size]
        seq = Sequence(request, keys.tolist())
        scheduler.add(seq)
        while scheduler.has_work():
            scheduler.complete(scheduler.schedule())
        cached += seq.num_cached_tokens
        prompts += request.num_prompt_tokens
    return cached, prompts


def paths_of(requests, block_size, outputs=True):
    return find_paths(references_of(requests, block_size, outputs=outputs))


def capacities(requests, block_size):
    """Every capacity up to one that holds all there is."""
    return range(1, sum(-(-r.num_kv_tokens // block_size) for r in requests) + 2)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
DISTINCT = st.lists(st.tuples(TOKENS, st.integers(0, 3)), min_size=1, max_size=9)
"""Prompts that share prefixes but end with a token of their own: no block is made twice."""
ANY = st.lists(st.tuples(TOKENS, st.lists(st.integers(0, 1), max_size=3)), min_size=1, max_size=9)


def distinct_requests(rows):
    return requests_of(
        *(
            ([*prompt, 100 + index], [200 + index] * num_outputs)
            for index, (prompt, num_outputs) in enumerate(rows)
        )
    )


# Worked by hand.


def test_a_tail_goes_before_its_head():
    """abcd, xy, abe in blocks of one token: the queue ends with ..., d c b a, then y x.

    When the third comes, a is 3rd from the warm end and b 4th: pools of 3 hit a, of 4 b too. A
    pool of 3 cannot hold abcd, so that there a is not hit after all.
    """
    requests = requests_of(([1, 2, 3, 4], []), ([7, 8], []), ([1, 2, 9], []))
    counts = hits_by_capacity(paths_of(requests, 1), Release())
    assert counts.num_hit_tokens.tolist() == [0, 0, 0, 1, 2]
    assert counts.num_repeated_blocks == 0
    curve = measure_curve(paths_of(requests, 1), Release())
    assert curve.num_blocks.tolist() == [1, 2, 3, 4]
    assert curve.most_hit_tokens.tolist() == [0, 0, 0, 2]
    assert curve.num_refused.tolist() == [3, 2, 1, 0]
    assert curve.num_prompt_tokens.tolist() == [0, 2, 5, 9]


def test_a_head_goes_before_its_tail_where_blocks_are_kept_as_touched():
    """The same in touch order: a is now the coldest of abcd, 6th, and without it nothing hits."""
    requests = requests_of(([1, 2, 3, 4], []), ([7, 8], []), ([1, 2, 9], []))
    counts = hits_by_capacity(paths_of(requests, 1), Release(head_first=True))
    assert counts.num_hit_tokens.tolist() == [0, 0, 0, 0, 0, 0, 2]


def test_an_unfilled_block_takes_a_place_in_the_queue_in_one_release_only():
    """Blocks of two tokens; three requests of three: each holds one more block, never filled.

    0.8.5 queues them too: uv, w's, xy, z's, ab - when ab comes again, it is 5th from the warm end.
    0.33 reuses them first: uv, xy, ab - it is 3rd, but while uvw ran, w took a place besides.
    """
    requests = requests_of(([1, 2, 3], []), ([4, 5, 6], []), ([7, 8, 9], []), ([1, 2, 0], []))
    paths = paths_of(requests, 2)
    assert hits_by_capacity(paths, RELEASES["vllm_v1"]).num_hit_tokens.tolist() == [0] * 5 + [2]
    latest = hits_by_capacity(paths, RELEASES["vllm_v1_latest"]).num_hit_tokens
    assert latest.tolist() == [0] * 4 + [2]


def test_the_last_token_is_always_computed():
    """A prompt that comes again, whole blocks of it: all but the last is hit, which is repeated."""
    requests = requests_of(([1, 2, 3, 4], []), ([1, 2, 3, 4], []))
    counts = hits_by_capacity(paths_of(requests, 2), Release())
    assert counts.num_hit_tokens.tolist() == [0, 2]
    assert counts.num_repeated_blocks == 1


def test_no_hit_no_curve():
    requests = requests_of(([1, 2], []), ([3, 4], []))
    curve = measure_curve(paths_of(requests, 1), Release())
    assert curve.ceiling == 0
    assert curve.hit_rate.tolist() == [0, 0]


def test_prompts_shorter_than_a_block_touch_nothing():
    curve = measure_curve(paths_of(requests_of(([1], []), ([1], [])), 4), Release())
    assert (curve.num_blocks.tolist(), curve.most_hit_tokens.tolist()) == ([1], [0])


# Against the plain policies, at every capacity.


@every_policy
@settings(max_examples=60)
@given(rows=DISTINCT, block_size=st.integers(1, 3), outputs=st.booleans())
def test_the_curve_is_the_replay_at_every_capacity(policy, rows, block_size, outputs):
    requests = distinct_requests(rows)
    curve = measure_curve(paths_of(requests, block_size, outputs), RELEASES[policy])
    assert (curve.most_hit_tokens == curve.least_hit_tokens).all()
    for num_blocks in capacities(requests, block_size):
        # The last holds for all larger pools.
        index = min(int(np.searchsorted(curve.num_blocks, num_blocks)), len(curve.num_blocks) - 1)
        assert (
            curve.most_hit_tokens[index],
            curve.num_prompt_tokens[index],
        ) == replay(policy, requests, block_size, num_blocks, outputs)


@every_policy
@settings(max_examples=60)
@given(rows=ANY, block_size=st.integers(1, 2), outputs=st.booleans())
def test_copies_lie_between_the_bounds_and_a_pool_is_exact(policy, rows, block_size, outputs):
    requests = requests_of(*rows)
    paths = paths_of(requests, block_size, outputs)
    release = RELEASES[policy]
    curve = measure_curve(paths, release)
    for num_blocks in capacities(requests, block_size):
        index = min(int(np.searchsorted(curve.num_blocks, num_blocks)), len(curve.num_blocks) - 1)
        cached, prompts = replay(policy, requests, block_size, num_blocks, outputs)
        assert curve.least_hit_tokens[index] <= cached <= curve.most_hit_tokens[index]
        assert curve.num_prompt_tokens[index] == prompts
        for pool in (
            replay_blocks(paths, release, num_blocks),
            measure_pool(paths, release, num_blocks),
        ):
            assert (pool.num_hit_tokens, pool.num_prompt_tokens) == (cached, prompts)


@every_policy
@settings(max_examples=60)
@given(rows=ANY, block_size=st.integers(1, 2))
def test_one_pass_and_one_pool_agree_wherever_both_are_defined(policy, rows, block_size):
    paths = paths_of(requests_of(*rows), block_size)
    hits = hits_by_capacity(paths, RELEASES[policy]).num_hit_tokens
    for num_blocks in range(paths.sizes.max_held_blocks, len(hits) + 3):
        pool = replay_paths(paths, RELEASES[policy], num_blocks)
        assert pool.num_hit_tokens == hits[min(num_blocks, len(hits) - 1)]
        assert pool.num_refused == 0


# Where it is no stack algorithm.


@every_policy
def test_a_copy_left_behind_drives_out_what_stack_distances_call_a_hit(policy):
    """a, b, b, ax in a pool of 2 blocks of one token: the second b is computed again.

    Its block is a copy, for which a has to go although the pool holds b already. But only two
    distinct blocks lie from one a to the other: by their distance the last request would hit a.
    """
    requests = requests_of(([1], []), ([2], []), ([2], []), ([1, 9], []))
    paths = paths_of(requests, 1)
    assert replay(policy, requests, 1, 2)[0] == 0
    assert replay(policy, requests, 1, 3)[0] == 1
    curve = measure_curve(paths, RELEASES[policy])
    assert curve.num_repeated_blocks == 1
    assert curve.num_blocks.tolist() == [1, 2, 3]
    assert curve.most_hit_tokens.tolist() == [0, 1, 1]
    assert curve.least_hit_tokens.tolist() == [0, 0, 1]
    assert measure_pool(paths, RELEASES[policy], 2).num_hit_tokens == 0


def test_a_pool_that_refuses_requests_can_hit_less_when_it_grows():
    """It then serves a large request, which drives out what others would have hit."""
    requests = requests_of(([1, 2], []), ([5, 6, 7], []), ([1, 3], []))
    curve = measure_curve(paths_of(requests, 1), Release())
    assert curve.num_blocks[:3].tolist() == [1, 2, 3]
    assert curve.most_hit_tokens[:3].tolist() == [0, 1, 0]


def test_a_store_is_not_replayed_as_a_pool():
    paths = paths_of(requests_of(([1, 2], [])), 1)
    with pytest.raises(ValueError, match="vLLM's order only"):
        measure_pool(paths, Release(head_first=True), 2)


# Belady.


def best_of_all(sizes, blocks, offsets, capacity):
    """Try every choice of what to keep."""
    paths = [tuple(blocks[a:b]) for a, b in pairwise(offsets)]
    kept_sets = {frozenset(): 0}
    for request, path in enumerate(paths):
        held = int(sizes.num_held_blocks[request])
        if held > capacity:
            continue
        following = {}
        for kept, hits in kept_sets.items():
            found = 0
            while found < sizes.num_lookup_blocks[request] and path[found] in kept:
                found += 1
            for others in _subsets(kept - set(path), capacity - held):
                key = frozenset(path) | others
                following[key] = max(following.get(key, 0), hits + found)
        kept_sets = following
    return max(kept_sets.values())


def _subsets(items, size):
    return [frozenset(chosen) for chosen in combinations(sorted(items), min(size, len(items)))]


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=4),
                               st.lists(st.integers(0, 1), max_size=2)), min_size=1, max_size=7),
       capacity=st.integers(1, 8))  # fmt: skip
def test_belady_is_the_best_of_all_choices(rows, capacity):
    references = references_of(requests_of(*rows), 1)
    best = int(most_hits(find_paths(references), np.array([capacity]))[0])
    sizes = references.sizes
    assert best == best_of_all(sizes, references.blocks.tolist(), references.offsets, capacity)


@every_policy
@settings(max_examples=40)
@given(rows=ANY)
def test_no_policy_exceeds_belady(policy, rows):
    requests = requests_of(*rows)
    paths = paths_of(requests, 1)
    sizes = np.array(capacities(requests, 1))
    for num_blocks, best in zip(sizes, most_hits(paths, sizes), strict=True):
        assert replay(policy, requests, 1, int(num_blocks))[0] <= best
    ceiling = hits_by_capacity(paths, RELEASES[policy]).num_hit_tokens[-1]
    assert most_hits(paths, sizes)[-1] == ceiling


@given(rows=ANY)
def test_a_store_hits_no_more_than_a_store_that_knows_the_future(rows):
    paths = paths_of(requests_of(*rows), 1)
    hits = hits_by_capacity(paths, Release(head_first=True)).num_hit_tokens
    assert (hits <= most_hits(paths, np.arange(len(hits)), pinned=False)).all()


# Paths, and what is refused.


@given(rows=ANY, block_size=st.integers(1, 3))
def test_paths_spell_the_references(rows, block_size):
    references = references_of(requests_of(*rows), block_size)
    paths = find_paths(references)
    assert paths.num_distinct_blocks == len(np.unique(references.blocks))
    lengths = paths.lengths[paths.edges]
    for request, count in enumerate(references.sizes.num_full_blocks):
        first, last = paths.offsets[request], paths.offsets[request + 1]
        assert lengths[first:last].sum() == count
        assert (lengths[first:last] > 0).all()


@given(rows=ANY)
def test_names_of_blocks_do_not_matter(rows):
    """Nor does it matter how wide they are, nor that a name is used after two prefixes."""
    references = references_of(requests_of(*rows), 1)
    plain = [token for prompt, output in rows for token in _kept(prompt, output)]
    for blocks in (references.blocks - 10**15, np.array(plain, dtype=np.int32)):
        other = find_paths(References(blocks, references.sizes))
        mine = find_paths(references)
        assert (
            hits_by_capacity(other, Release()).num_hit_tokens.tolist()
            == hits_by_capacity(mine, Release()).num_hit_tokens.tolist()
        )


def _kept(prompt, output):
    return [*prompt, *output][: len(prompt) + max(len(output) - 1, 0)]


def test_sizes_that_cannot_be_are_refused():
    one = np.array([1])
    with pytest.raises(ValueError, match="looks up no more blocks than it fills"):
        Sizes(one, one * 2, one, one, 16)
    with pytest.raises(ValueError, match="one entry for each"):
        Sizes(one, np.array([0, 0]), one, one, 16)
    with pytest.raises(ValueError, match="prompt_tokens must have"):
        Sizes(one, one, one, np.array([1, 2]), 16)
    with pytest.raises(ValueError, match="a name for each block"):
        References(np.array([1, 2]), Sizes(one, one, one, one, 16))


# Real traces.


@needs(SHARED / "traces" / "conversation_trace.jsonl")
@pytest.mark.parametrize(
    ("name", "policy", "cached", "infinite"),
    [
        ("conversation", "vllm_v1", 30_314_496, 0.373380),
        ("conversation", "vllm_v1_latest", 31_353_856, 0.373380),
        ("synthetic", "vllm_v1", 0.430210, 0.650431),
        ("synthetic", "vllm_v1_latest", 0.440785, 0.650431),
    ],
)
def test_a_public_trace_hits_what_vllm_hits(name, policy, cached, infinite):
    requests = load(SHARED / "traces" / f"{name}_trace.jsonl").requests
    curve = measure_curve(paths_of(requests, 512), RELEASES[policy], small_pools=False)
    index = int(np.searchsorted(curve.num_blocks, 10_000))
    measured = int(curve.most_hit_tokens[index])
    assert measured == cached or curve.hit_rate[index] == pytest.approx(cached, abs=5e-7)
    assert curve.ceiling == pytest.approx(infinite, abs=5e-7)


@needs(SHARED / "traces" / "synthetic_trace.jsonl")
@every_policy
@pytest.mark.parametrize("num_blocks", [150, 374, 3_000, 20_000])
def test_the_curve_of_a_public_trace_is_the_plain_replay(policy, num_blocks):
    requests = load(SHARED / "traces" / "synthetic_trace.jsonl", num_requests=1500).requests
    allocator = make(policy, num_blocks, 512, Clock())
    fitting = [r for r in requests if -(-r.num_kv_tokens // 512) <= num_blocks]
    cached = sum(serve_in_two_calls(allocator, fitting, Clock()))
    pool = measure_pool(paths_of(requests, 512), RELEASES[policy], num_blocks)
    assert pool.num_hit_tokens == cached
    assert pool.num_refused == len(requests) - len(fitting)
