"""Reads recorded logs: JSON Lines, the first line of which is the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.capacity import MAX_BLOCKS
from sim.errors import UsageError

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Divergence:
    """One field of one line in which a replay differs from the record."""

    file: str
    line: int
    field: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded run: configuration and numbered lines."""

    path: Path
    config: Line
    lines: list[tuple[int, Line]]

    @property
    def kind(self) -> str:
        """``allocator``, ``scheduler`` or ``engine``."""
        if self.config.get("kind") == "config":
            return "engine"
        first = self.lines[0][1] if self.lines else {}
        if "op" in first:
            return "allocator"
        if first.get("kind") in ("request", "step"):
            return "scheduler"
        raise UsageError(
            f"{self.path}:2: this line is no operation, request or step; recorded logs are "
            "described in docs/recorded-logs.md."
        )

    def setting(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Look up a required setting of the configuration."""
        if name not in self.config:
            raise UsageError(
                f"{self.path}:1: the configuration has no {name!r}; recorded logs are described in "
                "docs/recorded-logs.md."
            )
        return self.config[name]

    def number(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Look up a whole number of the configuration, required unless it has a default."""
        value = self.setting(name) if default is None else self.config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise UsageError(
                f"{self.path}:1: {name} is {value!r} but must be a whole number of at least "
                f"{minimum}."
            )
        return value

    def num_blocks(self) -> int:
        """Look up the number of physical blocks."""
        value = self.number("num_blocks", minimum=1)
        if value > MAX_BLOCKS:
            raise UsageError(
                f"{self.path}:1: num_blocks is {value} but at most {MAX_BLOCKS:,} can be replayed."
            )
        return value

    def check_kinds(self, *kinds: str) -> None:
        """Refuse lines that would be passed over."""
        for number, line in self.lines:
            if line.get("kind") not in kinds:
                raise UsageError(
                    f"{self.path}:{number}: kind {line.get('kind')!r} is unknown; the lines of "
                    f"this log are of kind {' or '.join(kinds)}."
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
            line = json.loads(row)
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{path}:{number}: not JSON ({error.msg}); a recorded log has one JSON object a "
                "line."
            ) from error
        if not isinstance(line, dict):
            raise UsageError(
                f"{path}:{number}: {type(line).__name__} instead of an object; a recorded log has "
                "one JSON object a line."
            )
        lines.append((number, line))
    if not lines:
        raise UsageError(f"{path} is empty; its first line must be the configuration.")
    return Log(path, lines[0][1], lines[1:])
