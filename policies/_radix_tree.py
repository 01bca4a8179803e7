"""The radix tree of SGLang: nodes of whole pages, lock references, eviction of unlocked leaves."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from sim.errors import UsageError
from sim.types import OperationCounts

PROTECTED_HITS = 2
"""Hits from which ``slru`` protects a node (SGLang's ``protected_threshold``)."""


class Node:
    """A run of pages that follow each other in every sequence of the tree that has one of them.

    Attributes
    ----------
    keys, blocks
        Key of each page (see `sim.types.Content.block_keys`) and the block that holds it.
    children
        By the key of their first page.
    lock_ref
        Requests that use the node or one below it; the node cannot be evicted while there are any.
    last_access, creation
        When the node was last walked over, and made; in ticks of the tree.
    num_hits
        Insertions that went over the node, the first one included.
    priority
        Largest priority of any sequence inserted over the node.
    """

    __slots__ = (
        "blocks", "children", "creation", "keys", "last_access", "lock_ref", "num_hits", "parent",
        "priority",
    )  # fmt: skip

    def __init__(self, parent: Node | None, keys: list[int], blocks: list[int], now: int) -> None:
        self.parent = parent
        self.keys = keys
        self.blocks = blocks
        self.children: dict[int, Node] = {}
        self.lock_ref = 0
        self.last_access = now
        self.creation = now
        self.num_hits = 0
        self.priority = 0


Rank = tuple[int, int]

EVICTIONS: dict[str, Callable[[Node], Rank]] = {
    "lru": lambda node: (0, node.last_access),
    "lfu": lambda node: (node.num_hits, node.last_access),
    "fifo": lambda node: (0, node.creation),
    "mru": lambda node: (0, -node.last_access),
    "filo": lambda node: (0, -node.creation),
    "priority": lambda node: (node.priority, node.last_access),
    "slru": lambda node: (int(node.num_hits >= PROTECTED_HITS), node.last_access),
}
"""What is evicted first, by name: the leaf of the smallest rank."""


class RadixTree:
    """Cached sequences as a tree; every node below the root holds at least one page.

    A lookup that ends inside a node splits it there, so that the part in use can be locked and the
    rest evicted. The upper part of a split inherits locks, hits and priority; it counts as newly
    created. The lower part keeps its own, and counts as accessed too, since the walk came to it.

    SGLang ranks all evictable leaves anew for every eviction. Here a heap is kept, in which an
    entry is stale once its node has another rank or is no evictable leaf; the victims are the same.

    Parameters
    ----------
    eviction
        One of `EVICTIONS`.
    counts
        Where operations are counted.

    Attributes
    ----------
    num_blocks, num_evictable_blocks
        Pages in the tree, and those of them that no lock protects.
    evictable_leaves
        Unlocked nodes without children.
    on_evict
        Called with the key of each page of a leaf that goes, last page first.
    """

    def __init__(self, eviction: str = "lru", counts: OperationCounts | None = None) -> None:
        if eviction not in EVICTIONS:
            raise UsageError(
                f"--policy-arg eviction={eviction} is no order of SGLang's: choose one of "
                f"{', '.join(EVICTIONS)}."
            )
        self._rank = EVICTIONS[eviction]
        self._counts = counts or OperationCounts()
        self._now = 0
        self.root = Node(None, [], [], 0)
        self.num_blocks = 0
        self.num_evictable_blocks = 0
        self.evictable_leaves: set[Node] = set()
        self.on_evict: Callable[[int], None] | None = None
        # The serial number stands for nothing but an order among equal ranks.
        self._heap: list[tuple[Rank, int, Node]] = []
        self._serial = 0

    def find(self, keys: Sequence[int], stop: int) -> tuple[list[int], int]:
        """Look for the longest prefix among ``keys[:stop]`` without changing anything.

        Returns
        -------
        blocks, num_unlocked
            Of the pages found, and how many of these pages no lock protects.
        """
        blocks: list[int] = []
        num_unlocked = 0
        node = self.root
        while len(blocks) < stop:
            child = node.children.get(keys[len(blocks)])
            if child is None:
                break
            num_common = _num_common(child.keys, keys, len(blocks), stop)
            blocks += child.blocks[:num_common]
            num_unlocked += 0 if child.lock_ref else num_common
            if num_common < len(child.keys):
                break
            node = child
        return blocks, num_unlocked

    def match(self, keys: Sequence[int], stop: int) -> tuple[Node, int]:
        """Walk along the longest prefix among ``keys[:stop]`` and split where it ends.

        Returns
        -------
        node, num_pages
            The node that ends with the prefix, and the length of the prefix.
        """
        return self._walk(keys, stop)

    def insert(
        self, keys: Sequence[int], blocks: Sequence[int], priority: int = 0, num_inserted: int = 0
    ) -> int:
        """Put the sequence ``keys`` into the tree.

        Parameters
        ----------
        blocks
            Where its pages are; those that the tree has already keep the tree's.
        priority
            Of the request.
        num_inserted
            Pages that the same request inserted before: nodes within them are not hit again.

        Returns
        -------
        Leading pages that the tree had already.
        """
        self.root.priority = max(self.root.priority, priority)
        visited: list[tuple[Node, int]] = []
        node, num_present = self._walk(keys, len(keys), visited)
        for passed, stop in visited:
            passed.priority = max(passed.priority, priority)
            passed.num_hits += stop > num_inserted
        if num_present < len(keys):
            leaf = Node(node, list(keys[num_present:]), list(blocks[num_present:]), self._tick())
            leaf.priority = priority
            leaf.num_hits += len(keys) > num_inserted
            node.children[keys[num_present]] = leaf
            self.num_blocks += len(leaf.keys)
            self.num_evictable_blocks += len(leaf.keys)
            self._counts.dict_operations += 1
            self._counts.objects_created += 1
            self._update(leaf)
        self._update(node)
        return num_present

    def lock(self, node: Node) -> None:
        """Protect ``node`` and all above it."""
        for above in self.path(node):
            if above.lock_ref == 0:
                self.num_evictable_blocks -= len(above.keys)
            above.lock_ref += 1
            self._update(above)

    def unlock(self, node: Node) -> None:
        """Take one lock off ``node`` and all above it."""
        for above in self.path(node):
            above.lock_ref -= 1
            if above.lock_ref == 0:
                self.num_evictable_blocks += len(above.keys)
            self._update(above)

    def evict(self, num_blocks: int) -> list[int]:
        """Evict whole leaves until ``num_blocks`` are freed or none is evictable; give the blocks.

        A node whose last child goes is a leaf from then on.
        """
        freed: list[int] = []
        while len(freed) < num_blocks and self.evictable_leaves:
            rank, _, leaf = heapq.heappop(self._heap)
            self._counts.heap_pops += 1
            if leaf not in self.evictable_leaves or rank != self._rank(leaf):
                self._counts.stale_entries_skipped += 1
                continue
            freed += leaf.blocks
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.keys[0]]
            self.evictable_leaves.remove(leaf)
            self._update(parent)
            self.num_blocks -= len(leaf.keys)
            self.num_evictable_blocks -= len(leaf.keys)
            self._counts.dict_operations += 2
            if self.on_evict is not None:
                for key in reversed(leaf.keys):
                    self.on_evict(key)
        self._counts.evictions += len(freed)
        return freed

    def leaves(self) -> Iterator[list[int]]:
        """Yield, for every leaf, the keys of the path from the root to its end."""
        stack = [(self.root, self.root.keys)]
        while stack:
            node, path = stack.pop()
            if path and not node.children:
                yield path
            stack += [(child, path + child.keys) for child in node.children.values()]

    def block_ids(self) -> Iterator[int]:
        """Yield every block of the tree."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield from node.blocks
            stack += node.children.values()

    def _walk(
        self, keys: Sequence[int], stop: int, visited: list[tuple[Node, int]] | None = None
    ) -> tuple[Node, int]:
        now = self._tick()
        node, start = self.root, 0
        while start < stop:
            child = node.children.get(keys[start])
            self._counts.dict_operations += 1
            if child is None:
                break
            child.last_access = now
            num_common = _num_common(child.keys, keys, start, stop)
            start += num_common
            if num_common < len(child.keys):
                node = self._split(child, num_common)
                self._update(child)
            else:
                node = child
            if visited is not None:
                visited.append((node, start))
        self._update(node)
        return node, start

    def _split(self, child: Node, num_pages: int) -> Node:
        """Put a new node, that takes the first pages of ``child``, between it and its parent."""
        parent = child.parent
        assert parent is not None
        upper = Node(parent, child.keys[:num_pages], child.blocks[:num_pages], self._tick())
        upper.lock_ref = child.lock_ref
        upper.num_hits = child.num_hits
        upper.priority = child.priority
        child.keys, child.blocks = child.keys[num_pages:], child.blocks[num_pages:]
        child.parent = upper
        upper.children[child.keys[0]] = child
        parent.children[upper.keys[0]] = upper
        self._counts.dict_operations += 2
        self._counts.objects_created += 1
        return upper

    def _update(self, node: Node) -> None:
        """Note whether ``node`` is an evictable leaf, and its rank."""
        if node.children or node.lock_ref or node is self.root:
            self.evictable_leaves.discard(node)
            return
        self.evictable_leaves.add(node)
        self._push(node)
        if len(self._heap) > 64 + 4 * len(self.evictable_leaves):
            self._heap = []
            for leaf in sorted(self.evictable_leaves, key=self._rank):
                self._push(leaf)

    def _push(self, leaf: Node) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self._rank(leaf), self._serial, leaf))
        self._counts.heap_pushes += 1

    def path(self, node: Node) -> Iterator[Node]:
        """Yield ``node`` and those above it, without the root."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _tick(self) -> int:
        self._now += 1
        return self._now


def _num_common(ours: list[int], theirs: Sequence[int], start: int, stop: int) -> int:
    """Count the leading pages of ``ours`` that ``theirs[start:stop]`` begins with, at least one."""
    num_most = min(len(ours), stop - start)
    if list(theirs[start : start + num_most]) == ours[:num_most]:
        return num_most
    num_common = 1
    while ours[num_common] == theirs[start + num_common]:
        num_common += 1
    return num_common
