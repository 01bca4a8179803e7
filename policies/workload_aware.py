"""Workload-aware eviction (KVCache in the Wild): what its kind of request seldom asks for again."""

from __future__ import annotations

import math
from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Blocked, Order, Ranked, check_range, required
from sim.types import Clock


class Category:
    """Blocks last used by one kind of request, and how soon such blocks are used again."""

    def __init__(self, blocked: Blocked) -> None:
        self.ranked = Ranked(blocked)
        self.num_reuses = 0
        self.total_ns = 0


class WorkloadAwareOrder(Order):
    """Blocks by category, in each by time of last use and then the latest position first."""

    def __init__(self, capacity: int, clock: Clock, *, max_turn: int) -> None:
        super().__init__(capacity)
        self._clock = clock
        self._categories = [Category(self.blocked) for _ in range(max_turn)]
        self._turn: dict[int, int] = {}
        self._made_in_turn: dict[int, int] = {}
        self._last_use: dict[int, tuple[int, int]] = {}
        self._num_evicted = self._total_life_ns = 0

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Learn how long it was not used, and use it."""
        category = self._categories[self._turn[key]]
        category.num_reuses += 1
        category.total_ns += access.now_ns - self._last_use[key][0]
        category.ranked.remove(key)
        self._use(key, position, access)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Use it for the first time."""
        self._made_in_turn[key] = self._turn_of(access)
        self._use(key, position, access)

    def victim(self) -> int:
        """Take the block of the smallest (probability of reuse, -position) of all categories.

        Where nothing was reused yet all are as probable: then the one used longest ago goes.
        """
        now_ns = self._clock()
        life_ns = self._total_life_ns / self._num_evicted if self._num_evicted else 0.0
        best: tuple[float, int, int, int] | None = None
        for index, category in enumerate(self._categories):
            key = category.ranked.smallest()
            if key is None:
                continue
            since, position = self._last_use[key]
            rank = self._log_reuse_probability(category, now_ns - since, life_ns), since, -position
            if best is None or rank < best[:3]:
                best = *rank, index
        assert best is not None
        ranked = self._categories[best[3]].ranked
        key = required(ranked.smallest())
        ranked.remove(key)
        self._num_evicted += 1
        self._total_life_ns += now_ns - self._last_use.pop(key)[0]
        del self._turn[key], self._made_in_turn[key]
        return key

    def _log_reuse_probability(self, category: Category, idle_ns: int, life_ns: float) -> float:
        """Mass of the category's exponential distribution of reuse times in [idle, idle + life).

        As its logarithm: after some 700 mean times the mass itself is 0 in 64 bits, whatever the
        mean.
        """
        known = category if category.num_reuses else self._all()
        if not known.num_reuses or not known.total_ns:
            return -math.inf
        mean_ns = known.total_ns / known.num_reuses
        return -idle_ns / mean_ns + math.log(-math.expm1(-max(life_ns, 1.0) / mean_ns))

    def _all(self) -> Category:
        together = Category(self.blocked)
        together.num_reuses = sum(category.num_reuses for category in self._categories)
        together.total_ns = sum(category.total_ns for category in self._categories)
        return together

    def _use(self, key: int, position: int, access: Access) -> None:
        self._last_use[key] = access.now_ns, position
        turn = self._turn[key] = self._turn_of(access)
        self._categories[turn].ranked.set(key, access.now_ns, -position)

    def _turn_of(self, access: Access) -> int:
        """Turn of the request, from 0; the last category takes all later ones."""
        turn = 0
        if access.last_hit is not None:
            turn = self._made_in_turn.get(access.last_hit, 0) + 1
        return min(turn, len(self._categories) - 1)


class WorkloadAware(EvictorPool):
    """V1's allocator with the workload-aware order of a cloud provider's study.

    Source: Wang et al., KVCache Cache in the Wild, USENIX ATC'25: evict the smallest
    (ReuseProb_w(t, life), -offset), w being the type and turn of a request, t the time since a
    block was last used, life the lifespan that a block can expect. The exponential of a category is
    fitted to the times of reuse seen so far, of all categories where it has none, life to the idle
    times of the blocks evicted so far.
    Workloads here have no request types, so w is the turn: one more than that of the request that
    made the last block hit.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    max_turn
        Turns that are told apart; all later ones are the last one's.
    """

    source: ClassVar[str] = "KVCache Cache in the Wild, USENIX ATC'25"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        max_turn: int = 8,
    ) -> None:
        check_range("max_turn", max_turn, 1, 1000)
        order = WorkloadAwareOrder(num_blocks, clock, max_turn=max_turn)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = WorkloadAware
