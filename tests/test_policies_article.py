"""The worked example of the article on vLLM V1's prefix caching, step by step.

Block size 4, ten blocks with ids from 0. Request 0 brings A to O, request 1 begins with A to J,
request 2 with A to L. A block is named here by the letters that the prefix up to its end spells.
"""

import numpy as np
import pytest
from helpers import SHARED, make, needs

from sim.types import NO_MATCH, Request, Sequence
from sim.verify import verify
from workloads.content import Interner, TokenIds

A_TO_O = "ABCDEFGHIJKLMNO"
REQUEST_0 = A_TO_O + "pq"  # generates p and q
REQUEST_1 = "ABCDEFGHIJ" + "wxyz"
REQUEST_2 = "ABCDEFGHIJKL" + "abcdefghijklmnopr"  # 12 shared tokens, 17 of its own


class Story:
    """A pool, and eyes for all of it."""

    def __init__(self):
        self.pool = make("vllm_v1", 10, 4, null_block=False)
        self.interner = Interner()
        self.keys = {}

    def sequence(self, request_id, text, num_prompt_tokens):
        content = TokenIds(np.array([ord(letter) for letter in text]), self.interner)
        keys = content.block_keys(4).tolist()
        for index, key in enumerate(keys):
            self.keys[key] = text[4 * index : 4 * index + 4]
        num_output_tokens = len(text) - num_prompt_tokens
        request = Request(request_id, 0, content, num_prompt_tokens, num_output_tokens)
        return Sequence(request, keys)

    @property
    def queue(self):
        return [block.block_id for block in self.pool.free_queue]

    @property
    def map(self):
        """What can be hit: letters of a block -> its id."""
        return {
            self.keys[key]: block_id for key, same in self.pool.cached.items() for block_id in same
        }

    @property
    def ref_counts(self):
        return [block.ref_count for block in self.pool._blocks]

    def table(self, seq):
        return self.pool.block_table(seq)

    def admit(self, seq):
        """Admit and compute the whole prompt; return the match."""
        match = self.pool.match_prefix(seq)
        assert self.pool.allocate(seq, match, seq.num_tokens - match.num_tokens)
        seq.num_computed_tokens = seq.num_tokens
        self.pool.cache_blocks(seq)
        return match

    def decode(self, seq):
        seq.num_tokens += 1
        assert self.pool.allocate(seq, NO_MATCH, 1)
        seq.num_computed_tokens += 1
        self.pool.cache_blocks(seq)


def test_the_article():
    story = Story()
    assert story.queue == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert story.map == {}
    assert story.ref_counts == [0] * 10

    # Request 0: fifteen tokens fill three blocks and three slots of a fourth.
    request_0 = story.sequence("0", REQUEST_0, 15)
    match = story.admit(request_0)
    assert (match.block_ids, match.num_tokens) == ((), 0)
    assert story.table(request_0) == [0, 1, 2, 3]
    assert story.queue == [4, 5, 6, 7, 8, 9]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2}
    assert story.ref_counts == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]

    # The first generated token fills block 3, which can be hit from now on.
    story.decode(request_0)
    assert story.table(request_0) == [0, 1, 2, 3]
    assert story.queue == [4, 5, 6, 7, 8, 9]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3}

    # The second one opens block 4.
    story.decode(request_0)
    assert story.table(request_0) == [0, 1, 2, 3, 4]
    assert story.queue == [5, 6, 7, 8, 9]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3}
    assert story.ref_counts == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]

    # Request 1 shares ten tokens, but only full blocks are shared: eight of them.
    request_1 = story.sequence("1", REQUEST_1, 14)
    match = story.admit(request_1)
    assert (match.block_ids, match.num_tokens) == ((0, 1), 8)
    assert story.table(request_1) == [0, 1, 5, 6]
    assert story.queue == [7, 8, 9]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3, "IJwx": 5}
    assert story.ref_counts == [2, 2, 1, 1, 1, 1, 1, 0, 0, 0]

    # Request 0 ends: its tail is released first; blocks 0 and 1 are still held.
    story.pool.free(request_0)
    assert story.table(request_0) == []
    assert story.queue == [7, 8, 9, 4, 3, 2]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3, "IJwx": 5}
    assert story.ref_counts == [1, 1, 0, 0, 0, 1, 1, 0, 0, 0]

    # Request 1 ends too: everything is free, and five blocks can still be hit.
    story.pool.free(request_1)
    assert story.queue == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3, "IJwx": 5}
    assert story.ref_counts == [0] * 10

    # Request 2 finds A to L and changes nothing by looking.
    request_2 = story.sequence("2", REQUEST_2, 29)
    match = story.pool.match_prefix(request_2)
    assert (match.block_ids, match.num_tokens) == ((0, 1, 2), 12)
    assert story.queue == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]

    # Its prefix leaves the queue, from the middle of it. No new block is taken yet.
    assert story.pool.allocate(request_2, match, 0)
    assert story.table(request_2) == [0, 1, 2]
    assert story.queue == [7, 8, 9, 4, 3, 6, 5]
    assert story.map == {"ABCD": 0, "EFGH": 1, "IJKL": 2, "MNOp": 3, "IJwx": 5}
    assert story.ref_counts == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]

    # Then five blocks come from the front. Block 3 is reused, and its hash leaves the map.
    request_2.num_computed_tokens = 12
    assert story.pool.allocate(request_2, NO_MATCH, 17)
    assert story.table(request_2) == [0, 1, 2, 7, 8, 9, 4, 3]
    assert story.queue == [6, 5]
    assert story.map == {
        **{"ABCD": 0, "EFGH": 1, "IJKL": 2, "IJwx": 5},
        **{"abcd": 7, "efgh": 8, "ijkl": 9, "mnop": 4},
    }
    assert story.ref_counts == [1, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    assert story.pool.match_prefix(story.sequence("again", REQUEST_0, 17)).num_tokens == 12


def test_request_2_in_one_call():
    """The scheduler asks for hits and new blocks at once, with the same outcome."""
    story = Story()
    request_0, request_1 = (
        story.sequence("0", REQUEST_0, 15),
        story.sequence("1", REQUEST_1, 14),
    )
    story.admit(request_0)
    story.decode(request_0)
    story.decode(request_0)
    story.admit(request_1)
    story.pool.free(request_0)
    story.pool.free(request_1)
    request_2 = story.sequence("2", REQUEST_2, 29)
    assert story.admit(request_2).num_tokens == 12
    assert story.table(request_2) == [0, 1, 2, 7, 8, 9, 4, 3]
    assert story.queue == [6, 5]
    assert "MNOp" not in story.map


def test_block_3_has_no_hash_after_its_reuse():
    """It is the last block of request 2 and holds one token: nothing to be hit."""
    story = Story()
    request_0 = story.sequence("0", REQUEST_0, 15)
    story.admit(request_0)
    story.decode(request_0)
    assert story.pool._blocks[3].key is not None
    story.pool.free(request_0)
    filler = story.sequence("f", "0123456789" * 3 + "abcdefghi", 39)
    story.admit(filler)
    assert story.table(filler) == [4, 5, 6, 7, 8, 9, 3, 2, 1, 0]
    assert "MNOp" not in story.map
    assert story.pool._blocks[0].key is None  # three tokens of four


@pytest.mark.parametrize("variant", ["v1-0.8.5", "v1-0.33", "v0-0.8.5", "v0-0.6.4"])
@needs(SHARED / "goldens")
def test_vllm_itself_agrees_with_one_block_less(variant):
    outcome = verify([SHARED / "goldens" / "allocator" / f"{variant}-article.jsonl"])
    assert (outcome.num_agreeing, outcome.divergences, outcome.errors) == (1, [], [])
