"""Mooncake's LengthAware: least frequently used, of these the one latest in its requests."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Ranked, required
from sim.types import Clock


class LengthAwareOrder(Order):
    """Blocks ranked by how often they were asked for, then by position, the last first."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ranked = Ranked(self.blocked)
        self._num_accesses: dict[int, int] = {}

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count, and rank anew."""
        self._num_accesses[key] += 1
        self._ranked.set(key, self._num_accesses[key], -position)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Begin with a count of 1."""
        self._num_accesses[key] = 1
        self._ranked.set(key, 1, -position)

    def victim(self) -> int:
        """Take the smallest rank."""
        key = required(self._ranked.smallest())
        self._ranked.remove(key)
        del self._num_accesses[key]
        return key


class LengthAware(EvictorPool):
    """V1's allocator with Mooncake's LengthAware order.

    Source: Qin et al., Mooncake, FAST'25. “Similar to LFU but prioritizing cache blocks occurring
    later in requests” is all that it says; read here as: of equally often used blocks, those evict
    first that stand later. No parameters.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    """

    source: ClassVar[str] = "Mooncake LengthAware, FAST'25"

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, leaf_only: bool = False
    ) -> None:
        order = LengthAwareOrder(num_blocks)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = LengthAware
