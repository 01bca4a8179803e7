"""SIEVE: a hand sweeps a FIFO queue and evicts what was not hit since it last came by."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order
from sim.types import Clock


class SieveOrder(Order):
    """A queue whose blocks never move, and a hand that goes from the oldest to the newest.

    The hand passes over blocked blocks as over visited ones, but leaves their bits: a block that
    comes free behind it waits until it begins again.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # A place in the queue is a number, greater the newer; the hand stands behind one.
        self._place_of: OrderedDict[int, int] = OrderedDict()
        self._hand = -1
        self._next_place = 0
        self._visited: set[int] = set()
        # Places and keys, smallest first, ahead of the hand and behind it; blocked keys are left
        # out when they are met, and come back when they are free.
        self._ahead: list[tuple[int, int]] = []
        self._behind: list[tuple[int, int]] = []

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Set the visited bit; the block does not move."""
        self._visited.add(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put at the end, ahead of the hand."""
        self._place_of[key] = self._next_place
        self._next_place += 1
        self._enter(key)

    def victim(self) -> int:
        """Move the hand on to the first block that was not visited; unset the bits on the way."""
        while True:
            if not self._ahead:
                self._turn()
            place, key = heapq.heappop(self._ahead)
            if key in self.blocked:
                self.blocked.set_aside(key, self._enter)
                continue
            self._hand = place
            if key not in self._visited:
                del self._place_of[key]
                self._turn_at_the_end()
                return key
            self._visited.remove(key)
            self._enter(key)
            self._turn_at_the_end()

    def _enter(self, key: int) -> None:
        place = self._place_of[key]
        heapq.heappush(self._ahead if place > self._hand else self._behind, (place, key))

    def _turn_at_the_end(self) -> None:
        """Begin again with the oldest once nothing newer than the hand is there, blocked or not."""
        if not self._place_of or self._hand >= self._place_of[next(reversed(self._place_of))]:
            self._turn()

    def _turn(self) -> None:
        self._hand = -1
        self._ahead, self._behind = self._behind, self._ahead


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
