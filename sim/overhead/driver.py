"""Serves requests to one allocator, in the way by which vLLM's block managers were timed.

The pool holds 12 prompts. Every request shares a prefix with all others; five are live at a time;
each decodes two blocks' worth of tokens (32 for blocks above 32) as soon as it is admitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.overhead.watch import Watch, unwatched
from sim.types import NO_MATCH, Allocator, Clock, OperationCounts, Request, Sequence

POOL_PROMPTS = 12
NUM_LIVE = 5
MAX_DECODED_TOKENS = 32


class MakeAllocator(Protocol):
    """Makes the allocator of one policy."""

    def __call__(self, *, num_blocks: int, block_size: int, clock: Clock) -> Allocator:
        """Make one with so many usable blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """What is served: block size, tokens of a prompt, and the share of it that all requests share.

    Raises
    ------
    UsageError
        A value out of its range.
    """

    block_size: int
    prompt_tokens: int
    hit_rate: float

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UsageError(
                f"--block-sizes {self.block_size} must be at least 1; 16 is vLLM's default."
            )
        if self.prompt_tokens < self.block_size:
            raise UsageError(
                f"--prompt-tokens {self.prompt_tokens} is less than a block of {self.block_size}: "
                "nothing could be cached; give prompts of at least one block."
            )
        if not 0 <= self.hit_rate < 1:
            raise UsageError(
                f"--hit-rates {self.hit_rate} is outside [0, 1): it is the share of a prompt that "
                "all requests have in common; try 0.9."
            )

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return POOL_PROMPTS * -(-self.prompt_tokens // self.block_size)

    @property
    def num_shared_tokens(self) -> int:
        """Tokens that all requests share: whole blocks."""
        # 0.9 of 10 blocks are 9, whatever floating point says.
        shared = int(round(self.hit_rate * self.prompt_tokens / self.block_size, 9))
        return shared * self.block_size

    @property
    def num_decoded_tokens(self) -> int:
        """Tokens that a request decodes."""
        return min(2 * self.block_size, MAX_DECODED_TOKENS)

    @property
    def num_new_blocks(self) -> int:
        """Blocks that a request takes, those of decoded tokens included."""
        num_tokens = self.prompt_tokens + self.num_decoded_tokens
        return -(-num_tokens // self.block_size) - self.num_shared_tokens // self.block_size


class Driver:
    """One allocator and the requests that it serves, one after the other.

    Attributes
    ----------
    counts
        Where the policy counts.
    hashes
        Whether token ids are hashed: as `warm_up` finds out, not where nothing is ever cached.
    num_cached_tokens
        Hit by the last request.
    """

    def __init__(self, policy: str, make: MakeAllocator, cell: Cell) -> None:
        self.policy = policy
        self.cell = cell
        self.now_ns = 0
        self.allocator = make(
            num_blocks=cell.num_blocks, block_size=cell.block_size, clock=lambda: self.now_ns
        )
        self.counts: OperationCounts = getattr(self.allocator, "counts", None) or OperationCounts()
        self.hashes = True
        self.num_cached_tokens = 0
        self._prefix = list(range(cell.num_shared_tokens))
        self._next_token = cell.num_shared_tokens
        self._live: list[Sequence] = []

    def warm_up(self) -> None:
        """Serve until no block of the pool is new, and half a pool more."""
        cell = self.cell
        for _ in range(NUM_LIVE + -(-3 * cell.num_blocks // (2 * cell.num_new_blocks))):
            self.serve(unwatched)
        self.hashes = self.allocator.usage().cached > 0

    def serve(self, watch: Watch) -> None:
        """End the oldest request if five are live, admit another and let it decode."""
        allocator, cell = self.allocator, self.cell
        if len(self._live) == NUM_LIVE:
            watch("free", allocator.free, self._live.pop(0))
        seq, tokens = self._new_sequence()
        self.now_ns += 1
        if self.hashes:
            watch("hash", hash_blocks, tokens[: cell.prompt_tokens], cell.block_size)
        match = watch("lookup", allocator.match_prefix, seq)
        num_tokens = seq.num_tokens - match.num_tokens
        if not watch("allocate", allocator.allocate, seq, match, num_tokens):
            raise UsageError(
                f"--policy {self.policy!r} has no room for {NUM_LIVE} requests in {POOL_PROMPTS} "
                "prompts' worth of blocks; it cannot be measured by this method."
            )
        self.num_cached_tokens = match.num_tokens
        seq.num_computed_tokens = seq.num_tokens
        watch("cache", allocator.cache_blocks, seq)
        for _ in range(cell.num_decoded_tokens):
            self.now_ns += 1
            seq.num_tokens += 1
            watch("append", self._append, seq, tokens)
            seq.num_computed_tokens += 1
            allocator.cache_blocks(seq)
        self._live.append(seq)

    def _append(self, seq: Sequence, tokens: list[int]) -> None:
        if not self.allocator.allocate(seq, NO_MATCH, 1):
            raise UsageError(f"--policy {self.policy!r} refuses a token though blocks are free.")
        block_size = self.cell.block_size
        if self.hashes and seq.num_tokens % block_size == 0:
            hash_blocks(tokens[seq.num_tokens - block_size : seq.num_tokens], block_size)

    def _new_sequence(self) -> tuple[Sequence, list[int]]:
        cell = self.cell
        num_own = cell.prompt_tokens - len(self._prefix) + cell.num_decoded_tokens
        tokens = self._prefix + list(range(self._next_token, self._next_token + num_own))
        self._next_token += num_own
        request = Request(
            str(self._next_token),
            self.now_ns,
            Tokens(tokens),
            cell.prompt_tokens,
            # The last output token is never fed back.
            cell.num_decoded_tokens + 1,
        )
        return Sequence(request, tokens[cell.block_size - 1 :: cell.block_size]), tokens


class Tokens:
    """A stream in which every prefix ends with a token of its own, which names it."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.num_tokens = len(tokens)

    def block_keys(self, block_size: int) -> NDArray[np.int64]:
        """Name every full block by its last token."""
        return np.array(self.tokens[block_size - 1 :: block_size], dtype=np.int64)

    def token_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` to ``stop``."""
        return np.array(self.tokens[start:stop], dtype=np.int64)


def hash_blocks(tokens: list[int], block_size: int) -> list[int]:
    """Hash full blocks as the engines do: each over its tokens and the hash before it.

    The policies are not given these keys: a hash could collide, and would differ from process to
    process.
    """
    parent, hashes = 0, []
    for stop in range(block_size, len(tokens) + 1, block_size):
        parent = hash((parent, tuple(tokens[stop - block_size : stop])))
        hashes.append(parent)
    return hashes
