"""Sharing inside the blocks of a trace, which its ids hide, put back by assumption.

An id names a whole block. So where a request continues an earlier one, whose last block was
partial, the block that the two have in common up to there carries two ids; and a system prompt that
ends inside a block, before what differs, is not seen beyond the block before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workloads.content import Segments
from workloads.intake import Intake

_Run = tuple[int, int]
"""First name and length."""


@dataclass
class FinerNames:
    """Names the tokens of prompts so that they share more than their ids say.

    Parameters
    ----------
    block_size
        Tokens that an id stands for.
    num_ids
        Distinct ids, each after its own prefix, numbered from 0.
    share_partial
        Take a request to continue the latest earlier one that ended in a partial block after the
        same blocks, and to repeat that partial block, if it has more tokens there. Not within the
        system prompt nor in the first block: there, too many would seem to continue each other.
    system_prompt
        Tokens that all prompts begin with.

    Attributes
    ----------
    num_continued
        Ids that were taken to continue a partial block.
    num_names
        No name is as large; what else is to be named may begin here.
    """

    block_size: int
    num_ids: int
    share_partial: bool
    system_prompt: int
    num_continued: int = 0
    _runs: dict[int, list[_Run]] = field(default_factory=dict)
    # By the id before them: partial blocks that requests ended with, id and tokens, in order.
    _partial: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def num_names(self) -> int:
        """First name that is free."""
        return self.system_prompt + self.num_ids * self.block_size

    def says(self) -> str:
        """Tell what was assumed, once all prompts are named."""
        said = []
        if self.system_prompt:
            said.append(f"all prompts share their first {self.system_prompt} tokens")
        if self.share_partial:
            said.append(f"{self.num_continued} blocks continue a partial one")
        return ", and ".join(said)

    def add(self, ids: Sequence[int], num_prompt_tokens: int) -> list[_Run]:
        """Name the tokens of the next prompt, as far as it has ids; requests come in order."""
        runs: list[_Run] = []
        before = -1
        for index, name in enumerate(ids):
            start = index * self.block_size
            num_tokens = min(self.block_size, num_prompt_tokens - start)
            if name not in self._runs:
                self._runs[name] = self._new(name, start, before, num_tokens)
            runs += _cut(self._runs[name], num_tokens)
            if num_tokens < self.block_size and self._can_continue(start):
                self._partial.setdefault(before, []).append((name, num_tokens))
            before = name
        return runs

    def _can_continue(self, start: int) -> bool:
        return self.share_partial and start > 0 and start >= self.system_prompt

    def _new(self, name: int, start: int, before: int, num_tokens: int) -> list[_Run]:
        head: list[_Run] = []
        if start < self.system_prompt:
            head = [(start, min(self.system_prompt - start, self.block_size))]
        elif self._can_continue(start):
            for other, length in reversed(self._partial.get(before, [])):
                if length < num_tokens:
                    head = _cut(self._runs[other], length)
                    self.num_continued += 1
                    break
        num_shared = sum(length for _, length in head)
        own = self.system_prompt + name * self.block_size + num_shared
        return (
            [*head, (own, self.block_size - num_shared)] if num_shared < self.block_size else head
        )


def _cut(runs: Iterable[_Run], num_tokens: int) -> list[_Run]:
    kept = []
    for base, length in runs:
        if num_tokens <= 0:
            break
        kept.append((base, min(length, num_tokens)))
        num_tokens -= length
    return kept


def share_within_blocks(
    intake: Intake, chains: Sequence[tuple[int, Sequence[int]]], names: FinerNames
) -> None:
    """Name all prompts anew, in order of arrival.

    Parameters
    ----------
    intake
        Holds the requests; gets a note on what was assumed.
    chains
        Index of each request and the numbers of its ids, each told apart by those before it.
    names
        For as many ids.
    """
    tail_base = names.num_names
    for index, numbers in sorted(chains, key=lambda chain: intake.arrival_of(chain[0])):
        num_prompt_tokens, num_output_tokens = intake.lengths(index)
        runs = names.add(numbers, num_prompt_tokens)
        num_tail_tokens = num_prompt_tokens + num_output_tokens - sum(length for _, length in runs)
        if num_tail_tokens:
            runs = [*runs, (tail_base, num_tail_tokens)]
            tail_base += num_tail_tokens
        bases, lengths = np.array(runs, dtype=np.int64).reshape(-1, 2).T
        intake.replace(index, Segments(bases.copy(), np.cumsum(lengths)), num_prompt_tokens)
    intake.identity_block_size = 1
    intake.notes.append(f"{intake.where}: assumed, not read: {names.says()}.")
