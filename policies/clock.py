"""CLOCK, or second chance: FIFO in which a block that was hit goes round once more."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, required
from sim.types import Clock


class ClockOrder(Order):
    """One queue; blocks hit since they were last at its head go back to its end."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue = Queue(self.blocked)
        self._referenced: set[int] = set()

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Set the reference bit."""
        self._referenced.add(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put at the end, with the bit unset."""
        self._queue.push(key)

    def victim(self) -> int:
        """Take the oldest whose bit is not set; unset the bits on the way."""
        while (key := required(self._queue.oldest())) in self._referenced:
            self._referenced.remove(key)
            self._queue.push(key)
        self._queue.remove(key)
        return key


class ClockPolicy(EvictorPool):
    """V1's allocator with a CLOCK order.

    Source: Corbató, A Paging Experiment with the Multics System, 1968; one reference bit.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "CLOCK, Corbató 1968"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        order = ClockOrder(num_blocks)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = ClockPolicy
