"""vLLM V1, 0.8.5: free queue through the blocks, hits as soon as a block is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, ClassVar

from policies._free_queue import POINTERS_PER_MOVE, Block, FreeQueue
from sim.types import BlockUsage, Clock, OperationCounts, PoolRules, PrefixMatch, Sequence


class VllmV1:
    """Block pool and cache manager of vLLM V1.

    What makes its bookkeeping cheap: a free cached block keeps its place in a linked list that
    runs through the blocks, so a hit unlinks it in constant time and no structure is built for
    eviction; a full block is registered once, when it is allocated; a duplicate of a cached block
    is kept, so that block tables only ever grow at the end.

    Blocks of a request are released tail first, which makes a prefix outlive its continuations.

    Source: ``KVCacheManager``, ``BlockPool`` and ``FreeKVCacheBlockQueue`` of vLLM 0.8.5.post1.

    Parameters
    ----------
    num_blocks
        Usable blocks. The null block comes on top.
    block_size
        Tokens in a block.
    clock
        Not used: the order of the queue is the order of release.
    null_block
        Keep block 0 back as vLLM does, so that ids start at 1. Without it they start at 0, as in
        drawings of the design.
    """

    source: ClassVar[str] = "vLLM 0.8.5.post1, V1 KVCacheManager"
    overhead_profiles: ClassVar[dict[str, str]] = {"vllm": "vllm-0.8.5-v1", "own": "own-vllm_v1"}
    variants: ClassVar[tuple[str, ...]] = (
        "v1-0.8.5",
        "scheduler-v1-0.8.5",
        "vllm-0.8.5-v1-scheduler",
    )
    num_reserved_blocks: ClassVar[int] = 1
    pool_rules: ClassVar[PoolRules] = PoolRules(caches=True)

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        null_block: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = OperationCounts()
        self.first_block_id = 1 if null_block else 0
        self._blocks = [Block(block_id) for block_id in range(self.first_block_id + num_blocks)]
        self.free_queue = FreeQueue(self._blocks[self.first_block_id :])
        # Duplicates are kept, hence several blocks under one key; the oldest is the one hit.
        self.cached: dict[int, dict[int, Block]] = {}
        self._num_cached_blocks = 0
        self.request_blocks: dict[str, list[Block]] = {}
        # How many leading blocks of a request are registered already.
        self._num_registered: dict[str, int] = {}
        self._on_evict: Callable[[int], None] | None = None

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Walk the keys until one is not cached; the last token is always left to compute."""
        keys = seq.block_keys
        block_size = self.block_size
        num_candidates = min((seq.num_tokens - 1) // block_size, len(keys))
        block_ids = []
        for index in range(num_candidates):
            block = self._lookup(keys[index])
            if block is None:
                break
            block_ids.append(block.block_id)
        return PrefixMatch(
            block_ids=tuple(block_ids),
            num_tokens=len(block_ids) * block_size,
            num_hit_blocks=len(block_ids),
            num_queried_blocks=num_candidates,
        )

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Take hits out of the queue, then victims from its front, then register full blocks."""
        block_size = self.block_size
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        request_blocks = self.request_blocks.get(seq.request_id)
        num_held = len(match.block_ids) + (len(request_blocks) if request_blocks else 0)
        num_new_blocks = -(-num_total // block_size) - num_held
        hits = [self._blocks[block_id] for block_id in match.block_ids]
        if num_new_blocks > 0 or hits:
            # A hit that nobody holds stands in the free queue: it cannot serve as a new block.
            num_evictable_hits = sum(block.ref_count == 0 for block in hits)
            if num_new_blocks > self.free_queue.num_blocks - num_evictable_hits:
                return False
            if request_blocks is None:
                request_blocks = self.request_blocks[seq.request_id] = []
                self._num_registered[seq.request_id] = len(hits)
                self.counts.dict_operations += 2
                self.counts.objects_created += 1
            for block in hits:
                if block.ref_count == 0:
                    self.free_queue.remove(block)
                block.ref_count += 1
            request_blocks.extend(hits)
            if num_new_blocks > 0:
                self._take_free_blocks(request_blocks, num_new_blocks)
            if num_evictable_hits:
                self.counts.pointer_updates += POINTERS_PER_MOVE * num_evictable_hits
        # Its blocks, and how many of them are registered.
        self.counts.dict_operations += 2
        self._register_full_blocks(seq, num_total)
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Do nothing: full blocks were registered when they were allocated."""

    def free(self, seq: Sequence) -> None:
        """Release tail first."""
        blocks = self.request_blocks.pop(seq.request_id, [])
        self._num_registered.pop(seq.request_id, None)
        num_free_before = self.free_queue.num_blocks
        self._release(reversed(blocks))
        counts = self.counts
        counts.dict_operations += 2
        counts.pointer_updates += POINTERS_PER_MOVE * (self.free_queue.num_blocks - num_free_before)

    def usage(self) -> BlockUsage:
        """Count blocks by state; the null block is not counted."""
        free = self.free_queue.num_blocks
        return BlockUsage(self.num_blocks - free, free, self._num_cached_blocks)

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return [block.block_id for block in self.request_blocks.get(seq.request_id, ())]

    def max_request_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    def num_free_blocks_beside(self, match: PrefixMatch) -> int:
        """Count the free blocks that are no hits of ``match``."""
        blocks = self._blocks
        return self.free_queue.num_blocks - sum(blocks[i].ref_count == 0 for i in match.block_ids)

    def num_common_prefix_blocks(self, seq: Sequence, num_running: int) -> int:
        """Count the leading blocks of ``seq`` that all running sequences hold."""
        blocks = self.request_blocks.get(seq.request_id, ())
        shared = takewhile(lambda block: block.ref_count == num_running, blocks)
        return sum(1 for _ in shared)

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with every key whose last block is reused."""
        self._on_evict = listener

    def snapshot(self) -> dict[str, Any]:
        """Free queue in order, ids of blocks with a key, number of free blocks."""
        return {
            "free_queue": [block.block_id for block in self.free_queue],
            "cached_blocks": [b.block_id for b in self._blocks if b.key is not None],
            "num_free_blocks": self.free_queue.num_blocks,
        }

    def why_refused(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> str:
        """Say for a reader what an allocation would be refused for."""
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        held = len(match.block_ids) + len(self.request_blocks.get(seq.request_id, ()))
        num_new = -(-num_total // self.block_size) - held
        num_hits = sum(self._blocks[block_id].ref_count == 0 for block_id in match.block_ids)
        hits = f", {num_hits} of which it would hit" if num_hits else ""
        return f"No room: it needs {num_new} more and {self.free_queue.num_blocks} are free{hits}."

    def free_structures(self) -> dict[str, list[str]]:
        """Show the free queue for a reader, next victim first."""
        return {"free queue": [str(block.block_id) for block in self.free_queue]}

    def _release(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_queue.append(block)

    def _take_free_blocks(self, request_blocks: list[Block], num_blocks: int) -> None:
        num_cached_before, num_keys_before = self._num_cached_blocks, len(self.cached)
        for _ in range(num_blocks):
            request_blocks.append(self._take_free_block())
        num_evicted = num_cached_before - self._num_cached_blocks
        counts = self.counts
        counts.pointer_updates += POINTERS_PER_MOVE * num_blocks
        if num_evicted:
            num_lost_keys = num_keys_before - len(self.cached)
            counts.evictions += num_evicted
            counts.dict_operations += 2 * num_evicted + num_lost_keys

    def _take_free_block(self) -> Block:
        block = self.free_queue.popleft()
        if block.key is not None:
            self._unregister(block.key, block)
            block.key = None
            self._num_cached_blocks -= 1
        block.ref_count = 1
        return block

    def _register_full_blocks(self, seq: Sequence, num_tokens: int) -> None:
        """Make the blocks that ``num_tokens`` fill hittable, before they are even computed."""
        start = self._num_registered[seq.request_id]
        stop = min(num_tokens // self.block_size, len(seq.block_keys))
        if start >= stop:
            return
        blocks = self.request_blocks[seq.request_id]
        for index in range(start, stop):
            block = blocks[index]
            block.key = seq.block_keys[index]
            self._register(block.key, block)
        self._num_cached_blocks += stop - start
        self._num_registered[seq.request_id] = stop
        counts = self.counts
        counts.dict_operations += 2 + 2 * (stop - start)
        counts.objects_created += stop - start

    def _lookup(self, key: int) -> Block | None:
        same = self.cached.get(key)
        return next(iter(same.values())) if same else None

    def _register(self, key: int, block: Block) -> None:
        self.cached.setdefault(key, {})[block.block_id] = block

    def _unregister(self, key: int, block: Block) -> None:
        same = self.cached[key]
        del same[block.block_id]
        if not same:
            del self.cached[key]
            if self._on_evict is not None:
                self._on_evict(key)


POLICY = VllmV1
