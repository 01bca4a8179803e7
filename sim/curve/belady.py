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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled, entry
from sim.curve.paths import Paths
from sim.curve.stream import Integer, Ints
from sim.curve.walk import take_group, take_rest
from sim.mapped import full, zeros


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
    held = paths.sizes.num_held_blocks if pinned else zeros(paths.sizes.num_requests)
    most_held = int(held.max())
    every = _meetings(paths, held, most_held)
    hits = []
    for capacity in num_blocks.ravel().tolist():
        meetings = every if capacity >= most_held else _meetings(paths, held, capacity)
        kept = Kept(*(zeros(len(held)) for _ in Kept._fields))
        hits.append(int(_keep_soonest(meetings, held, capacity, kept)))
    return np.array(hits, dtype=np.int64).reshape(num_blocks.shape)


class Meetings(NamedTuple):
    """Who could hit which blocks of whom, by owner.

    Attributes
    ----------
    offsets
        Owner r has those from ``offsets[r]`` to ``offsets[r + 1]``; shape ``(requests + 1,)``.
    takers
        Requests that come for them, ascending for each owner.
    firsts, stops
        Their blocks on the path.
    """

    offsets: Ints
    takers: Ints
    firsts: Ints
    stops: Ints


class Kept(NamedTuple):
    """What is kept, and a heap of the requests that something is kept for.

    Attributes
    ----------
    low, high
        Of each request, the blocks kept for it.
    latest
        Heap of requests, the last to come first; each is in it once at most.
    """

    low: Ints
    high: Ints
    latest: Ints


def _meetings(paths: Paths, held: Ints, limit: int) -> Meetings:
    owners = zeros(len(paths.edges))
    found = Meetings(zeros(len(held) + 1), *(zeros(len(paths.edges)) for _ in range(3)))
    count = _find_meetings(
        paths.edges,
        paths.offsets,
        paths.lengths,
        paths.sizes.num_lookup_blocks,
        held,
        limit,
        full(len(paths.lengths), -1, np.int32),
        owners,
        found,
    )
    ordered = Meetings(found.offsets, *(zeros(int(count)) for _ in range(3)))
    _order_by_owner(owners[: int(count)], found, ordered)
    return ordered


@entry
def _find_meetings(
    edges: NDArray[np.int32],
    offsets: Ints,
    lengths: NDArray[np.int32],
    num_lookup: Ints,
    held: Ints,
    limit: int,
    last: NDArray[np.int32],
    owners: Ints,
    found: Meetings,
) -> Integer:
    """List who could hit which blocks of whom, by taker; return how many there are.

    ``last`` is who touched an edge last, -1 at first.
    """
    count = 0
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
                found.takers[count] = request
                found.firsts[count] = first
                found.stops[count] = min(seen, num_lookup[request])
                count += 1
        take_rest(edges, last, at, stop, request)
    return count


@entry
def _order_by_owner(owners: Ints, found: Meetings, ordered: Meetings) -> None:
    """Bring what each owner has together, in the order of the takers (a counting sort)."""
    offsets = ordered.offsets
    for owner in owners:
        offsets[owner + 1] += 1
    for owner in range(1, len(offsets)):
        offsets[owner] += offsets[owner - 1]
    # From the last on, so that each owner's offset ends where its first is.
    for at in range(len(owners) - 1, -1, -1):
        owner = owners[at] + 1
        offsets[owner] -= 1
        place = offsets[owner]
        ordered.takers[place] = found.takers[at]
        ordered.firsts[place] = found.firsts[at]
        ordered.stops[place] = found.stops[at]
    # Now entry r + 1 says where owner r begins, and where the owner before it ends.
    for owner in range(1, len(offsets)):
        offsets[owner - 1] = offsets[owner]
    offsets[len(offsets) - 1] = len(owners)


@entry
def _keep_soonest(meetings: Meetings, held: Ints, num_blocks: int, kept: Kept) -> Integer:
    """Serve the requests."""
    offsets, takers, firsts, stops = meetings
    low, high, latest = kept
    num_latest = 0
    num_kept = np.int64(0)
    hits = np.int64(0)
    for request in range(len(held)):
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
                        _push(latest, num_latest, taker)
                        num_latest += 1
                    low[taker] = firsts[at]
                    num_kept += stops[at] - firsts[at]
            room = num_blocks if also else num_blocks - held[request]
            while num_kept > room:
                taker = latest[0]
                lost = min(num_kept - room, high[taker] - low[taker])
                high[taker] -= lost
                num_kept -= lost
                if low[taker] == high[taker]:
                    num_latest -= 1
                    _pop(latest, num_latest)
    return hits


@compiled
def _push(heap: Ints, size: Integer, value: Integer) -> None:
    """Add a number to a heap of ``size`` numbers, the largest of which comes first."""
    at = size
    while at > 0 and heap[(at - 1) // 2] < value:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = value


@compiled
def _pop(heap: Ints, size: Integer) -> None:
    """Take the largest number out of a heap, which leaves ``size`` numbers."""
    value = heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
