"""The compiled pool against the plain one: every answer and the whole state, block for block."""

import pytest
from helpers import make, requests_of, sequence_of, state_of
from hypothesis import given
from hypothesis import strategies as st

from policies.vllm_v1 import VllmV1
from policies.vllm_v1_latest import VllmV1Latest
from sim.fast.allocator import CompiledPool
from sim.fast.support import pool_rules_of
from sim.types import NO_MATCH

BLOCK_SIZE = 2


class Twins:
    """The two pools, asked the same."""

    def __init__(self, policy, num_blocks):
        self.plain = make(policy, num_blocks, BLOCK_SIZE)
        self.fast = CompiledPool(pool_rules_of(type(self.plain)), num_blocks, BLOCK_SIZE)

    def both(self, ask):
        plain, fast = ask(self.plain), ask(self.fast)
        assert fast == plain
        return plain


@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v1_latest"])
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=11), min_size=1, max_size=8),
    num_blocks=st.integers(1, 12),
    operations=st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["go", "go", "free"]), st.integers(1, 6)),
        max_size=40,
    ),
)
def test_any_operations(policy, prompts, num_blocks, operations):
    twins = Twins(policy, num_blocks)
    sequences = [
        sequence_of(request, BLOCK_SIZE)
        for request in requests_of(*((prompt, [9] * 6) for prompt in prompts))
    ]
    live = set()
    for index, operation, num_tokens in operations:
        seq = sequences[index % len(sequences)]
        if operation == "free":
            twins.both(lambda pool, seq=seq: pool.free(seq))
            live.discard(seq)
            seq.num_computed_tokens, seq.num_tokens = 0, seq.request.num_prompt_tokens
        else:
            match = NO_MATCH if seq in live else twins.both(lambda p, seq=seq: p.match_prefix(seq))
            num_left = seq.request.num_kv_tokens - seq.num_computed_tokens - match.num_tokens
            num_new = min(num_tokens, num_left)
            if num_new > 0 and twins.both(
                lambda p, seq=seq, match=match, n=num_new: p.allocate(seq, match, n)
            ):
                live.add(seq)
                seq.num_computed_tokens += match.num_tokens + num_new
                seq.num_tokens = max(seq.num_tokens, seq.num_computed_tokens)
        twins.both(lambda pool: state_of(pool, sequences))
        num_live = len(live)
        twins.both(lambda pool, n=num_live: pool.num_common_prefix_blocks(sequences[0], n))


def test_the_oldest_of_duplicates_is_the_one_hit():
    # Two requests computed the same block at once; whoever is first to go, the older one is hit.
    pool = CompiledPool(pool_rules_of(VllmV1), 8, BLOCK_SIZE)
    first, second, third = (
        sequence_of(r, BLOCK_SIZE)
        for r in requests_of(([1, 2, 3], []), ([1, 2, 3], []), ([1, 2, 4], []))
    )
    for seq in (first, second):
        assert pool.allocate(seq, NO_MATCH, 3)
    assert pool.block_table(first) == [1, 2]
    assert pool.block_table(second) == [3, 4]
    assert pool.match_prefix(third).block_ids == (1,)
    pool.free(first)
    assert pool.match_prefix(third).block_ids == (1,)
    assert pool.usage().cached == 2


def test_a_subclass_does_not_inherit_the_claim_to_be_compiled():
    class Mine(VllmV1):
        pass

    assert pool_rules_of(Mine) is None
    assert pool_rules_of(VllmV1).reuses_keyless_first is False
    assert pool_rules_of(VllmV1Latest).reuses_keyless_first is True
