"""Stack distances along paths: at which capacity each block becomes a hit, for all at once.

Requests run one at a time. A request takes what it needs from the cold end of the queue and, at
its end, its blocks go to the warm end, last block first. So of two blocks on one path the one
nearer to the root is always warmer, what a pool holds of a path is a prefix of it, and what a
pool of C blocks holds is what a larger one holds at its warm end: a stack algorithm (Mattson,
Gecsei, Slutz and Traiger, 1970). A block that lies d-th from the warm end when a request comes is
a hit in pools of at least d blocks.

The blocks that were last touched by one request lie together in the queue, and they are always the
tail of its path, for whoever touches a block touches all before it. Hence one number per past
request tells the place of all of its blocks:

    place of block j of request p = shift(p) + j + 1

where a later request r raises shift(p) by its own length, less the blocks that it shares with p or
with requests after p. Only those few numbers are kept, in a tree over the requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled, entry
from sim.curve.paths import Paths
from sim.curve.stream import Integer, Ints
from sim.curve.walk import take_group, take_rest
from sim.mapped import filled, full, zeros


@dataclass(frozen=True)
class Release:
    """How blocks come back to the queue.

    Attributes
    ----------
    unfilled_first
        Blocks that nobody can hit go to the front, to be reused first (vLLM 0.33), instead of
        queueing like the others (0.8.5).
    head_first
        A request's first block is the first to go, as where blocks are kept in the order in which
        they are touched (Mooncake's store). No vLLM does this.
    """

    unfilled_first: bool = False
    head_first: bool = False


@dataclass(frozen=True)
class Counts:
    """Hits by capacity.

    Attributes
    ----------
    num_hit_tokens
        Tokens hit in a pool of ``index`` blocks, int64. The last entry holds for all larger pools.
    num_repeated_blocks
        Blocks that were made again although a copy may have been cached (see `hits_by_capacity`).
    """

    num_hit_tokens: Ints
    num_repeated_blocks: int


def hits_by_capacity(paths: Paths, release: Release, *, keep_copies: bool = False) -> Counts:
    """Count the tokens hit at every capacity, in one pass.

    Exact where no block is *repeated* and from the pool on that serves every request. A request
    repeats a block that it fills although an earlier one had filled it, because its lookup did not
    reach it: the last block of a prompt seen before, or what the model generates a second time.
    vLLM keeps both copies. Which of them a later request takes, and so which is left behind to fill
    a place, depends on the capacity: no stack algorithm, and the two counts here enclose it.

    Parameters
    ----------
    paths
        The requests.
    release
        The order of the queue.
    keep_copies
        False: a repeated block takes the place of its older copy, hence no hit too few. True: every
        repeated block leaves a copy behind for good, hence no hit too many.
    """
    sizes = paths.sizes
    num_requests, num_full = sizes.num_requests, sizes.num_full_blocks
    num_unfilled = filled(num_requests, lambda part: sizes.num_held_blocks[part] - num_full[part])
    none = zeros(num_requests)
    if release.head_first:
        weights, extra = num_full, none
    elif release.unfilled_first:
        weights, extra = num_full, num_unfilled
    else:
        weights, extra = sizes.num_held_blocks, none
    num_places = (
        paths.num_distinct_blocks
        + int(weights.sum() - num_full.sum())
        + int(extra.max())
        + (int(num_full.sum() - sizes.num_lookup_blocks.sum()) if keep_copies else 0)
    )
    rises = zeros(num_places + 3)
    missing = zeros(num_places + 3 if sizes.num_missing_tokens is not None else 1)
    num_leaves = 1
    while num_leaves < num_requests:
        num_leaves *= 2
    num_repeated = _measure(
        paths.edges,
        paths.offsets,
        paths.lengths,
        sizes.num_lookup_blocks,
        none if sizes.num_missing_tokens is None else sizes.num_missing_tokens,
        weights,
        extra,
        release.head_first,
        keep_copies,
        zeros(2 * num_leaves),
        full(2 * num_leaves, -1),
        full(len(paths.lengths), -1, np.int32),
        zeros(num_requests),
        rises,
        missing,
    )
    # In place, since the memory of large traces is not for nothing.
    hits = np.cumsum(np.cumsum(rises, out=rises), out=rises)
    hits *= sizes.block_size
    if sizes.num_missing_tokens is not None:
        hits -= np.cumsum(missing, out=missing)
    # Nothing rises after the last entry that is kept.
    return Counts(hits[: int(np.searchsorted(hits, hits[-1])) + 1], int(num_repeated))


@entry
def _measure(
    edges: NDArray[np.int32],
    offsets: Ints,
    lengths: NDArray[np.int32],
    num_lookup: Ints,
    num_missing: Ints,
    weights: Ints,
    extra: Ints,
    head_first: bool,
    keep_copies: bool,
    shift: Ints,
    peak: Ints,
    last: NDArray[np.int32],
    num_seen: Ints,
    rises: Ints,
    missing: Ints,
) -> Integer:
    """Fill ``rises``, whose double sum counts the blocks hit, and return the repeated blocks.

    ``missing`` sums up to the tokens that those blocks lack to be full.

    ``peak[size + p]`` is the most that shift(p) came to, with ``extra`` of the request at whose end
    it did: blocks that the pool had no room for besides. ``shift`` is 0 at first, ``peak`` and
    ``last``, who touched an edge last, are -1. ``num_seen`` are the blocks of each request that an
    earlier one had filled.
    """
    num_requests = len(offsets) - 1
    size = len(shift) // 2
    num_all_repeated = np.int64(0)
    for request in range(num_requests):
        lookup = num_lookup[request]
        stop = offsets[request + 1]
        at = offsets[request]
        seen = np.int64(0)
        while at < stop and last[edges[at]] >= 0:
            # Consecutive edges that one request touched last are one group of blocks.
            owner = last[edges[at]]
            first = seen
            at, num_taken = take_group(edges, lengths, last, at, stop, request)
            seen += num_taken
            _settle(shift, peak, size + owner)
            if first < lookup:
                place = peak[size + owner]
                num_hits = min(seen, lookup) - first
                if head_first:
                    # The prefix is whole where its first block is there, the coldest.
                    place += weights[owner]
                    rises[place] += num_hits
                    rises[place + 1] -= num_hits
                    if num_missing[request] and seen >= lookup:
                        missing[place] += num_missing[request]
                else:
                    place += first + 1
                    if keep_copies:
                        place += max(0, min(first, num_seen[owner]) - num_lookup[owner])
                    rises[place] += 1
                    rises[place + num_hits] -= 1
            _raise_from(shift, peak, size + owner + 1, seen - first)
        take_rest(edges, last, at, stop, request)
        repeated = max(np.int64(0), seen - lookup)
        num_all_repeated += repeated
        num_seen[request] = seen
        amount = weights[request] - seen
        if keep_copies:
            amount += repeated
        peak[1] = max(peak[1], shift[1] + amount + extra[request])
        shift[1] += amount
        _settle(shift, peak, size + request)
        shift[size + request] = 0
        peak[size + request] = extra[request]
    return num_all_repeated


@compiled
def _settle(shift: Ints, peak: Ints, leaf: Integer) -> None:
    """Hand pending changes down to a leaf: node n of the tree has the children 2 n and 2 n + 1.

    What is pending at a node is a rise, and the highest that the rise came to on its way; -1 says
    that nothing is.
    """
    height = 0
    while leaf >> (height + 1):
        height += 1
    for level in range(height, 0, -1):
        node = leaf >> level
        if peak[node] < 0:
            continue
        for child in (2 * node, 2 * node + 1):
            peak[child] = max(peak[child], shift[child] + peak[node])
            shift[child] += shift[node]
        shift[node] = 0
        peak[node] = -1


@compiled
def _raise_from(shift: Ints, peak: Ints, leaf: Integer, amount: Integer) -> None:
    """Raise every leaf from this one on."""
    _settle(shift, peak, leaf)
    node = leaf
    shift[node] += amount
    peak[node] = max(peak[node], shift[node])
    while node > 1:
        if node % 2 == 0:
            shift[node + 1] += amount
            peak[node + 1] = max(peak[node + 1], shift[node + 1])
        node //= 2
