"""A Ray cluster that runs already."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from contextlib import ExitStack, redirect_stdout
from typing import Any

from sim.backends.base import WorkerLostError, knock, short
from sim.backends.point import Answer, Task, perform
from sim.errors import UsageError
from workloads import Columns

try:
    import ray
except ImportError as error:
    raise UsageError(
        "--backend ray needs Ray, which is not installed; install it with pip install "
        "'prefixsim[ray]', on the workers, too."
    ) from error


class RayCluster:
    """The CPUs of a cluster.

    Parameters
    ----------
    address
        ``HOST:PORT`` of the head node, ``ray://HOST:PORT`` from outside the cluster; None or
        ``auto`` for the one that this machine belongs to.
    jobs
        Points at a time; None for two a CPU, so that none need wait for the next.
    """

    same_machine = False

    def __init__(self, address: str | None, jobs: int | None) -> None:
        self._jobs = jobs
        self._address = address or "auto"
        self._is_mine = not ray.is_initialized()
        # Ray writes of workers that died to standard output, where results belong.
        self._redirected = ExitStack()
        if self._is_mine:
            self._connect()
        self._perform = ray.remote(max_retries=0)(perform)

    def _connect(self) -> None:
        try:
            if self._address != "auto":
                knock(self._address.removeprefix("ray://"))
            ray.init(
                self._address, logging_level=logging.ERROR, log_to_driver=False,
                configure_logging=False,
            )  # fmt: skip
            self._redirected.enter_context(redirect_stdout(sys.stderr))
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise UsageError(
                f"--address {self._address} is no Ray cluster that answers ({short(error)}); "
                "start one with 'ray start --head' and name what it prints."
            ) from error

    def num_slots(self) -> int:
        """Count the points that may be there at a time."""
        return self._jobs or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def share(self, columns: Columns) -> Any:  # noqa: ANN401
        """Put a workload into the object store, which the workers of a machine share."""
        return ray.put(columns)

    def submit(self, task: Task, shared: Any) -> Any:  # noqa: ANN401
        """Hand a point in."""
        return self._perform.remote(task, shared)

    def wait(self, handles: Collection[Any]) -> list[Any]:
        """Wait for a point."""
        done, _ = ray.wait(list(handles), num_returns=1)
        return list(done)

    def answer(self, handle: Any) -> Answer:  # noqa: ANN401
        """Fetch what became of a point; see `sim.backends.base.Backend.answer`."""
        lost = (
            ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError,
            ray.exceptions.OutOfMemoryError, ray.exceptions.ObjectLostError,
        )  # fmt: skip
        try:
            answer: Answer = ray.get(handle)
        except lost as error:
            raise WorkerLostError from error
        except Exception as error:
            raise UsageError(
                f"the Ray workers at {self._address} cannot run prefixsim ({short(error)}); "
                "install the same version on them."
            ) from error
        return answer

    def close(self, *, broken: bool) -> None:
        """Let go of the cluster, which goes on; what is handed in is cancelled with us."""
        del broken
        if self._is_mine:
            ray.shutdown()
        self._redirected.close()
