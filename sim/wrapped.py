"""An allocator with something around it: what a wrapper does not change, the one within answers."""

from __future__ import annotations

from typing import Any

from sim.types import Allocator, BlockUsage, PrefixMatch, Sequence


class Wrapped:
    """Answers as the allocator within does; a subclass changes what it is for.

    Attributes that the protocol does not name, such as ``counts`` or ``snapshot``, are those of the
    allocator within.

    Parameters
    ----------
    allocator
        The one within.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.num_blocks = allocator.num_blocks
        self.block_size = allocator.block_size

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the allocator has
        # A copy or an unpickled object has no allocator yet, and must not look for it for ever.
        if name == "_allocator":
            raise AttributeError(name)
        return getattr(self._allocator, name)

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Look up."""
        return self._allocator.match_prefix(seq)

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate."""
        return self._allocator.allocate(seq, match, num_tokens)

    def cache_blocks(self, seq: Sequence) -> None:
        """Take note of computed tokens."""
        self._allocator.cache_blocks(seq)

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks."""
        self._allocator.free(seq)

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        return self._allocator.usage()

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return self._allocator.block_table(seq)

    def max_request_blocks(self) -> int:
        """Blocks that a request alone in the engine may come to hold."""
        return self._allocator.max_request_blocks()
