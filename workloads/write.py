"""Writing a workload as a trace, possibly anonymised."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from os import PathLike
from pathlib import Path

import numpy as np

from sim.errors import UsageError
from sim.mapped import Column
from sim.types import Request
from workloads.content import Ints, prefix_names
from workloads.fields import MAX_TOKENS
from workloads.reader import read
from workloads.requests import prompt_tokens
from workloads.reuse import infinite_hit_rate
from workloads.texts import KeyNumbers, TextNumbers
from workloads.turns import FORM_FIELD, Form
from workloads.workload import Workload
from workloads.written_ids import keys, parts

FORMS = {"mooncake": 512, "bailian": 16, "tokens": 1}
"""Forms that can be written, and the tokens that an id stands for unless said otherwise."""


def write_trace(
    workload: Workload,
    path: str | PathLike[str],
    form: str = "mooncake",
    *,
    trace_block_size: int | None = None,
    key: str | None = None,
) -> tuple[str, ...]:
    """Write a trace that `workloads.reader.read` reads back, given the same block size.

    What is written is read back and compared, so that what the form cannot hold is known and said:
    prefixes that end inside a block of the trace; answers that no later turn of their session
    shows, except as ``tokens``, which spells every token. Rows of sessions say that they hold
    whole prompts, and whether the turn before stands in them with its answer (``"turns"`` is
    ``"cumulative"``) or not (``"separate"``), so that nothing has to be told from their ids.

    Parameters
    ----------
    workload
        What to write; its order becomes the order of lines.
    path
        Replaced in one step when all is written, so that it never holds half a trace.
    form
        A key of ``FORMS``.
    trace_block_size
        Tokens that an id stands for; None for the workload's own unit of identity, or that of
        ``FORMS`` where it has none.
    key
        Makes ids of blocks, requests and sessions keyed hashes (BLAKE2b): the same workload and key
        give the same file, and without the key nothing leads back. Ids of different traces are
        unrelated under one key too, so that files can be joined and share nothing by it. Times
        count from the first arrival anyway.

    Returns
    -------
    Sentences about what the file cannot hold; empty where it holds all.

    Raises
    ------
    UsageError
        If there is no such form, it says more than the workload knows, or the file cannot be
        written.
    """
    if form not in FORMS:
        raise UsageError(f"--to is {form!r}, but must be one of {', '.join(FORMS)}.")
    size = trace_block_size or default_block_size(workload, form)
    if form == "tokens" and size != 1:
        raise UsageError(
            f"--ids-block-size {size} has no meaning with --to tokens, which spells every token;"
            " leave it out."
        )
    if form == "tokens" and not workload.has_prefix_info:
        raise UsageError(
            f"--to tokens spells every token, but {workload.name} says nothing about the tokens of"
            " its prompts; write it with --to mooncake, which can leave them open."
        )
    if not 1 <= size <= MAX_TOKENS:
        raise UsageError(
            f"--ids-block-size is {size}, but a block has from 1 to {MAX_TOKENS} tokens; change it."
        )
    if key == "":
        raise UsageError("--anonymise needs a key that is not empty; give a secret of your own.")
    hashed = None
    if key is not None:
        plain = _Rows(workload, form, size, None).lines()
        hashed = _hasher(key, chain([workload.digest], plain))
    lines = _Rows(workload, form, size, hashed).lines()
    path = Path(path)
    part = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        try:
            with part.open("x", encoding="utf-8", newline="\n") as file:
                for line in lines:
                    file.write(line + "\n")
            losses = _losses(workload, part, form, size)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}); give a file in a folder that"
            " exists and may be written to."
        ) from None
    return losses


def write_mooncake(
    workload: Workload, path: str | PathLike[str], *, trace_block_size: int = 512
) -> tuple[str, ...]:
    """Write a Mooncake trace; see `write_trace`."""
    if trace_block_size < 1:
        raise UsageError(
            f"--ids-block-size is {trace_block_size}, but a block has at least 1 token; raise it."
        )
    return write_trace(workload, path, trace_block_size=trace_block_size)


def default_block_size(workload: Workload, form: str) -> int:
    """Tokens of a block where the user names none: the workload's own unit, if it has one."""
    own = workload.identity_block_size
    return own if own > 1 and form != "tokens" else FORMS[form]


def _hasher(key: str, texts: Iterable[str]) -> Callable[[object], int]:
    """Hash under a secret of the key and of texts that tell traces apart: ids are mere numbers."""
    written = blake2b()
    for line in texts:
        written.update(line.encode() + b"\n")
    secret = blake2b(written.digest(), key=blake2b(key.encode("utf-8", "surrogatepass")).digest())

    def hashed(value: object) -> int:
        digest = blake2b(repr(value).encode(), key=secret.digest(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1  # fits a signed integer of 64 bits

    return hashed


class _Rows:
    """Makes the rows of one file."""

    def __init__(
        self, workload: Workload, form: str, size: int, hashed: Callable[[object], int] | None
    ) -> None:
        self._workload = workload
        self._form = form
        self._size = size
        self._hashed = hashed
        self._numbers = KeyNumbers()
        # What stands for each number where ids are hashed.
        self._hashes = Column()
        # By the number of a session: its last turn so far and how many there were.
        self._sessions, self._last_turn, self._num_turns = TextNumbers(), Column(), Column()

    def lines(self) -> Iterator[str]:
        """Yield a line per request."""
        fields = {"mooncake": self._mooncake, "bailian": self._bailian, "tokens": self._tokens}
        has_ids = self._workload.has_prefix_info
        requests = self._workload.requests
        spells_tokens = self._form == "tokens"
        for part, counts in parts(requests, self._size, spells_tokens=spells_tokens):
            some = requests[part]
            ids: list[int] = []
            if has_ids:
                ids = self._ids(keys(some, counts, self._size, spells_tokens=spells_tokens))
            stop = 0
            for index, request, count in zip(
                range(part.start, part.stop), some, counts.tolist(), strict=True
            ):
                start, stop = stop, stop + count
                yield json.dumps(fields[self._form](index, request, ids[start:stop]))

    def _mooncake(self, index: int, request: Request, ids: list[int]) -> dict[str, object]:
        row: dict[str, object] = {
            "timestamp": _in_units(request.arrival_ns, 10**6),
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
        }
        self._add_blocks(row, ids)
        self._add_session(row, index, request)
        return row

    def _bailian(self, index: int, request: Request, ids: list[int]) -> dict[str, object]:
        before, turn = self._turn_before(index, request)
        parent = "-1" if before is None else self._name(before.request_id)
        row: dict[str, object] = {
            "chat_id": _number_or_text(self._name(request.request_id)),
            "parent_chat_id": _number_or_text(parent),
            "timestamp": _in_units(request.arrival_ns, 10**9),
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
            "type": "text",
            "turn": turn + 1,
        }
        self._add_blocks(row, ids)
        if before is not None:
            row[FORM_FIELD] = _form_of(before, request)
        if request.think_ns is not None:
            row["delay"] = _in_units(request.think_ns, 10**6)
        return row

    def _tokens(self, index: int, request: Request, ids: list[int]) -> dict[str, object]:
        row: dict[str, object] = {
            "timestamp": _in_units(request.arrival_ns, 10**6),
            "token_ids": ids[: request.num_prompt_tokens],
            "output_token_ids": ids[request.num_prompt_tokens :],
        }
        self._add_session(row, index, request)
        return row

    def _add_blocks(self, row: dict[str, object], ids: list[int]) -> None:
        if self._workload.has_prefix_info:
            row["hash_ids"] = ids

    def _add_session(self, row: dict[str, object], index: int, request: Request) -> None:
        if request.request_id != str(index) or self._hashed is not None:
            row["request_id"] = self._name(request.request_id)
        if request.session_id is not None:
            row["session_id"] = self._name(request.session_id)
            before, _ = self._turn_before(index, request)
            row[FORM_FIELD] = "cumulative" if before is None else _form_of(before, request)
        if request.think_ns is not None:
            row["delay"] = _in_units(request.think_ns, 10**6)

    def _turn_before(self, index: int, request: Request) -> tuple[Request | None, int]:
        """Find the turn before and how many there were, and take note of this one."""
        if request.session_id is None:
            return None, 0
        session = self._sessions.add(request.session_id)
        if session == len(self._last_turn):
            self._last_turn.append(index)
            self._num_turns.append(1)
            return None, 0
        before, turn = self._workload.requests[self._last_turn[session]], self._num_turns[session]
        self._last_turn[session], self._num_turns[session] = index, turn + 1
        return before, turn

    def _name(self, name: str) -> str:
        return name if self._hashed is None else f"{self._hashed(name):016x}"

    def _ids(self, keys: Ints) -> list[int]:
        """Give ids by the order in which what they stand for first comes."""
        numbers = self._numbers.add(keys)
        if self._hashed is not None:
            self._hashes.extend(
                [self._hashed(n) for n in range(len(self._hashes), len(self._numbers))]
            )
            numbers = self._hashes.array[numbers]
        found: list[int] = numbers.tolist()
        return found


def _form_of(before: Request, request: Request) -> Form:
    """Say whether a whole prompt shows the turn before it, which ids need not tell.

    The last token of an answer is never fed back, so that nothing turns on it.
    """
    num_prompt_tokens = before.num_prompt_tokens
    last = max(num_prompt_tokens + before.num_output_tokens - 2, num_prompt_tokens - 1)
    if request.num_prompt_tokens <= last:
        return "separate"
    names = [prefix_names(one.content, np.array([last])) for one in (before, request)]
    return "cumulative" if names[0] == names[1] else "separate"


def _in_units(time_ns: int, unit_ns: int) -> int | float:
    whole, rest = divmod(time_ns, unit_ns)
    return time_ns / unit_ns if rest else whole


def _number_or_text(name: str) -> int | str:
    plain = name == "-1" or (name.isascii() and name.isdecimal() and str(int(name[:18])) == name)
    return int(name) if plain else name


def _losses(workload: Workload, part: Path, form: str, size: int) -> tuple[str, ...]:
    again = read(part, form, trace_block_size=None if form == "tokens" else size)
    said = []
    tokens = [int(prompt_tokens(one.requests).sum()) for one in (workload, again)]
    if tokens[0] != tokens[1]:
        said.append(
            f"The file reads back with {tokens[1]} prompt tokens instead of {tokens[0]}: read it"
            " with --turns cumulative."
        )
    if not workload.has_prefix_info:
        return tuple(said)
    lost = 0.0
    for outputs, what in ((False, ""), (True, " and of earlier answers")):
        before = infinite_hit_rate(workload.requests, 1, outputs=outputs)
        after = infinite_hit_rate(again.requests, 1, outputs=outputs)
        if after == before or (outputs and math.isclose(before - after, lost)):
            continue  # nothing is lost, or nothing more than was said
        lost = before - after
        reason = _reason_of(workload, form, size, outputs=outputs)
        said.append(
            f"To the token, an infinite cache hits {after:.6f} of the prompt tokens in the file"
            f" instead of {before:.6f}, counting blocks of earlier prompts{what}{reason}."
        )
    return tuple(said)


def _reason_of(workload: Workload, form: str, size: int, *, outputs: bool) -> str:
    if form == "tokens":
        return ""
    if outputs:
        reason = (
            f"the form {form} has no ids for answers, which are known only where the next turn of a"
            " session shows them"
        )
    elif workload.identity_block_size % size:
        reason = f"prefixes that end inside a block of {size} tokens are cut to whole blocks"
    else:
        reason = "what two prompts share ends inside a block of the trace"
    return f": {reason}; --to tokens keeps every hit"
