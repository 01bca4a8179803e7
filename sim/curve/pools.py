"""One capacity: what a pool of so many blocks hits, quickly on paths or block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import entry
from sim.curve.paths import Paths
from sim.curve.stack import Release
from sim.curve.stream import Integer, Ints
from sim.curve.walk import take_group, take_rest
from sim.mapped import filled, full, zeros


class Pool(NamedTuple):
    """What one pool does; requests that can never fit in it are refused and count in nothing."""

    num_blocks: int
    num_hit_tokens: int
    num_prompt_tokens: int
    num_refused: int


def replay_paths(
    paths: Paths, release: Release, num_blocks: int, *, keep_copies: bool = False
) -> Pool:
    """Serve the requests that fit in a pool, a path at a time.

    As exact as `sim.curve.stack.hits_by_capacity`, and at any capacity.
    """
    sizes = paths.sizes
    kept = Kept(*(zeros(sizes.num_requests) for _ in Kept._fields))
    hits, tokens, refused = _replay_paths(
        paths.edges,
        paths.offsets,
        paths.lengths,
        sizes.num_lookup_blocks,
        sizes.num_full_blocks,
        sizes.num_held_blocks,
        sizes.num_prompt_tokens,
        release.unfilled_first,
        keep_copies,
        num_blocks,
        full(len(paths.lengths), -1, np.int32),
        kept,
    )
    return Pool(num_blocks, int(hits) * sizes.block_size, int(tokens), int(refused))


def replay_blocks(paths: Paths, release: Release, num_blocks: int) -> Pool:
    """Serve the requests that fit in a pool, block by block, copies of a block and all.

    Exact at every capacity: the queue of the pool, and for each block its copies in the order in
    which they were registered, of which the oldest is hit.
    """
    sizes = paths.sizes
    num_names = int(paths.num_distinct_blocks)
    places = Places(
        after=filled(num_blocks + 1, lambda part: np.arange(part.start + 1, part.stop + 1)),
        before=filled(num_blocks + 1, lambda part: np.arange(part.start - 1, part.stop - 1)),
        name=full(num_blocks, -1),
        newer=full(num_blocks, -1, np.int32),
        older=full(num_blocks, -1, np.int32),
    )
    hits, tokens, refused = _replay_blocks(
        paths.edges,
        paths.offsets,
        paths.lengths,
        sizes.num_lookup_blocks,
        sizes.num_full_blocks,
        sizes.num_held_blocks,
        sizes.num_prompt_tokens,
        release.unfilled_first,
        num_blocks,
        zeros(len(paths.lengths)),
        places,
        full(num_names, -1, np.int32),
        full(num_names, -1, np.int32),
        zeros(min(num_blocks, sizes.max_held_blocks)),
    )
    return Pool(num_blocks, int(hits) * sizes.block_size, int(tokens), int(refused))


class Kept(NamedTuple):
    """Of each request, what is left of its blocks: those from ``low`` to ``high``, and copies."""

    low: Ints
    high: Ints
    copies: Ints


class Places(NamedTuple):
    """Places of a pool, in a ring through a place more, the queue's two ends.

    Attributes
    ----------
    after, before
        Neighbours in the ring.
    name
        Block that lies there; -1 for none.
    newer, older
        Places of the copies of it that were registered after and before; -1 for none.
    """

    after: Ints
    before: Ints
    name: Ints
    newer: NDArray[np.int32]
    older: NDArray[np.int32]


@entry
def _replay_paths(
    edges: NDArray[np.int32],
    offsets: Ints,
    lengths: NDArray[np.int32],
    num_lookup: Ints,
    num_full: Ints,
    num_held: Ints,
    num_prompt_tokens: Ints,
    unfilled_first: bool,
    keep_copies: bool,
    num_blocks: int,
    last: NDArray[np.int32],
    kept: Kept,
) -> tuple[Integer, Integer, Integer]:
    """Serve the requests; ``last`` is who touched an edge last, -1 at first."""
    num_requests = len(offsets) - 1
    low, high, copies = kept.low, kept.high, kept.copies
    oldest = 0
    num_kept = np.int64(0)
    hits = np.int64(0)
    tokens = np.int64(0)
    refused = 0
    for request in range(num_requests):
        if num_held[request] > num_blocks:
            refused += 1
            continue
        tokens += num_prompt_tokens[request]
        lookup = num_lookup[request]
        stop = offsets[request + 1]
        at = offsets[request]
        seen = np.int64(0)
        while at < stop and last[edges[at]] >= 0:
            owner = last[edges[at]]
            first = seen
            at, num_taken = take_group(edges, lengths, last, at, stop, request)
            seen += num_taken
            found = min(seen, high[owner])
            if found > first:
                hits += max(np.int64(0), min(found, lookup) - first)
                num_kept -= found - first
                low[owner] = found
        take_rest(edges, last, at, stop, request)
        copied = max(np.int64(0), seen - lookup) if keep_copies else np.int64(0)
        # What others keep while this request runs.
        too_many = num_kept + num_held[request] + copied - num_blocks
        while too_many > 0 and oldest < request:
            lost = min(too_many, high[oldest] - low[oldest])
            high[oldest] -= lost
            lost_copies = min(too_many - lost, copies[oldest])
            copies[oldest] -= lost_copies
            num_kept -= lost + lost_copies
            too_many -= lost + lost_copies
            if too_many > 0:
                oldest += 1
        high[request] = num_full[request] if unfilled_first else num_held[request]
        copies[request] = copied
        num_kept += high[request] + copies[request]
    return hits, tokens, refused


@entry
def _replay_blocks(
    edges: NDArray[np.int32],
    offsets: Ints,
    lengths: NDArray[np.int32],
    num_lookup: Ints,
    num_full: Ints,
    num_held: Ints,
    num_prompt_tokens: Ints,
    unfilled_first: bool,
    num_blocks: int,
    names: Ints,
    places: Places,
    oldest_copy: NDArray[np.int32],
    newest_copy: NDArray[np.int32],
    table: Ints,
) -> tuple[Integer, Integer, Integer]:
    """Serve the requests; the copies of a name are -1 at first, ``table`` is of one request."""
    # Names of blocks: those of an edge follow each other.
    num_names = np.int64(0)
    for edge in range(1, len(lengths)):
        names[edge] = num_names
        num_names += lengths[edge]
    after, before, name_of = places.after, places.before, places.name
    newer, older = places.newer, places.older
    after[num_blocks] = 0
    before[0] = num_blocks
    hits = np.int64(0)
    tokens = np.int64(0)
    refused = 0
    for request in range(len(offsets) - 1):
        held = num_held[request]
        if held > num_blocks:
            refused += 1
            continue
        tokens += num_prompt_tokens[request]
        lookup = num_lookup[request]
        full = np.int64(0)
        looking = True
        for at in range(offsets[request], offsets[request + 1]):
            first = names[edges[at]]
            for name in range(first, first + lengths[edges[at]]):
                if looking and full < lookup and oldest_copy[name] >= 0:
                    place = np.int64(oldest_copy[name])
                    after[before[place]] = after[place]
                    before[after[place]] = before[place]
                    table[full] = place
                    full += 1
                else:
                    if looking:
                        hits += full
                        looking = False
                    # The rest of the path is new: named once all hits are out of the queue.
                    table[full] = -1 - name
                    full += 1
        if looking:
            hits += full
        for index in range(held):
            if index < full and table[index] >= 0:
                continue
            place = after[num_blocks]
            after[num_blocks] = after[place]
            before[after[place]] = num_blocks
            evicted = name_of[place]
            if evicted >= 0:
                if older[place] >= 0:
                    newer[older[place]] = newer[place]
                else:
                    oldest_copy[evicted] = newer[place]
                if newer[place] >= 0:
                    older[newer[place]] = older[place]
                else:
                    newest_copy[evicted] = older[place]
            name_of[place] = -1
            if index < full:
                name = -1 - table[index]
                name_of[place] = name
                older[place] = newest_copy[name]
                newer[place] = -1
                if newest_copy[name] >= 0:
                    newer[newest_copy[name]] = place
                else:
                    oldest_copy[name] = place
                newest_copy[name] = place
            table[index] = place
        for index in range(held - 1, -1, -1):
            place = table[index]
            left = before[num_blocks]
            if unfilled_first and name_of[place] < 0:
                left = num_blocks
            right = after[left]
            after[left] = place
            before[place] = left
            after[place] = right
            before[right] = place
    return hits, tokens, refused
