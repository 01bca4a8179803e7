"""2Q: newcomers pass a FIFO queue; what is asked for again after it enters an LRU queue."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Memory, Order, Queue, check_range, required
from sim.types import Clock


class TwoQOrder(Order):
    """FIFO queue A1in, memory A1out of what it evicted, LRU queue Am."""

    def __init__(self, capacity: int, *, a1in: float, a1out: float) -> None:
        super().__init__(capacity)
        self._a1in, self._am = Queue(self.blocked), Queue(self.blocked)
        self._a1in_capacity = int(capacity * a1in)
        self._a1out = Memory(int(capacity * a1out))
        self._is_remembered = False

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Move to the end of Am; A1in does not change."""
        if key in self._am:
            self._am.push(key)

    def on_miss(self, key: int) -> None:
        """Recall whether A1in evicted it a while ago."""
        self._is_remembered = bool(self._a1out.pop(key))

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put into Am what is remembered, into A1in what is new."""
        (self._am if self._is_remembered else self._a1in).push(key)
        self._is_remembered = False

    def victim(self) -> int:
        """Take from A1in while it is too long, else from Am."""
        queues = [self._a1in, self._am]
        if len(self._a1in) <= self._a1in_capacity:
            queues.reverse()
        first = queues[0].oldest()
        key = required(queues[1].oldest() if first is None else first)
        if key in self._am:
            self._am.remove(key)
        else:
            self._a1in.remove(key)
            self._a1out.add(key)
        return key


class TwoQ(EvictorPool):
    """V1's allocator with a 2Q order.

    Source: Johnson and Shasha, 2Q, VLDB'94 (full version), with the paper's Kin and Kout.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    a1in, a1out
        Length of the FIFO queue and of the memory, as shares of the cache.
    """

    source: ClassVar[str] = "2Q, VLDB'94"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        a1in: float = 0.25,
        a1out: float = 0.5,
    ) -> None:
        check_range("a1in", a1in, 0, 1)
        check_range("a1out", a1out, 0, 1000)
        order = TwoQOrder(num_blocks, a1in=a1in, a1out=a1out)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = TwoQ
