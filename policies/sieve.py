"""SIEVE: a hand sweeps a FIFO queue and evicts what was not hit since it last came by."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, required
from sim.types import Clock


class SieveOrder(Order):
    """A queue cut in two at the hand: those it has passed stay where they are, behind it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ahead = Queue(self.blocked)
        self._passed = Queue(self.blocked)
        self._visited: set[int] = set()

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Set the visited bit; the block does not move."""
        self._visited.add(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put at the end, ahead of the hand."""
        self._ahead.push(key)

    def victim(self) -> int:
        """Move the hand on to the first block that was not visited; unset the bits on the way."""
        while True:
            key = self._ahead.oldest()
            if key is None:
                self._turn()
                continue
            self._ahead.remove(key)
            if key not in self._visited:
                break
            self._visited.remove(key)
            self._passed.push(key)
            if not self._ahead:
                self._turn()
        if not self._ahead:
            self._turn()
        return required(key)

    def _turn(self) -> None:
        """Begin again with the oldest; blocks that cannot go now keep their place behind."""
        self._ahead, self._passed = self._passed, self._ahead


class Sieve(EvictorPool):
    """V1's allocator with a SIEVE order.

    Source: Zhang et al., SIEVE is Simpler than LRU, NSDI'24. No parameters.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "SIEVE, NSDI'24"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        order = SieveOrder(num_blocks)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Sieve
