"""The two LRU evictors of vLLM V0: orders over free cached blocks."""

from __future__ import annotations

import heapq
from operator import length_hint
from typing import ClassVar, Protocol

from sim.types import OperationCounts


class BlockMetadata:
    """What an evictor knows of a free cached block.

    Attributes
    ----------
    key
        Key of the prefix that ends with the block.
    num_hashed_tokens
        Length of that prefix.
    last_accessed_ns
        Simulated time at which a request last held the block, ns.
    """

    __slots__ = ("key", "last_accessed_ns", "num_hashed_tokens")

    def __init__(self, key: int, num_hashed_tokens: int, last_accessed_ns: int) -> None:
        self.key = key
        self.num_hashed_tokens = num_hashed_tokens
        self.last_accessed_ns = last_accessed_ns


class Evictor(Protocol):
    """Chooses which free cached block loses its content.

    What that takes is counted in ``counts``, by calls of `count`: many operations at a time, since
    counting each by itself takes up to a fifth of the policy's time.
    """

    free_table: dict[int, BlockMetadata]

    def __init__(self, counts: OperationCounts | None = None) -> None: ...

    def add(self, block_id: int, metadata: BlockMetadata) -> None:
        """Take in a block that nobody holds any more."""
        ...

    def remove(self, block_id: int) -> None:
        """Give up a block that was hit."""
        ...

    def evict(self) -> tuple[int, int]:
        """Remove the victim and return its id and key."""
        ...

    def count(self, *, num_added: int = 0, num_removed: int = 0, num_evicted: int = 0) -> None:
        """Count what the operations since the last call took, which are so many."""
        ...

    def snapshot(self) -> list[int]:
        """Block ids in the order that recorded logs use."""
        ...

    def structures(self) -> dict[str, list[str]]:
        """Show the structures by name, entry by entry, for a reader."""
        ...


def _table_entries(free_table: dict[int, BlockMetadata]) -> list[str]:
    return [
        f"{block_id} at {metadata.last_accessed_ns / 1e6:g} ms, {metadata.num_hashed_tokens} tokens"
        for block_id, metadata in free_table.items()
    ]


class ScanEvictor:
    """Finds the victim by scanning the free table (vLLM 0.6.4's ``LRUEvictor``).

    The table is in order of insertion, hence nearly in order of time; the scan stops at the first
    block that is newer than the best so far. Of equally old blocks the one with the most hashed
    tokens goes first, the tail of a prefix before its head. Where many blocks share a time stamp,
    as those of one long request do, every eviction scans them all. Since the order is that of
    release, a block released first goes first even if one behind it was last accessed earlier.
    """

    def __init__(self, counts: OperationCounts | None = None) -> None:
        self.free_table: dict[int, BlockMetadata] = {}
        self._counts = counts or OperationCounts()

    def add(self, block_id: int, metadata: BlockMetadata) -> None:
        """Append to the table, O(1)."""
        self.free_table[block_id] = metadata

    def remove(self, block_id: int) -> None:
        """Delete from the table, O(1)."""
        del self.free_table[block_id]

    def evict(self) -> tuple[int, int]:
        """Scan for the oldest and, among those, deepest block: O(blocks of one time stamp)."""
        victim_id, victim = next(iter(self.free_table.items()))
        entries = iter(self.free_table.items())
        for block_id, metadata in entries:
            if victim.last_accessed_ns < metadata.last_accessed_ns:
                break
            if victim.num_hashed_tokens < metadata.num_hashed_tokens:
                victim_id, victim = block_id, metadata
        # What the iterator has left says how far the scan went, without a counter in the loop.
        self._counts.entries_scanned += len(self.free_table) - length_hint(entries)
        del self.free_table[victim_id]
        return victim_id, victim.key

    def count(self, *, num_added: int = 0, num_removed: int = 0, num_evicted: int = 0) -> None:
        """Count one operation of the table each; scanned entries are counted by the scan."""
        self._counts.dict_operations += num_added + num_removed + num_evicted

    def snapshot(self) -> list[int]:
        """Block ids in order of insertion."""
        return list(self.free_table)

    def structures(self) -> dict[str, list[str]]:
        """Show the table, in order of insertion."""
        return {"free table, scanned": _table_entries(self.free_table)}


class HeapEvictor:
    """Finds the victim in a heap with lazy deletion (``LRUEvictor`` since vLLM 0.7, here 0.8.5).

    A hit removes its block from the free table only; its heap entry goes stale and is skipped when
    it is popped. Once the heap is ``CLEANUP_THRESHOLD`` times longer than the table, it is rebuilt.
    Ties: the most hashed tokens first, then the lowest block id.
    """

    CLEANUP_THRESHOLD: ClassVar[int] = 50

    def __init__(self, counts: OperationCounts | None = None) -> None:
        self.free_table: dict[int, BlockMetadata] = {}
        self._counts = counts or OperationCounts()
        self.heap: list[tuple[int, int, int, int]] = []
        # Entries in the heap when it was last counted, less those that a clean-up dropped since.
        self._num_counted_entries = 0

    def add(self, block_id: int, metadata: BlockMetadata) -> None:
        """Push an entry, O(log heap); amortised clean-up."""
        self.free_table[block_id] = metadata
        heapq.heappush(self.heap, self._entry(block_id, metadata))
        if len(self.heap) > self.CLEANUP_THRESHOLD * len(self.free_table):
            self._num_counted_entries += len(self.free_table) - len(self.heap)
            self.heap = [self._entry(*item) for item in self.free_table.items()]
            heapq.heapify(self.heap)
            self._counts.heap_pushes += len(self.heap)

    def remove(self, block_id: int) -> None:
        """Delete from the table and leave a stale entry in the heap, O(1)."""
        del self.free_table[block_id]

    def evict(self) -> tuple[int, int]:
        """Pop until an entry still describes a free block."""
        while True:
            last_accessed_ns, _, block_id, key = heapq.heappop(self.heap)
            metadata = self.free_table.get(block_id)
            # vLLM compares the time alone. A block that is hit, released, evicted and released
            # again within one time stamp would then be evicted under its old key.
            if (
                metadata is not None
                and metadata.last_accessed_ns == last_accessed_ns
                and metadata.key == key
            ):
                del self.free_table[block_id]
                return block_id, key

    def count(self, *, num_added: int = 0, num_removed: int = 0, num_evicted: int = 0) -> None:
        """Count pushes, and pops by how much shorter the heap is; each pop looks at the table."""
        num_popped = self._num_counted_entries + num_added - len(self.heap)
        self._num_counted_entries = len(self.heap)
        counts = self._counts
        counts.heap_pushes += num_added
        counts.heap_pops += num_popped
        counts.stale_entries_skipped += num_popped - num_evicted
        counts.dict_operations += num_added + num_removed + num_popped + num_evicted

    def snapshot(self) -> list[int]:
        """Block ids in the order of eviction."""
        entries = sorted(self._entry(*item) for item in self.free_table.items())
        return [block_id for _, _, block_id, _ in entries]

    def structures(self) -> dict[str, list[str]]:
        """Show the table, and the heap with its stale entries, next to be popped first."""
        live = {self._entry(*item) for item in self.free_table.items()}
        heap = [
            f"{entry[2]} at {entry[0] / 1e6:g} ms" + ("" if entry in live else " (stale)")
            for entry in sorted(self.heap)
        ]
        return {"free table": _table_entries(self.free_table), "heap": heap}

    @staticmethod
    def _entry(block_id: int, metadata: BlockMetadata) -> tuple[int, int, int, int]:
        return (
            metadata.last_accessed_ns,
            -metadata.num_hashed_tokens,
            block_id,
            metadata.key,
        )
