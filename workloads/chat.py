"""Readers of traces that hold text: ShareGPT, OpenAI chat and batch, LMCache, plain prompts.

Texts become tokens by the user's tokenizer, each message on its own, so that equal messages after
equal messages are equal tokens. Messages are set in ChatML: ``<|im_start|>role``, a line feed, the
text, ``<|im_end|>``, a line feed; a prompt ends with the head of the answer, so that answer and
later history are the same tokens. Prompts that are one text are taken as they are.

ShareGPT: one JSON array of ``{"id", "conversations": [{"from", "value"}]}``. OpenAI: per line
``messages`` or ``prompt``, as such, in ``body`` (batch) or in ``payload``; a row whose last message
is the assistant's is a whole conversation. LMCache agent traces: ``timestamp`` (us since 1970),
``input``, ``output``, ``session_id``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from workloads.content import Ints
from workloads.fields import RowError, num_tokens, show, text_or_none, time_ns
from workloads.intake import Intake
from workloads.token_ids import Streams
from workloads.tokenizer import load_tokenizer

_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "bard": "assistant",
          "chatgpt": "assistant", "model": "assistant"}  # fmt: skip
_MAX_TOKENS = (
    "max_completion_tokens", "max_tokens", "max_output_tokens", "output_length", "output_tokens"
)  # fmt: skip
_SAID = frozenset({"content", "value", "tool_calls", "function_call"})
"""Fields of a message that hold what it says."""
_SYSTEM = ("instructions", "system")
"""Fields beside the messages that hold a system prompt."""
_FIRST_IMAGE = 1 << 40
"""Token ids of images, beyond those of any tokenizer."""

Message = tuple[str, Ints]


class _TextReader:
    """What readers of texts share."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.streams = Streams(intake)
        self._tokenize = load_tokenizer(intake.options.tokenizer)
        self._marks: dict[str, Ints] = {}
        self._images: dict[str, int] = {}
        # Conversations without a name on the line that had the last one of them.
        self._unnamed = (0, 0)
        if intake.options.tokenizer is None:
            intake.said.append(
                "texts are counted in bytes of UTF-8, three to five to a token of a model; give"
                " --tokenizer for its own"
            )

    def finish(self) -> None:
        """Link what can be linked only when all was read."""
        self.streams.finish()

    def tokens(self, name: str, value: object) -> Ints:
        """Turn a text field into tokens."""
        if not isinstance(value, str):
            raise RowError(f"{name} is {show(value)}, which is not text")
        return self._tokenize(value)

    def mark(self, value: str) -> Ints:
        """Turn a piece of the chat's form into tokens; these are few."""
        if value not in self._marks:
            self._marks[value] = self._tokenize(value)
        return self._marks[value]

    def head(self, role: str) -> Ints:
        """Give what stands before a message."""
        return self.mark(f"<|im_start|>{role}\n")

    def message(self, value: object) -> Message:
        """Read a message's role and text, which may come in parts."""
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a message")
        given = value.get("role", value.get("from"))
        if not isinstance(given, str):
            raise RowError(f"a message has the role {show(given)}, which is not text")
        if not _SAID & value.keys():
            # Taken as empty, all such messages would be one another's hits.
            raise RowError(f"a message of {show(given)} has no content (or value)")
        content = value.get("content", value.get("value"))
        parts = content if isinstance(content, list) else [content]
        pieces = [self._part(part) for part in parts if part is not None]
        for name in ("tool_calls", "function_call"):
            if value.get(name):
                pieces.append(self._tokenize(json.dumps(value[name], sort_keys=True)))
        return _ROLES.get(given.lower(), given.lower()), join(pieces)

    def _part(self, part: object) -> Ints:
        if isinstance(part, str):
            return self._tokenize(part)
        if not isinstance(part, dict):
            raise RowError(f"a message holds {show(part)}, which is neither text nor a part")
        if isinstance(part.get("text"), str):
            return self._tokenize(part["text"])
        # An image has its own hash in the keys of an engine's blocks; how many tokens it takes is
        # the model's affair.
        self.intake.counts["with an image or another part that is no text, counted as 1 token"] += 1
        spelt = json.dumps(part, sort_keys=True).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(spelt).hexdigest()
        number = self._images.setdefault(digest, len(self._images))
        return np.array([_FIRST_IMAGE + number], dtype=np.int64)

    def before_messages(self, row: Mapping[str, object]) -> list[Message]:
        """Read what a row gives beside its messages and engines put before them."""
        found = []
        if row.get("tools"):
            found.append(("tools", self.tokens("tools", json.dumps(row["tools"], sort_keys=True))))
        for name in _SYSTEM:
            if row.get(name):
                found.append(self.message({"role": "system", "content": row[name]}))
        return found

    def prompt(self, messages: list[Message]) -> Ints:
        """Set messages as a prompt that asks for an answer."""
        end = self.mark("<|im_end|>\n")
        pieces = [piece for role, said in messages for piece in (self.head(role), said, end)]
        return join([*pieces, self.head("assistant")])

    def conversation(
        self, line: int, name: str | None, messages: list[Message], *, arrival_ns: int, root: int
    ) -> None:
        """Add a request per answer of a conversation, each with all that was said before it."""
        if not messages:
            raise RowError("the conversation is empty")
        first = next((i for i, (role, _) in enumerate(messages) if role != "assistant"), None)
        if first is None:
            raise RowError("the conversation holds nothing but answers")
        if first:
            self.intake.counts["that begin with an answer, which was cut"] += 1
        end = self.mark("<|im_end|>\n")
        history: list[Ints] = []
        # All are checked before any is added.
        num_turns = sum(role == "assistant" for role, _ in messages[first:])
        if not num_turns:
            raise RowError("the conversation holds no answer")
        if self.intake.num_wanted is not None:
            num_turns = min(num_turns, self.intake.num_wanted)
        if name is None:
            # An array may have all of its conversations on one line.
            last_line, count = self._unnamed
            self._unnamed = (line, count + 1 if line == last_line else 1)
            name = f"line {line}" if self._unnamed[1] == 1 else f"line {line}, {self._unnamed[1]}"
        ids = [self._turn_id(name, number) for number in range(num_turns)]
        for role, said in messages[first:]:
            history.append(self.head(role))
            if role == "assistant" and ids:
                # Joined once per turn, so that later turns do not join it anew piece by piece.
                history = [join(history)]
                self.streams.add(
                    line,
                    history[0],
                    said,
                    root=root,
                    arrival_ns=arrival_ns,
                    request_id=ids.pop(0),
                    session_id=name,
                    linked=False,
                )
            history += [said, end]

    def _turn_id(self, name: str, number: int) -> str:
        # A row is a whole conversation, so that one that goes on with another has its turns twice.
        turn_id = self.intake.request_id("the turn (conversation/number)", f"{name}/{number}")
        assert turn_id is not None
        return turn_id


class ShareGptReader(_TextReader):
    """Takes conversations of ShareGPT."""

    def row(self, line: int, value: object) -> None:
        """Take a conversation."""
        said = value.get("conversations", value.get("items")) if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(said, list):
            raise RowError(f"{show(value)} is not a conversation: it has no list of messages")
        name = text_or_none("id", value.get("id"))
        messages = [self.message(one) for one in said]
        self.conversation(
            line, name, [*self.before_messages(value), *messages] if messages else [],
            arrival_ns=self.intake.arrival_or_none_ns("timestamp", value.get("timestamp")),
            root=self.intake.scope(self.streams.tree, value),
        )  # fmt: skip


class OpenAiReader(_TextReader):
    """Takes requests as OpenAI's interface takes them, or whole conversations."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        intake.clock.expect("ms")
        intake.has_delays_in_ms = True

    def row(self, line: int, value: object) -> None:
        """Take a request or a conversation."""
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a JSON object with the fields of a request")
        body = next(
            (value[n] for n in ("body", "payload", "request") if isinstance(value.get(n), dict)),
            value,
        )
        assert isinstance(body, dict)
        id_name = "custom_id" if value.get("custom_id") is not None else "request_id"
        request_id = self.intake.request_id(id_name, value.get(id_name))
        session_id = text_or_none("session_id", value.get("session_id"))
        delay = value.get("delay")
        think_ns = None if delay is None else time_ns("delay", delay, 10**6)
        # Another model shares nothing, and a LoRA adapter goes by the name of a model.
        scope = self.intake.scope(
            self.streams.tree,
            {"extra_key": body.get("model")},
            value,
            *([body] * (body is not value)),
        )
        messages = body.get("messages", body.get("input"))
        before = self.before_messages(body)
        if isinstance(messages, list) or before:
            if isinstance(messages, list):
                said = [self.message(one) for one in messages]
            else:
                said = [("user", self._text(body))]
            if not said:
                raise RowError("messages is empty")
            said = [*before, *said]
            if said[-1][0] == "assistant":
                self.conversation(
                    line,
                    session_id or request_id,
                    said,
                    arrival_ns=self.intake.arrival_or_none_ns("timestamp", value.get("timestamp")),
                    root=scope,
                )
                return
            prompt = self.prompt(said)
        else:
            prompt = self._text(body)
        output = self._output(value, body)
        stamp = value.get("timestamp")
        if stamp is None and think_ns is not None:
            arrival_ns = self.intake.arrival_ns("timestamp", None, session_id, think_ns)
        else:
            arrival_ns = self.intake.arrival_or_none_ns("timestamp", stamp)
        self.streams.add(
            line,
            prompt,
            output,
            root=scope,
            arrival_ns=arrival_ns,
            request_id=request_id,
            session_id=session_id,
            think_ns=think_ns,
        )

    def _text(self, body: dict[str, object]) -> Ints:
        for name in ("prompt", "text_input", "text", "input"):
            if body.get(name) is not None:
                tokens = self.tokens(name, body[name])
                if not len(tokens):
                    raise RowError(f"{name} is empty")
                return tokens
        raise RowError("neither messages nor a prompt is there")

    def _output(self, value: dict[str, object], body: dict[str, object]) -> Ints | int:
        for name in ("output", "completion", "answer"):
            if isinstance(value.get(name), str):
                return self.tokens(name, value[name])
        for row in (body, value):
            for name in _MAX_TOKENS:
                if row.get(name) is not None:
                    return num_tokens(name, row[name], 0)
        self.intake.counts["without a length of the answer, taken as 1 token"] += 1
        return 1


class LmcacheReader(_TextReader):
    """Takes requests of LMCache's agent traces."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        intake.clock.expect("us")

    def row(self, line: int, value: object) -> None:
        """Take a request."""
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a JSON object with the fields of a request")
        arrival_ns = self.intake.arrival_ns("timestamp", value.get("timestamp"))
        session_id = text_or_none("session_id", value.get("session_id"))
        prompt = self.tokens("input", value.get("input"))
        if not len(prompt):
            self.intake.pass_over("without any input")
            return
        output = self.tokens("output", value.get("output") or "")
        if not len(output):
            self.intake.counts["with an output of 0 tokens"] += 1
        self.streams.add(
            line,
            prompt,
            output,
            root=self.intake.scope(self.streams.tree, value),
            arrival_ns=arrival_ns,
            session_id=session_id,
            linked=False,
        )


class PromptReader(_TextReader):
    """Takes a prompt per line of plain text."""

    def row(self, line: int, value: object) -> None:
        """Take a prompt."""
        self.intake.counts["without a length of the answer, taken as 1 token"] += 1
        self.streams.add(
            line,
            self.tokens("the line", value),
            1,
            root=self.intake.scope(self.streams.tree),
            arrival_ns=self.intake.arrival_or_none_ns("timestamp", None),
        )


def join(pieces: list[Ints]) -> Ints:
    """Put tokens one after the other."""
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
