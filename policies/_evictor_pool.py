"""V1's allocator with an exchangeable order of eviction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, ClassVar

from policies._free_queue import Block
from policies._orders import Access, Order
from sim.types import BlockUsage, Clock, OperationCounts, PrefixMatch, Sequence


class EvictorPool:
    """Block pool of vLLM V1 in which an `Order` chooses what is evicted.

    As in V1, a hit is a leading run of cached blocks, the last token of a prompt is computed anew,
    a full block can be hit as soon as it is allocated, and blocks that hold nothing that could be
    hit are used up first (0.33). Unlike V1, a key has one block: a request that fills a block of a
    prefix that is cached by then shares the cached one, as in V0, and lets its own go. So whoever
    holds a block holds all the blocks before it.

    The order is told of a prompt's blocks tail first, so that of blocks touched together the head
    of a prefix is the youngest; of decoded blocks as they come.

    **Evicting a parent.** A block behind one that is gone cannot be hit. An order knows nothing of
    that and may evict a block whose continuations are cached; they then take up room in vain until
    they are evicted themselves or the parent is computed again. With ``leaf_only`` a block with
    cached continuations is never evicted.

    Parameters
    ----------
    num_blocks, block_size, clock
        As for every policy.
    order
        Fresh, with a capacity of ``num_blocks``.
    leaf_only
        Evict only blocks that no cached block continues.

    Attributes
    ----------
    num_parents_evicted
        Evictions of a block that still had cached continuations.
    """

    overhead_profiles: ClassVar[dict[str, str]] = {"vllm": "vllm-0.33-v1"}
    variants: ClassVar[tuple[str, ...]] = ()
    num_reserved_blocks: ClassVar[int] = 1

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, order: Order, *, leaf_only: bool
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = OperationCounts()
        self.order = order
        self.leaf_only = leaf_only
        self.num_parents_evicted = 0
        self._clock = clock
        self._blocks = [Block(block_id) for block_id in range(num_blocks + 1)]
        self._unkeyed_free = deque(self._blocks[1:])
        self._num_used = 0
        self.cached: dict[int, Block] = {}
        # Of cached blocks: the key before theirs; and how many cached blocks continue a key, cached
        # itself or not.
        self._parents: dict[int, int] = {}
        self._num_children: dict[int, int] = {}
        self.request_blocks: dict[str, list[Block]] = {}
        self._num_registered: dict[str, int] = {}
        self._last_hits: dict[str, int | None] = {}
        self._on_evict: Callable[[int], None] | None = None

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Walk the keys until one is not cached; the last token is always left to compute."""
        keys = seq.block_keys
        num_candidates = min((seq.num_tokens - 1) // self.block_size, len(keys))
        block_ids = []
        now_ns = self._clock()
        for index in range(num_candidates):
            key = keys[index]
            block = self.cached.get(key)
            if block is None or not (block.ref_count or self.order.is_alive(key, now_ns)):
                break
            block_ids.append(block.block_id)
        return PrefixMatch(
            block_ids=tuple(block_ids),
            num_tokens=len(block_ids) * self.block_size,
            num_hit_blocks=len(block_ids),
            num_queried_blocks=num_candidates,
        )

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Take the hits, then a block for each that is missing, evicting where none is free."""
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        blocks = self.request_blocks.get(seq.request_id)
        hits = [self._blocks[block_id] for block_id in match.block_ids]
        num_held = len(hits) + (len(blocks) if blocks else 0)
        num_new_blocks = -(-num_total // self.block_size) - num_held
        num_free_hits = sum(block.ref_count == 0 for block in hits)
        if num_new_blocks > self.num_blocks - self._num_used - num_free_hits:
            return False
        is_running = blocks is not None
        if blocks is None:
            blocks = self.request_blocks[seq.request_id] = []
            self._num_registered[seq.request_id] = len(hits)
            self._last_hits[seq.request_id] = hits[-1].key if hits else None
            self.counts.objects_created += 1
            self.counts.dict_operations += 3
        access = self._access(seq)
        for position in reversed(range(len(hits))):
            self._share(hits[position], position, access)
        blocks += hits
        if is_running and seq.num_computed_tokens >= seq.request.num_prompt_tokens:
            self._fill_decoded(seq, blocks, num_total, access)
        else:
            self._fill_prompt(seq, blocks, num_total, access)
        self.counts.dict_operations += 2
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Do nothing: full blocks were registered when they were allocated."""

    def free(self, seq: Sequence) -> None:
        """Release tail first."""
        blocks = self.request_blocks.pop(seq.request_id, [])
        num_registered = self._num_registered.pop(seq.request_id, 0)
        self._last_hits.pop(seq.request_id, None)
        access = self._access(seq)
        for position in reversed(range(len(blocks))):
            block = blocks[position]
            self._release(block)
            if position < num_registered and block.ref_count == 0:
                assert block.key is not None
                self.order.on_release(block.key, position, access)
        self.counts.dict_operations += 3

    def usage(self) -> BlockUsage:
        """Count blocks by state; the null block is not counted."""
        return BlockUsage(self._num_used, self.num_blocks - self._num_used, len(self.cached))

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return [block.block_id for block in self.request_blocks.get(seq.request_id, ())]

    def max_request_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    def num_common_prefix_blocks(self, seq: Sequence, num_running: int) -> int:
        """Count the leading blocks of ``seq`` that all running sequences hold."""
        blocks = self.request_blocks.get(seq.request_id, ())
        shared = takewhile(lambda block: block.ref_count == num_running, blocks)
        return sum(1 for _ in shared)

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with every key that the order gives up."""
        self._on_evict = listener

    def snapshot(self) -> dict[str, Any]:
        """Free blocks that hold nothing, in order; ids of cached blocks; number of free blocks."""
        return {
            "unkeyed_free": [block.block_id for block in self._unkeyed_free],
            "cached_blocks": sorted(block.block_id for block in self.cached.values()),
            "num_free_blocks": self.num_blocks - self._num_used,
        }

    def _access(self, seq: Sequence) -> Access:
        last_hit = self._last_hits.get(seq.request_id)
        return Access(self._clock(), seq.num_tokens, last_hit, seq.request.session_id)

    def _fill_prompt(
        self, seq: Sequence, blocks: list[Block], num_total: int, access: Access
    ) -> None:
        """Take the missing blocks and register the full ones, tail first."""
        keys, num_held = seq.block_keys, len(blocks)
        start, stop, end = self._range(seq, num_total)
        fresh: list[Block] = []
        for position in reversed(range(start, end)):
            if position >= num_held:
                fresh.append(self._obtain(keys, position, stop, access))
            elif position < stop:
                blocks[position] = self._settle(blocks[position], keys, position, access)
        blocks += reversed(fresh)
        self._num_registered[seq.request_id] = stop

    def _fill_decoded(
        self, seq: Sequence, blocks: list[Block], num_total: int, access: Access
    ) -> None:
        """Do the same head first, as decoded tokens come; a block is taken before it is full."""
        keys = seq.block_keys
        start, stop, end = self._range(seq, num_total)
        for position in range(start if start < stop else len(blocks), end):
            if position == len(blocks):
                blocks.append(self._take())
            if position < stop:
                blocks[position] = self._settle(blocks[position], keys, position, access)
        self._num_registered[seq.request_id] = stop

    def _range(self, seq: Sequence, num_total: int) -> tuple[int, int, int]:
        """Find the first block to register, the one behind the last, and the number of blocks."""
        start = self._num_registered[seq.request_id]
        stop = max(start, min(num_total // self.block_size, len(seq.block_keys)))
        return start, stop, -(-num_total // self.block_size)

    def _obtain(self, keys: list[int], position: int, stop: int, access: Access) -> Block:
        """Get the cached block for a position, or a free one, registered if it is full."""
        if position >= stop:
            return self._take()
        cached = self.cached.get(keys[position])
        if cached is not None:
            return self._share(cached, position, access)
        self.order.on_miss(keys[position])
        block = self._take()
        self._register(block, keys, position, access)
        return block

    def _settle(self, block: Block, keys: list[int], position: int, access: Access) -> Block:
        """Register a block that is full now, or let it go for one that is cached already."""
        cached = self.cached.get(keys[position])
        if cached is not None:
            self._release(block)
            return self._share(cached, position, access)
        self.order.on_miss(keys[position])
        self._register(block, keys, position, access)
        return block

    def _share(self, block: Block, position: int, access: Access) -> Block:
        self._hold(block)
        assert block.key is not None
        self.order.on_hit(block.key, position, access)
        self.counts.dict_operations += 1
        return block

    def _register(self, block: Block, keys: list[int], position: int, access: Access) -> None:
        key = block.key = keys[position]
        self.cached[key] = block
        self.order.blocked.add(key)
        self.order.on_insert(key, position, access)
        self.counts.dict_operations += 2
        if position:
            parent = self._parents[key] = keys[position - 1]
            self._num_children[parent] = self._num_children.get(parent, 0) + 1
            self.counts.dict_operations += 2
            if self.leaf_only:
                self.order.blocked.add(parent)

    def _hold(self, block: Block) -> None:
        if block.ref_count == 0:
            self._num_used += 1
            if block.key is not None:
                self.order.blocked.add(block.key)
        block.ref_count += 1

    def _release(self, block: Block) -> None:
        block.ref_count -= 1
        if block.ref_count:
            return
        self._num_used -= 1
        if block.key is None:
            self._unkeyed_free.appendleft(block)
        elif not (self.leaf_only and self._num_children.get(block.key)):
            self.order.blocked.discard(block.key)

    def _take(self) -> Block:
        if self._unkeyed_free:
            block = self._unkeyed_free.popleft()
        else:
            block = self._evict(self.order.victim())
        self._hold(block)
        return block

    def _evict(self, key: int) -> Block:
        block = self.cached.pop(key)
        block.key = None
        self.num_parents_evicted += key in self._num_children
        parent = self._parents.pop(key, None)
        if parent is not None:
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]
                before = self.cached.get(parent)
                if self.leaf_only and before is not None and before.ref_count == 0:
                    self.order.blocked.discard(parent)
        self.counts.evictions += 1
        self.counts.dict_operations += 3
        if self._on_evict is not None:
            self._on_evict(key)
        return block
