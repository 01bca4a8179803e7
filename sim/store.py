"""A folder of results: one subfolder per run, and tables over all of them.

``runs/<run_id>/`` is written whole or not at all, so that an interrupted sweep keeps what it has
and can go on. The tables are rebuilt from the runs; they hold only simulated values, so that the
same runs give the same bytes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from sim.columns import Table
from sim.errors import UsageError
from sim.experiment import Run
from sim.identity import VERSION
from sim.jsonable import without_nan
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


class ResultStore:
    """Results under one folder.

    Raises
    ------
    UsageError
        The folder cannot be written (when something is written) or holds no results (when read).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"

    def has(self, run_id: str) -> bool:
        """Whether the run is there, complete."""
        return (self._runs / run_id / "run.json").is_file()

    def prepare(self) -> None:
        """Make the folder, so that a run is not lost for want of one."""
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._runs):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, run: Run) -> None:
        """Keep a run; an equal one is replaced."""
        self.prepare()
        try:
            parts = Path(tempfile.mkdtemp(prefix=".part-", dir=self._runs))
            run.requests.to_parquet(parts / "requests.parquet", index=False)
            if len(run.steps):
                run.steps.to_parquet(parts / "steps.parquet", index=False)
            record = {
                "run_id": run.run_id,
                "version": VERSION,
                "config": run.config.to_dict(),
                "summary": without_nan(run.summary),
                "warnings": run.warnings,
            }
            text = json.dumps(record, indent=2, allow_nan=False)
            (parts / "run.json").write_text(text + "\n", encoding="utf-8")
            final = self._runs / run.run_id
            if final.exists():
                shutil.rmtree(final)
            parts.chmod(0o755)
            parts.rename(final)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"-o {self.folder} cannot be written ({error.strerror}); name a folder that can."
        )

    def summaries(self) -> pd.DataFrame:
        """Collect the summary table over all runs, in an order that depends on nothing else."""
        rows = [
            json.loads(path.read_text(encoding="utf-8"))["summary"]
            for path in sorted(self._runs.glob("*/run.json"))
        ]
        if not rows:
            raise UsageError(
                f"{self.folder} holds no results; make some with 'prefixsim run WORKLOAD -o "
                f"{self.folder}'."
            )
        return make_frame("summary", rows).sort_values(_ORDER, ignore_index=True)

    def requests(self) -> pd.DataFrame:
        """Collect the request tables, runs in the order of `summaries`."""
        return self._collect("requests", self.summaries()["run_id"])

    def steps(self) -> pd.DataFrame:
        """Collect the step tables of the runs that kept steps."""
        return self._collect("steps", self.summaries()["run_id"])

    def write_tables(self) -> list[Path]:
        """Write every table as Parquet and CSV; return what was written."""
        summary = self.summaries()
        tables = {
            "summary": summary,
            "requests": self._collect("requests", summary["run_id"]),
            "steps": self._collect("steps", summary["run_id"]),
        }
        paths = []
        for name, frame in tables.items():
            if not len(frame):
                continue
            parquet, csv = self.folder / f"{name}.parquet", self.folder / f"{name}.csv"
            frame.to_parquet(parquet, index=False)
            frame.to_csv(csv, index=False)
            paths += [parquet, csv]
        return paths

    def _collect(self, table: Table, run_ids: Iterable[str]) -> pd.DataFrame:
        paths = [self._runs / run_id / f"{table}.parquet" for run_id in run_ids]
        frames = [pd.read_parquet(path) for path in paths if path.is_file()]
        return pd.concat(frames, ignore_index=True) if frames else make_frame(table, {})
