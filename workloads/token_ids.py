"""Reader of token-id traces: JSON lines that spell every token of a prompt.

``token_ids`` (or ``prompt_token_ids``, ``input_token_ids``, ``input_tok_ids``), ``timestamp`` (ms;
``arrival_time_ns`` in ns), ``output_token_ids`` (or ``output_tok_ids``) or ``output_length`` (or
``output_toks``), and optionally ``request_id``, ``session_id`` and ``delay`` (ms). A stated
``input_length`` (or ``input_toks``) has to be the number of ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workloads.batches import Columns, Named, named
from workloads.content import Ints
from workloads.fields import RowError, num_tokens, show, text_or_none, time_ns
from workloads.hash_ids import IdReader
from workloads.intake import Intake
from workloads.token_batches import NUM_OUTPUT, NUM_PROMPT, OUTPUTS, PROMPTS, token_columns
from workloads.tree import PrefixTree, with_tail
from workloads.turns import Form, Turns, stated_form


class Streams:
    """Adds requests whose tokens are known, one by one, to an intake."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.tree = PrefixTree(intake.names)
        self._turns = Turns(intake, self.tree, 1)
        intake.has_prefix_info = True
        intake.identity_block_size = 1

    def add(
        self,
        line: int | str,
        prompt: Ints,
        output: Ints | int,
        *,
        root: int,
        arrival_ns: int,
        request_id: str | None = None,
        session_id: str | None = None,
        think_ns: int | None = None,
        linked: bool = True,
        form: Form | None = None,
    ) -> None:
        """Add a request; its output may be known only by its length.

        ``linked`` says whether the turns of a session are compared with one another, ``form`` what
        the row says of itself (see `workloads.turns`).
        """
        intake = self.intake
        known = not isinstance(output, int)
        stream = prompt if isinstance(output, int) else np.concatenate((prompt, output))
        num_tokens = len(prompt) + output if isinstance(output, int) else len(stream)
        bases, ends = self.tree.insert(stream, root)
        index = intake.add(
            line,
            with_tail(bases, ends, num_tokens, intake.names),
            len(prompt),
            arrival_ns=arrival_ns,
            request_id=request_id,
            session_id=session_id,
            think_ns=think_ns,
        )
        if session_id is not None and linked:
            self._turns.add(index, len(stream), root=root, form=form, answer_is_known=known)

    def add_many(self, found: Columns, names: Named, root: int) -> None:
        """Add requests of plain rows."""
        streams, answers = found.num_prompt_tokens, found.num_output_tokens
        if found.knows_answers:
            streams, answers = streams + answers, np.zeros_like(answers)
        paths = self.tree.insert_many(
            found.ids, found.num_ids, root, num_prompt_tokens=streams, num_output_tokens=answers
        )
        self._turns.add_many(self.intake.add_many(found, paths, names), found, names, root)

    def finish(self) -> None:
        """Link what can be linked only when all was read."""
        self._turns.finish()


class TokenIdReader:
    """Takes rows of one trace."""

    has_plain_rows = True

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._streams = Streams(intake)
        self._ids = IdReader()
        intake.clock.expect("ms")
        intake.has_delays_in_ms = True

    def row(self, line: int, value: object) -> None:
        """Take a row."""
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a JSON object with the fields of a request")
        intake = self._intake
        request_id = intake.request_id("request_id", value.get("request_id"))
        session_id = text_or_none("session_id", value.get("session_id"))
        delay = value.get("delay")
        think_ns = None if delay is None else time_ns("delay", delay, 10**6)
        if value.get("arrival_time_ns") is not None:
            arrival_ns = intake.clock.read_ns("arrival_time_ns", value["arrival_time_ns"])
        else:
            arrival_ns = intake.arrival_ns(
                "timestamp", value.get("timestamp"), session_id, think_ns
            )
        name, prompt = self._tokens(value, PROMPTS, NUM_PROMPT, 1)
        if prompt is None or not len(prompt):
            raise RowError(f"{name} is missing or empty")
        _, output = self._tokens(value, OUTPUTS, NUM_OUTPUT, 0)
        num_output_tokens = 1
        if output is None:
            stated_name, stated = _first(value, NUM_OUTPUT)
            if stated is None:
                intake.counts["without output_length, taken as 1 token"] += 1
            else:
                num_output_tokens = num_tokens(stated_name, stated, 0)
        self._streams.add(
            line,
            prompt,
            num_output_tokens if output is None else output,
            root=intake.scope(self._streams.tree, value),
            arrival_ns=arrival_ns,
            request_id=request_id,
            session_id=session_id,
            think_ns=think_ns,
            form=stated_form(value),
        )

    def take(self, first_line: int, batch: Sequence[bytes]) -> bool:
        """Take all rows of a batch of lines as `row` would, or none where one of them is odd."""
        intake = self._intake
        found = token_columns(batch, intake.clock.unit_ns) if self.has_plain_rows else None
        if found is None or not (intake.clock.is_settled or "arrival_time_ns" in found.rows[0]):
            return False
        names = named(found.rows, first_line)
        if names is None or not intake.are_new(names.request_ids):
            return False
        intake.clock.took(found.stamp_unit_ns, fractions=found.has_fractions)
        self._streams.add_many(found, names, intake.scope(self._streams.tree, {}))
        return True

    def finish(self) -> None:
        """Link what can be linked only when all was read."""
        self._streams.finish()

    def _tokens(
        self,
        value: dict[str, object],
        names: tuple[str, ...],
        length_names: tuple[str, ...],
        minimum: int,
    ) -> tuple[str, Ints | None]:
        """Read ids, of as many tokens as the row states."""
        name, found = _first(value, names)
        if found is None:
            return name, None
        ids = self._ids.read(name, found)
        stated_name, stated = _first(value, length_names)
        length = len(ids) if stated is None else num_tokens(stated_name, stated, minimum)
        if length == len(ids):
            return name, ids
        self._intake.forgive(
            RowError(f"{name} has {len(ids)} ids, but {stated_name} is {length}"),
            "with a number of ids that is not the length they state, which was followed",
        )
        return name, np.concatenate((ids[:length], self._ids.unheard_of(length - len(ids))))


def _first(value: dict[str, object], names: tuple[str, ...]) -> tuple[str, object]:
    """Find the first of several spellings of a field."""
    return next(((n, value[n]) for n in names if value.get(n) is not None), (names[0], None))
