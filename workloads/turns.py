"""The turns of sessions: which follows which, and what a later prompt tells of those before it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Literal

from workloads.content import cut
from workloads.intake import Intake, Path
from workloads.tree import PrefixTree, with_answer, with_tail

Form = Literal["cumulative", "delta", "separate"]
"""What a later turn's row holds: the whole prompt, or only what is new, or a whole prompt in which
the turn before it and its answer do not stand as they were."""

FORM_FIELD = "turns"
"""Field in which a row may say its form; other readers pass it over."""

_FORMS: tuple[Form | None, ...] = (None, "cumulative", "delta", "separate")


def stated_form(row: Mapping[str, object]) -> Form | None:
    """Read the form that a row says it has, if it says any; other values are not ours."""
    found = row.get(FORM_FIELD)
    return next((form for form in _FORMS if form is not None and form == found), None)


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


class Turns:
    """Links the turns of sessions in order of arrival, once all are known.

    A row is read as a whole prompt first. Whether it is one (cumulative) or holds what is new
    (delta) say the user, the row itself, or else the trace as a whole: it is cumulative if some
    turn begins with at least half of the turn before it. If there are pairs that could tell and
    none does, rows are deltas. What is shared below a block of the trace cannot tell, nor can a
    row without ids; where nothing tells, rows are of the form ``untold``.
    """

    def __init__(
        self, intake: Intake, tree: PrefixTree, unit: int, *, untold: Form = "separate"
    ) -> None:
        self._intake = intake
        self._tree = tree
        self._unit = unit
        self._untold = untold
        # Of each turn: its request, the tokens that ids name, and what it says of itself.
        self._index, self._num_named = array("q"), array("q")
        self._form, self._answer_is_known = array("b"), array("b")
        self._root = array("q")
        self.continued: dict[int, int] = {}
        """Turns that may show the answer of the turn before, which is the value."""
        self.appended: dict[int, int] = {}
        """Turns that were put behind the stream of the turn before, which is the value."""

    def add(
        self,
        index: int,
        num_named_tokens: int | None,
        *,
        root: int,
        form: Form | None = None,
        answer_is_known: bool = False,
    ) -> None:
        """Take note of a request of a session, read as a whole prompt.

        Parameters
        ----------
        index
            The request.
        num_named_tokens
            Its first tokens that stand in the tree; None where its row has no ids.
        root
            Where its row stands in the tree: rows of different roots share nothing.
        form
            What its row says of itself.
        answer_is_known
            Whether the tokens of its answer are known.
        """
        self._index.append(index)
        self._num_named.append(-1 if num_named_tokens is None else num_named_tokens)
        self._form.append(_FORMS.index(form))
        self._answer_is_known.append(answer_is_known)
        self._root.append(root)

    def in_order(self) -> list[int]:
        """Give the requests of sessions in order of arrival; of the source where they tie."""
        return sorted(self._index, key=self._intake.arrival_of)

    def finish(self, before: Mapping[int, int] | None = None) -> None:
        """Read rows anew as what is new, if that is what they are, and link answers."""
        self.read(before)
        self.link()

    def read(self, before: Mapping[int, int] | None = None) -> None:
        """Read rows anew as what is new, if that is what they are.

        Parameters
        ----------
        before
            The turn before of each later turn, which comes before it in `in_order`; None for that
            of the same session.
        """
        order = self.in_order()
        if before is None:
            before = self._by_session(order)
        place = {index: place for place, index in enumerate(self._index)}
        pairs = [
            (place[index], place[before[index]]) for index in order if index in before
        ]  # fmt: skip
        form_of_all = self._form_of_all(pairs)
        for turn, last in pairs:
            index = self._index[turn]
            form = self._form_of(turn, form_of_all) or self._untold
            if form == "delta":
                self._append(turn, last)
                self.appended[index] = self._index[last]
            elif form == "cumulative" and self._may_show_answer(turn, last):
                self.continued[index] = self._index[last]

    def link(self) -> None:
        """Let answers be what later turns show in their place.

        The last turn comes first, so that an answer goes by the names that the turn after it has
        in the end; of two turns after the same one the earlier has the last word.
        """
        for index in reversed(self.continued):
            intake = self._intake
            num_prompt_tokens, _ = intake.lengths(index)
            intake.continue_answer(self.continued[index], intake.path(index), num_prompt_tokens)

    def _by_session(self, order: list[int]) -> dict[int, int]:
        before: dict[int, int] = {}
        last: dict[int, int] = {}
        for index in order:
            session = self._intake.session_of(index)
            if session in last:
                before[index] = last[session]
            last[session] = index
        return before

    def _form_of(self, turn: int, form_of_all: Form | None) -> Form | None:
        return self._intake.options.turns or _FORMS[self._form[turn]] or form_of_all

    def _form_of_all(self, pairs: list[tuple[int, int]]) -> Form | None:
        """Tell the form of rows that do not say it; None where nothing tells."""
        intake = self._intake
        num_apart = 0
        for turn, last in pairs:
            if self._form_of(turn, None) is not None or self._num_named[turn] <= 0:
                continue
            num_shared, num_full = self._overlap(turn, last)
            if num_full and 2 * num_shared >= num_full:
                return "cumulative"
            num_apart += num_full > 0
        if not num_apart:
            return None
        intake.say(
            "no turn begins with the turn before it, so that later turns are taken to hold only"
            " what is new (delta); --turns cumulative takes them as whole prompts"
        )
        return "delta"

    def _may_show_answer(self, turn: int, last: int) -> bool:
        """Whether a turn begins with all full blocks of the turn before, as far as ids tell."""
        if self._answer_is_known[last] or min(self._num_named[turn], self._num_named[last]) < 0:
            return False
        if self._root[turn] != self._root[last]:
            return False
        num_prompt_tokens, _ = self._intake.lengths(self._index[last])
        return self._overlap(turn, last)[0] >= num_prompt_tokens // self._unit * self._unit

    def _overlap(self, turn: int, last: int) -> tuple[int, int]:
        """Count the full blocks of the turn before that a turn begins with, and all; in tokens."""
        intake = self._intake
        num_prompt_tokens, _ = intake.lengths(self._index[last])
        num_named = min(num_prompt_tokens, max(self._num_named[last], 0))
        num_full = num_named // self._unit * self._unit
        path = intake.path(self._index[turn])
        path = Path(*cut(path.bases, path.ends, intake.lengths(self._index[turn])[0]))
        return min(shared_tokens(path, intake.path(self._index[last])), num_full), num_full

    def _append(self, turn: int, last: int) -> None:
        """Put what a row holds behind the stream of the turn before."""
        intake = self._intake
        index = self._index[turn]
        num_prompt_tokens, num_output_tokens = intake.lengths(index)
        history, own = intake.path(self._index[last]), intake.path(index)
        start = history.ends[-1]
        if self._root[turn] != self._root[last]:
            # The same tokens, but under another LoRA adapter or salt, where nobody had them.
            history = Path([intake.names.take(start)], [start])
        num_named = max(self._num_named[turn], 0)
        num_ids = -(-num_named // self._unit)
        ids = self._tree.ids_of(own.bases, own.ends, num_ids)
        bases, ends = self._tree.extend(history.bases, history.ends, ids)
        bases, ends = cut(bases, ends, start + num_named)
        if self._answer_is_known[turn]:
            content = with_tail(bases, ends, start + num_named, intake.names)
        else:
            content = with_answer(
                bases, ends, start + num_prompt_tokens, num_output_tokens, intake.names
            )
        intake.replace(index, content, start + num_prompt_tokens)
