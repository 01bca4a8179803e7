"""Random: any block that may go, drawn with a seed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, check_range, required
from sim.types import Clock


class RandomOrder(Order):
    """A list from which a victim is drawn; blocks that cannot go are taken out until they can."""

    def __init__(self, capacity: int, *, seed: int) -> None:
        super().__init__(capacity)
        self._keys: list[int] = []
        self._index: dict[int, int] = {}
        self._generator = np.random.default_rng(seed)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Take in."""
        self._add(key)

    def victim(self) -> int:
        """Draw until it is one that may go."""
        key = None
        while key is None and self._keys:
            drawn = self._keys[int(self._generator.integers(len(self._keys)))]
            self._remove(drawn)
            if drawn in self.blocked:
                self.blocked.set_aside(drawn, self._add)
            else:
                key = drawn
        return required(key)

    def _add(self, key: int) -> None:
        self._index[key] = len(self._keys)
        self._keys.append(key)

    def _remove(self, key: int) -> None:
        """Fill the gap with the last key of the list."""
        index, last = self._index.pop(key), self._keys.pop()
        if last != key:
            self._keys[index] = last
            self._index[last] = index


class RandomPolicy(EvictorPool):
    """V1's allocator with random eviction: the baseline of orders.

    Source: the textbook's.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    seed
        Of the draws.
    """

    source: ClassVar[str] = "random"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        seed: int = 0,
    ) -> None:
        check_range("seed", seed, 0, 2**63 - 1)
        order = RandomOrder(num_blocks, seed=seed)
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = RandomPolicy
