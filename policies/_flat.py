"""A flat cache: one reference after the other, no prefix rule, nothing in use.

This is what general cache simulators compute; orders of eviction are checked against them with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from policies._orders import Access, Order, Ranked, required


def num_flat_hits(order: Order, requests: Iterable[Sequence[int]]) -> int:
    """Count the references that hit.

    Parameters
    ----------
    order
        Fresh; its capacity is that of the cache.
    requests
        Keys of the blocks of each request; requests come a second apart.

    Returns
    -------
    Number of keys that were cached when they came.
    """
    cached: set[int] = set()
    num_hits = 0
    for second, keys in enumerate(requests):
        access = Access(now_ns=second * 10**9)
        for position, key in enumerate(keys):
            if key in cached:
                num_hits += 1
                order.on_hit(key, position, access)
                continue
            order.on_miss(key)
            if len(cached) == order.capacity:
                cached.remove(order.victim())
            cached.add(key)
            order.on_insert(key, position, access)
    return num_hits


def num_belady_hits(capacity: int, requests: Iterable[Sequence[int]]) -> int:
    """Count the references that hit if the block needed again last is evicted: the most possible.

    Every missed block is cached, as in `num_flat_hits`. Source: Belady, A Study of Replacement
    Algorithms for a Virtual-Storage Computer, 1966.

    Parameters
    ----------
    capacity
        Blocks of the cache.
    requests
        Keys of the blocks of each request.
    """
    references = [key for keys in requests for key in keys]
    ranked = Ranked(Order(capacity).blocked)
    num_hits = 0
    for key, next_use in zip(references, next_uses(references), strict=True):
        if key in ranked:
            num_hits += 1
        elif len(ranked) == capacity:
            ranked.remove(required(ranked.smallest()))
        ranked.set(key, -next_use)
    return num_hits


def next_uses(references: Sequence[int]) -> list[float]:
    """Index of the next reference to the same key, for each; infinite for the last one."""
    upcoming: dict[int, float] = {}
    uses = [inf] * len(references)
    for index in reversed(range(len(references))):
        uses[index] = upcoming.get(references[index], inf)
        upcoming[references[index]] = index
    return uses
