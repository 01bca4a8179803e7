"""Reading a trace of any format."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

from sim.errors import UsageError
from workloads.batches import batches
from workloads.fields import RowError
from workloads.formats import AUTO, FORMATS, Format, Reader, recognise
from workloads.intake import Intake
from workloads.lines import Rows, has_a_row_per_line, parse, read_rows
from workloads.options import ReadOptions
from workloads.source import Part, Source, check_head
from workloads.workload import Workload


def read(path: str | PathLike[str], format_name: str = AUTO, **options: Any) -> Workload:  # noqa: ANN401
    """Read a trace.

    Parameters
    ----------
    path
        A file, plain or in gzip or zstd; for formats of many files a folder or tar; ``-`` for
        standard input.
    format_name
        A key of ``FORMATS``, or ``auto`` to tell from the content.
    **options
        Of `ReadOptions`.

    Raises
    ------
    UsageError
        If the source or, unless lenient, a row cannot be used.
    """
    source = Source(path)
    intake = Intake(ReadOptions(**options))
    read_into(intake, source, format_name)
    return intake.workload(source.stem, source.digest)


@dataclass(frozen=True, slots=True)
class CheckedTrace:
    """What checking a trace found.

    Attributes
    ----------
    workload
        What could be read; None for nothing.
    problems
        A sentence each, with file and line.
    """

    workload: Workload | None
    problems: tuple[str, ...]


def check_trace(path: str | PathLike[str], format_name: str = AUTO, **options: Any) -> CheckedTrace:  # noqa: ANN401
    """Read a trace to its end and list every problem.

    Returns
    -------
    CheckedTrace
        Its problems are sentences with file and line.
    """
    source = Source(path)
    intake = Intake(ReadOptions(mode="check", **options))
    workload = None
    try:
        read_into(intake, source, format_name)
        if intake or not intake.problems:
            workload = intake.workload(source.stem, source.digest)
    except UsageError as error:
        intake.problems.append(str(error))
    return CheckedTrace(workload, tuple(intake.problems))


def read_into(intake: Intake, source: Source, format_name: str) -> None:
    """Feed an intake with all rows of a source."""
    if format_name != AUTO and format_name not in FORMATS:
        raise UsageError(
            f"--format is {format_name!r}, but must be one of {AUTO}, {', '.join(FORMATS)}."
        )
    reader: Reader | None = None
    with closing(source.parts()) as parts:
        for part in parts:
            head = check_head(part)
            intake.where = part.name
            if not head:
                if part.name != source.name:
                    intake.said.append(f"{part.name} is empty, passed over")
                continue
            if reader is None:
                name = recognise(part, head) if format_name == AUTO else format_name
                form = FORMATS[name]
                _refuse_what_means_nothing(intake.options, form)
                reader = form.reader(intake)
            elif not form.many_files:
                raise UsageError(
                    f"{source.name} holds several files of {form.title}, which is one file; give"
                    " one of them."
                )
            with closing(_rows(intake, reader, form, part, head)) as rows:
                for line, value in rows:
                    mark = intake.mark()
                    try:
                        if isinstance(value, RowError):
                            raise value
                        reader.row(line, value)
                    except RowError as bad:
                        intake.undo(mark)
                        intake.bad(line, bad)
                    if intake.full:
                        break
            if intake.full:
                break
    intake.where = source.name
    if reader is not None:
        reader.finish()


def _rows(intake: Intake, reader: Reader, form: Format, part: Part, head: bytes) -> Rows:
    """Yield the rows of a part that are to be taken one by one; a reader may take many at once."""
    take = getattr(reader, "take", None)
    if take is None or form.rows is not read_rows or not has_a_row_per_line(head):
        yield from form.rows(part, head, intake.said)
        return
    with closing(batches(part, lambda: intake.num_wanted)) as all_batches:
        for first, batch in all_batches:
            if isinstance(batch, RowError):
                yield first, batch
            elif not take(first, batch):
                for number, line in enumerate(batch, first):
                    if line.strip():
                        yield number, parse(line)
            if intake.full:
                return


def _refuse_what_means_nothing(options: ReadOptions, form: Format) -> None:
    """Refuse options that say something about what a format does not hold."""
    if options.tokenizer is not None and form.block != "text":
        raise UsageError(
            f"--tokenizer {options.tokenizer} has no meaning for {form.title}, which holds no text;"
            " leave it out."
        )
    if options.trace_block_size is not None and form.block in ("text", "no ids", "1 token"):
        raise UsageError(
            f"--trace-block-size {options.trace_block_size} has no meaning for {form.title}, which"
            " holds no ids of blocks; leave it out."
        )
