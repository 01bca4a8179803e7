"""First in, first out: the block that was cached longest ago, however often it was hit."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, required
from sim.types import Clock


class FifoOrder(Order):
    """One queue that a hit does not change."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue = Queue(self.blocked)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put at the end."""
        self._queue.push(key)

    def victim(self) -> int:
        """Take the oldest."""
        key = required(self._queue.oldest())
        self._queue.remove(key)
        return key


class Fifo(EvictorPool):
    """V1's allocator with a FIFO order.

    Source: the textbook's. No parameters.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "FIFO"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        order = FifoOrder(num_blocks)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Fifo
