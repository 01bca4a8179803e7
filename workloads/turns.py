"""The turns of sessions: which follows which, and what a later prompt tells of those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim import mapped
from sim.mapped import Column, picked, stable_order
from workloads.batches import Columns, Named
from workloads.content import Ints, cut
from workloads.intake import Intake, Path
from workloads.tree import PrefixTree, with_answer, with_tail

Form = Literal["cumulative", "delta", "separate"]
"""What a later turn's row holds: the whole prompt, or only what is new, or a whole prompt in which
the turn before it and its answer do not stand as they were."""

FORM_FIELD = "turns"
"""Field in which a row may say its form; other readers pass it over."""

Flags = NDArray[np.bool_]
TurnsBefore = Callable[[Ints], Ints]
"""See `Turns.read`."""

_AT_ONCE = 1 << 16
"""Turns that are looked at together."""

_FORMS: tuple[Form | None, ...] = (None, "cumulative", "delta", "separate")


def stated_form(row: Mapping[str, object]) -> Form | None:
    """Read the form that a row says it has, if it says any; other values are not ours."""
    return _form(row.get(FORM_FIELD))


def _form(said: object) -> Form | None:
    return next((form for form in _FORMS if form is not None and form == said), None)


class Links(NamedTuple):
    """Later turns and the turns before them; arrays of shape ``(n,)``.

    Attributes
    ----------
    turns, before
        Requests.
    """

    turns: Ints
    before: Ints

    def as_dict(self) -> dict[int, int]:
        """Give the turn before by the later turn."""
        return dict(zip(self.turns.tolist(), self.before.tolist(), strict=True))


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
        self._index, self._num_named, self._root = Column(), Column(), Column()
        self._form, self._answer_is_known = Column(dtype=np.int8), Column(dtype=np.int8)
        self._continued, self._appended = (Column(), Column()), (Column(), Column())

    @property
    def continued(self) -> Links:
        """Turns that may show the answer of the turn before."""
        return Links(*(column.array for column in self._continued))

    @property
    def appended(self) -> Links:
        """Turns that were put behind the stream of the turn before."""
        return Links(*(column.array for column in self._appended))

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

    def add_many(self, indices: Ints, found: Columns, names: Named, root: int) -> None:
        """Take note of those requests of plain rows of a root that have a session; see `add`."""
        if names.session_ids is None:
            return
        which = [index for index, one in enumerate(names.session_ids) if one is not None]
        num_named = found.num_prompt_tokens
        if found.knows_answers:
            num_named = num_named + found.num_output_tokens
        self._index.extend(indices[which])
        self._num_named.extend(num_named[which])
        self._root.extend(np.full(len(which), root))
        said = [found.rows[index].get(FORM_FIELD) for index in which]
        self._form.extend([0 if form is None else _FORMS.index(_form(form)) for form in said])
        self._answer_is_known.extend(np.full(len(which), found.knows_answers, dtype=np.int8))

    def finish(self, before: TurnsBefore | None = None) -> None:
        """Read rows anew as what is new, if that is what they are, and link answers."""
        self.read(before)
        self.link()

    def read(self, before: TurnsBefore | None = None) -> None:
        """Read rows anew as what is new, if that is what they are.

        Parameters
        ----------
        before
            Given the turns in order of arrival (of the source where they tie), finds the turn
            before of each, -1 for none, which comes before it in that order; turns are numbered as
            they were added. None for the turn before of the same session.
        """
        order = stable_order(picked(self._intake.arrivals, self._index.array))
        before_of = (before or self._by_session)(order)
        default = _FORMS.index(self._form_of_all(order, before_of) or self._untold)
        # A row that is put behind another changes no pair before it, and those after it only by
        # being there: so all of them come first.
        for turns, lasts in _pairs(order, before_of):
            which = self._forms(turns, default) == _FORMS.index("delta")
            for turn, last in zip(turns[which].tolist(), lasts[which].tolist(), strict=True):
                self._append(turn, last)
                self._appended[0].append(self._index[turn])
                self._appended[1].append(self._index[last])
        for turns, lasts in _pairs(order, before_of):
            which = self._forms(turns, default) == _FORMS.index("cumulative")
            which[which] = self._may_show_answer(turns[which], lasts[which])
            self._continued[0].extend(self._index.array[turns[which]])
            self._continued[1].extend(self._index.array[lasts[which]])

    def link(self) -> None:
        """Let answers be what later turns show in their place.

        The last turn comes first, so that an answer goes by the names that the turn after it has
        in the end; of two turns after the same one the earlier has the last word.
        """
        self._intake.continue_answers(*self.continued)

    def _by_session(self, order: Ints) -> Ints:
        """Find the turn before of the same session of each; see `read`."""
        before = mapped.zeros(len(order))
        if not len(order):
            return before
        index, sessions = self._index.array, self._intake.sessions
        firsts = [sessions[index[part]].min() for part in mapped.pieces(len(index))]
        lasts = [sessions[index[part]].max() for part in mapped.pieces(len(index))]
        first = min(firsts)
        last_turn = mapped.zeros(int(max(lasts) - first) + 1)  # plus 1; 0 for none yet
        for part in mapped.pieces(len(order), _AT_ONCE):
            turns = order[part]
            session = sessions[index[turns]] - first
            by_session = np.argsort(session, kind="stable")
            turns, session = turns[by_session], session[by_session]
            begins = np.ones(len(turns), dtype=bool)
            begins[1:] = session[1:] != session[:-1]
            found = np.empty_like(turns)
            found[1:] = turns[:-1]
            found[begins] = last_turn[session[begins]] - 1
            before[turns] = found
            ends = np.append(begins[1:], True)
            last_turn[session[ends]] = turns[ends] + 1
        return before

    def _forms(self, turns: Ints, default: int) -> Ints:
        """Give the forms of some turns, as numbers in ``_FORMS``."""
        if self._intake.options.turns:
            return np.full(len(turns), _FORMS.index(self._intake.options.turns))
        forms = self._form.array[turns]
        return np.where(forms, forms, default)

    def _form_of_all(self, order: Ints, before: Ints) -> Form | None:
        """Tell the form of rows that do not say it; None where nothing tells."""
        num_apart = 0
        for all_turns, all_lasts in _pairs(order, before):
            which = (self._forms(all_turns, 0) == 0) & (self._num_named.array[all_turns] > 0)
            num_shared, num_full = self._overlaps(all_turns[which], all_lasts[which])
            if ((num_full > 0) & (2 * num_shared >= num_full)).any():
                return "cumulative"
            num_apart += int((num_full > 0).sum())
        if not num_apart:
            return None
        self._intake.say(
            "no turn begins with the turn before it, so that later turns are taken to hold only"
            " what is new (delta); --turns cumulative takes them as whole prompts"
        )
        return "delta"

    def _may_show_answer(self, turns: Ints, lasts: Ints) -> Flags:
        """Say which turns begin with all full blocks of the turn before, as far as ids tell."""
        num_named, root = self._num_named.array, self._root.array
        may: Flags = (
            (self._answer_is_known.array[lasts] == 0)
            & (num_named[turns] >= 0)
            & (num_named[lasts] >= 0)
            & (root[turns] == root[lasts])
        )
        num_prompt_tokens = self._intake.prompts[self._index.array[lasts]]
        num_shared, _ = self._overlaps(turns, lasts)
        may &= num_shared >= num_prompt_tokens // self._unit * self._unit
        return may

    def _overlaps(self, turns: Ints, lasts: Ints) -> tuple[Ints, Ints]:
        """Count the full blocks of turns before that turns begin with, and all; in tokens."""
        intake, index = self._intake, self._index.array
        num_named = np.minimum(
            intake.prompts[index[lasts]], np.maximum(self._num_named.array[lasts], 0)
        )
        num_full = num_named // self._unit * self._unit
        num_shared = intake.shared_with_prompts(index[turns], index[lasts])
        return np.minimum(num_shared, num_full), num_full

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


def _pairs(order: Ints, before: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield later turns, in order, with the turns before them, some at a time."""
    for part in mapped.pieces(len(order), _AT_ONCE):
        turns = order[part]
        lasts = before[turns]
        yield turns[lasts >= 0], lasts[lasts >= 0]
