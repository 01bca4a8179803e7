"""S3-FIFO: newcomers pass a small FIFO queue; what is hit there moves to the main one."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Memory, Order, Queue, check_range
from sim.types import Clock


class S3FifoOrder(Order):
    """A small and a main FIFO queue, and a memory of what the small one evicted."""

    def __init__(self, capacity: int, *, small: float, ghost: float, threshold: int) -> None:
        super().__init__(capacity)
        self._small, self._main = Queue(self.blocked), Queue(self.blocked)
        self._small_capacity = int(capacity * small)
        self._main_capacity = capacity - self._small_capacity
        self._ghost = Memory(int(capacity * ghost))
        self._threshold = threshold
        self._num_hits: dict[int, int] = {}
        self._is_remembered = self._has_evicted = False

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count."""
        self._num_hits[key] += 1

    def on_miss(self, key: int) -> None:
        """Recall whether it was evicted from the small queue a while ago."""
        self._is_remembered = bool(self._ghost.pop(key))

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put a newcomer into the small queue; into the main one until anything was evicted."""
        filling = not self._has_evicted and len(self._small) >= self._small_capacity
        (self._main if self._is_remembered or filling else self._small).push(key)
        self._is_remembered = False
        self._num_hits[key] = 0

    def victim(self) -> int:
        """Take from the main queue while it is too long, else from the small one."""
        self._has_evicted = True
        key = None
        while key is None:
            from_main = len(self._main) > self._main_capacity or not self._small
            key = self._from_main() if from_main else self._from_small()
            if key is None:
                key = self._from_small() if from_main else self._from_main()
        del self._num_hits[key]
        return key

    def _from_small(self) -> int | None:
        while (key := self._small.oldest()) is not None:
            self._small.remove(key)
            if self._num_hits[key] < self._threshold:
                self._ghost.add(key)
                break
            self._main.push(key)
            self._num_hits[key] = 0
        return key

    def _from_main(self) -> int | None:
        while (key := self._main.oldest()) is not None:
            if not self._num_hits[key]:
                self._main.remove(key)
                break
            self._main.push(key)
            self._num_hits[key] = min(self._num_hits[key], 3) - 1
        return key


class S3Fifo(EvictorPool):
    """V1's allocator with an S3-FIFO order.

    Source: Yang et al., FIFO Queues are All You Need for Cache Eviction, SOSP'23, with the defaults
    of the authors' libCacheSim, which fills the main queue first and promotes at 2 hits. AIBrix has
    ``small=0.3``, ``threshold=1`` and a ghost as large as its main queue (``ghost=0.7``).

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    small, ghost
        Length of the small queue and of the memory, as shares of the cache.
    threshold
        Hits that move a block from the small queue to the main one.
    """

    source: ClassVar[str] = "S3-FIFO, SOSP'23"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        small: float = 0.1,
        ghost: float = 0.9,
        threshold: int = 2,
    ) -> None:
        check_range("small", small, 0, 1)
        check_range("ghost", ghost, 0, 1000)
        check_range("threshold", threshold, 1, 10**6)
        order = S3FifoOrder(num_blocks, small=small, ghost=ghost, threshold=threshold)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = S3Fifo
