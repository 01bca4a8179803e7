"""W-TinyLFU: newcomers leave a small window only past a victim that is asked for less often."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, check_range, required
from sim.types import Clock


class WTinyLfuOrder(Order):
    """An LRU window, a segmented LRU main cache, and counts that age by being halved."""

    def __init__(self, capacity: int, *, window: float, protected: float, sample: int) -> None:
        super().__init__(capacity)
        self._window, self._probation = Queue(self.blocked), Queue(self.blocked)
        self._protected = Queue(self.blocked)
        self._window_capacity = max(1, int(capacity * window))
        self._protected_capacity = int((capacity - self._window_capacity) * protected)
        self._num_accesses: dict[int, int] = {}
        self._num_counted, self._sample = 0, sample * capacity

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count; renew in the window, protect in the main cache."""
        self._count(key)
        if key in self._window:
            self._window.push(key)
            return
        if key in self._probation:
            self._probation.remove(key)
        self._protected.push(key)
        if len(self._protected) > self._protected_capacity:
            oldest = self._protected.first()
            self._protected.remove(oldest)
            self._probation.push(oldest)

    def on_miss(self, key: int) -> None:
        """Count it as well: a block may earn its place while it is not cached."""
        self._count(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Put into the window."""
        self._window.push(key)

    def victim(self) -> int:
        """Let the oldest of the window compete with the oldest on probation."""
        while len(self._window) > self._window_capacity and self._main_has_room():
            oldest = self._window.first()
            self._window.remove(oldest)
            self._probation.push(oldest)
        rivals = (self._window.oldest(), self._probation.oldest(), self._protected.oldest())
        candidate, resident = rivals[0], rivals[1] if rivals[1] is not None else rivals[2]
        if resident is None or (candidate is not None and not self._admits(candidate, resident)):
            key = required(candidate)
            self._window.remove(key)
            return key
        (self._probation if resident in self._probation else self._protected).remove(resident)
        if candidate is not None:
            self._window.remove(candidate)
            self._probation.push(candidate)
        return resident

    def _main_has_room(self) -> bool:
        num_main = len(self._probation) + len(self._protected)
        return num_main < self.capacity - self._window_capacity

    def _admits(self, candidate: int, resident: int) -> bool:
        return self._num_accesses.get(candidate, 0) > self._num_accesses.get(resident, 0)

    def _count(self, key: int) -> None:
        self._num_accesses[key] = self._num_accesses.get(key, 0) + 1
        self._num_counted += 1
        if self._num_counted >= self._sample:
            halved = {key: count // 2 for key, count in self._num_accesses.items() if count > 1}
            self._num_accesses, self._num_counted = halved, self._num_counted // 2


class WTinyLfu(EvictorPool):
    """V1's allocator with a W-TinyLFU order.

    Source: Einziger, Friedman and Manes, TinyLFU, 2017: a window of 1 %, a main cache of which 80 %
    is protected, counts halved every 10 accesses per block of the cache. Counts are exact here; the
    paper keeps them in a sketch and a Bloom filter to save memory.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    window
        Length of the window, as a share of the cache.
    protected
        Length of the protected segment, as a share of the main cache.
    sample
        Accesses per block of the cache after which all counts are halved.
    """

    source: ClassVar[str] = "W-TinyLFU, Einziger 2017"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        window: float = 0.01,
        protected: float = 0.8,
        sample: int = 10,
    ) -> None:
        check_range("window", window, 0, 1)
        check_range("protected", protected, 0, 1)
        check_range("sample", sample, 1, 10**6)
        order = WTinyLfuOrder(num_blocks, window=window, protected=protected, sample=sample)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = WTinyLfu
