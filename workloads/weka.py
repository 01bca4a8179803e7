"""Reader of coding-agent sessions in WEKA's form: one JSON document per session.

Format: callanjfox/kv-cache-tester, traces/. A session has ``id``, ``block_size``,
``hash_id_scope`` (``local``: ids mean nothing outside the session; ``global``: they do) and
``requests``, each with ``t`` (s from the start of the session), ``in`` and ``out`` (tokens),
``hash_ids`` (one per full block of the prompt), ``think_time`` (s after the answer before).
A request of type ``subagent`` holds requests of its own, whose ``t`` count from its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workloads.content import cut
from workloads.fields import MAX_NS, RowError, num_tokens, show, text_or_none, time_ns
from workloads.hash_ids import IdReader
from workloads.intake import Intake
from workloads.tree import PrefixTree, with_answer
from workloads.turns import Turns

_DEEPEST = 50


class _Place(NamedTuple):
    path: str
    agent: str
    start_ns: int


class WekaReader:
    """Takes sessions of one trace."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._ids = IdReader(signed=True)
        self._shared_tree: PrefixTree | None = None
        self._unit: int | None = None
        self._num_sessions = 0
        self._names: set[str] = set()
        intake.clock.expect("s")

    def row(self, line: int, value: object) -> None:
        """Take a session; problems of its requests are named by their place in it."""
        if not isinstance(value, dict) or not isinstance(value.get("requests"), list):
            raise RowError(f"{show(value)} is not a session: it has no list of requests")
        intake = self._intake
        unit = intake.options.trace_block_size
        if unit is None:
            unit = num_tokens("block_size", value.get("block_size"), 1)
        if self._unit not in (None, unit):
            raise RowError(
                f"block_size is {unit}, but {self._unit} in the sessions before",
                "give sessions of one block size at a time",
            )
        scope = value.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise RowError(f"hash_id_scope is {show(scope)}, which is neither 'local' nor 'global'")
        name = text_or_none("id", value.get("id")) or f"session {self._num_sessions}"
        given = _part_of_name(name)
        session_id = self._own_name(given)
        num_before = len(intake)
        tree = PrefixTree(intake.names, unit)
        if scope == "global":
            tree = self._shared_tree = self._shared_tree or tree
        # Output reuse is linked session by session, and so is a local tree forgotten.
        # Its rows hold whole prompts, also where a turn shares nothing with the one before.
        turns = Turns(intake, tree, unit)
        last_turn: dict[str, int] = {}
        for place, agent, start_ns, request in _requests(value["requests"], session_id, "", 0):
            if intake.full:
                break
            mark = intake.mark()
            try:
                if isinstance(request, RowError):
                    raise request
                self._request(
                    _Place(place, agent, start_ns), request, tree, turns, last_turn, unit=unit
                )
            except RowError as bad:
                intake.undo(mark)
                intake.bad(f"{line}: requests{place}", bad)
        if len(intake) == num_before:
            return  # a session of which nothing can be used leaves no trace
        self._unit = intake.identity_block_size = unit
        self._num_sessions += 1
        intake.clock.common = self._num_sessions == 1
        self._names.add(session_id)
        if session_id != given:
            odd = "of sessions whose id an earlier one has, taken as sessions of their own"
            intake.counts[odd] += 1
        turns.finish()

    def _own_name(self, name: str) -> str:
        """Find a name that tells a session apart from an earlier one of the same id."""
        own, number = name, 1
        while own in self._names:
            number += 1
            own = f"{name} ({number})"
        return own

    def _request(
        self,
        where: _Place,
        value: dict[str, object],
        tree: PrefixTree,
        turns: Turns,
        last_turn: dict[str, int],
        *,
        unit: int,
    ) -> None:
        intake = self._intake
        place, agent, start_ns = where
        think = value.get("think_time")
        think_ns = None if think is None else time_ns("think_time", think, 10**9)
        stamp = value.get("t")
        arrival_ns = intake.arrival_ns("t", stamp, agent, think_ns)
        if stamp is not None:
            arrival_ns = min(start_ns + arrival_ns, MAX_NS)
        num_prompt_tokens = num_tokens("in", value.get("in"), 1)
        num_output_tokens = num_tokens("out", value.get("out"), 0)
        ids = self._ids.read("hash_ids", value.get("hash_ids"))
        num_full_blocks = num_prompt_tokens // unit
        if len(ids) not in (num_full_blocks, -(-num_prompt_tokens // unit)):
            intake.forgive(
                RowError(
                    f"hash_ids has {len(ids)} ids, but in {num_prompt_tokens} has"
                    f" {num_full_blocks} full blocks of {unit} tokens",
                    "give the trace's own size with --trace-block-size",
                    "correct the line",
                ),
                "with a number of hash_ids that does not fit in, which was followed",
            )
        intake.has_prefix_info |= len(ids) > 0
        root = intake.scope(tree, value)
        bases, ends = tree.insert(ids, root)
        bases, ends = cut(bases, ends, num_prompt_tokens)
        index = intake.add(
            place,
            with_answer(bases, ends, num_prompt_tokens, num_output_tokens, intake.names),
            num_prompt_tokens,
            arrival_ns=arrival_ns,
            session_id=agent,
            # Nothing comes before a first turn that it could wait for.
            think_ns=think_ns if agent in last_turn else None,
        )
        num_named = min(len(ids) * unit, num_prompt_tokens)
        turns.add(index, num_named, root=root, form="cumulative")
        last_turn[agent] = index

    def finish(self) -> None:
        """Say what the form leaves open."""
        if self._num_sessions > 1:
            self._intake.said.append(
                f"times count from the start of each of {self._num_sessions} sessions, which all"
                " start at 0; spread them with --arrival poisson, --rate and --sessions closed"
            )
        if self._shared_tree is None and self._num_sessions > 1:
            self._intake.said.append(
                "ids are local to a session, so that nothing is shared between sessions, not even"
                " a system prompt"
            )


def _part_of_name(name: str) -> str:
    """Keep the sign between session and agents out of their names."""
    return name.replace("/", "%2F")


def _requests(
    rows: list[object], agent: str, prefix: str, start_ns: int
) -> Iterator[tuple[str, str, int, dict[str, object] | RowError]]:
    """Yield place, agent, start of its clock and row of every request, in order."""
    for number, row in enumerate(rows):
        place = f"{prefix}[{number}]"
        if not isinstance(row, dict):
            yield place, agent, start_ns, RowError(f"{show(row)} is not a JSON object")
        elif "requests" in row:
            try:
                if not isinstance(row["requests"], list) or place.count("[") > _DEEPEST:
                    raise RowError("requests of a subagent are no list, or nested too deeply")
                name = text_or_none("agent_id", row.get("agent_id")) or f"agent {number}"
                sub_agent = f"{agent}/{_part_of_name(name)}"
                sub_start_ns = start_ns + time_ns("t", row.get("t", 0), 10**9)
            except RowError as bad:
                yield place, agent, start_ns, bad
            else:
                yield from _requests(row["requests"], sub_agent, f"{place}.requests", sub_start_ns)
        else:
            yield place, agent, start_ns, row
