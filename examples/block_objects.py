"""What the Block objects of vLLM's V0 cost: its policy with such objects, for ``overhead``.

Our `policies.vllm_v0` moves numbers. vLLM's V0 keeps an object for every block of every request,
around a second one that holds the tokens, and hashes the tokens of a block for the lookup and once
more with each object that it sets up (read in the sources of 0.8.5.post1). These classes add that
to our policy, in our words, and change nothing else:

    prefixsim overhead --policy vllm_v1,vllm_v0,examples.block_objects:Hashes,\
examples.block_objects:Objects --block-sizes 16 --prompt-tokens 1024 --hit-rates 0,0.5,0.9
"""

from __future__ import annotations

from typing import Any

from policies.vllm_v0 import VllmV0
from sim.types import PrefixMatch, Sequence


class TokenStore:
    """The tokens of one block, how many it can hold, and where it lies."""

    def __init__(self, block_size: int, token_ids: list[int], block_id: int | None) -> None:
        self.block_size = block_size
        self.token_ids = token_ids[:]
        self.block_id = block_id

    @property
    def is_full(self) -> bool:
        """Whether no token fits any more."""
        return len(self.token_ids) == self.block_size

    def append(self, token_ids: list[int]) -> None:
        """Take more tokens."""
        assert len(self.token_ids) + len(token_ids) <= self.block_size
        self.token_ids.extend(token_ids)


class LogicalBlock:
    """A block of a request: it knows the block before it, and its hash once it is full."""

    def __init__(
        self,
        before: LogicalBlock | None,
        block_size: int,
        token_ids: list[int],
        block_id: int | None = None,
    ) -> None:
        self.before = before
        self.store = TokenStore(block_size, token_ids, block_id)
        self._hash: int | None = None
        self.num_tokens = len(token_ids) + (before.num_tokens if before else 0)

    def append(self, token_ids: list[int]) -> None:
        """Take more tokens."""
        self.store.append(token_ids)
        self.num_tokens += len(token_ids)

    @property
    def block_id(self) -> int | None:
        """Where it lies."""
        return self.store.block_id

    @property
    def content_hash(self) -> int | None:
        """Hash of its tokens and of all before it; None while it is not full."""
        if self._hash is None and self.store.is_full:
            parent = self.before.content_hash if self.before else None
            self._hash = hash((parent, *self.store.token_ids))
        return self._hash


class Hashes(VllmV0):
    """Our V0, with tokens hashed as often as vLLM's: twice more where a block is not cached."""

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate, and hash the tokens of an admission again."""
        is_new = seq.request_id not in self.request_blocks
        if not super().allocate(seq, match, num_tokens):
            return False
        if is_new:
            tokens, size, parent = _tokens(seq), self.block_size, None
            for index in range(seq.num_tokens // size):
                block = tokens[index * size : (index + 1) * size]
                for _ in range(1 if index < match.num_hit_blocks else 2):
                    once = hash((parent, *block))
                parent = once
        return True


class Objects(VllmV0):
    """Our V0, with objects for blocks, which hash their tokens: one for a hit, two for a miss."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as for VllmV0
        super().__init__(*args, **options)
        self.logical: dict[str, list[LogicalBlock]] = {}

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate, and set up the objects of an admission; append a token to the last one."""
        blocks = self.logical.get(seq.request_id)
        if not super().allocate(seq, match, num_tokens):
            return False
        if blocks is None:
            blocks = self.logical[seq.request_id] = []
            self._set_up(blocks, seq, match.num_hit_blocks)
        else:
            self._append(blocks, seq)
        return True

    def free(self, seq: Sequence) -> None:
        """Free, and let every object go by itself."""
        for block in self.logical.pop(seq.request_id, ()):
            self._let_go(block)
        super().free(seq)

    def _set_up(self, blocks: list[LogicalBlock], seq: Sequence, num_hits: int) -> None:
        tokens, size, before = _tokens(seq), self.block_size, None
        for index, start in enumerate(range(0, seq.num_tokens, size)):
            block_tokens = tokens[start : min(start + size, seq.num_tokens)]
            block = LogicalBlock(before, size, block_tokens)
            if block.content_hash is None or index >= num_hits:
                # Not cached: that object was for the lookup, this one is to be filled.
                block = LogicalBlock(before, size, [])
                block.append(block_tokens)
                assert block.store.is_full == (block.content_hash is not None)
            blocks.append(block)
            before = block

    def _append(self, blocks: list[LogicalBlock], seq: Sequence) -> None:
        tokens = _tokens(seq)[seq.num_computed_tokens : seq.num_tokens]
        if blocks[-1].store.is_full:
            blocks.append(LogicalBlock(blocks[-1], self.block_size, []))
        blocks[-1].append(tokens)
        assert blocks[-1].store.is_full == (blocks[-1].content_hash is not None)

    @staticmethod
    def _let_go(block: LogicalBlock) -> None:
        block.before = None
        block.store.block_id = None


def _tokens(seq: Sequence) -> list[int]:
    """Tokens of a request that ``prefixsim overhead`` serves."""
    tokens: list[int] = seq.request.content.tokens  # type: ignore[attr-defined]
    return tokens
