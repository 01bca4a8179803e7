"""Least frequently used: the block with the fewest hits, of these the one that got there first."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Ranked, required
from sim.types import Clock


class LfuOrder(Order):
    """Blocks ranked by how often they were asked for; a count is forgotten with its block."""

    def __init__(self, capacity: int, *, ageing: bool) -> None:
        super().__init__(capacity)
        self._ranked = Ranked(self.blocked)
        self._num_accesses: dict[int, int] = {}
        self._ageing = ageing
        # Largest rank of any victim so far, which newcomers start from if counts age.
        self._age = 0.0

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count, and rank anew."""
        self._num_accesses[key] += 1
        self._ranked.set(key, self._age + self._num_accesses[key])

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Begin with a count of 1."""
        self._num_accesses[key] = 1
        self._ranked.set(key, self._age + 1)

    def victim(self) -> int:
        """Take the smallest rank."""
        key = required(self._ranked.smallest())
        if self._ageing:
            # One that was in use, and so was passed over, may rank below earlier victims.
            self._age = max(self._age, self._ranked.rank(key)[0])
        self._ranked.remove(key)
        del self._num_accesses[key]
        return key


class Lfu(EvictorPool):
    """V1's allocator with an LFU order.

    Source: LFU as in libCacheSim (FIFO among equals); with ``ageing``, LFU with dynamic ageing,
    Arlitt et al., Evaluating Content Management Techniques for Web Proxy Caches, 1999.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    ageing
        Rank a block by its count plus the largest rank of any victim when it was last asked for,
        so that old counts lose their weight.
    """

    source: ClassVar[str] = "LFU; with ageing LFU-DA, Arlitt 1999"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        ageing: bool = False,
    ) -> None:
        order = LfuOrder(num_blocks, ageing=ageing)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Lfu
