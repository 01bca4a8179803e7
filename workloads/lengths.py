"""Readers of traces that hold lengths only: BurstGPT and Azure LLM inference CSV.

They say nothing about prefixes, so a hit rate is not available, which is not 0.

BurstGPT (HPMLL/BurstGPT): ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``
(0: failed), ``Total tokens``, ``Log Type``, in newer files ``Session ID`` and ``Elapsed time``.
Azure (Azure/AzurePublicDataset, 2023 and 2024): ``TIMESTAMP`` (date and time, UTC unless it says
otherwise), ``ContextTokens``, ``GeneratedTokens``.
"""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime, timedelta, timezone

from sim.errors import UsageError
from workloads.fields import MAX_NS, RowError, num_tokens, show, text
from workloads.intake import Intake
from workloads.lines import Rows
from workloads.source import DamagedError, Part, lines
from workloads.tree import with_tail

BURST = ("Timestamp", "Request tokens", "Response tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def csv_rows(part: Part, wanted: tuple[str, ...]) -> Rows:
    """Yield each row as a mapping from column to text, with its line.

    Raises
    ------
    UsageError
        If a wanted column is missing, which no leniency can mend.
    """
    header: list[str] | None = None
    number = 0
    try:
        for number, line in lines(part):
            # A line is a row, so that one that is broken leaves the others whole: no cell of these
            # formats goes over several lines.
            try:
                cells = next(csv.reader([line.decode("utf-8")], strict=True), [])
            except UnicodeDecodeError:
                yield number, RowError("the line is not UTF-8 text")
                continue
            except csv.Error as error:
                yield number, RowError(f"the row is no CSV ({error})")
                continue
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(part, number, cells, wanted)
            elif len(cells) != len(header):
                yield (
                    number,
                    RowError(
                        f"the row has {len(cells)} columns, but the first line names {len(header)}"
                    ),
                )
            else:
                yield number, dict(zip(header, cells, strict=True))
    except DamagedError as fault:
        yield number + 1, RowError(f"{fault}, which ends here", "fetch the file anew")


def _header(part: Part, number: int, cells: list[str], wanted: tuple[str, ...]) -> list[str]:
    header = [cell.strip() for cell in cells]
    if twice := sorted({name for name in wanted if header.count(name) > 1}):
        raise UsageError(
            f"{part.name}:{number}: has the column {twice[0]} more than once, which leaves open"
            " which of them counts; remove one."
        )
    if missing := [name for name in wanted if name not in header]:
        raise UsageError(
            f"{part.name}:{number}: has no column {', '.join(missing)}; the first line must name"
            f" the columns, at least {', '.join(wanted)}."
        )
    return header


class _LengthsReader:
    no_output = "with an output of 0 tokens"

    def __init__(self, intake: Intake) -> None:
        self.intake = intake

    def _add(
        self, line: int, lengths: tuple[str, str], value: object, arrival_ns: int, session: str = ""
    ) -> None:
        prompt, output = lengths
        num_prompt_tokens = num_tokens(prompt, _cell(value, prompt), 1)
        num_output_tokens = num_tokens(output, _cell(value, output), 0)
        session_id = text(session, _cell(value, session)) if _cell(value, session) else None
        if not num_output_tokens:
            self.intake.counts[self.no_output] += 1
        content = with_tail([], [], num_prompt_tokens + num_output_tokens, self.intake.names)
        self.intake.add(
            line, content, num_prompt_tokens, arrival_ns=arrival_ns, session_id=session_id
        )

    def finish(self) -> None:
        """Nothing is left to do."""


class BurstReader(_LengthsReader):
    """Takes rows of BurstGPT."""

    no_output = "with an output of 0 tokens, which failed when recorded"

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        intake.clock.expect("s")

    def row(self, line: int, value: object) -> None:
        """Take a row."""
        arrival_ns = self.intake.arrival_ns("Timestamp", _cell(value, "Timestamp"))
        self._add(line, ("Request tokens", "Response tokens"), value, arrival_ns, "Session ID")


class AzureReader(_LengthsReader):
    """Takes rows of an Azure trace."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        self._second_of: dict[str, int] = {}
        if intake.options.time_unit is not None:
            raise UsageError(
                f"--time-unit {intake.options.time_unit} has no meaning for an Azure trace, which"
                " holds dates and times; leave it out."
            )
        intake.clock.unit_ns = 1
        intake.clock.dated = True

    def row(self, line: int, value: object) -> None:
        """Take a row."""
        stamp = _cell(value, "TIMESTAMP")
        if stamp is None:
            arrival_ns = self.intake.arrival_ns("TIMESTAMP", None)
        else:
            arrival_ns = self._time_ns(stamp)
        self._add(line, ("ContextTokens", "GeneratedTokens"), value, arrival_ns)

    def _time_ns(self, stamp: str) -> int:
        # `datetime` holds microseconds only, so the fraction is read apart.
        found = _STAMP.fullmatch(stamp)
        if found is not None:
            date, time, fraction, zone = found.groups()
            try:
                second = self._second(f"{date} {time}", zone or "")
            except (ValueError, OverflowError):
                second = -1
            time_ns = second * 10**9 + int((fraction or "0").ljust(9, "0")[:9])
            if second >= 0 and time_ns <= MAX_NS:
                return time_ns
        raise RowError(
            f"TIMESTAMP is {show(stamp)}, which is not a date and time from 1970 to 2262 such as"
            " 2023-11-16 18:17:03.9799600"
        )

    def _second(self, stamp: str, zone: str) -> int:
        key = stamp + zone
        if key not in self._second_of:
            self._second_of.clear()  # rows are mostly sorted: only the last one is of use
            offset = UTC
            if zone and zone.upper() != "Z":
                sign = -1 if zone[0] == "-" else 1
                digits = zone[1:].replace(":", "").ljust(4, "0")
                offset = timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:4])))
            moment = datetime.fromisoformat(stamp).replace(tzinfo=offset)
            self._second_of[key] = int((moment - _EPOCH).total_seconds())
        return self._second_of[key]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(?:[.,](\d+))?\s*(Z|z|[+-]\d{2}(?::?\d{2})?)?",
    re.ASCII,
)


def _cell(value: object, name: str) -> str | None:
    """Read a cell of a row of `csv_rows`; blank is none."""
    assert isinstance(value, dict)
    found: str = value.get(name, "")
    return found.strip() or None
