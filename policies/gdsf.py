"""GDSF: frequency times the cost of computing a block again, which grows with its position."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Ranked, check_range, required
from sim.types import Clock


class GdsfOrder(Order):
    """Blocks ranked by clock + hits x cost; the clock is the largest rank of any victim so far."""

    def __init__(self, capacity: int, *, block_size: int, attention: float) -> None:
        super().__init__(capacity)
        self._ranked = Ranked(self.blocked)
        self._num_accesses: dict[int, int] = {}
        self._clock = 0.0
        self._cost_per_position = attention * block_size

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count, and rank anew."""
        self._num_accesses[key] += 1
        self._rank(key, position)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Begin with a count of 1."""
        self._num_accesses[key] = 1
        self._rank(key, position)

    def victim(self) -> int:
        """Take the smallest rank and let the clock catch up with it."""
        key = required(self._ranked.smallest())
        # One that was in use, and so was passed over, may rank below earlier victims.
        self._clock = max(self._clock, self._ranked.rank(key)[0])
        self._ranked.remove(key)
        del self._num_accesses[key]
        return key

    def _rank(self, key: int, position: int) -> None:
        cost = 1 + self._cost_per_position * position
        self._ranked.set(key, self._clock + self._num_accesses[key] * cost)


class Gdsf(EvictorPool):
    """V1's allocator with a GreedyDual-Size-Frequency order.

    Source: Cherkasova, Improving WWW Proxies Performance with GDSF, 1998, as RAGCache uses it
    (Clock + Frequency x Cost / Size): all blocks are of one size, and the cost of a block is the
    time to compute it again at its position. The clock never goes back. Where every block may go,
    as in both papers, the rank of a victim is never below it; after use, a block's may be.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    attention
        Work of attending to one more token, as a share of all other work on a token. The default is
        that of Llama-3-8B: 4 x 32 layers x 4,096 of 16e9 operations.
    """

    source: ClassVar[str] = "GDSF, Cherkasova 1998"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        attention: float = 3.3e-5,
    ) -> None:
        check_range("attention", attention, 0, 1000)
        order = GdsfOrder(num_blocks, block_size=block_size, attention=attention)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Gdsf
