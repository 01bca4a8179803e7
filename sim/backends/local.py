"""Worker processes of this machine, as joblib starts them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor

from sim.backends.base import WorkerLostError
from sim.backends.point import Answer, Task, get_ready, perform
from sim.errors import UsageError
from workloads import Columns

_IDLE_S = 300
"""After so long without work a process ends; until then, the next sweep finds it warm."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A process a CPU leaves none for threads of libraries."""


def executor(num_processes: int) -> Any:  # noqa: ANN401 - joblib has no types
    """Find or start so many worker processes; all of us share them."""
    return get_reusable_executor(num_processes, timeout=_IDLE_S, env=_ONE_THREAD)


class Processes:
    """Processes that map the workloads of a sweep into memory, so that they share one copy.

    We hand points to joblib's executor ourselves: `joblib.Parallel` would give up a whole sweep
    for one process that was killed.

    Parameters
    ----------
    jobs
        Processes; None for one a CPU.
    num_points
        Points that there are: more processes than that are not started.
    """

    same_machine = True

    def __init__(self, jobs: int | None, num_points: int) -> None:
        self._num_processes = min(jobs or joblib.cpu_count(), num_points)
        self._folder = Path(tempfile.mkdtemp(prefix="prefixsim-workloads-"))
        self._num_shared = 0
        # They start, and load what they need, while the head reads the first workload.
        for _ in range(self._num_processes):
            self._executor().submit(get_ready)

    def num_slots(self) -> int:
        """Count processes, and one point that waits so that none of them has to."""
        return self._num_processes + 1

    def share(self, columns: Columns) -> str:
        """Write a workload to where all processes map it from.

        Raises
        ------
        UsageError
            There is no room for it.
        """
        folder = self._folder / str(self._num_shared)
        self._num_shared += 1
        try:
            folder.mkdir()
            for name, column in columns.items():
                np.save(folder / f"{name}.npy", column)
        except OSError as error:  # numpy's own says how much was written, and has no number
            raise UsageError(
                f"{self._folder.parent} cannot take a workload for the processes of this sweep"
                f" ({error.strerror or error}); let TMPDIR name a folder with more room, or give"
                " --jobs 1."
            ) from error
        return str(folder)

    def submit(self, task: Task, shared: str | None) -> Future[Answer]:
        """Hand a point in; processes that broke down are replaced."""
        future: Future[Answer]
        try:
            future = self._executor().submit(perform, task, shared)
        except BrokenExecutor:  # a process was killed this very moment
            future = self._executor().submit(perform, task, shared)
        return future

    def wait(self, handles: Collection[Future[Answer]]) -> list[Future[Answer]]:
        """Wait for a point."""
        return list(wait(handles, return_when=FIRST_COMPLETED).done)

    def answer(self, handle: Future[Answer]) -> Answer:
        """Fetch what became of a point; see `sim.backends.base.Backend.answer`."""
        try:
            return handle.result()
        except BrokenExecutor as error:
            raise WorkerLostError from error

    def close(self, *, broken: bool) -> None:
        """Leave the processes to the next sweep, or kill them at once."""
        if broken:
            self._executor().shutdown(wait=True, kill_workers=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _executor(self) -> Any:  # noqa: ANN401 - joblib has no types
        return executor(self._num_processes)
