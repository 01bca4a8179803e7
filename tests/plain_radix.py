"""A plain twin of SGLang's cache: a set of keys, no tree, told what evictions take."""

from sim.types import BlockUsage, PrefixMatch


class PlainRadix:
    """Counts pages; cached are keys with their parents, locked is what those who run hold.

    Parameters
    ----------
    num_blocks, block_size
        As for every policy.
    evictions
        The keys that each eviction takes, in order.
    """

    def __init__(self, num_blocks, block_size, evictions):
        self.num_blocks, self.block_size, self.evictions = num_blocks, block_size, evictions
        self.parents = {}
        # Of each request: keys that it has locked, pages that it holds, tokens to prefill.
        self.locked, self.num_pages, self.prefill_stop = {}, {}, {}

    def num_free(self):
        num_own = sum(self.num_pages[name] - len(self.locked[name]) for name in self.locked)
        return self.num_blocks - len(self.parents) - num_own

    def evictable(self):
        return set(self.parents) - {key for keys in self.locked.values() for key in keys}

    def match_prefix(self, seq):
        num_queried = min((seq.num_tokens - 1) // self.block_size, len(seq.block_keys))
        num_hits = 0
        while num_hits < num_queried and seq.block_keys[num_hits] in self.parents:
            num_hits += 1
        return PrefixMatch(
            tuple(range(num_hits)), num_hits * self.block_size, num_hits, num_queried
        )

    def allocate(self, seq, match, num_tokens):
        name, hits = seq.request_id, seq.block_keys[: len(match.block_ids)]
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        num_new = -(-num_total // self.block_size) - self.num_pages.get(name, len(hits))
        if num_new > self.num_free() + len(self.evictable() - set(hits)):
            return False
        if name not in self.locked:
            self.locked[name], self.num_pages[name] = hits, len(hits)
            self.prefill_stop[name] = seq.num_tokens
        num_short = num_new - self.num_free()
        if num_short > 0:
            victims = next(self.evictions)
            assert len(victims) >= num_short
            for key in victims:
                assert key in self.evictable()
                del self.parents[key]
                assert key not in self.parents.values()
        self.num_pages[name] += num_new
        return True

    def insert(self, seq):
        keys = seq.block_keys[: seq.num_computed_tokens // self.block_size]
        for position, key in enumerate(keys):
            self.parents.setdefault(key, keys[position - 1] if position else None)
        self.locked[seq.request_id] = keys

    def cache_blocks(self, seq):
        if seq.num_computed_tokens <= self.prefill_stop[seq.request_id]:
            self.insert(seq)

    def free(self, seq):
        if seq.num_computed_tokens >= seq.request.num_kv_tokens:
            self.insert(seq)
        del self.locked[seq.request_id], self.num_pages[seq.request_id]

    def usage(self):
        num_free = self.num_free() + len(self.evictable())
        return BlockUsage(self.num_blocks - num_free, num_free, len(self.parents))

    def max_request_blocks(self):
        return self.num_blocks
