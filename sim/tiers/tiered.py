"""An allocator with tiers behind it: what the GPU has lost is loaded, or computed if quicker."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Literal

from sim.tiers.price import PrefillCost
from sim.tiers.tier import Tier
from sim.types import Allocator, Load, PrefixMatch, Sequence, TellsEvictions
from sim.wrapped import Wrapped

Write = Literal["through", "evict"]


class Tiered(Wrapped):
    """Continues the run of blocks that a policy hits with those that lie in tiers below the GPU.

    **Lookup.** Behind the policy's own hits the run goes on as long as some tier has the next
    block, each read from the first tier that has it. Blocks that the GPU still has behind a gap are
    not looked for. What the policy always computes anew (the last token, or the block that holds
    it) is not loaded either.

    **Load or compute.** Where the source changes, and at both ends, the run may be cut: what is
    before the cut is loaded, the rest is computed. The cut with the shortest time is taken: how
    long the step then waits for its loads, plus the prefill of the rest by the cost model, alone in
    a step. Of equal ones, the one that loads most.

    **Time.** Links of different tiers work side by side. On one link, the loads of a step come one
    after another, each with its latency. The step begins when all are there, so everyone in it
    waits.

    **Room.** Loaded blocks are taken from the pool and cached as those that are computed; they may
    evict. A copy stays in the tier it was loaded from, and a load from SSD leaves one in host
    memory, if there is any (promotion).

    **Writes.** ``through``: a full block that a request has computed or hit is put into every tier
    at the end of the step. ``evict``: a block that leaves the GPU is put into the first tier, and
    one that leaves a tier into the next. What is there already is not written again. Tail first, as
    V1 releases blocks, so that the head of a prefix outlives its continuations; and when a request
    lets go, all its blocks count as used, in each tier.

    Sources. ``OffloadingConnector`` of vLLM (0.12): the run goes on behind the local one, blocks
    are taken as for computed tokens, hit blocks are written too, LRU over host memory. SGLang's
    HiCache (0.5.9): write-through and write-back, host memory between GPU and storage. LMCache
    (0.3): all local backends are written at once, and what is read from disk stays in host memory.

    Simplified. Loads block the step, as LMCache's connector does by default;
    ``OffloadingConnector`` loads while others go on, and HiCache layer by layer beside the forward
    pass. HiCache refuses to load fewer than 10 tokens, and the others load whatever is there; here
    the times decide. Nothing is prefetched while a request waits.

    Parameters
    ----------
    allocator
        The policy's. For ``evict`` it must be a `TellsEvictions`.
    tiers
        Fastest first; at most ``host`` and ``ssd``.
    write
        When blocks are written.
    prefill_ns
        See `sim.tiers.price`.
    recomputes_last_block
        Whether of a prompt that is cached whole the policy computes the last block again, or only
        the last token.
    """

    def __init__(
        self,
        allocator: Allocator,
        tiers: Many[Tier],
        write: Write,
        prefill_ns: PrefillCost,
        *,
        recomputes_last_block: bool = True,
    ) -> None:
        super().__init__(allocator)
        self.tiers = tuple(tiers)
        self._is_through = write == "through"
        self._prefill_ns = prefill_ns
        self._recomputes_last_block = recomputes_last_block
        self._num_written: dict[str, int] = {}
        self._evicted: list[int] = []
        if not self._is_through:
            assert isinstance(allocator, TellsEvictions)
            allocator.tell_evictions(self._evicted.append)

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Look up in the policy, then in the tiers, and decide what is worth loading."""
        match = self._allocator.match_prefix(seq)
        sources = self._sources(seq, match)
        if not sources:
            return match
        load = self._quickest(seq, match, sources)
        return replace(match, num_tokens=match.num_tokens + load.num_tokens, load=load)

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate what is loaded as what is computed, and load."""
        load = match.load
        if load is None:
            done = self._allocator.allocate(seq, match, num_tokens)
        else:
            match = replace(match, num_tokens=match.num_tokens - load.num_tokens, load=None)
            done = self._allocator.allocate(seq, match, num_tokens + load.num_tokens)
            if done and load.num_tokens:
                self._load(seq, match, load.num_tokens)
        # Only now: what is read is not driven out by what its own room costs.
        self._write_evicted()
        return done

    def cache_blocks(self, seq: Sequence) -> None:
        """Take note of computed tokens; write the blocks that are full through."""
        self._allocator.cache_blocks(seq)
        if self._is_through:
            stop = self._num_full_blocks(seq)
            start = self._num_written.get(seq.request_id, 0)
            if start < stop:
                for key in reversed(seq.block_keys[start:stop]):
                    for level in range(len(self.tiers)):
                        self._put(level, key)
                self._num_written[seq.request_id] = stop

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks; in the tiers they were used just now."""
        self._num_written.pop(seq.request_id, None)
        for key in reversed(seq.block_keys[: self._num_full_blocks(seq)]):
            for tier in self.tiers:
                tier.touch(key)
        self._allocator.free(seq)

    def take_load_ns(self) -> int:
        """Tell how long the step waits for its loads; the next one begins with idle links."""
        load_ns = max(tier.queued_ns for tier in self.tiers)
        for tier in self.tiers:
            tier.queued_ns = 0
        return load_ns

    def _num_full_blocks(self, seq: Sequence) -> int:
        return min(seq.num_computed_tokens // self.block_size, len(seq.block_keys))

    def _source(self, key: int) -> int | None:
        """Find the first tier that has a block."""
        for level, tier in enumerate(self.tiers):
            if key in tier:
                return level
        return None

    def _sources(self, seq: Sequence, match: PrefixMatch) -> list[int]:
        """Find the tiers of the blocks behind a match, as far as the run goes."""
        sources: list[int] = []
        if match.num_tokens >= seq.num_tokens - 1:
            return sources
        num_tokens = seq.num_tokens - self._recomputes_last_block
        stop = min(num_tokens // self.block_size, len(seq.block_keys))
        for key in seq.block_keys[match.num_tokens // self.block_size : stop]:
            source = self._source(key)
            if source is None:
                break
            sources.append(source)
        return sources

    def _quickest(self, seq: Sequence, match: PrefixMatch, sources: list[int]) -> Load:
        """Choose how many blocks of the run are loaded."""
        cuts = [0, *_changes(sources), len(sources)]
        start = match.num_tokens // self.block_size
        # Tokens present with the blocks before each cut.
        present = [min((start + cut) * self.block_size, seq.num_tokens - 1) for cut in cuts]
        present[0] = match.num_tokens
        counts, tokens = [0] * len(self.tiers), [0] * len(self.tiers)
        best, shortest = Load(0, 0, 0, 0), None
        for index, cut in enumerate(cuts):
            if index:
                source = sources[cut - 1]
                counts[source] += cut - cuts[index - 1]
                tokens[source] += present[index] - present[index - 1]
            ready = [tier.ready_ns(count) for tier, count in zip(self.tiers, counts, strict=True)]
            rest = seq.num_tokens - present[index]
            time_ns = max(ready) + self._prefill_ns(seq, rest, present[index])
            if shortest is None or time_ns <= shortest:
                shortest = time_ns
                by_name = dict(zip((tier.name for tier in self.tiers), tokens, strict=True))
                best = Load(
                    by_name.get("host", 0),
                    by_name.get("ssd", 0),
                    present[-1] - present[index],
                    max((at for at, count in zip(ready, counts, strict=True) if count), default=0),
                )
        return best

    def _load(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> None:
        """Read the blocks behind a match that ``num_tokens`` take, and promote them."""
        start = match.num_tokens // self.block_size
        stop = -(-(match.num_tokens + num_tokens) // self.block_size)
        run = [(key, self._source(key)) for key in seq.block_keys[start:stop]]
        for level, tier in enumerate(self.tiers):
            tier.read(sum(source == level for _, source in run))
        for key, source in reversed(run):
            assert source is not None
            self.tiers[source].touch(key)
        for key, source in reversed(run):
            for level in range(source or 0):
                self._put(level, key)

    def _put(self, level: int, key: int) -> None:
        """Write to a tier; where blocks go down on eviction, so does the one that makes room."""
        victim = self.tiers[level].put(key)
        if victim is not None and not self._is_through and level + 1 < len(self.tiers):
            self._put(level + 1, victim)

    def _write_evicted(self) -> None:
        for key in self._evicted:
            self._put(0, key)
        self._evicted.clear()


def _changes(sources: list[int]) -> list[int]:
    """Find where a block comes from another tier than the one before it."""
    return [at for at in range(1, len(sources)) if sources[at] != sources[at - 1]]
