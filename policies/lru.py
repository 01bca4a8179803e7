"""Least recently used: the block that was asked for or released longest ago."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, required
from sim.types import Clock


class LruOrder(Order):
    """One queue; asking for a block and letting go of it move it to the end."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue = Queue(self.blocked)

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Move to the end."""
        self._queue.push(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put at the end."""
        self._queue.push(key)

    def on_release(self, key: int, position: int, access: Access) -> None:
        """Move to the end: as in vLLM, a block is used until it is released."""
        self._queue.push(key)

    def victim(self) -> int:
        """Take the oldest."""
        key = required(self._queue.oldest())
        self._queue.remove(key)
        return key


class Lru(EvictorPool):
    """V1's allocator with an LRU order; hits what ``vllm_v1_latest`` hits, but for copies.

    Source: the order of vLLM's free queue, as an order over keys. No parameters.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "LRU, as vLLM V1's free queue"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        super().__init__(num_blocks, block_size, clock, LruOrder(num_blocks), leaf_only=leaf_only)


POLICY = Lru
