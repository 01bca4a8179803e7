"""One level of memory below the GPU: which blocks lie there, and what a read takes."""

from __future__ import annotations

from collections import OrderedDict


class Tier:
    """Blocks by key, the least recently used of which makes room, behind one link.

    A key is used when it is put, loaded, or let go of by a request. Reads of one step go over the
    link one after another; writes go the other way, beside the reads, and take no time.

    Parameters
    ----------
    name
        ``host`` or ``ssd``.
    num_blocks
        Capacity, at least 1.
    ns_per_block
        Bytes of a block over the bandwidth of reads.
    latency_ns
        What a request's read takes before its first byte.

    Attributes
    ----------
    num_blocks_read, num_blocks_written
        Over the whole run.
    queued_ns
        When the link will be free again, from the start of the step.
    """

    def __init__(self, name: str, num_blocks: int, ns_per_block: float, latency_ns: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.ns_per_block = ns_per_block
        self.latency_ns = latency_ns
        self.num_blocks_read = 0
        self.num_blocks_written = 0
        self.queued_ns = 0
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[int]:
        """List the keys, next victim first."""
        return list(self._keys)

    def touch(self, key: int) -> None:
        """Note that a key is used, if it is here."""
        if key in self._keys:
            self._keys.move_to_end(key)

    def put(self, key: int) -> int | None:
        """Write a block unless it is here; give the key that had to go for it."""
        if key in self._keys:
            self._keys.move_to_end(key)
            return None
        victim = None
        if len(self._keys) == self.num_blocks:
            victim, _ = self._keys.popitem(last=False)
        self._keys[key] = None
        self.num_blocks_written += 1
        return victim

    def ready_ns(self, num_blocks: int) -> int:
        """When ``num_blocks`` more would be read, ns from the start of the step."""
        if not num_blocks:
            return self.queued_ns
        return self.queued_ns + self.latency_ns + int(num_blocks * self.ns_per_block + 0.5)

    def read(self, num_blocks: int) -> None:
        """Queue a read."""
        self.queued_ns = self.ready_ns(num_blocks)
        self.num_blocks_read += num_blocks
