"""Prompts that a trace names block by block, with the turns of their sessions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import UsageError
from workloads.content import Ints, cut
from workloads.fields import RowError, show
from workloads.intake import Intake, Path
from workloads.tree import PrefixTree, with_tail


class IdReader:
    """Reads ids of any width, or texts, as int64: equal if and only if the ids are."""

    def __init__(self) -> None:
        self._odd: dict[int | str, int] = {}

    def read(self, name: str, value: object) -> Ints:
        """Read a list of ids.

        Raises
        ------
        RowError
            If it is no list, or holds something that is no id.
        """
        if not isinstance(value, list):
            raise RowError(f"{name} is {show(value)}, which is not a list of ids")
        if set(map(type, value)) <= {int}:
            try:
                ids = np.array(value, dtype=np.int64)
            except OverflowError:
                pass
            else:
                if not value or (min(value) if len(value) < 100 else ids.min()) >= 0:
                    return ids
        return np.array([self._id(name, one) for one in value], dtype=np.int64)

    def unheard_of(self, count: int) -> Ints:
        """Make ids that stand nowhere else; none for a negative count."""
        first = len(self._odd)
        for number in range(first, first + count):
            self._odd[f"\0{number}"] = number
        return np.arange(-1 - first, -1 - first - max(count, 0), -1, dtype=np.int64)

    def _id(self, name: str, value: object) -> int:
        if type(value) is int and value >= 0:  # `type`, since True is an int too
            if value < 2**63:
                return value
        elif type(value) is not str:
            raise RowError(
                f"{name} holds {show(value)}, which is neither text nor a whole number of at"
                " least 0"
            )
        return -1 - self._odd.setdefault(value, len(self._odd))


def shared_tokens(one: Path, other: Path) -> int:
    """Count the tokens that two paths have in common."""
    shared = start = 0
    for base, end, other_base, other_end in zip(
        one.bases, one.ends, other.bases, other.ends, strict=False
    ):
        if base != other_base:
            break
        shared = min(end, other_end)
        if end != other_end or shared <= start:
            break
        start = end
    return shared


@dataclass(slots=True)
class _Turn:
    line: int | str
    index: int
    before: int
    ids: Ints
    num_named_tokens: int


class Turns:
    """Links the turns of sessions, and tells whether rows are cumulative or hold what is new.

    A trace is cumulative if some turn begins with at least half of the turn before it; the first
    such pair decides. If there are pairs that could tell and none does, rows are deltas. What is
    shared below a block of the trace cannot tell.
    """

    def __init__(
        self, intake: Intake, tree: PrefixTree, unit: int, *, form: str | None = None
    ) -> None:
        self._intake = intake
        self._tree = tree
        self._unit = unit
        self._form = intake.options.turns if form is None else form
        self._num_apart = 0
        self._open: list[_Turn] = []

    def add(
        self,
        line: int | str,
        index: int,
        before: int,
        path: Path,
        ids: Ints,
        *,
        num_named_tokens: int | None = None,
        continues: bool = True,
    ) -> None:
        """Take note of request ``index``, the turn after ``before``, read as a whole prompt.

        Parameters
        ----------
        line, index, before
            The row, its request, and the request of the turn before.
        path
            Its prompt.
        ids
            What its row holds, for reading it anew.
        num_named_tokens
            Tokens that ``ids`` stand for; None for those of the prompt.
        continues
            Whether its prompt may show the answer of the turn before.
        """
        intake = self._intake
        num_prompt_tokens, _ = intake.lengths(index)
        num_tokens_before, _ = intake.lengths(before)
        num_full_tokens = num_tokens_before // self._unit * self._unit
        num_shared = shared_tokens(path, intake.path(before))
        if self._form is None and num_full_tokens:
            if 2 * min(num_shared, num_full_tokens) >= num_full_tokens:
                self._form = "cumulative"
                self._open.clear()
            else:
                self._num_apart += 1
        if self._form != "cumulative":
            named = num_prompt_tokens if num_named_tokens is None else num_named_tokens
            self._open.append(_Turn(line, index, before, ids, named))
        elif continues and num_shared >= num_full_tokens:
            intake.continue_answer(before, path, num_prompt_tokens)

    def finish(self) -> None:
        """Read rows anew as what is new, if that is what they turned out to be."""
        if self._form is None and self._num_apart:
            self._form = "delta"
            self._intake.said.append(
                "no turn begins with the turn before it, so that later turns are taken to hold only"
                " what is new (delta); --turns cumulative takes them as whole prompts"
            )
        if self._form == "delta":
            for turn in self._open:
                self._append(turn)
        self._open.clear()

    def _append(self, turn: _Turn) -> None:
        intake = self._intake
        num_prompt_tokens, num_output_tokens = intake.lengths(turn.index)
        if intake.arrived_before(turn.index, turn.before):
            raise UsageError(
                f"{intake.where}:{turn.line}: comes before the turn that it continues; sort the"
                " trace, or read rows as whole prompts with --turns cumulative."
            )
        history = intake.path(turn.before)
        start = history.ends[-1]
        bases, ends = self._tree.insert(turn.ids, intake.last_name(turn.before))
        bases, ends = cut(bases, ends, turn.num_named_tokens)
        content = with_tail(
            [*history.bases, *bases],
            [*history.ends, *(start + end for end in ends)],
            start + num_prompt_tokens + num_output_tokens,
            intake.names,
        )
        intake.replace(turn.index, content, start + num_prompt_tokens)
