"""A folder of results: one subfolder per run, and tables over all of them.

``runs/<run_id>/`` is written whole or not at all, so that an interrupted sweep keeps what it has
and can go on. The tables are rebuilt from the runs; they hold only simulated values, so that the
same runs give the same bytes. ``sweeps/`` notes which runs each sweep is to make.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sim import run_folders
from sim.columns import Column, Table, columns_of
from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import Run
from sim.identity import VERSION
from sim.joined import join
from sim.results import make_frame

_ORDER = [
    "workload",
    "workload_args",
    "policy",
    "policy_args",
    "block_size",
    "kv_capacity_tokens",
    "rate_scale",
    "seed",
    "run_id",
]


Rows = TypeVar("Rows", pd.DataFrame, pa.Table)

_OF_TIERS = {
    **{
        name: getattr(RunConfig(), name)
        for name in ("host_bandwidth", "host_latency", "ssd_bandwidth", "ssd_latency", "tier_write")
    },
    **dict.fromkeys(
        (
            *("host_capacity_tokens", "ssd_capacity_tokens", "host_hit_rate", "ssd_hit_rate"),
            *("num_host_tokens", "num_ssd_tokens", "num_recomputed_tokens", "load_s", "load_ms"),
            *("host_read_gb", "host_written_gb", "ssd_read_gb", "ssd_written_gb"),
        ),
        0,
    ),
}
_LATER = {
    **dict.fromkeys(("workload_digest", "policy_digest", "cost_digest", "overhead_digest"), ""),
    **_OF_TIERS,
}
"""Columns that results of earlier releases lack, and what they are read as."""


class ResultStore:
    """Results under one folder.

    Raises
    ------
    UsageError
        The folder cannot be written (when something is written), or it holds no results or a
        broken run (when it is read).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = run_folders.runs_of(folder)
        self._sweeps = folder / "sweeps"

    def has(self, run_id: str) -> bool:
        """Whether the run is there, complete."""
        return (self._runs / run_id / "run.json").is_file()

    def prepare(self) -> None:
        """Make the folder and read what is there, so that no run is lost for want of either."""
        run_folders.make(self.folder)
        self._rows()

    def plan(self, points: Mapping[str, str]) -> None:
        """Note which runs a sweep is to make, so that what an interrupted one lacks can be told.

        Parameters
        ----------
        points
            What each run is, in words, by its id.
        """
        run_folders.make(self.folder)
        name = hashlib.sha256("".join(sorted(points)).encode()).hexdigest()[:12]
        text = json.dumps({"version": VERSION, "points": dict(points)}, indent=2) + "\n"
        try:
            self._sweeps.mkdir(exist_ok=True)
            (self._sweeps / f"{name}.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise run_folders.unwritable(self.folder, error) from error

    def missing(self) -> list[str]:
        """Say which points the sweeps of this release into this folder have not made, or failed."""
        points: dict[str, str] = {}
        for file in sorted(self._sweeps.glob("*.json")):
            try:
                plan = json.loads(file.read_text(encoding="utf-8"))
                if plan["version"] == VERSION:
                    points |= plan["points"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{file} is no plan of a sweep; delete it and run the same sweep again."
                ) from error
        return [what for run_id, what in points.items() if not self.has(run_id)]

    def write(self, run: Run) -> None:
        """Keep a run; an equal one is replaced."""
        run_folders.write(self.folder, run)

    def write_files(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Keep a run that was done elsewhere, by its `sim.run_files.files_of`."""
        run_folders.write_files(self.folder, run_id, files)

    def summaries(self) -> pd.DataFrame:
        """Collect the summary table over all runs, in an order that depends on nothing else."""
        rows = self._rows()
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(
                f"{self.folder} is no folder; name the results folder of 'run -o' or 'sweep -o'."
            )
        if not rows:
            raise UsageError(
                f"{self.folder} holds no results; make some with 'prefixsim run WORKLOAD -o "
                f"{self.folder}'."
            )
        return make_frame("summary", list(rows.values())).sort_values(_ORDER, ignore_index=True)

    def requests(self, run_ids: Iterable[str] | None = None) -> pd.DataFrame:
        """Collect the request tables of runs, by default of all, in the order of `summaries`."""
        return self._collect("requests", self.summaries()["run_id"] if run_ids is None else run_ids)

    def steps(self) -> pd.DataFrame:
        """Collect the step tables of the runs that kept steps."""
        return self._collect("steps", self.summaries()["run_id"])

    def write_tables(self) -> list[Path]:
        """Write every table as Parquet and CSV; return what was written."""
        summary = self.summaries()
        paths = self._paths("summary")
        try:
            summary.to_parquet(paths[0], index=False)
            summary.to_csv(paths[1], index=False)
            for name in ("requests", "steps"):
                files = [self._runs / run_id / f"{name}.parquet" for run_id in summary["run_id"]]
                # Steps are kept on demand.
                files = [file for file in files if name != "steps" or file.is_file()]
                if files:
                    parts = partial(_parts, files, name)
                    join(parts, *self._paths(name))
                    paths += self._paths(name)
        except OSError as error:
            raise run_folders.unwritable(self.folder, error) from error
        return paths

    def _paths(self, table: Table) -> list[Path]:
        return [self.folder / f"{table}.parquet", self.folder / f"{table}.csv"]

    def _rows(self) -> dict[Path, dict[str, Any]]:
        """Read the summary row of every run, by its file."""
        try:
            folders = sorted(self._runs.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise UsageError(
                f"{self._runs} cannot be read ({error.strerror}); name a results folder that can."
            ) from error
        # A run that was interrupted while it was written has left a part.
        files = [
            folder / "run.json"
            for folder in folders
            if not folder.name.startswith(run_folders.PART)
        ]
        rows = {file: _read_row(file) for file in files if file.is_file()}
        try:
            make_frame("summary", list(rows.values()))
        except (TypeError, ValueError, OverflowError):
            for file, row in rows.items():
                _check_row(file, row)
            raise
        return rows

    def _collect(self, table: Table, run_ids: Iterable[str]) -> pd.DataFrame:
        paths = [self._runs / run_id / f"{table}.parquet" for run_id in run_ids]
        # Steps are kept on demand.
        frames = [_read_table(path, table) for path in paths if table != "steps" or path.is_file()]
        return pd.concat(frames, ignore_index=True) if frames else make_frame(table, {})


def _read_row(file: Path) -> dict[str, Any]:
    try:
        row = json.loads(file.read_text(encoding="utf-8"))["summary"]
        run_id = row["run_id"]
    except OSError as error:
        raise _broken(file, f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        what = f"is cut off or no JSON: {error.msg} in line {error.lineno}"
        raise _broken(file, what if file.stat().st_size else "is empty") from error
    except (ValueError, RecursionError) as error:
        raise _broken(file, "is no record of a run") from error
    except (KeyError, TypeError) as error:
        raise _broken(file, "is no record of a run") from error
    if run_id != file.parent.name:
        raise _broken(file, f"is the record of another run, {run_id}")
    # The GPU's cache was the only one.
    row = {**_LATER, "device_hit_rate": row.get("hit_rate"), **row}
    missing = [column.name for column in columns_of("summary") if column.name not in row]
    if missing:
        what = f"has no {missing[0]!r} in its summary, as of another release of prefixsim"
        raise _broken(file, what)
    return row


def _check_row(file: Path, row: dict[str, Any]) -> None:
    try:
        make_frame("summary", [row])
    except (TypeError, ValueError, OverflowError) as error:
        raise _broken(file, f"has a value of the wrong kind in its summary: {error}") from error


def _parts(files: Sequence[Path], name: Table) -> Iterator[pa.Table]:
    """Yield the rows of many runs, a bounded number of one run at a time."""
    for file in files:
        with _reading(file):
            num_groups = pq.read_metadata(file).num_row_groups
        for groups in [[number] for number in range(num_groups)] or [[]]:
            yield _read(file, name, partial(_read_groups, groups=groups))


def _read_groups(path: Path, groups: list[int]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read_row_groups(groups)


def _read_table(path: Path, table: Table) -> pd.DataFrame:
    frame: pd.DataFrame = _read(path, table, pd.read_parquet)
    return frame


def _read(path: Path, table: Table, how: Callable[[Path], Rows]) -> Rows:
    with _reading(path):
        rows = how(path)
    names = [column.name for column in columns_of(table)]
    there = set(rows.columns if isinstance(rows, pd.DataFrame) else rows.column_names)
    missing = [name for name in names if name not in there]
    if lost := [name for name in missing if name not in _LATER]:
        raise _broken(path, f"has no column {lost[0]!r}, as of another release of prefixsim")
    column = rows["run_id"]
    ids = (
        column.unique().tolist() if isinstance(rows, pd.DataFrame) else column.unique().to_pylist()
    )
    if others := set(ids) - {path.parent.name}:
        raise _broken(path, f"holds rows of another run, {min(others)}")
    return _with_later(rows, table, missing) if missing else rows


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    if path.is_dir():
        raise _broken(path, "is a folder")
    try:
        yield
    except FileNotFoundError as error:
        raise _broken(path, "is missing") from error
    except (OSError, ValueError) as error:  # pyarrow's errors are of either kind
        raise _broken(path, "is broken or cannot be read") from error


def _with_later(rows: Rows, table: Table, missing: Sequence[str]) -> Rows:
    """Add the columns that an earlier release did not write."""
    columns: dict[str, Column] = {column.name: column for column in columns_of(table)}
    for name in missing:
        values = pd.Series(_LATER[name], index=range(len(rows)), dtype=columns[name].dtype)
        if isinstance(rows, pd.DataFrame):
            rows = rows.assign(**{name: values.to_numpy()})
        else:
            rows = rows.append_column(name, pa.array(values))
    return rows[[*columns]] if isinstance(rows, pd.DataFrame) else rows.select([*columns])


def _broken(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} {what}; delete the folder {path.parent} and run the same sweep again."
    )
