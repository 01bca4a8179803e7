"""What a token stream is: a path of shared segments, or explicit token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.types import Content

Ints = NDArray[np.int64]


class _NamedPrefixes:
    """A stream in which the prefix that ends with position p has a number, its name.

    The name of the prefix serves as the key of the block that ends there and as the id of the
    token there: both need only be equal where the prefixes are.
    """

    __slots__ = ("num_tokens",)
    num_tokens: int

    def names(self, positions: Ints) -> Ints:
        """Name the prefixes that end with these positions, which ascend from 0 up."""
        raise NotImplementedError

    def runs(self, stop: int) -> tuple[Ints, Ints]:
        """Give the bases and lengths of the segments of the first ``stop`` tokens.

        Two segments of a workload have the same base or share no name, and a base always follows
        the same prefix, so that who has a segment has all of those before it. The last segment is
        cut at ``stop``.
        """
        raise NotImplementedError

    def block_keys(self, block_size: int) -> Ints:
        """Name every full block; see `sim.types.Content.block_keys`."""
        return self.names(np.arange(block_size - 1, self.num_tokens, block_size, dtype=np.int64))

    def token_ids(self, start: int, stop: int) -> Ints:
        """Tokens ``start`` to ``stop``; see `sim.types.Content.token_ids`."""
        return self.names(np.arange(start, stop, dtype=np.int64))


class Segments(_NamedPrefixes):
    """A path of segments of any lengths.

    The prefix that ends ``o`` tokens into segment j (from 0) is named ``bases[j] + o``.

    Parameters
    ----------
    bases
        First name of each segment, shape ``(k,)``. Ranges ``[base, base + length)`` of different
        segments of one workload must not overlap, and a base belongs to one prefix only. Paths may
        leave a segment before its end: the next base then always follows that many of its tokens.
    ends
        Position after each segment, ascending, shape ``(k,)``; may be shared by many requests.
    """

    __slots__ = ("_bases", "_ends")

    def __init__(self, bases: Ints, ends: Ints) -> None:
        self._bases = bases
        self._ends = ends
        self.num_tokens = int(ends[-1]) if len(ends) else 0

    def names(self, positions: Ints) -> Ints:
        """Name the prefixes that end with these positions, which ascend from 0 up."""
        segment = np.searchsorted(self._ends, positions, side="right")
        starts = np.concatenate(([0], self._ends[:-1]))
        return (self._bases - starts)[segment] + positions

    def runs(self, stop: int) -> tuple[Ints, Ints]:
        """Give the bases and lengths of the segments of the first ``stop`` tokens."""
        ends = np.minimum(self._ends, stop)
        lengths = np.diff(ends, prepend=0)
        present = lengths > 0
        return self._bases[present], lengths[present]


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


def runs(content: Content, stop: int) -> tuple[Ints, Ints]:
    """Split the first ``stop`` tokens of any content into runs of consecutive names.

    Returns
    -------
    bases, lengths
        Of the segments; a content without segments has a run per token.
    """
    if isinstance(content, _NamedPrefixes):
        return content.runs(stop)
    names = content.block_keys(1)[:stop]
    return names, np.ones_like(names)


def prefix_names(content: Content, positions: Ints) -> Ints:
    """Name the prefixes of any content that end with these positions, which ascend from 0 up."""
    if isinstance(content, _NamedPrefixes):
        return content.names(positions)
    return content.block_keys(1)[positions]
