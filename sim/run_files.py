"""The files that keep a run, written a part of a table at a time, without pandas."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sim.columns import Table, columns_of
from sim.experiment import Run
from sim.identity import VERSION
from sim.jsonable import without_nan
from sim.mapped import pieces
from sim.results import AT_ONCE, request_data, step_data

_TYPES = {"str": pa.string(), "int64": pa.int64(), "float64": pa.float64()}


def files_of(run: Run) -> dict[str, bytes]:
    """Make the files that keep a run in memory, by their names."""
    files: dict[str, io.BytesIO] = {}

    @contextmanager
    def in_memory(name: str) -> Iterator[BinaryIO]:
        files[name] = io.BytesIO()
        yield files[name]

    put(run, in_memory)
    return {name: file.getvalue() for name, file in files.items()}


def put(run: Run, create: Callable[[str], AbstractContextManager[BinaryIO]]) -> None:
    """Write the files that keep a run; ``create`` opens one of a name.

    There is no table of steps where none were kept.
    """
    recorded = run.recorded
    with create("requests.parquet") as file:
        parts = pieces(recorded.num_requests, AT_ONCE)
        _write(file, "requests", run.run_id, (request_data(recorded, part) for part in parts))
    if recorded.num_kept_steps:
        with create("steps.parquet") as file:
            parts = pieces(recorded.num_kept_steps, AT_ONCE)
            _write(file, "steps", run.run_id, (step_data(recorded, part) for part in parts))
    record = {
        "run_id": run.run_id,
        "version": VERSION,
        "config": run.config.to_dict(),
        "summary": without_nan(run.summary),
        "warnings": run.warnings,
    }
    with create("run.json") as file:
        file.write((json.dumps(record, indent=2, allow_nan=False) + "\n").encode())


def _write(file: BinaryIO, table: Table, run_id: str, parts: Iterator[Mapping[str, Any]]) -> None:
    schema = pa.schema([(column.name, _TYPES[column.dtype]) for column in columns_of(table)])
    with pq.ParquetWriter(file, schema) as writer:
        for data in parts:
            num_rows = len(next(iter(data.values())))
            columns = {"run_id": [run_id] * num_rows, **data}
            arrays = [_array(columns[field.name], field.type) for field in schema]
            writer.write_table(pa.table(arrays, schema))


def _array(values: Sequence[str] | NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Lay out a column as Arrow does; what is not a number is left empty.

    ``pyarrow.array`` does the same, but imports pandas, which takes longer than all the rest.
    """
    if kind == pa.string():
        texts = [value.encode("utf-8", "backslashreplace") for value in values]
        stops = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.StringArray.from_buffers(
            len(texts), pa.py_buffer(stops), pa.py_buffer(b"".join(texts))
        )
    numbers = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    known = None
    if kind == pa.float64():
        known = pa.py_buffer(np.packbits(~np.isnan(numbers), bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [known, pa.py_buffer(numbers)])
