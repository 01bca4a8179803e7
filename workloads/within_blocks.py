"""Sharing inside the blocks of a trace, which its ids hide, put back by assumption.

An id names a whole block. So where a request continues an earlier one, whose last block was
partial, the block that the two have in common up to there carries two ids; and a system prompt that
ends inside a block, before what differs, is not seen beyond the block before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sim.mapped import stable_order
from workloads.content import Ints, Segments
from workloads.intake import Intake, Path
from workloads.tree import Names
from workloads.turns import Turns

_Run = tuple[int, int]
"""First name and length."""


@dataclass(frozen=True, slots=True)
class PartialBlock:
    """The partial block that a prompt ends with.

    Attributes
    ----------
    after
        Name of the prefix before it.
    name
        Of its first token.
    num_tokens
        Of the prompt that it has.
    """

    after: int
    name: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked of a prompt that is to be named anew.

    Attributes
    ----------
    path
        Of the whole stream, the answer too.
    num_tokens
        Of the prompt.
    system
        First name of the system prompt; names of what has it are above.
    num_system_tokens
        How far the system prompt goes at most.
    continues
        Partial block of a turn before it that it is known to continue.
    """

    path: Path
    num_tokens: int
    system: int = 0
    num_system_tokens: int = 0
    continues: PartialBlock | None = None


class _Block(NamedTuple):
    """A block of a stream.

    Attributes
    ----------
    name
        Of its first token.
    start
        Position of it.
    num_tokens
        All that the stream has of it.
    after
        Name of the prefix before it; -1 for none.
    """

    name: int
    start: int
    num_tokens: int
    after: int


@dataclass
class FinerNames:
    """Names the tokens of prompts so that they share more than their ids say.

    A block keeps the names that it has, but for what it is taken to have in common with others.

    Parameters
    ----------
    names
        The workload's own.
    block_size
        Tokens that an id stands for.
    share_partial
        Take a request to continue the latest earlier one that ended in a partial block after the
        same blocks, and to repeat that partial block, if it has more tokens there. Not within the
        system prompt nor in the first block: there, too many would seem to continue each other.

    Attributes
    ----------
    num_continued
        Ids that were taken to continue a partial block.
    """

    names: Names
    block_size: int
    share_partial: bool
    num_continued: int = 0
    # By the name of a block's first token before; all of `block_size` tokens.
    _runs: dict[int, tuple[_Run, ...]] = field(default_factory=dict)
    # By the name of the prefix before them: partial blocks that prompts ended with, in order.
    _partial: dict[int, list[PartialBlock]] = field(default_factory=dict)

    def add(self, prompt: Prompt) -> tuple[list[_Run], PartialBlock | None]:
        """Name the tokens of the next request, and find its own partial block."""
        runs: list[_Run] = []
        own_partial = None
        for block in _blocks(prompt.path, self.block_size):
            if block.name not in self._runs:
                self._runs[block.name] = self._new(prompt, runs, block)
            runs += _cut(self._runs[block.name], block.num_tokens)
            num_in_prompt = min(block.num_tokens, prompt.num_tokens - block.start)
            is_last = block.start + num_in_prompt == prompt.num_tokens
            if 0 < num_in_prompt < self.block_size and is_last:
                own_partial = PartialBlock(block.after, block.name, num_in_prompt)
        if own_partial and self._can_continue(prompt, prompt.num_tokens - own_partial.num_tokens):
            self._partial.setdefault(own_partial.after, []).append(own_partial)
        return runs, own_partial

    def _can_continue(self, prompt: Prompt, start: int) -> bool:
        return self.share_partial and start > 0 and start >= prompt.num_system_tokens

    def _new(self, prompt: Prompt, before: list[_Run], block: _Block) -> tuple[_Run, ...]:
        """Name the tokens of a block that is seen for the first time, behind others."""
        head: list[_Run] = []
        start = block.start
        num_in_prompt = min(block.num_tokens, prompt.num_tokens - start)
        if start < prompt.num_system_tokens and num_in_prompt > 0:
            num_system_tokens = min(prompt.num_system_tokens - start, self.block_size)
            head = [(prompt.system + start, num_system_tokens)]
        elif self._can_continue(prompt, start):
            head = self._continued(prompt.continues, block.after, num_in_prompt)
        num_shared = sum(length for _, length in head)
        if num_shared == self.block_size:
            return tuple(head)
        own = block.name + num_shared
        if own <= max((base + length - 1 for base, length in [*before[-1:], *head]), default=-1):
            # Names ascend along a path; new ones are above all others.
            own = self.names.take(self.block_size - num_shared)
        return (*head, (own, self.block_size - num_shared))

    def _continued(self, known: PartialBlock | None, after: int, num_tokens: int) -> list[_Run]:
        """Find the partial block that goes on in one of ``num_tokens``: one that is known first."""
        candidates = [*self._partial.get(after, ())]
        if known is not None and known.after == after:
            candidates.append(known)
        for partial in reversed(candidates):
            if partial.num_tokens < num_tokens:
                self.num_continued += 1
                return _cut(self._runs[partial.name], partial.num_tokens)
        return []


def _blocks(path: Path, block_size: int) -> Iterator[_Block]:
    """Yield the blocks of a path; with a segment begins one."""
    start = 0
    after = -1
    for base, end in zip(path.bases, path.ends, strict=True):
        for offset in range(0, end - start, block_size):
            num_tokens = min(block_size, end - start - offset)
            yield _Block(base + offset, start + offset, num_tokens, after)
            after = base + offset + num_tokens - 1
        start = end


def _cut(runs: Iterable[_Run], num_tokens: int) -> list[_Run]:
    kept = []
    for base, length in runs:
        if num_tokens <= 0:
            break
        kept.append((base, min(length, num_tokens)))
        num_tokens -= length
    return kept


class FinerSharing:
    """Applies `FinerNames` to the requests of a trace.

    Parameters
    ----------
    intake
        Holds the requests; gets a note on what was assumed.
    block_size
        Tokens that an id stands for.
    """

    def __init__(self, intake: Intake, block_size: int) -> None:
        self._intake = intake
        self._block_size = block_size
        self._system: dict[int, int] = {}
        self._system_of: list[int] = []

    def expect(self, root: int) -> None:
        """Take note of the root of the next request, before anything of it is named.

        What shares nothing because of another key has a system prompt of its own.
        """
        num_tokens = self._intake.options.system_prompt
        if root not in self._system:
            self._system[root] = self._intake.names.take(num_tokens)
        del self._system_of[len(self._intake) :]  # of rows that could not be used
        self._system_of.append(self._system[root])

    def apply(self, turns: Turns) -> None:
        """Name all requests anew, in order of arrival.

        Parameters
        ----------
        turns
            Those read; linked afterwards, so that answers too go by the names given here.
        """
        intake = self._intake
        options = intake.options
        names = FinerNames(intake.names, self._block_size, options.partial_blocks == "shared")
        # From where on a stream holds an answer, and no more of the system prompt.
        answer_from: dict[int, int] = {}
        partial_of: dict[int, PartialBlock] = {}
        appended, continues = turns.appended.as_dict(), turns.continued.as_dict()
        continued = set(continues.values())
        for index in stable_order(intake.arrivals).tolist():
            num_prompt_tokens, _ = intake.lengths(index)
            num_system_tokens = options.system_prompt
            if index in appended:
                before = appended[index]
                num_before, num_answer_tokens = intake.lengths(before)
                if before in answer_from or num_answer_tokens:
                    answer_from[index] = answer_from.get(before, num_before)
                    num_system_tokens = min(num_system_tokens, answer_from[index])
            known = partial_of.get(continues.get(index, -1))
            prompt = Prompt(
                intake.path(index), num_prompt_tokens, self._system_of[index], num_system_tokens,
                known,
            )  # fmt: skip
            runs, partial = names.add(prompt)
            if partial is not None and index in continued:
                partial_of[index] = partial
            intake.replace(index, _segments(runs), num_prompt_tokens)
        intake.identity_block_size = 1
        said = []
        if options.system_prompt:
            said.append(f"all prompts share their first {options.system_prompt} tokens")
        if names.share_partial:
            said.append(f"{names.num_continued} blocks continue a partial one")
        intake.notes.append(f"{intake.where}: assumed, not read: {', and '.join(said)}.")


def _segments(runs: list[_Run]) -> Segments:
    bases, lengths = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    ends: Ints = np.cumsum(lengths)
    # Runs whose names follow one another are one segment.
    goes_on = bases[1:] == bases[:-1] + lengths[:-1]
    return Segments(
        bases[np.concatenate(([True], ~goes_on))], ends[np.concatenate((~goes_on, [True]))]
    )
