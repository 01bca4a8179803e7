"""TTL: a block lives for a time after it was last used, as in prompt caching that is sold."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, check_range, required
from sim.types import Clock


class TtlOrder(Order):
    """An LRU queue of which only the part that is young enough can be hit."""

    def __init__(self, capacity: int, *, ttl_s: float) -> None:
        super().__init__(capacity)
        self._queue = Queue(self.blocked)
        self._ttl_ns = round(ttl_s * 1e9)
        self._last_use_ns: dict[int, int] = {}

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Renew."""
        self._use(key, access)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Begin to live."""
        self._use(key, access)

    def on_release(self, key: int, position: int, access: Access) -> None:
        """Renew: a block does not grow old while it is used."""
        self._use(key, access)

    def is_alive(self, key: int, now_ns: int) -> bool:
        """Whether it was used not longer ago than it may live."""
        return now_ns - self._last_use_ns[key] <= self._ttl_ns

    def victim(self) -> int:
        """Take the one used longest ago, alive or not."""
        key = required(self._queue.oldest())
        self._queue.remove(key)
        del self._last_use_ns[key]
        return key

    def _use(self, key: int, access: Access) -> None:
        self._queue.push(key)
        self._last_use_ns[key] = access.now_ns


class Ttl(EvictorPool):
    """V1's allocator with blocks that expire.

    Source: prompt caching as Anthropic sells it, whose default is five minutes from the last use.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    ttl_s
        Seconds for which a block can be hit after it was last used.
    """

    source: ClassVar[str] = "TTL, 5 minutes as Anthropic's prompt caching"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        ttl_s: float = 300.0,
    ) -> None:
        check_range("ttl_s", ttl_s, 0, 10**9)
        order = TtlOrder(num_blocks, ttl_s=ttl_s)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = Ttl
