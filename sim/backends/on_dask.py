"""A Dask cluster that runs already."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from sim.backends.base import WorkerLostError, knock, short
from sim.backends.point import Answer, Task, perform
from sim.errors import UsageError
from workloads import Columns

try:
    import dask
    import distributed
except ImportError as error:
    raise UsageError(
        "--backend dask needs Dask, which is not installed; install it with pip install "
        "'prefixsim[dask]', on the workers, too."
    ) from error

_PORT = 8786
"""That a scheduler listens at unless told otherwise."""

_PATIENCE_S = 10
"""How long to wait for a scheduler to answer, and for its first worker."""


class DaskCluster:
    """The workers of a scheduler.

    Parameters
    ----------
    address
        ``HOST``, ``HOST:PORT`` or ``tcp://HOST:PORT`` of the scheduler.
    jobs
        Points at a time; None for two a worker, so that it need not wait for the next.
    """

    same_machine = False

    def __init__(self, address: str, jobs: int | None) -> None:
        self._jobs = jobs
        self._address = address
        # What goes wrong is ours to say, in one sentence, not the client's in a traceback.
        self._log = logging.getLogger("distributed.client")
        self._log_level = self._log.level
        self._log.setLevel(logging.CRITICAL)
        scheme, _, place = address.rpartition("://")
        whole = f"{scheme or 'tcp'}://{place if ':' in place else f'{place}:{_PORT}'}"
        try:
            knock(place, default_port=_PORT)
            self._client = distributed.Client(whole, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--address {address} is no Dask scheduler that answers ({short(error)}); start "
                "one with 'dask scheduler' and name what it prints."
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except TimeoutError as error:
            self._client.close()
            raise UsageError(
                f"the Dask scheduler at {address} has no workers; start some with 'dask worker "
                f"{whole} --nworkers N --nthreads 1'."
            ) from error

    def num_slots(self) -> int:
        """Count the points that may be there at a time."""
        return self._jobs or 2 * max(1, len(self._call(self._client.nthreads)))

    def share(self, columns: Columns) -> Any:  # noqa: ANN401
        """Send a workload as the result of a task: who needs it fetches it, once.

        Scattered data would be gone with the worker that holds it; a task is done again.
        """
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            return self._call(self._client.submit, _given, columns, pure=False)

    def submit(self, task: Task, shared: Any) -> Any:  # noqa: ANN401
        """Hand a point in."""
        return self._call(self._client.submit, perform, task, shared, pure=False)

    def wait(self, handles: Collection[Any]) -> list[Any]:
        """Wait for a point."""
        with self._client.as_current():
            found = self._call(distributed.wait, list(handles), return_when="FIRST_COMPLETED")
        return list(found.done)

    def answer(self, handle: Any) -> Answer:  # noqa: ANN401
        """Fetch what became of a point; see `sim.backends.base.Backend.answer`."""
        try:
            answer: Answer = self._call(handle.result)
        except distributed.KilledWorker as error:
            raise WorkerLostError from error
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"the Dask workers at {self._address} cannot run prefixsim ({short(error)}); "
                "install the same version on them."
            ) from error
        return answer

    def close(self, *, broken: bool) -> None:
        """Let go of the cluster, which goes on; what is handed in is cancelled."""
        self._client.close(timeout=1 if broken else 5)
        self._log.setLevel(self._log_level)

    def _call(self, function: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        try:
            return function(*args, **options)
        except (OSError, distributed.CancelledError) as error:
            raise UsageError(
                f"the Dask scheduler at {self._address} has gone; what is done is kept, so run the "
                "same command again when it is back."
            ) from error


def _given(columns: Columns) -> Columns:
    return columns
