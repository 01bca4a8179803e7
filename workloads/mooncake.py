"""Readers of Mooncake and Qwen-Bailian traces: JSON lines whose ids name prefixes by blocks.

Mooncake: kvcache-ai/Mooncake, FAST25-release/traces, as newer tools extend it. ``timestamp`` (ms),
``input_length`` and ``output_length`` (tokens), ``hash_ids`` (one per block of the prompt, the last
possibly partial), and optionally ``request_id``, ``session_id`` and ``delay`` (ms between the end
of the turn before and this one).

Bailian: alibaba-edu/qwen-bailian-usagetraces-anon. The same with ``timestamp`` in seconds and
blocks of 16 tokens; ``chat_id`` names the row and ``parent_chat_id`` the turn before (-1: none),
whose prompt and answer the prompt begins with.

An id is told apart by the whole prefix before it, so ids need not be chained hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

import numpy as np

from sim.mapped import Column, pieces, zeros
from workloads.batches import NAMES, Named, Row, columns, named, texts
from workloads.content import Ints, cut
from workloads.fields import RowError, num_tokens, show, text, text_or_none, time_ns
from workloads.hash_ids import IdReader
from workloads.intake import Intake, Path
from workloads.texts import TextColumn
from workloads.tree import PrefixTree, with_answer
from workloads.turns import Form, Turns, TurnsBefore, stated_form
from workloads.within_blocks import FinerSharing
from workloads.workload import Workload

_ALIASES = {
    "timestamp": ("created_time",),
    "input_length": ("input_tokens",),
    "output_length": ("output_tokens",),
    "delay": ("delay_ms",),
}
"""Other names that newer tools give the fields."""


_FIRST_TURN = -1
"""In place of the turn before."""


class MooncakeReader:
    """Takes rows of one trace."""

    block_size = 512
    time_unit = "ms"
    has_plain_rows = True
    untold: Form = "separate"
    _needed: frozenset[str] = frozenset()
    _allowed = NAMES

    def __init__(self, intake: Intake) -> None:
        options = intake.options
        self.intake = intake
        self.unit = options.trace_block_size or self.block_size
        intake.identity_block_size = self.unit
        intake.clock.expect(self.time_unit)
        intake.has_delays_in_ms = self.time_unit == "ms"
        self._tree = PrefixTree(intake.names, self.unit)
        self._turns = Turns(intake, self._tree, self.unit, untold=self.untold)
        self._ids = IdReader(signed=True)
        self._finer: FinerSharing | None = None
        if options.shares_within_blocks:
            self._finer = FinerSharing(intake, self.unit)
            intake.has_prefix_info = options.system_prompt > 0

    def row(self, line: int, value: object) -> None:
        """Take a row; changes nothing that lasts before all is checked."""
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a JSON object with the fields of a request")
        intake = self.intake
        request_id = intake.request_id(*self._request_id(value))
        session_id, before = self._session(value)
        delay = get(value, "delay")
        think_ns = None if delay is None else time_ns("delay", delay, 10**6)
        arrival_ns = intake.arrival_ns("timestamp", get(value, "timestamp"), before, think_ns)
        num_prompt_tokens = num_tokens("input_length", need(value, "input_length"), 1)
        output_length = get(value, "output_length")
        num_output_tokens = num_tokens(
            "output_length", 1 if output_length is None else output_length, 0
        )
        hash_ids = get(value, "hash_ids")
        ids = self._ids.read("hash_ids", [] if hash_ids is None else hash_ids)
        num_blocks = -(-num_prompt_tokens // self.unit)
        if hash_ids is not None and len(ids) != num_blocks:
            intake.forgive(
                RowError(
                    f"hash_ids has {len(ids)} ids, but input_length {num_prompt_tokens} needs"
                    f" {num_blocks} at a trace block size of {self.unit} tokens",
                    "give the trace's own size with --trace-block-size",
                    "correct the line",
                ),
                "with a number of hash_ids that does not fit input_length, which was followed",
            )
            ids = ids[:num_blocks]
        if hash_ids is None:
            intake.counts["without hash_ids, taken to share no prefix"] += 1
        if output_length is None:
            intake.counts["without output_length, taken as 1 token"] += 1

        intake.has_prefix_info |= len(ids) > 0
        root = intake.scope(self._tree, value)
        if self._finer is not None:
            self._finer.expect(root)
        path = Path(*self._tree.insert(ids, root))
        bases, ends = cut(path.bases, path.ends, num_prompt_tokens)
        content = with_answer(bases, ends, num_prompt_tokens, num_output_tokens, intake.names)
        index = intake.add(
            line,
            content,
            num_prompt_tokens,
            arrival_ns=arrival_ns,
            request_id=request_id,
            session_id=session_id,
            think_ns=think_ns,
        )
        if session_id is not None:
            num_named = min(len(ids) * self.unit, num_prompt_tokens)
            self._turns.add(
                index,
                None if hash_ids is None else num_named,
                root=root,
                form=stated_form(value),
            )
        self._taken(value, index)

    def take(self, first_line: int, batch: Sequence[bytes]) -> bool:
        """Take all rows of a batch of lines as `row` would, or none where one of them is odd."""
        intake = self.intake
        if (
            not self.has_plain_rows
            or intake.options.shares_within_blocks
            or not intake.clock.is_settled
        ):
            return False
        found = columns(
            batch, self.unit, intake.clock.unit_ns, needed=self._needed, allowed=self._allowed
        )
        names = None if found is None else self._named(found.rows, first_line)
        if found is None or names is None or not intake.are_new(names.request_ids):
            return False
        intake.clock.took(found.stamp_unit_ns, fractions=found.has_fractions)
        intake.has_prefix_info = True
        root = intake.scope(self._tree, {})
        paths = self._tree.insert_many(
            found.ids,
            found.num_ids,
            root,
            num_prompt_tokens=found.num_prompt_tokens,
            num_output_tokens=found.num_output_tokens,
        )
        indices = intake.add_many(found, paths, names)
        self._turns.add_many(indices, found, names, root)
        self._taken_many(found.rows)
        return True

    def _named(self, rows: Sequence[Row], first_line: int) -> Named | None:
        """Read who the rows are; None where one is not plain."""
        return named(rows, first_line)

    def _taken_many(self, rows: Sequence[Row]) -> None:
        """Take note of rows that were taken; see `_taken`."""

    def finish(self) -> None:
        """Say what can be said only when all was read."""
        turns = self._turns
        turns.read(self._turns_before())
        # Rows that hold what is new were read as whole prompts first, which nobody has.
        used = self.intake.segments() if len(turns.appended.turns) else None
        if num_ids := self._tree.num_ids_after_several_prefixes(used):
            self.intake.said.append(
                f"ids that follow more than one prefix: {num_ids}; each is a different block after"
                " each"
            )
        if self._finer is not None:
            self._finer.apply(turns)
        turns.link()

    def _request_id(self, value: dict[str, object]) -> tuple[str, object]:
        return "request_id", value.get("request_id")

    def _session(self, value: dict[str, object]) -> tuple[str | None, str | None]:
        """Find the session, and the name by which the turn before it was taken."""
        session_id = text_or_none("session_id", value.get("session_id"))
        return session_id, session_id

    def _taken(self, value: dict[str, object], index: int) -> None:
        """Take note of a row that was taken."""

    def _turns_before(self) -> TurnsBefore | None:
        """Say how to find the turn before of each; None for that of the same session."""
        return None


class BailianReader(MooncakeReader):
    """Takes rows of one trace, whose turns name the turn before."""

    block_size = 16
    time_unit = "s"
    # A row that names the turn before says that it begins with it.
    untold: Form = "cumulative"
    _needed = frozenset({"chat_id"})
    _allowed = frozenset({"request_id", "parent_chat_id", "delay", "turns"})

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        # Every row is a session of its own until all turns are known, so that the numbers of
        # sessions are those of requests. Of each the turn before, `_FIRST_TURN`, or below that
        # how many it is of those whose turn before has not come yet.
        self._parents = Column()
        self._yet_to_come = TextColumn()

    def _request_id(self, value: dict[str, object]) -> tuple[str, object]:
        name = "chat_id" if value.get("request_id") in (None, "") else "request_id"
        return name, value.get(name)

    def _session(self, value: dict[str, object]) -> tuple[str | None, str | None]:
        chat = text("chat_id", need(value, "chat_id"))
        if self.intake.find_session(chat) >= 0:
            raise RowError(
                f"chat_id {show(chat)} is already that of an earlier row, so that turns that follow"
                " it cannot be told apart"
            )
        return chat, _parent(value)

    def _named(self, rows: Sequence[Row], first_line: int) -> Named | None:
        names = named(rows, first_line)
        chats = texts(rows, "chat_id")
        if names is None or chats is None or texts(rows, "parent_chat_id") is None:
            return None
        given = [chat for chat in chats if chat is not None]
        if len(set(given)) < len(rows) or (self.intake.find_sessions(given) >= 0).any():
            return None
        own = names.request_ids or [None] * len(rows)
        ids = [chat if one is None else one for one, chat in zip(own, chats, strict=True)]
        return replace(names, request_ids=ids, session_ids=chats)

    def _taken(self, value: dict[str, object], index: int) -> None:
        self._taken_many([value])

    def _taken_many(self, rows: Sequence[Row]) -> None:
        parents = [_parent(row) for row in rows]
        given = [parent for parent in parents if parent is not None]
        found = iter(self.intake.find_sessions(given).tolist())
        for parent in parents:
            before = _FIRST_TURN if parent is None else next(found)
            if parent is not None and before < 0:
                before = _FIRST_TURN - 1 - len(self._yet_to_come)
                self._yet_to_come.append(parent)
            self._parents.append(before)

    def _turns_before(self) -> TurnsBefore:
        return self._link

    def _link(self, order: Ints) -> Ints:
        """Find the turns before, and name sessions after their first turns.

        The engine knows sessions as chains of turns, so a second branch is one of its own.
        """
        counts = self.intake.counts
        parents = self._parents_in_trace()
        # The turn before each, and the first turn of its session; plus 1, 0 for none or none yet.
        before, first = zeros(len(order)), zeros(len(order))
        is_continued = zeros(len(order), np.bool_)
        # Single numbers are quicker to get this way than of an array.
        parent_of, before_of, first_of = parents.data, before.data, first.data
        continued = is_continued.data
        for part in pieces(len(order), 1 << 16):
            for index in order[part].tolist():
                first_of[index] = index + 1
                parent = parent_of[index]
                if parent == _FIRST_TURN:
                    continue
                if parent < 0:
                    counts["whose turn before is not in the trace, taken as first turns"] += 1
                elif not first_of[parent] or parent == index:
                    counts["that come before the turn before them, taken as first turns"] += 1
                else:
                    before_of[index] = parent + 1
                    if continued[parent]:
                        counts[
                            "that branch off a turn already continued, taken as sessions of their"
                            " own"
                        ] += 1
                    else:
                        first_of[index] = first_of[parent]
                    continued[parent] = True
        before -= 1
        first -= 1
        self.intake.set_sessions(first)
        return before

    def _parents_in_trace(self) -> Ints:
        """Give the turn before of each, now that all are known; other numbers below 0 for none."""
        parents = self._parents.array
        yet_to_come = self._yet_to_come.texts()
        for part in pieces(len(parents), 1 << 16):
            some = parents[part]
            late = some < _FIRST_TURN
            if late.any():
                numbers = _FIRST_TURN - 1 - some[late]
                found = self.intake.find_sessions(list(yet_to_come.take(numbers)))
                some[late] = np.where(found < 0, some[late], found)
        return parents


def _parent(value: dict[str, object]) -> str | None:
    parent = value.get("parent_chat_id")
    return None if parent in (None, -1, "-1", "") else text("parent_chat_id", parent)


def get(value: dict[str, object], name: str) -> object:
    """Read an optional field by its name or another that newer tools give it; null is none."""
    found = value.get(name)
    if found is None:
        for alias in _ALIASES.get(name, ()):
            found = value.get(alias)
            if found is not None:
                break
    return found


def need(value: dict[str, object], name: str) -> object:
    """Read a field that must be there."""
    found = get(value, name)
    if found is None:
        raise RowError(f"{name} is missing")
    return found


def read_mooncake(
    path: str | PathLike[str],
    *,
    num_requests: int | None = None,
    trace_block_size: int | None = None,
    lenient: bool = False,
    timed: bool = True,
) -> Workload:
    """Read a Mooncake trace; see `workloads.reader.read` and its options."""
    from workloads.reader import read  # noqa: PLC0415 - it knows all formats

    return read(
        path,
        "mooncake",
        num_requests=num_requests,
        trace_block_size=trace_block_size,
        mode="lenient" if lenient else "strict",
        timed=timed,
    )
