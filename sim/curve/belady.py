"""Belady's bound: the most that any choice of victims can hit.

Whoever knows the future evicts what is needed latest (Belady, 1966). Here a block is worth keeping
only for the next request that fills it, and only if that one's lookup reaches it; while a request
runs, its blocks hold their places. Each block kept from one such request to the next is an interval
of one place, at every request in between the places are those of the pool less those that it holds,
and to drop the interval that ends last is optimal (an exchange argument, as for Belady's own rule).
Dropping the deepest block first among those that end together keeps prefixes whole, for a block is
needed no later than those that follow it on its path. So this hit rate is reached.

It bounds every policy that keeps and hits whole blocks of one pool, one request at a time. It is
no bound where requests run together, since then they share what is in use; where less than a block
can be hit (SGLang's token-wise tree); for a policy that counts hits that are not there (the
bisection of vLLM 0.8.5's V0); nor for latency, since all blocks weigh the same here.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import entry
from sim.curve.paths import Paths
from sim.curve.stream import Integer, Ints
from sim.curve.walk import take_group, take_rest


def most_hits(paths: Paths, num_blocks: Ints, *, pinned: bool = True) -> Ints:
    """Count the blocks that an optimal choice of victims hits.

    Parameters
    ----------
    paths
        The requests.
    num_blocks
        Capacities, any shape.
    pinned
        Whether a request holds all of its blocks while it runs, and is refused where the pool has
        fewer. If not, as in a store beside the engine, nothing is refused.

    Returns
    -------
    int64 array of the same shape.
    """
    held = paths.sizes.num_held_blocks
    if not pinned:
        held = np.zeros_like(held)
    every = _meetings(paths, held, int(held.max()))
    hits = []
    for capacity in num_blocks.ravel().tolist():
        whole = capacity >= held.max()
        meetings = every if whole else _meetings(paths, held, capacity)
        hits.append(int(_keep_soonest(*meetings, held, capacity)))
    return np.array(hits, dtype=np.int64).reshape(num_blocks.shape)


def _meetings(
    paths: Paths, held: Ints, limit: int
) -> tuple[Ints, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    owners, takers, firsts, stops = _find_meetings(
        paths.edges, paths.offsets, paths.lengths, paths.sizes.num_lookup_blocks, held, limit
    )
    order = np.argsort(owners, kind="stable")
    offsets = np.searchsorted(owners[order], np.arange(len(held) + 1))
    return offsets, takers[order], firsts[order], stops[order]


@entry
def _find_meetings(
    edges: NDArray[np.int32],
    offsets: Ints,
    lengths: NDArray[np.int32],
    num_lookup: Ints,
    held: Ints,
    limit: int,
) -> tuple[Ints, Ints, Ints, Ints]:
    """List who could hit which blocks of whom: request ``taker`` those from first to stop."""
    owners = np.empty(len(edges), dtype=np.int64)
    takers = np.empty(len(edges), dtype=np.int64)
    firsts = np.empty(len(edges), dtype=np.int64)
    stops = np.empty(len(edges), dtype=np.int64)
    count = 0
    last = np.full(len(lengths), -1, dtype=np.int32)
    for request in range(len(offsets) - 1):
        if held[request] > limit:
            continue
        stop = offsets[request + 1]
        at = offsets[request]
        seen = np.int64(0)
        while at < stop and last[edges[at]] >= 0:
            owner = last[edges[at]]
            first = seen
            at, num_taken = take_group(edges, lengths, last, at, stop, request)
            seen += num_taken
            if first < num_lookup[request]:
                owners[count] = owner
                takers[count] = request
                firsts[count] = first
                stops[count] = min(seen, num_lookup[request])
                count += 1
        take_rest(edges, last, at, stop, request)
    return owners[:count], takers[:count], firsts[:count], stops[:count]


@entry
def _keep_soonest(
    offsets: Ints, takers: Ints, firsts: Ints, stops: Ints, held: Ints, num_blocks: int
) -> Integer:
    """Serve the requests; ``low`` to ``high`` are the blocks kept for a request to come."""
    num_requests = len(held)
    low = np.zeros(num_requests, dtype=np.int64)
    high = np.zeros(num_requests, dtype=np.int64)
    latest = [np.int64(0)]  # a heap of negated numbers of requests that something is kept for
    latest.pop()
    num_kept = np.int64(0)
    hits = np.int64(0)
    for request in range(num_requests):
        if held[request] > num_blocks:
            continue
        hits += high[request] - low[request]
        num_kept -= high[request] - low[request]
        low[request] = high[request]
        for also in (False, True):
            if also:
                for at in range(offsets[request], offsets[request + 1]):
                    taker = takers[at]
                    if low[taker] == high[taker]:
                        high[taker] = stops[at]
                        heappush(latest, -taker)
                    low[taker] = firsts[at]
                    num_kept += stops[at] - firsts[at]
            room = num_blocks if also else num_blocks - held[request]
            while num_kept > room:
                taker = -latest[0]
                lost = min(num_kept - room, high[taker] - low[taker])
                high[taker] -= lost
                num_kept -= lost
                if low[taker] == high[taker]:
                    heappop(latest)
    return hits
