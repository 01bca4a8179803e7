"""Where the points of a sweep run: processes of this machine, or a Dask or Ray cluster.

The head reads every file that a point names and sends each workload to each worker once. Processes
of this machine write the runs themselves; head and workers of a cluster need share no folder, so
that there the files come back as bytes, which the head writes.
`sim.backends.point` is what a worker does, `sim.backends.loop` what the head does.
"""

from __future__ import annotations

from sim.backends.base import Backend
from sim.backends.loop import run_points
from sim.backends.point import Answer
from sim.errors import UsageError

__all__ = ["BACKENDS", "Answer", "Backend", "check", "run_points", "start"]

BACKENDS = ("joblib", "dask", "ray")


def check(backend: str, address: str | None) -> None:
    """Refuse a backend that there is not, and an address that goes with none.

    Raises
    ------
    UsageError
        Of those.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend!r} must be one of {', '.join(BACKENDS)}.")
    if backend == "joblib" and address is not None:
        raise UsageError(
            f"--address {address} has no meaning with --backend joblib, which runs on this "
            "machine; choose dask or ray, or leave it out."
        )
    if backend == "dask" and address is None:
        raise UsageError(
            "--backend dask needs the --address of its scheduler, such as HOST:8786; 'dask "
            "scheduler' starts one and prints it."
        )


def start(backend: str, address: str | None, jobs: int | None, num_points: int) -> Backend:
    """Start worker processes, or connect to a cluster.

    Parameters
    ----------
    backend, address
        That `check` lets pass.
    jobs
        Points that run at a time at most; None for as many as there is room for.
    num_points
        Points that there are.

    Raises
    ------
    UsageError
        The extra is not installed, or there is no cluster at that address.
    """
    # Each of them is slow to load.
    if backend == "dask":
        from sim.backends.on_dask import DaskCluster  # noqa: PLC0415

        return DaskCluster(str(address), jobs)
    if backend == "ray":
        from sim.backends.on_ray import RayCluster  # noqa: PLC0415

        return RayCluster(address, jobs)
    from sim.backends.local import Processes  # noqa: PLC0415

    return Processes(jobs, num_points)
