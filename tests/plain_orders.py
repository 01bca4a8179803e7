"""Plain twins of V1's allocator with an order of eviction: slow, and without any structure.

The pool knows keys only, no blocks, and looks at all of them for every victim; the orders are the
definitions in docs/policies.md.
"""

import math

from sim.types import BlockUsage, PrefixMatch


class PlainPool:
    """V1's pool as a set of cached keys and a count of blocks that hold nothing."""

    def __init__(self, num_blocks, block_size, clock, order, *, leaf_only):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.clock, self.order, self.leaf_only = clock, order, leaf_only
        self.num_empty, self.num_unkeyed_used = num_blocks, 0
        self.parents, self.num_holders, self.evicted = {}, {}, []
        self.tables, self.num_registered, self.last_hits = {}, {}, {}
        order.pool = self

    def free_keys(self):
        return [key for key in self.parents if not self.num_holders[key]]

    def candidates(self):
        parents = set(self.parents.values()) if self.leaf_only else set()
        return [key for key in self.free_keys() if key not in parents]

    def match_prefix(self, seq):
        num_queried = min((seq.num_tokens - 1) // self.block_size, len(seq.block_keys))
        keys, num_hits = seq.block_keys[:num_queried], 0
        while num_hits < num_queried and keys[num_hits] in self.parents:
            num_hits += 1
        return PrefixMatch(
            tuple(range(num_hits)), num_hits * self.block_size, num_hits, num_queried
        )

    def allocate(self, seq, match, num_tokens):
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        num_needed = -(-num_total // self.block_size)
        name, keys = seq.request_id, seq.block_keys
        hits = keys[: len(match.block_ids)]
        num_new = num_needed - len(hits) - len(self.tables.get(name, ()))
        num_free = self.num_empty + sum(key not in hits for key in self.free_keys())
        if num_new > num_free:
            return False
        decodes = name in self.tables and seq.num_computed_tokens >= seq.request.num_prompt_tokens
        if name not in self.tables:
            self.tables[name], self.num_registered[name] = [], len(hits)
            self.last_hits[name] = hits[-1] if hits else None
        for position in reversed(range(len(hits))):
            self.share(hits[position], position, seq)
        table = self.tables[name]
        table += hits
        num_full = min(num_total // self.block_size, len(keys))
        filled = range(self.num_registered[name], num_full)
        num_held = len(table)
        table += [None] * (num_needed - num_held)
        order = range(num_needed) if decodes else reversed(range(num_needed))
        for position in order:
            is_new = position >= num_held
            if not is_new and position not in filled:
                continue
            if position not in filled or (is_new and decodes):
                self.take()
                is_new = False
            if position in filled:
                self.fill(table, keys, position, seq, is_new)
        self.num_registered[name] = max(self.num_registered[name], num_full)
        return True

    def fill(self, table, keys, position, seq, is_new):
        """Give a full block its key, or the cached one of that key; a new one is not taken yet."""
        key = table[position] = keys[position]
        if key in self.parents:
            if not is_new:
                self.num_unkeyed_used -= 1
                self.num_empty += 1
            self.share(key, position, seq)
            return
        self.order.missed(key)
        if is_new:
            self.take()
        self.num_unkeyed_used -= 1
        self.parents[key], self.num_holders[key] = keys[position - 1] if position else None, 1
        self.order.inserted(key, position, seq)

    def share(self, key, position, seq):
        self.num_holders[key] += 1
        self.order.hit(key, position, seq)

    def take(self):
        if self.num_empty:
            self.num_empty -= 1
        else:
            candidates = self.candidates()
            victim = self.order.victim(candidates)
            assert victim in candidates
            del self.parents[victim], self.num_holders[victim]
            self.evicted.append(victim)
        self.num_unkeyed_used += 1

    def cache_blocks(self, seq):
        pass

    def free(self, seq):
        table = self.tables.pop(seq.request_id, [])
        for position in reversed(range(len(table))):
            key = table[position]
            if key is None:
                self.num_unkeyed_used -= 1
                self.num_empty += 1
            else:
                self.num_holders[key] -= 1
                if not self.num_holders[key]:
                    self.order.released(key, position, seq)

    def usage(self):
        num_used = self.num_unkeyed_used + len(self.parents) - len(self.free_keys())
        return BlockUsage(num_used, self.num_blocks - num_used, len(self.parents))

    def block_table(self, seq):
        return self.tables.get(seq.request_id, [])

    def max_request_blocks(self):
        return self.num_blocks


class PlainOrder:
    """Ranks: the smallest goes, of equals the one ranked first."""

    def __init__(self, capacity, block_size, **options):
        self.capacity, self.block_size, self.options = capacity, block_size, options
        self.ranks, self.num_ranked, self.counts = {}, 0, {}
        self.start()

    def start(self):
        pass

    def rank(self, key, *rank):
        self.num_ranked += 1
        self.ranks[key] = (*rank, self.num_ranked)

    def missed(self, key):
        pass

    def inserted(self, key, position, seq):
        self.counts[key] = 1
        self.used(key, position, seq)

    def hit(self, key, position, seq):
        self.counts[key] += 1
        self.used(key, position, seq)

    def released(self, key, position, seq):
        pass

    def victim(self, candidates):
        return min(candidates, key=self.ranks.get)


class PlainLru(PlainOrder):
    def used(self, key, position, seq):
        self.rank(key)

    def released(self, key, position, seq):
        self.rank(key)


class PlainGreedyDual(PlainOrder):
    def start(self):
        self.clock = 0.0

    def used(self, key, position, seq):
        attention = self.options.get("attention", 0.0)
        self.rank(key, self.clock + self.counts[key] * (1 + attention * self.block_size * position))

    def victim(self, candidates):
        key = super().victim(candidates)
        if self.options.get("ageing", True):
            self.clock = max(self.clock, self.ranks[key][0])
        return key


class PlainLengthAware(PlainOrder):
    def used(self, key, position, seq):
        self.rank(key, self.counts[key], -position)


class PlainTailLru(PlainOrder):
    def used(self, key, position, seq):
        budget = seq.num_tokens + self.options["next_prompt"] - self.options["threshold"]
        self.rank(key, position * self.block_size < max(0, budget))

    def released(self, key, position, seq):
        self.used(key, position, seq)


class PlainMq(PlainOrder):
    def start(self):
        self.time, self.expiry = 0, {}
        self.remembered, self.recalled = [], {}

    def missed(self, key):
        remembered = dict(self.remembered)
        self.recalled[key] = remembered.pop(key, 0)
        self.remembered = list(remembered.items())

    def inserted(self, key, position, seq):
        self.counts[key] = self.recalled[key] + 1
        self.used(key, position, seq)

    def used(self, key, position, seq):
        top = self.options["queues"] - 1
        self.enter(key, min(top, int(math.log2(self.counts[key]))))
        self.time += 1
        for level in range(1, top + 1):
            line = [k for k in self.pool.candidates() if k != key and self.ranks[k][0] == level]
            oldest = min(line, key=self.ranks.get, default=None)
            if oldest is not None and self.expiry[oldest] < self.time:
                self.enter(oldest, level - 1)

    def enter(self, key, level):
        self.rank(key, level)
        self.expiry[key] = self.time + self.options["lifetime"]

    def victim(self, candidates):
        key = super().victim(candidates)
        self.remembered.append((key, self.counts[key]))
        if len(self.remembered) > int(self.capacity * self.options["history"]):
            del self.remembered[0]
        return key


class PlainWorkloadAware(PlainOrder):
    def start(self):
        self.made_in, self.last, self.reuses, self.lives = {}, {}, [], []

    def turn_of(self, seq):
        before = self.pool.last_hits[seq.request_id]
        turn = 0 if before is None else self.made_in[before] + 1
        return min(turn, self.options["max_turn"] - 1)

    def inserted(self, key, position, seq):
        self.made_in[key] = self.turn_of(seq)
        self.used(key, position, seq)

    def hit(self, key, position, seq):
        since, _, turn = self.last[key]
        self.reuses.append((turn, self.pool.clock() - since))
        self.used(key, position, seq)

    def used(self, key, position, seq):
        self.last[key] = self.pool.clock(), position, self.turn_of(seq)
        self.rank(key)

    def victim(self, candidates):
        now_ns = self.pool.clock()
        life_ns = max(1.0, sum(self.lives) / len(self.lives) if self.lives else 0)

        def log_probability(idle_ns, turn):
            times = [t for w, t in self.reuses if w == turn] or [t for _, t in self.reuses]
            if not sum(times):
                return -math.inf
            mean_ns = sum(times) / len(times)
            return -idle_ns / mean_ns + math.log(-math.expm1(-life_ns / mean_ns))

        def rank(key):
            since, position, turn = self.last[key]
            likely = log_probability(now_ns - since, turn)
            return likely, since, -position, turn, self.ranks[key]

        key = min(candidates, key=rank)
        self.lives.append(now_ns - self.last[key][0])
        return key


class Told(PlainOrder):
    """Evicts what it is told to."""

    def used(self, key, position, seq):
        pass

    def victim(self, candidates):
        return next(self.options["victims"])
