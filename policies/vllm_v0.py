"""vLLM V0, 0.8.5: LRU evictor with a heap, deduplication, hits only on computed blocks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, ClassVar

from policies._evictors import BlockMetadata, Evictor, HeapEvictor
from sim.errors import UsageError
from sim.types import BlockUsage, Clock, OperationCounts, PrefixMatch, Sequence


class BlockTracker:
    """State of a block in use: when it was last accessed, whether its KV is computed."""

    __slots__ = ("computed", "last_accessed_ns")

    def __init__(self) -> None:
        self.computed = False
        self.last_accessed_ns = -1


class VllmV0:
    """Prefix caching block allocator of vLLM V0.

    A block that fills is *promoted*: if its content is cached already, the request lets its own
    copy go and shares the cached one, otherwise the block is registered under its key, to be hit
    once a step has computed it. A released block goes to the evictor if it is registered and back
    to the plain free list, at its front, if it never filled; the free list is used up before
    anything is evicted.

    Admission takes blocks for all tokens known, even where the prompt is then computed in chunks;
    it asks for room as though nothing were hit and keeps ``watermark`` of the pool free. A decoding
    request needs a free block for every block that it touches, even one that it already holds.

    Time of last access is written to a request's blocks when the request lets go of them, as the
    time at which it was last scheduled. Ties between blocks accessed at the same time: the longest
    prefix first, then the lowest block id.

    vLLM 0.8.5 looks a prefix up by bisection, as though a cached block implied that all before it
    are cached. Mostly they are, but a request that lets go late of a prefix that it was last
    scheduled with early can make the head older than a tail that others used since; the head is
    evicted first, and the bisection may then count blocks that are gone. ``lookup="vllm"`` does as
    vLLM does; ``lookup="walk"`` counts the leading run that is really there.

    Source: ``PrefixCachingBlockAllocator``, ``SelfAttnBlockSpaceManager`` and ``LRUEvictor`` of
    vLLM 0.8.5.post1.

    Parameters
    ----------
    num_blocks
        Blocks in the pool, all of them usable.
    block_size
        Tokens in a block.
    clock
        Simulated time, ns.
    watermark
        Share of the pool that an admission leaves free.
    lookup
        ``vllm`` or ``walk``.

    Attributes
    ----------
    num_block_queries, num_block_hits
        vLLM V0's own counters: full blocks asked for while allocating, and found.
    """

    source: ClassVar[str] = "vLLM 0.8.5.post1, V0 PrefixCachingBlockAllocator"
    overhead_profiles: ClassVar[dict[str, str]] = {"vllm": "vllm-0.8.5-v0", "own": "own-vllm_v0"}
    variants: ClassVar[tuple[str, ...]] = ("v0-0.8.5",)
    num_reserved_blocks: ClassVar[int] = 0
    # Of a fully cached prompt one token is computed, in place.
    recomputes_last_block: ClassVar[bool] = False
    evictor_class: ClassVar[type[Evictor]] = HeapEvictor

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        watermark: float = 0.01,
        lookup: str = "vllm",
    ) -> None:
        if not 0 <= watermark < 1:
            raise UsageError(
                f"--policy-arg watermark={watermark} is outside [0, 1): it is the share of blocks "
                "that an admission leaves free; vLLM's default is 0.01."
            )
        if lookup not in ("vllm", "walk"):
            raise UsageError(
                f"--policy-arg lookup={lookup} is not a way to look a prefix up: choose 'vllm' "
                "(as the release does) or 'walk' (the leading run that is really cached)."
            )
        self.lookup = lookup
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = OperationCounts()
        self.num_watermark_blocks = int(watermark * num_blocks)
        self.num_block_queries = 0
        self.num_block_hits = 0
        self.hashless_free = deque(range(num_blocks))
        self.evictor = self.evictor_class(self.counts)
        self.cached: dict[int, int] = {}
        self.ref_counts = [0] * num_blocks
        self.trackers: dict[int, BlockTracker] = {}
        self.request_blocks: dict[str, list[int]] = {}
        self._clock = clock
        # Leading blocks of a request that are full and registered (or shared).
        self._num_promoted: dict[str, int] = {}
        self._num_admitted_tokens: dict[str, int] = {}
        self._last_access_ns: dict[str, int] = {}
        # Registered in this step, to be hit from the next one on.
        self._touched: list[int] = []
        self._on_evict: Callable[[int], None] | None = None

    @staticmethod
    def num_blocks_to_hold(
        num_blocks: int, num_requests: int, *, watermark: float = 0.01, **_: object
    ) -> int:
        """Size a pool in which so many blocks of so many requests never want for room.

        The watermark stays free, and a decoding request asks for a free block for one that it has.
        """
        return math.ceil((num_blocks + num_requests) / (1 - watermark)) + 1

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Find how many leading blocks are cached and computed.

        A fully cached prompt is found whole; one token of it is computed all the same.
        """
        keys = seq.block_keys
        num_full_blocks = min(seq.num_tokens // self.block_size, len(keys))
        if self.lookup == "vllm":
            num_hits = self._bisect(keys, num_full_blocks)
            block_ids = self._leading_run(keys, num_hits)
        else:
            block_ids = self._leading_run(keys, num_full_blocks)
            num_hits = len(block_ids)
        return PrefixMatch(
            block_ids=tuple(block_ids),
            num_tokens=min(num_hits * self.block_size, seq.num_tokens - 1),
            num_hit_blocks=num_hits,
            num_queried_blocks=num_full_blocks,
        )

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Share what is cached, take what is not, promote what fills."""
        request_id = seq.request_id
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        blocks = self.request_blocks.get(request_id)
        if blocks is None:
            num_required = -(-seq.num_tokens // self.block_size)
            if self.num_free_blocks - num_required < self.num_watermark_blocks:
                return False
            blocks = self.request_blocks[request_id] = []
            self._num_promoted[request_id] = 0
            self._num_admitted_tokens[request_id] = seq.num_tokens
            self.counts.dict_operations += 2
            self.counts.objects_created += 1
        elif num_total > self._num_admitted_tokens[request_id]:
            num_touched = self._num_touched_blocks(seq.num_computed_tokens, num_tokens)
            if num_touched > self.num_free_blocks:
                return False
        self._last_access_ns[request_id] = self._clock()
        # Its blocks, what it was admitted with (looked up or noted), its last access, and how many
        # blocks are promoted.
        self.counts.dict_operations += 4
        num_promoted = self._num_promoted[request_id]
        num_full_blocks = min(num_total // self.block_size, len(seq.block_keys))
        num_blocks = -(-max(num_total, seq.num_tokens) // self.block_size)
        if num_full_blocks > num_promoted or num_blocks > len(blocks):
            keys = seq.block_keys[num_promoted:num_full_blocks]
            self._num_promoted[request_id] = num_promoted + len(keys)
            self._fill(blocks, num_promoted, keys, num_blocks)
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Let the blocks registered in this step be hit from now on."""
        if not self._touched:
            return
        self.counts.dict_operations += len(self._touched)
        for block_id in self._touched:
            tracker = self.trackers.get(block_id)
            if tracker is not None:
                tracker.computed = True
        self._touched.clear()

    def free(self, seq: Sequence) -> None:
        """Release head first: full blocks to the evictor, the rest to the free list."""
        blocks = self.request_blocks.pop(seq.request_id, [])
        num_promoted = self._num_promoted.pop(seq.request_id, 0)
        self._num_admitted_tokens.pop(seq.request_id, None)
        last_access_ns = self._last_access_ns.pop(seq.request_id, 0)
        num_evictable, num_hashless = len(self.evictor.free_table), len(self.hashless_free)
        for block_id in blocks:
            self.trackers[block_id].last_accessed_ns = last_access_ns
        for index, block_id in enumerate(blocks):
            if index < num_promoted:
                self._release_cached(block_id, seq.block_keys[index], index)
            else:
                self._release_hashless(block_id)
        num_added = len(self.evictor.free_table) - num_evictable
        num_released = num_added + len(self.hashless_free) - num_hashless
        # Four maps of requests; the time of each block; the tracker of each that nobody holds.
        counts = self.counts
        counts.dict_operations += 4 + len(blocks) + num_released
        counts.objects_created += num_added
        self.evictor.count(num_added=num_added)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self.hashless_free) + len(self.evictor.free_table)

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        free = self.num_free_blocks
        return BlockUsage(self.num_blocks - free, free, len(self.cached))

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return list(self.request_blocks.get(seq.request_id, ()))

    def max_request_blocks(self) -> int:
        """All but the watermark: beyond it a preempted request could never come back."""
        return self.num_blocks - self.num_watermark_blocks

    def num_common_prefix_blocks(self, seq: Sequence, num_running: int) -> int:
        """Count the leading blocks of ``seq`` that all running sequences hold."""
        blocks = self.request_blocks.get(seq.request_id, ())
        shared = takewhile(lambda block_id: self.ref_counts[block_id] == num_running, blocks)
        return sum(1 for _ in shared)

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with every key that the evictor gives up."""
        self._on_evict = listener

    def snapshot(self) -> dict[str, Any]:
        """Plain free list, evictor's order, ids of registered blocks, number of free blocks."""
        return {
            "hashless_free": list(self.hashless_free),
            "evictor": self.evictor.snapshot(),
            "cached_blocks": sorted(self.cached.values()),
            "num_free_blocks": self.num_free_blocks,
        }

    def why_refused(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> str:
        """Say for a reader what an allocation would be refused for."""
        if seq.request_id in self.request_blocks:
            num_touched = self._num_touched_blocks(seq.num_computed_tokens, num_tokens)
            return (
                f"No room: it writes to {num_touched}, asks for as many free ones, and "
                f"{self.num_free_blocks} are free."
            )
        num_asked = -(-seq.num_tokens // self.block_size)
        kept = f", {self.num_watermark_blocks} of which stay free (watermark)"
        return (
            f"No room: it asks for all {num_asked} blocks of its prompt as though nothing were "
            f"hit, and {self.num_free_blocks} are free{kept if self.num_watermark_blocks else ''}."
        )

    def free_structures(self) -> dict[str, list[str]]:
        """Show the plain free list, next block first, and the evictor's structures for a reader."""
        never_filled = [str(block_id) for block_id in self.hashless_free]
        return {"free list, used up first": never_filled, **self.evictor.structures()}

    def _num_touched_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Blocks that an append writes to, the partly filled last one included."""
        if num_tokens == 1:  # most decode
            return 1
        room = self.block_size - num_computed_tokens % self.block_size
        return 1 + max(0, -(-(num_tokens - room) // self.block_size))

    def _bisect(self, keys: list[int], stop: int) -> int:
        """Search for the first miss as if no hit could follow it, O(log blocks)."""
        return bisect_left(range(stop), True, key=lambda index: not self._is_computed(keys[index]))

    def _leading_run(self, keys: list[int], stop: int) -> list[int]:
        """Walk from the head to the first miss."""
        block_ids = []
        for index in range(stop):
            if not self._is_computed(keys[index]):
                break
            block_ids.append(self.cached[keys[index]])
        return block_ids

    def _is_computed(self, key: int) -> bool:
        block_id = self.cached.get(key)
        if block_id is None:
            return False
        tracker = self.trackers.get(block_id)
        return tracker.computed if tracker is not None else block_id in self.evictor.free_table

    def _fill(self, blocks: list[int], num_promoted: int, keys: list[int], num_blocks: int) -> None:
        """Promote the next blocks, whose keys are given, and take others up to ``num_blocks``."""
        num_held, num_cached, num_touched = len(blocks), len(self.cached), len(self._touched)
        num_evictable = len(self.evictor.free_table)
        num_queries, num_hits = self.num_block_queries, self.num_block_hits
        for index, key in enumerate(keys, num_promoted):
            if index < len(blocks):
                blocks[index] = self._promote(blocks[index], key)
            else:
                blocks.append(self._allocate_full_block(key))
        while len(blocks) < num_blocks:
            blocks.append(self._take_block())
        # Counted once, by what has changed; each by itself takes up to a fifth of the time.
        num_queries = self.num_block_queries - num_queries
        num_hits = self.num_block_hits - num_hits
        num_registered = len(self._touched) - num_touched
        num_swapped = len(keys) - num_hits - num_registered
        num_taken = len(blocks) - num_held - num_hits
        num_evicted = num_registered - (len(self.cached) - num_cached)
        num_revived = num_evictable - len(self.evictor.free_table) - num_evicted
        if num_evicted or num_revived:
            self.counts.evictions += num_evicted
            self.evictor.count(num_removed=num_revived, num_evicted=num_evicted)
        counts = self.counts
        # A tracker for each block taken, or taken back from the evictor.
        counts.objects_created += num_taken + num_revived
        # How many are promoted; keys looked up, registered, or found and the own copy let go;
        # trackers; keys of evicted blocks.
        counts.dict_operations += (
            1 + num_queries + 2 * num_registered + 2 * num_swapped + num_taken + num_revived
            + num_evicted
        )  # fmt: skip

    def _allocate_full_block(self, key: int) -> int:
        """Share the cached copy if there is one, before a block is taken."""
        self.num_block_queries += 1
        cached_id = self.cached.get(key)
        if cached_id is not None:
            self.num_block_hits += 1
            self._hold_cached(cached_id)
            return cached_id
        return self._promote(self._take_block(), key)

    def _promote(self, block_id: int, key: int) -> int:
        """Register a block that has just filled, or swap it for the cached copy."""
        cached_id = self.cached.get(key)
        if cached_id is None:
            self.cached[key] = block_id
            self._touched.append(block_id)
            return block_id
        self._release_hashless(block_id)
        self._hold_cached(cached_id)
        return cached_id

    def _take_block(self) -> int:
        """Take from the free list and, once that is empty, evict."""
        if self.hashless_free:
            block_id = self.hashless_free.popleft()
        else:
            block_id, key = self.evictor.evict()
            del self.cached[key]
            if self._on_evict is not None:
                self._on_evict(key)
        self.ref_counts[block_id] = 1
        self.trackers[block_id] = BlockTracker()
        return block_id

    def _hold_cached(self, block_id: int) -> None:
        self.ref_counts[block_id] += 1
        if self.ref_counts[block_id] == 1:
            self.evictor.remove(block_id)
            tracker = self.trackers[block_id] = BlockTracker()
            tracker.computed = True

    def _release_cached(self, block_id: int, key: int, index: int) -> None:
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            tracker = self.trackers.pop(block_id)
            num_hashed_tokens = (index + 1) * self.block_size
            self.evictor.add(
                block_id, BlockMetadata(key, num_hashed_tokens, tracker.last_accessed_ns)
            )

    def _release_hashless(self, block_id: int) -> None:
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            del self.trackers[block_id]
            self.hashless_free.appendleft(block_id)


POLICY = VllmV0
