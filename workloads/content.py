"""What a token stream is: a path of shared segments, or explicit token ids."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from sim.types import Content

Ints = NDArray[np.int64]


class Segments:
    """A path of segments of any lengths.

    The prefix that ends ``o`` tokens into segment j (from 0) is named ``bases[j] + o``. The name of
    a prefix serves as the key of the block that ends there and as the id of the token there: both
    need only be equal where the prefixes are.

    Parameters
    ----------
    bases
        First name of each segment, shape ``(k,)``. Ranges ``[base, base + length)`` of different
        segments of one workload must not overlap, and a base belongs to one prefix only, so that
        who has a segment has all of those before it. Paths may leave a segment before its end: the
        next base then always follows that many of its tokens. Names ascend along a path.
    ends
        Position after each segment, ascending, shape ``(k,)``; may be shared by many requests.

    Attributes
    ----------
    as_read
        The path by the ids of the row alone, where a later turn told more of the stream; else None.
    """

    __slots__ = ("as_read", "bases", "ends", "num_tokens")
    num_tokens: int
    as_read: Segments | None

    def __init__(self, bases: Ints, ends: Ints) -> None:
        self.bases = bases
        self.ends = ends
        self.num_tokens = int(ends[-1]) if len(ends) else 0
        self.as_read = None

    def names(self, positions: Ints) -> Ints:
        """Name the prefixes that end with these positions, which ascend from 0 up."""
        segment = np.searchsorted(self.ends, positions, side="right")
        starts = np.concatenate(([0], self.ends[:-1]))
        return (self.bases - starts)[segment] + positions

    def path(self) -> tuple[list[int], list[int]]:
        """Give bases and ends as plain lists."""
        return self.bases.tolist(), self.ends.tolist()

    def block_keys(self, block_size: int) -> Ints:
        """Name every full block; see `sim.types.Content.block_keys`."""
        return self.names(np.arange(block_size - 1, self.num_tokens, block_size, dtype=np.int64))

    def token_ids(self, start: int, stop: int) -> Ints:
        """Tokens ``start`` to ``stop``; see `sim.types.Content.token_ids`."""
        return self.names(np.arange(start, stop, dtype=np.int64))


class Interner:
    """Numbers chains of blocks: equal numbers if and only if equal chains, since nothing is hashed.

    One interner serves a whole workload. It may serve several block sizes at once, because chains
    of different block sizes differ in the length of their first block.
    """

    ROOT = -1
    """Parent of a first block."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[tuple[int, tuple[int, ...]], int] = {}

    def key(self, parent: int, tokens: tuple[int, ...]) -> int:
        """Give the number of the block of ``tokens`` that follows the chain numbered ``parent``."""
        return self._keys.setdefault((parent, tokens), len(self._keys))


class TokenIds:
    """A stream given by its token ids.

    Parameters
    ----------
    tokens
        Shape ``(num_tokens,)``.
    interner
        The workload's own; keys made by different interners must not be compared.
    """

    __slots__ = ("_interner", "_tokens")

    def __init__(self, tokens: Ints, interner: Interner) -> None:
        self._tokens = tokens
        self._interner = interner

    @property
    def num_tokens(self) -> int:
        """Length of the stream."""
        return len(self._tokens)

    def block_keys(self, block_size: int) -> Ints:
        """Name every full block; see `sim.types.Content.block_keys`."""
        num_blocks = self.num_tokens // block_size
        blocks = self._tokens[: num_blocks * block_size].reshape(num_blocks, block_size)
        keys = np.empty(num_blocks, dtype=np.int64)
        parent = Interner.ROOT
        for index, block in enumerate(blocks.tolist()):
            parent = keys[index] = self._interner.key(parent, tuple(block))
        return keys

    def token_ids(self, start: int, stop: int) -> Ints:
        """Tokens ``start`` to ``stop``; see `sim.types.Content.token_ids`."""
        return self._tokens[start:stop]


def path(content: Content, stop: int) -> tuple[list[int], list[int]]:
    """Spell the first ``stop`` tokens of any content as a path of segments.

    Returns
    -------
    bases, ends
        First name of each segment and the position after it, as plain lists, which are quicker
        than arrays for the few segments of most requests; a content without segments has one per
        token.
    """
    if isinstance(content, Segments):
        return cut(*content.path(), stop)
    names = content.block_keys(1)[:stop].tolist()
    return names, list(range(1, len(names) + 1))


def cut(bases: list[int], ends: list[int], stop: int) -> tuple[list[int], list[int]]:
    """Cut a path of segments to its first ``stop`` tokens."""
    if not ends or ends[-1] <= stop:
        return bases, ends
    count = bisect_left(ends, stop) + 1 if stop > 0 else 0
    return bases[:count], [*ends[: count - 1], stop] if count else []


def prefix_names(content: Content, positions: Ints) -> Ints:
    """Name the prefixes of any content that end with these positions, which ascend from 0 up."""
    if isinstance(content, Segments):
        return content.names(positions)
    return content.block_keys(1)[positions]
