"""From references to paths: runs of blocks that are always touched together become one edge.

Requests that share a prefix walk the same path through a radix tree whose edges are runs of
blocks. A trace of millions of references is a few edges per request, and everything else in this
package works on those. The tree costs one comparison for a block that an earlier request had and
nothing for one that none had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled, entry
from sim.curve.stream import Integer, Ints, References, Sizes


@dataclass(frozen=True)
class Paths:
    """Requests as paths of edges.

    Attributes
    ----------
    edges
        Edges of each request from the first block on, request after request, int32.
    offsets
        Request r has ``edges[offsets[r]:offsets[r + 1]]``, shape ``(num_requests + 1,)``.
    lengths
        Blocks on each edge, shape ``(num_edges,)``; edge 0 is not used.
    sizes
        How large the requests are; a path has as many blocks as its request fills.
    """

    edges: NDArray[np.int32]
    offsets: Ints
    lengths: NDArray[np.int32]
    sizes: Sizes

    @property
    def num_distinct_blocks(self) -> Integer:
        """Blocks of the whole tree: what a cache that never evicts comes to hold."""
        return int(self.lengths.sum(dtype=np.int64))


def find_paths(references: References) -> Paths:
    """Walk every request through one radix tree."""
    parents, lengths, ends = _grow(references.blocks, references.offsets)
    edges, offsets = _list_paths(parents, ends)
    return Paths(edges, offsets, lengths, references.sizes)


@compiled
def _slot_of(
    nodes: NDArray[np.int32], firsts: NDArray[np.int64], node: Integer, first: Integer
) -> Integer:
    """Find the place of the child of ``node`` whose first block is ``first``, or a free one."""
    mask = len(nodes) - 1
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(node) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    slot = np.int64(mixed & np.uint64(mask))
    while nodes[slot] >= 0 and not (nodes[slot] == node and firsts[slot] == first):
        slot = (slot + 1) & mask
    return slot


@entry
def _grow(
    blocks: NDArray[np.integer[Any]], offsets: Ints
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Insert every request; return parent and length of each edge, and the last of each request.

    A request adds a leaf at most, and splits one edge at most, whose upper part becomes a new one.
    """
    num_requests = len(offsets) - 1
    max_edges = 2 * num_requests + 1
    parents = np.zeros(max_edges, dtype=np.int32)
    lengths = np.zeros(max_edges, dtype=np.int32)
    starts = np.zeros(max_edges, dtype=np.int64)
    ends = np.zeros(num_requests, dtype=np.int32)
    size = 8
    while size < 2 * max_edges:
        size *= 2
    nodes = np.full(size, -1, dtype=np.int32)
    firsts = np.zeros(size, dtype=np.int64)
    children = np.zeros(size, dtype=np.int32)
    num_edges = 1
    for request in range(num_requests):
        node = 0
        at = offsets[request]
        stop = offsets[request + 1]
        while at < stop:
            slot = _slot_of(nodes, firsts, node, blocks[at])
            if nodes[slot] < 0:
                leaf = num_edges
                num_edges += 1
                nodes[slot] = node
                firsts[slot] = blocks[at]
                children[slot] = leaf
                parents[leaf] = node
                starts[leaf] = at
                lengths[leaf] = stop - at
                node = leaf
                break
            child = children[slot]
            start = starts[child]
            length = lengths[child]
            limit = min(np.int64(length), stop - at)
            same = np.int64(1)
            while same < limit and blocks[start + same] == blocks[at + same]:
                same += 1
            if same < length:
                upper = num_edges
                num_edges += 1
                parents[upper] = node
                starts[upper] = start
                lengths[upper] = same
                children[slot] = upper
                parents[child] = upper
                starts[child] = start + same
                lengths[child] = length - same
                below = _slot_of(nodes, firsts, upper, blocks[start + same])
                nodes[below] = upper
                firsts[below] = blocks[start + same]
                children[below] = child
                child = upper
            node = child
            at += same
        ends[request] = node
    return parents[:num_edges], lengths[:num_edges], ends


@entry
def _list_paths(
    parents: NDArray[np.int32], ends: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Walk up from the last edge of each request."""
    num_requests = len(ends)
    offsets = np.zeros(num_requests + 1, dtype=np.int64)
    for request in range(num_requests):
        depth = 0
        node = ends[request]
        while node != 0:
            depth += 1
            node = parents[node]
        offsets[request + 1] = offsets[request] + depth
    edges = np.empty(offsets[num_requests], dtype=np.int32)
    for request in range(num_requests):
        node = ends[request]
        at = offsets[request + 1]
        while node != 0:
            at -= 1
            edges[at] = node
            node = parents[node]
    return edges, offsets
