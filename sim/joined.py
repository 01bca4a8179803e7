"""Puts the tables of many runs behind each other, in Parquet and CSV, holding one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq


def join(parts: Callable[[], Iterator[pa.Table]], parquet: Path, csv: Path) -> None:
    """Write tables with the columns of the first, in their order, whole or not at all.

    Parameters
    ----------
    parts
        Gives the tables, at least one, each time that it is called.
    parquet, csv
        Where to.
    """
    new = [path.with_name(f".{path.name}.part") for path in (parquet, csv)]
    try:
        try:
            _join(parts(), *new, quoting="none")
        except pa.ArrowInvalid:
            # Some text has a comma or a quotation mark in it; now all texts stand in quotes.
            _join(parts(), *new, quoting="needed")
        for path, final in zip(new, (parquet, csv), strict=True):
            path.replace(final)
    finally:
        for path in new:
            path.unlink(missing_ok=True)


def _join(parts: Iterator[pa.Table], parquet: Path, csv: Path, *, quoting: str) -> None:
    first = next(parts)
    schema = first.schema
    options = pa.csv.WriteOptions(include_header=False, quoting_style=quoting)
    with csv.open("wb") as file, pq.ParquetWriter(parquet, schema) as parquet_writer:
        file.write(",".join(schema.names).encode() + b"\n")
        # pandas writes the same, but for 0.0 in place of 0, in ten times the time.
        with (
            pa.csv.CSVWriter(file, schema, write_options=options) as csv_writer,
            ThreadPoolExecutor(1) as beside,
        ):
            for table in chain([first], parts):
                same = table.select(schema.names).cast(schema)
                # Arrow lets other threads run while it works.
                in_csv = beside.submit(csv_writer.write_table, same)
                parquet_writer.write_table(same)
                in_csv.result()
