"""SGLang's radix cache: the tree against a plain twin, stories by hand, its recorded runs."""

import json

import pytest
from helpers import SHARED, make, needs, requests_of, sequence_of
from hypothesis import given
from hypothesis import strategies as st

from policies._radix_tree import EVICTIONS, RadixTree
from sim.errors import UsageError
from sim.types import NO_MATCH
from sim.verify import verify

RECORDED = SHARED / "goldens" / "sglang"
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["begin", "finish", "evict"]), PATHS, st.integers(0, 3)))


def keys_of(path):
    """Name each prefix of a path, as block keys do."""
    return [hash(tuple(path[: i + 1])) for i in range(len(path))]


def evict_plainly(tree, num_blocks):
    """Rank all evictable leaves anew for every victim."""
    victims = []
    while len(victims) < num_blocks and tree.evictable_leaves:
        leaf = min(tree.evictable_leaves, key=tree._rank)
        victims += tree.evict(1)
        assert victims[-len(leaf.blocks) :] == leaf.blocks
    return victims


@pytest.mark.parametrize("eviction", EVICTIONS)
@given(steps=STEPS)
def test_evicts_the_leaf_of_the_smallest_rank(eviction, steps):
    tree, locked = RadixTree(eviction), []
    for step, path, number in steps:
        keys = keys_of(path)
        if step == "begin":
            node, num_pages = tree.match(keys, len(keys))
            assert tree.find(keys, len(keys))[0] == keys[:num_pages]
            tree.lock(node)
            locked.append(node)
        elif step == "finish" and locked:
            tree.insert(keys, keys, priority=number)
            tree.unlock(locked.pop(number % len(locked)))
            assert tree.find(keys, len(keys))[0] == keys
        else:
            evict_plainly(tree, number)
        assert sorted(tree.block_ids()) == sorted(set(tree.block_ids()))
        assert tree.num_blocks == len(list(tree.block_ids()))
        assert 0 <= tree.num_evictable_blocks <= tree.num_blocks
    for node in locked:
        tree.unlock(node)
    assert tree.num_evictable_blocks == tree.num_blocks
    tree.evict(tree.num_blocks)
    assert (tree.num_blocks, list(tree.leaves())) == (0, [])


def test_a_lookup_that_ends_inside_a_node_splits_it_and_locks_the_upper_part():
    tree = RadixTree()
    tree.insert([1, 2, 3, 4], [11, 12, 13, 14])
    node, num_pages = tree.match([1, 2, 9], 3)
    assert (num_pages, node.keys, list(node.children)) == (2, [1, 2], [3])
    tree.lock(node)
    assert tree.evict(4) == [13, 14]
    assert tree.evict(4) == []
    tree.unlock(node)
    assert tree.evict(4) == [11, 12]


def admit(allocator, seq):
    match = allocator.match_prefix(seq)
    assert allocator.allocate(seq, match, seq.num_tokens - match.num_tokens)
    seq.num_computed_tokens = seq.num_tokens
    return match


def test_of_two_copies_the_tree_keeps_one_and_both_use_it():
    allocator = make("sglang_radix", 8, 1)
    first, second = (sequence_of(r, 1) for r in requests_of(([1, 2, 3], [4]), ([1, 2, 3], [5])))
    admit(allocator, first)
    admit(allocator, second)
    assert allocator.usage().free == 2
    allocator.cache_blocks(first)
    allocator.cache_blocks(second)
    assert allocator.block_table(first) == allocator.block_table(second) == [1, 2, 3]
    assert (allocator.usage().used, allocator.usage().free, allocator.usage().cached) == (3, 5, 3)


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_decoded_goes_in_when_a_request_finishes_and_not_when_it_is_preempted(finished):
    allocator = make("sglang_radix", 8, 1)
    (request,) = requests_of(([1, 2], [3, 4, 5]))
    seq = sequence_of(request, 1)
    admit(allocator, seq)
    allocator.cache_blocks(seq)
    for _ in range(2 if finished else 1):
        seq.num_tokens += 1
        assert allocator.allocate(seq, NO_MATCH, 1)
        seq.num_computed_tokens += 1
        allocator.cache_blocks(seq)
    assert allocator.usage().cached == 2
    allocator.free(seq)
    assert allocator.usage().used == 0
    assert allocator.usage().cached == (4 if finished else 2)
    # The output is a leaf of its own: evicting one page of it leaves the prompt.
    assert len(allocator.tree.evict(1)) == 2
    assert allocator.usage().cached == (2 if finished else 0)


def test_an_unknown_order_names_the_known():
    with pytest.raises(
        UsageError, match="eviction=lfru is no order of SGLang's: choose one of lru"
    ):
        make("sglang_radix", 8, 1, eviction="lfru")


@needs(RECORDED)
def test_agrees_with_all_recorded_runs_of_sglang():
    outcome = verify([RECORDED])
    assert (outcome.errors, outcome.divergences) == ([], [])
    assert outcome.num_agreeing == 28


CONFIG = {"variant": "sglang-0.5.23", "eviction": "lru", "page_size": 2}


def state(total, evictable, leaves):
    """State after an operation, as logs have it."""
    return {
        "total_tokens": total,
        "evictable_tokens": evictable,
        "protected_tokens": total - evictable,
        "leaves": leaves,
    }


BEGIN = {
    "op": "begin",
    "request": "a",
    "tokens": [1, 2, 3],
    "expect": {"num_cached_tokens": 0, **state(0, 0, [])},
}
FINISH = {
    "op": "finish",
    "request": "a",
    "tokens": [1, 2, 3, 4, 5],
    "priority": 0,
    "expect": {"already_cached_tokens": 0, **state(4, 4, [[1, 2, 3, 4]])},
}
EVICT = {"op": "evict", "num_tokens": 1, "expect": {"evicted_tokens": 4, **state(0, 0, [])}}


def verified(tmp_path, *lines, **options):
    path = tmp_path / "radix.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return verify([path], **options)


def test_a_log_of_a_radix_cache_is_replayed(tmp_path):
    assert verified(tmp_path, CONFIG, BEGIN, FINISH, EVICT).num_agreeing == 1


def test_a_difference_is_named(tmp_path):
    wrong = {**EVICT, "expect": {**EVICT["expect"], "evicted_tokens": 2}}
    (divergence,) = verified(tmp_path, CONFIG, BEGIN, FINISH, wrong).divergences
    assert (divergence.line, divergence.field, divergence.got) == (4, "evicted_tokens", 4)


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        ([CONFIG, BEGIN, {"op": "allocate"}], {}, "operation 'allocate' is unknown"),
        ([CONFIG, {"op": "evict", "expect": {}}], {}, "the operation has no 'num_tokens'"),
        ([CONFIG, {**EVICT, "expect": {"evicted_tokens": 4}}], {}, "expect has no 'total_tokens'"),
        ([CONFIG, {**EVICT, "num_tokens": True}], {}, "num_tokens of the operation is true"),
        ([CONFIG, {**FINISH, "request": 3}], {}, "request of the operation is 3"),
        ([CONFIG, FINISH], {}, "request 'a' finishes without a 'begin'"),
        ([CONFIG, BEGIN, BEGIN], {}, "request 'a' begins a second time"),
        ([CONFIG, BEGIN], {"policy": "vllm_v1"}, "policy 'vllm_v1' has none"),
        ([{**CONFIG, "eviction": "best"}, BEGIN], {}, "eviction=best is no order"),
        ([{"variant": "sglang-0.5.23", "page_size": 2}, BEGIN], {}, "has no 'eviction'"),
    ],
)
def test_a_log_that_cannot_be_replayed_says_why(tmp_path, lines, options, sentence):
    outcome = verified(tmp_path, *lines, **options)
    assert sentence in " ".join(outcome.errors)
