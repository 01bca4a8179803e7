"""What the loop over the points needs of whoever runs them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from sim.backends.point import Answer, Task
from workloads import Columns

Handle = Any
"""A point that was handed in; hashable."""

Shared = Any
"""A workload that was sent, as a task names it."""


class WorkerLost(Exception):
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
        WorkerLost
            Nothing did, for the worker has gone.
        UsageError
            Nothing can run there.
        """
        ...

    def close(self, *, broken: bool) -> None:
        """Let go of workers; if the sweep was broken off, stop what runs."""
        ...
