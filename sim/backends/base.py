"""What the loop over the points needs of whoever runs them."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any, Protocol

from sim.backends.point import Answer, Task
from workloads import Columns

Handle = Any
"""A point that was handed in; hashable."""

Shared = Any
"""A workload that was sent, as a task names it."""


class WorkerLostError(Exception):
    """The process that ran a point has gone: killed, out of memory, or its machine went down."""


class Backend(Protocol):
    """Runs tasks somewhere else.

    Attributes
    ----------
    same_machine
        Whether workers have the folders of the head.
    """

    same_machine: bool

    def num_slots(self) -> int:
        """Count the points that may be handed in at a time, at least 1."""
        ...

    def share(self, columns: Columns) -> Shared:
        """Make a workload known to all workers; each fetches it once."""
        ...

    def submit(self, task: Task, shared: Shared | None) -> Handle:
        """Hand a point in."""
        ...

    def wait(self, handles: Collection[Handle]) -> list[Handle]:
        """Wait until at least one of these is done, and give those that are."""
        ...

    def answer(self, handle: Handle) -> Answer:
        """Fetch what became of a point that is done.

        Raises
        ------
        WorkerLostError
            Nothing did, for the worker has gone.
        UsageError
            Nothing can run there.
        """
        ...

    def close(self, *, broken: bool) -> None:
        """Let go of workers; if the sweep was broken off, stop what runs."""
        ...


def knock(place: str, *, default_port: int | None = None) -> None:
    """Ask whether anybody listens at ``HOST:PORT``: the libraries would ask for half a minute.

    Raises
    ------
    OSError
        Nobody does.
    ValueError
        It is no such place.
    """
    host, _, port = place.rpartition(":") if ":" in place else (place, "", str(default_port))
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ValueError("it is not HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S):
        pass


_PATIENCE_S = 5


def short(error: BaseException) -> str:
    """Make half a sentence of what a library says."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).strip().rstrip(".")
