"""From references to paths: runs of blocks that are always touched together become one edge.

Requests that share a prefix walk the same path through a radix tree whose edges are runs of
blocks. A trace of millions of references is a few edges per request, and everything else in this
package works on those. The tree costs one comparison for a block that an earlier request had and
nothing for one that none had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled, entry
from sim.curve.stream import Integer, Ints, References, Sizes
from sim.mapped import full, zeros


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
    num_requests = references.sizes.num_requests
    # A request adds a leaf at most, and splits one edge at most, whose upper part is a new one.
    max_edges = 2 * num_requests + 1
    parents, lengths = zeros(max_edges, np.int32), zeros(max_edges, np.int32)
    ends = zeros(num_requests, np.int32)
    num_slots = 8
    while num_slots < 2 * max_edges:
        num_slots *= 2
    children = Children(full(num_slots, -1, np.int32), zeros(num_slots), zeros(num_slots, np.int32))
    num_edges = _grow(
        references.blocks,
        references.offsets,
        parents,
        lengths,
        zeros(max_edges),
        ends,
        children,
    )
    offsets = zeros(num_requests + 1)
    _count_edges(parents, ends, offsets)
    edges = zeros(int(offsets[-1]), np.int32)
    _list_edges(parents, ends, offsets, edges)
    return Paths(edges, offsets, lengths[:num_edges], references.sizes)


class Children(NamedTuple):
    """Edges by the edge before them and their first block: a hash table.

    Attributes
    ----------
    nodes
        Edge before; -1 where a slot is free.
    firsts
        First block.
    edges
        The edge.
    """

    nodes: NDArray[np.int32]
    firsts: NDArray[np.int64]
    edges: NDArray[np.int32]


@compiled
def _slot_of(children: Children, node: Integer, first: Integer) -> Integer:
    """Find the place of the child of ``node`` whose first block is ``first``, or a free one."""
    nodes, firsts = children.nodes, children.firsts
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
    blocks: NDArray[np.integer[Any]],
    offsets: Ints,
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    starts: Ints,
    ends: NDArray[np.int32],
    children: Children,
) -> Integer:
    """Insert every request: find parent, length and start of each edge, and each one's last edge.

    Returns the number of edges, the unused one included.
    """
    num_requests = len(offsets) - 1
    num_edges = 1
    for request in range(num_requests):
        node = 0
        at = offsets[request]
        stop = offsets[request + 1]
        while at < stop:
            slot = _slot_of(children, node, blocks[at])
            if children.nodes[slot] < 0:
                leaf = num_edges
                num_edges += 1
                children.nodes[slot] = node
                children.firsts[slot] = blocks[at]
                children.edges[slot] = leaf
                parents[leaf] = node
                starts[leaf] = at
                lengths[leaf] = stop - at
                node = leaf
                break
            child = children.edges[slot]
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
                children.edges[slot] = upper
                parents[child] = upper
                starts[child] = start + same
                lengths[child] = length - same
                below = _slot_of(children, upper, blocks[start + same])
                children.nodes[below] = upper
                children.firsts[below] = blocks[start + same]
                children.edges[below] = child
                child = upper
            node = child
            at += same
        ends[request] = node
    return num_edges


@entry
def _count_edges(parents: NDArray[np.int32], ends: NDArray[np.int32], offsets: Ints) -> None:
    """Find where the edges of each request begin, walking up from its last edge."""
    for request in range(len(ends)):
        depth = 0
        node = ends[request]
        while node != 0:
            depth += 1
            node = parents[node]
        offsets[request + 1] = offsets[request] + depth


@entry
def _list_edges(
    parents: NDArray[np.int32], ends: NDArray[np.int32], offsets: Ints, edges: NDArray[np.int32]
) -> None:
    """Lay out the edges of each request."""
    for request in range(len(ends)):
        node = ends[request]
        at = offsets[request + 1]
        while node != 0:
            at -= 1
            edges[at] = node
            node = parents[node]
