"""ARC: recency against frequency, weighed by which of the two was evicted too early."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Memory, Order, Queue, required
from sim.types import Clock


class ArcOrder(Order):
    """LRU queues T1 (asked for once) and T2 (more often); B1 and B2 remember what they evicted."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._t1, self._t2 = Queue(self.blocked), Queue(self.blocked)
        self._b1, self._b2 = Memory(2 * capacity), Memory(2 * capacity)
        # Length that T1 aims at.
        self._target = 0.0
        self._remembered_in = 0

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Move to the end of T2."""
        if key in self._t1:
            self._t1.remove(key)
        self._t2.push(key)

    def on_miss(self, key: int) -> None:
        """Give more room to the queue that evicted it."""
        b1, b2 = len(self._b1), len(self._b2)
        self._remembered_in = 1 if key in self._b1 else 2 if key in self._b2 else 0
        if self._remembered_in == 1:
            self._target = min(self._target + max(b2 / b1, 1), self.capacity)
        elif self._remembered_in == 2:
            self._target = max(self._target - max(b1 / b2, 1), 0)
        self._b1.pop(key)
        self._b2.pop(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put into T2 what is remembered, into T1 what is new."""
        (self._t2 if self._remembered_in else self._t1).push(key)
        self._remembered_in = 0

    def victim(self) -> int:
        """Keep T1 and B1 within the capacity and all four within twice of it, then replace."""
        num_recent = len(self._t1) + len(self._b1)
        num_all = num_recent + len(self._t2) + len(self._b2)
        if not self._remembered_in and num_recent >= self.capacity:
            if len(self._t1) >= self.capacity and (key := self._t1.oldest()) is not None:
                self._t1.remove(key)
                return key
            self._b1.forget()
        elif not self._remembered_in and num_all >= 2 * self.capacity:
            self._b2.forget()
        return self._replace()

    def _replace(self) -> int:
        is_tie = len(self._t1) == self._target and self._remembered_in == 2
        recent_first = bool(self._t1) and (len(self._t1) > self._target or is_tie)
        queues = (self._t1, self._t2) if recent_first else (self._t2, self._t1)
        first = queues[0].oldest()
        key = required(queues[1].oldest() if first is None else first)
        if key in self._t1:
            self._t1.remove(key)
            self._b1.add(key)
        else:
            self._t2.remove(key)
            self._b2.add(key)
        return key


class Arc(EvictorPool):
    """V1's allocator with an ARC order.

    Source: Megiddo and Modha, ARC, FAST'03. No parameters.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "ARC, FAST'03"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        order = ArcOrder(num_blocks)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Arc
