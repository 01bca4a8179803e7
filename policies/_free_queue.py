"""The free queue of vLLM V1: two pointers in each block and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Block:
    """Metadata of one physical KV cache block.

    Attributes
    ----------
    ref_count
        Requests that hold the block. A block with 0 stands in the free queue.
    key
        What the block holds, if a lookup may find it: the key of the prefix that ends with it.
        It stays when the block is freed and goes when the block is reused.
    prev, next
        Neighbours in the free queue; None while the block is not in it.
    """

    __slots__ = ("block_id", "key", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: int | None = None
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count}, key={self.key})"


POINTERS_PER_MOVE = 4
"""Pointers that are set when a block enters or leaves the queue: two of its own, two around it."""


class FreeQueue:
    """Free blocks in the order in which they will be reused, next victim first.

    A doubly linked list through the blocks themselves, so that a hit takes a block out of the
    middle in constant time and nothing is allocated for it. Two sentinels stand at the ends: no
    operation has to ask whether a neighbour exists.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.num_blocks = 0
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        for block in blocks:
            self.append(block)

    def popleft(self) -> Block:
        """Take the next victim.

        Raises
        ------
        IndexError
            The queue is empty.
        """
        block = self._head.next
        assert block is not None
        if block is self._tail:
            raise IndexError("the free queue is empty")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Take ``block`` out, wherever it stands."""
        before, after = block.prev, block.next
        assert before is not None
        assert after is not None
        before.next = after
        after.prev = before
        block.prev = block.next = None
        self.num_blocks -= 1

    def append(self, block: Block) -> None:
        """Put ``block`` at the end: reused last."""
        self._insert_before(self._tail, block)

    def prepend(self, block: Block) -> None:
        """Put ``block`` at the front: reused first."""
        after = self._head.next
        assert after is not None
        self._insert_before(after, block)

    def _insert_before(self, after: Block, block: Block) -> None:
        before = after.prev
        assert before is not None
        block.prev = before
        block.next = after
        before.next = block
        after.prev = block
        self.num_blocks += 1

    def __iter__(self) -> Iterator[Block]:
        """Walk from the next victim to the last."""
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next
