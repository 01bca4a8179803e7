"""SLRU: a block that is hit on probation becomes protected, in a segment of limited length."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, check_range, required
from sim.types import Clock


class SlruOrder(Order):
    """LRU queues of blocks on probation and of protected ones."""

    def __init__(self, capacity: int, *, protected: float) -> None:
        super().__init__(capacity)
        self._probation, self._protected = Queue(self.blocked), Queue(self.blocked)
        self._protected_capacity = int(capacity * protected)

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Protect it; if that is one too many, put the oldest on probation again."""
        if key in self._probation:
            self._probation.remove(key)
        self._protected.push(key)
        if len(self._protected) > self._protected_capacity:
            oldest = self._protected.first()
            self._protected.remove(oldest)
            self._probation.push(oldest)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put on probation."""
        self._probation.push(key)

    def victim(self) -> int:
        """Take the oldest on probation; where all are protected, the oldest of these."""
        first = self._probation.oldest()
        key = required(self._protected.oldest() if first is None else first)
        (self._protected if first is None else self._probation).remove(key)
        return key


class Slru(EvictorPool):
    """V1's allocator with a segmented LRU order.

    Source: Karedla, Love and Wherry, Caching Strategies to Improve Disk System Performance, 1994,
    which leaves the length of the protected segment open; 0.8 is that of W-TinyLFU's main cache.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    protected
        Length of the protected segment, as a share of the cache.
    """

    source: ClassVar[str] = "SLRU, Karedla 1994"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        protected: float = 0.8,
    ) -> None:
        check_range("protected", protected, 0, 1)
        order = SlruOrder(num_blocks, protected=protected)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Slru
