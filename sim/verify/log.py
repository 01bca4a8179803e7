"""Reads recorded logs: JSON Lines, the first line of which is the configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sim.capacity import MAX_BLOCKS
from sim.errors import UsageError
from sim.verify.fields import FLAG, MAX_SETTING, TEXT, Kind, shown, whole

Line = dict[str, Any]

DESCRIBED = "recorded logs are described in docs/recorded-logs.md"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One field of one line in which a replay differs from the record."""

    file: str
    line: int
    field: str
    expected: object
    got: object

    def __str__(self) -> str:
        field, expected, got = map(_on_one_line, (self.field, self.expected, self.got))
        return f"{self.file}:{self.line}: {field}: expected {expected}, got {got}"


def _on_one_line(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else repr(value)


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded run: configuration, the number of its line, and the numbered lines after it."""

    path: Path
    config: Line
    config_number: int
    lines: list[tuple[int, Line]]

    @property
    def kind(self) -> str:
        """``allocator``, ``scheduler`` or ``engine``."""
        if self.config.get("kind") == "config":
            return "engine"
        if not self.lines:
            self.refuse(self.config_number, "only the configuration is here, and nothing to replay")
        number, first = self.lines[0]
        if "op" in first:
            return "allocator"
        if first.get("kind") in ("request", "step"):
            return "scheduler"
        self.refuse(number, "this line is no operation, request or step")

    def refuse(self, number: int, what: str, next_step: str = DESCRIBED) -> NoReturn:
        """Say that the log cannot be replayed, and which line shows it."""
        raise UsageError(f"{self.path}:{number}: {what}; {next_step}.")

    def refuse_as_cut(self, number: int, what: str) -> NoReturn:
        """Say that lines are missing, or too many: agreement would mean nothing."""
        self.refuse(number, what, "the log is not whole: record the run again, or copy all of it")

    def check(
        self,
        number: int,
        line: Line,
        what: str,
        required: Mapping[str, Kind],
        optional: Mapping[str, Kind] | None = None,
    ) -> None:
        """Refuse a line, or a part of one, that lacks a field or holds one of another kind.

        Parameters
        ----------
        number
            Of the line.
        what
            What errors call it.
        """
        for field in required:
            if field not in line:
                self.refuse(number, f"{what} has no {field!r}")
        for field, kind in {**required, **(optional or {})}.items():
            if field in line:
                fault = kind.fault(field, what, line[field])
                if fault is not None:
                    self.refuse(number, fault, "correct it as docs/recorded-logs.md describes")

    def setting(self, name: str, kind: Kind) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Look up a required setting of the configuration."""
        self.check(self.config_number, self.config, "the configuration", {name: kind})
        return self.config[name]

    def number(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Look up a whole number of the configuration, required unless it has a default."""
        if default is not None and name not in self.config:
            return default
        value: int = self.setting(name, whole(minimum, MAX_SETTING))
        return value

    def text(self, name: str) -> str:
        """Look up a text of the configuration."""
        value: str = self.setting(name, TEXT)
        return value

    def is_caching(self) -> bool:
        """Whether the prefix cache was on."""
        return "enable_prefix_caching" not in self.config or bool(
            self.setting("enable_prefix_caching", FLAG)
        )

    def num_blocks(self, num_reserved_blocks: int = 0) -> int:
        """Look up the number of physical blocks, of which at least one must be usable."""
        value: int = self.setting("num_blocks", whole(num_reserved_blocks + 1, MAX_BLOCKS))
        return value

    def check_kinds(self, *kinds: str) -> None:
        """Refuse lines that would be passed over."""
        for number, line in self.lines:
            self.check(number, line, "the line", {"kind": TEXT})
            if line["kind"] not in kinds:
                self.refuse(
                    number,
                    f"kind {shown(line['kind'])} is unknown",
                    f"the lines of this log are of kind {' or '.join(kinds)}",
                )

    def of_kind(self, kind: str) -> Iterator[tuple[int, Line]]:
        """Yield the numbered lines of one kind."""
        return ((number, line) for number, line in self.lines if line.get("kind") == kind)

    def compare(self, number: int, expected: Line, got: Line) -> Iterator[Divergence]:
        """Yield the fields of ``expected`` in which ``got`` differs."""
        for field, value in expected.items():
            if field not in got or got[field] != value:
                yield Divergence(str(self.path), number, field, value, got.get(field, "nothing"))


def read_log(path: Path) -> Log:
    """Read a log whole.

    Raises
    ------
    UsageError
        The file cannot be read, is empty, or a line is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as a recorded log ({error}); name a .jsonl file or a folder "
            "of them."
        ) from error
    lines: list[tuple[int, Line]] = []
    for number, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(
                row,
                object_pairs_hook=_object,
                parse_float=_finite,
                parse_constant=_finite,
            )
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number}: not JSON ({_reason(error)}); a recorded log has one JSON object "
                "a line."
            ) from error
        if not isinstance(line, dict):
            raise UsageError(
                f"{path}:{number}: {type(line).__name__} instead of an object; a recorded log has "
                "one JSON object a line."
            )
        lines.append((number, line))
    if not lines:
        raise UsageError(f"{path} is empty; its first line must be the configuration.")
    config_number, config = lines[0]
    return Log(path, config, config_number, lines[1:])


def _object(pairs: list[tuple[str, Any]]) -> Line:
    """Make an object; of two fields of one name, one would be passed over."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} stands twice in one object")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is no finite number")
    return value


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "nested too deep"
    # Python's own word on a number of thousands of digits goes on with advice to programmers.
    return str(error).partition(";")[0]
