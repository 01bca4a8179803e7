"""MQ: queues by the logarithm of how often a block was asked for; who is not, sinks."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Memory, Order, Queue, check_range, required
from sim.types import Clock


class MqOrder(Order):
    """LRU queues by frequency, and a memory of the frequencies of what was evicted."""

    def __init__(self, capacity: int, *, queues: int, lifetime: int, history: float) -> None:
        super().__init__(capacity)
        self._queues = [Queue(self.blocked) for _ in range(queues)]
        self._history = Memory(int(capacity * history))
        self._lifetime = lifetime
        self._now = 0
        self._num_accesses: dict[int, int] = {}
        self._expiry: dict[int, int] = {}
        self._level: dict[int, int] = {}
        self._num_remembered = 0

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Count, move to the queue of the new count, and let others sink."""
        self._queues[self._level[key]].remove(key)
        self._enter(key, self._num_accesses[key] + 1)

    def on_miss(self, key: int) -> None:
        """Recall its count."""
        self._num_remembered = self._history.pop(key)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Go on with the count remembered."""
        self._enter(key, self._num_remembered + 1)
        self._num_remembered = 0

    def victim(self) -> int:
        """Take the oldest of the lowest queue."""
        candidates = (queue.oldest() for queue in self._queues)
        key = required(next((key for key in candidates if key is not None), None))
        self._queues[self._level.pop(key)].remove(key)
        del self._expiry[key]
        self._history.add(key, self._num_accesses.pop(key))
        return key

    def _enter(self, key: int, num_accesses: int) -> None:
        self._num_accesses[key] = num_accesses
        self._push(key, min(num_accesses.bit_length() - 1, len(self._queues) - 1))
        self._now += 1
        for level in range(1, len(self._queues)):
            oldest = self._queues[level].oldest()
            if oldest is not None and self._expiry[oldest] < self._now:
                self._queues[level].remove(oldest)
                self._push(oldest, level - 1)

    def _push(self, key: int, level: int) -> None:
        self._level[key] = level
        self._expiry[key] = self._now + self._lifetime
        self._queues[level].push(key)


class Mq(EvictorPool):
    """V1's allocator with an MQ order.

    Source: Zhou, Philbin and Li, The Multi-Queue Replacement Algorithm, USENIX ATC'01: 8 queues and
    a history of 4 times the cache. The paper derives the lifetime from the trace; here it is that
    of libCacheSim, 10,000 accesses.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    queues
        How many there are.
    lifetime
        Accesses to any block after which one that was not asked for sinks by a queue.
    history
        Length of the memory, as a share of the cache.
    """

    source: ClassVar[str] = "MQ, USENIX ATC'01"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        queues: int = 8,
        lifetime: int = 10000,
        history: float = 4.0,
    ) -> None:
        check_range("queues", queues, 1, 64)
        check_range("lifetime", lifetime, 0, 10**18)
        check_range("history", history, 0, 1000)
        order = MqOrder(num_blocks, queues=queues, lifetime=lifetime, history=history)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Mq
