"""The one list of trace formats, and how a file is told to be in one of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sim.errors import UsageError
from workloads.chat import LmcacheReader, OpenAiReader, PromptReader, ShareGptReader
from workloads.fields import RowError, show
from workloads.intake import Intake
from workloads.lengths import AZURE, BURST, AzureReader, BurstReader, csv_rows
from workloads.lines import Rows, first_value, has_a_row_per_line, parse, read_rows
from workloads.mooncake import BailianReader, MooncakeReader
from workloads.source import HEAD, DamagedError, Part, lines
from workloads.token_batches import PROMPTS
from workloads.token_ids import TokenIdReader
from workloads.weka import WekaReader


class Reader(Protocol):
    """Takes the rows of one trace."""

    def row(self, line: int, value: object, /) -> None:
        """Take a row; raises RowError and changes nothing that lasts if it cannot be used."""

    def finish(self) -> None:
        """Do what can be done only when all was read."""


@dataclass(frozen=True, slots=True)
class Format:
    """What is known of a format; the table in docs/traces.md is made of these.

    Attributes
    ----------
    title
        What people call it.
    fields
        Those that are read.
    time
        Unit of its time stamps.
    block
        What its ids stand for.
    lacks
        What it cannot tell.
    """

    title: str
    fields: str
    time: str
    block: str
    lacks: str
    reader: Callable[[Intake], Reader]
    rows: Callable[[Part, bytes, list[str]], Rows] = read_rows
    many_files: bool = False


def _burst_rows(part: Part, head: bytes, said: list[str]) -> Rows:
    return csv_rows(part, BURST)


def _azure_rows(part: Part, head: bytes, said: list[str]) -> Rows:
    return csv_rows(part, AZURE)


def _text_rows(part: Part, head: bytes, said: list[str]) -> Rows:
    number = 0
    try:
        for number, line in lines(part):
            try:
                spelt = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                yield number, RowError("the line is not UTF-8 text")
                continue
            if spelt.strip():
                yield number, spelt
    except DamagedError as fault:
        yield number + 1, RowError(f"{fault}, which ends here", "fetch the file anew")


FORMATS: dict[str, Format] = {
    "mooncake": Format(
        "Mooncake JSONL",
        "`timestamp`, `input_length`, `output_length`, `hash_ids`; `request_id`, `session_id`,"
        " `delay`",
        "ms",
        "512 tokens, the last of a prompt possibly partial",
        "what was generated; sharing below 512 tokens",
        MooncakeReader,
    ),
    "bailian": Format(
        "Qwen-Bailian JSONL",
        "`chat_id`, `parent_chat_id`, `timestamp`, `input_length`, `output_length`, `hash_ids`",
        "s",
        "16 tokens, the last of a prompt possibly partial",
        "sharing below 16 tokens",
        BailianReader,
    ),
    "burst": Format(
        "BurstGPT CSV",
        "`Timestamp`, `Request tokens`, `Response tokens`; `Session ID`",
        "s",
        "no ids",
        "prefixes: no hit rate",
        BurstReader,
        _burst_rows,
    ),
    "azure": Format(
        "Azure LLM inference CSV (2023, 2024)",
        "`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`",
        "date and time, UTC",
        "no ids",
        "prefixes: no hit rate; sessions",
        AzureReader,
        _azure_rows,
    ),
    "tokens": Format(
        "token-id JSONL",
        "`token_ids` (`prompt_token_ids`, `input_tok_ids`), `timestamp` (`arrival_time_ns`),"
        " `output_token_ids` or `output_length`; `request_id`, `session_id`, `delay`",
        "ms (`arrival_time_ns`: ns)",
        "1 token",
        "what was generated, where only its length is given",
        TokenIdReader,
    ),
    "weka": Format(
        "coding-agent sessions (WEKA): a JSON document per session, in a folder or tar",
        "`id`, `block_size`, `hash_id_scope`, `requests`: `t`, `in`, `out`, `hash_ids`,"
        " `think_time`, subagents' `requests`",
        "s from the start of the session",
        "`block_size` tokens (64), full blocks only",
        "when sessions start; what sessions share, where ids are local",
        WekaReader,
        many_files=True,
    ),
    "lmcache": Format(
        "LMCache agent traces: JSONL, in a folder or tar",
        "`timestamp`, `input`, `output`, `session_id`",
        "us since 1970",
        "text",
        "where a message ends: the whole prompt is one text",
        LmcacheReader,
        many_files=True,
    ),
    "sharegpt": Format(
        "ShareGPT JSON",
        "`id`, `conversations`: `from`, `value`; `system`, `tools`",
        "none",
        "text",
        "arrivals: all come at once unless `--arrival` makes them",
        ShareGptReader,
    ),
    "openai": Format(
        "OpenAI chat, completion or batch JSONL",
        "`messages` or `prompt` (in `body` or `payload`), `model`, `tools`, `system`,"
        " `instructions`, `max_tokens`, `custom_id`; `timestamp`, `session_id`, `delay`, `output`",
        "ms, often none",
        "text",
        "answers, mostly: their longest length is taken",
        OpenAiReader,
    ),
    "text": Format(
        "plain text, a prompt per line (only by `--format text`)",
        "the line",
        "none",
        "text",
        "arrivals and answers",
        PromptReader,
        _text_rows,
    ),
}
"""By the name that ``--format`` takes."""

AUTO = "auto"
_KEY = re.compile(rb'"([A-Za-z_ ]{1,40})"\s*:')
_ROWS_OF_EVENTS = 8
"""Rows among which a log has an event that no request looks like."""
_CACHE_EVENT = re.compile(
    rb'"(?:(?:parent_)?block_hash(?:es)?|parent_hash)"\s*:'
    rb'|"(?:BlockStored|BlockRemoved|AllBlocksCleared)"'
)
_REQUEST = re.compile(rb'"(?:hash_ids|input_length|messages|conversations|prompt)"\s*:')


def recognise(part: Part, head: bytes) -> str:
    """Tell the format from the beginning of a file.

    Raises
    ------
    UsageError
        If it is in none that can be told.
    """
    if head.startswith((b"{", b"[")):
        _refuse_cache_events(part, head)
        return _recognise_json(part, head)
    first = head.replace(b"\r", b"\n").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    columns = {cell.strip() for cell in next(csv.reader([first]), [])}
    for name, wanted in (("azure", AZURE), ("burst", BURST)):
        if columns & set(wanted[1:]):
            return name
    if not head:
        raise UsageError(
            f"{part.name}: holds no request; give a trace in one of the known formats."
        )
    raise UsageError(
        f"{part.name}:1: {show(first)} is not a JSON object, nor the head of a known CSV; give a"
        f" trace in one of the known formats ({', '.join(FORMATS)}), or --format text for a prompt"
        " per line."
    )


def _refuse_cache_events(part: Part, head: bytes) -> None:
    """Refuse a log of the KV cache, which may have token ids and look like requests for them.

    vLLM's KV-cache events (``vllm/distributed/kv_events.py`` of 0.8.5 and later, also as other
    routers record them) tell which blocks were stored and removed. Requests, or parts of requests,
    whose blocks were all hits leave no event.
    """
    rows = head.split(b"\n", _ROWS_OF_EVENTS)[:_ROWS_OF_EVENTS]
    if any(_CACHE_EVENT.search(row) and not _REQUEST.search(row) for row in rows):
        raise UsageError(
            f"{part.name} is a log of KV-cache events: it tells which blocks were stored and"
            " removed, not the requests, and hits leave no event; record the requests (prompt token"
            " ids and arrival times) and give those."
        )


def _recognise_json(part: Part, head: bytes) -> str:
    value = first_value(head)
    # Where the first row is longer than what can be looked at, keys may be nested ones.
    found = value if isinstance(value, dict) else {k.decode() for k in _KEY.findall(head)}
    keys = set(found)
    if (name := _told_by(keys)) is not None:
        return name
    if has_a_row_per_line(head):
        # The first row may be a broken one, or say something about the others.
        later = (parse(line) for line in head.split(b"\n")[1:] if line.startswith(b"{"))
        told = (_told_by(set(row)) for row in later if isinstance(row, dict))
        if (name := next(filter(None, told), None)) is not None:
            return name
    if value is None and len(head) >= HEAD:
        # The row goes on, and with it what would tell.
        if {"timestamp", "input"} <= keys:
            return "lmcache"
        raise UsageError(
            f"{part.name}:1: the first {HEAD >> 10} KiB of the first row, which are looked at, do"
            f" not tell its format; name it with --format ({', '.join(FORMATS)})."
        )
    if isinstance(value, dict) and not keys & _OF_MOONCAKE:
        fields = ", ".join(map(show, list(value)[:5])) or "no field"
        raise UsageError(
            f"{part.name}:1: a row with {fields} is in no known format; give a trace in one, or"
            f" name it with --format ({', '.join(FORMATS)})."
        )
    return "mooncake"


def _told_by(keys: set[str]) -> str | None:
    """Name the format of a row with these keys; None where they do not tell it."""
    for name, needed, any_of in _TELLS:
        if needed <= keys and keys & any_of:
            return name
    return None


_OF_MOONCAKE = frozenset({"timestamp", "created_time", "output_length", "output_tokens"})
"""Fields of a row of Mooncake's that lacks those which tell it."""

_TELLS: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    ("weka", frozenset({"requests"}), frozenset({"hash_id_scope", "block_size", "models"})),
    ("openai", frozenset(), frozenset({"body", "payload", "custom_id"})),
    ("bailian", frozenset({"parent_chat_id"}), frozenset({"hash_ids", "input_length", "chat_id"})),
    ("bailian", frozenset({"chat_id"}), frozenset({"hash_ids", "turn"})),
    ("tokens", frozenset(), frozenset(PROMPTS)),
    ("mooncake", frozenset(), frozenset({"hash_ids", "input_length", "input_tokens"})),
    ("sharegpt", frozenset(), frozenset({"conversations"})),
    ("sharegpt", frozenset({"id"}), frozenset({"items"})),
    ("lmcache", frozenset({"input", "session_id"}), frozenset({"output"})),
    ("openai", frozenset(), frozenset({"messages", "prompt", "text_input", "text", "request"})),
    ("openai", frozenset({"input", "model"}), frozenset({"input"})),
)
"""Formats in turn: keys that the first row must have, and keys of which it must have one."""
