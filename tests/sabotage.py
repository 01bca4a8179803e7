"""Policies with one fault each, named as ``--policy sabotage:Class``: a proof has to catch them."""

from policies.none import NoCaching
from policies.vllm_v0 import VllmV0
from policies.vllm_v1 import VllmV1
from sim.types import NO_MATCH, PrefixMatch


class FreesTooEarly(VllmV1):
    """Gives the block before the last back while its request still reads it."""

    def cache_blocks(self, seq):
        blocks = self.request_blocks[seq.request_id]
        if len(blocks) > 1 and blocks[-2].ref_count == 1:
            blocks[-2].ref_count = 0
            self.free_queue.prepend(blocks[-2])

    def free(self, seq):
        blocks = self.request_blocks[seq.request_id]
        self.request_blocks[seq.request_id] = [b for b in blocks if b.ref_count]
        super().free(seq)


class SharesAWrongBlock(VllmV1):
    """Takes the oldest cached block for the second block of any prompt."""

    def match_prefix(self, seq):
        match = super().match_prefix(seq)
        if len(match.block_ids) < 2:
            return match
        oldest = next(iter(next(iter(self.cached.values()))))
        ids = (match.block_ids[0], oldest, *match.block_ids[2:])
        if len(set(ids)) < len(ids):
            return match
        return PrefixMatch(ids, match.num_tokens, match.num_hit_blocks, match.num_queried_blocks)


class ForgetsToUnregister(VllmV1):
    """Leaves the key of an evicted block in its map: a later hit finds what is there now."""

    def _unregister(self, key, block):
        pass

    def _lookup(self, key):
        same = self.cached.get(key)
        return next(reversed(same.values())) if same else None


class HitsOneTokenTooMany(VllmV1):
    """Counts a token behind the last hit block as computed."""

    def match_prefix(self, seq):
        match = super().match_prefix(seq)
        if not match.block_ids or match.num_tokens + 1 >= seq.num_tokens:
            return match
        return PrefixMatch(match.block_ids, match.num_tokens + 1, match.num_hit_blocks)


class RegistersAhead(VllmV1):
    """Lets the whole prompt be hit once its first chunk is scheduled."""

    def _register_full_blocks(self, seq, num_tokens):
        blocks = self.request_blocks[seq.request_id]
        super()._register_full_blocks(seq, min(seq.num_tokens, len(blocks) * self.block_size))

    def allocate(self, seq, match, num_tokens):
        if match is NO_MATCH:
            return super().allocate(seq, match, num_tokens)
        return super().allocate(seq, match, seq.num_tokens - match.num_tokens)


class ForgetsThePrefix(VllmV1):
    """Names a block by its place alone, whatever came before it."""

    def match_prefix(self, seq):
        seq.block_keys = [1000 + index for index in range(len(seq.block_keys))]
        return super().match_prefix(seq)


class HandsOutTwice(NoCaching):
    """Now and then gives a block to a second request while the first still holds it."""

    def allocate(self, seq, match, num_tokens):
        done = super().allocate(seq, match, num_tokens)
        held = [b for r, b in self.request_blocks.items() if r != seq.request_id and len(b) > 1]
        blocks = self.request_blocks.get(seq.request_id, [])
        if done and held and len(blocks) > 2:
            self.free_list.append(blocks[1])
            blocks[1] = held[0][0]
        return done

    def free(self, seq):
        mine = self.request_blocks.pop(seq.request_id)
        others = {b for blocks in self.request_blocks.values() for b in blocks}
        self.free_list.extend(b for b in mine if b not in others and b not in self.free_list)


class CountsBehindAGap(VllmV0):
    """Counts one block more than the run that is really cached."""

    def match_prefix(self, seq):
        match = super().match_prefix(seq)
        num_tokens = match.num_tokens + self.block_size
        if not match.block_ids or num_tokens >= seq.num_tokens:
            return match
        return PrefixMatch(match.block_ids, num_tokens, match.num_hit_blocks + 1)
