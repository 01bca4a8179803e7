"""Ways to look at one call of a policy: how long it takes, what it counts, nothing at all."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from functools import cache
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol, TypeVar

from sim.types import OperationCounts

T = TypeVar("T")
COUNTS = tuple(field.name for field in fields(OperationCounts))
BYTES_PER_TOKEN = 8
"""What Python's hash of a tuple takes in per element: the element's own hash, a machine word."""


class Watch(Protocol):
    """Calls a function and sees what that does, by the name of the operation."""

    def __call__(
        self,
        operation: str,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401
    ) -> T:
        """Call; return what the function returns."""
        ...


def unwatched(
    operation: str,
    function: Callable[..., T],
    *args: Any,  # noqa: ANN401
) -> T:
    """Call, and see nothing."""
    return function(*args)


class Stopwatch:
    """Times calls, ns.

    A time is the smaller of wall time and the thread's CPU time: the clock of the first is finer,
    the second leaves out what other processes took meanwhile. The cost of reading the clocks is
    taken off.

    Attributes
    ----------
    samples
        Times by operation, in order.
    """

    def __init__(self) -> None:
        self.samples: dict[str, list[int]] = {}

    def __call__(
        self,
        operation: str,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401
    ) -> T:
        """Call, timed."""
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        result = function(*args)
        elapsed = perf_counter_ns() - start
        cpu_elapsed = thread_time_ns() - cpu_start
        wall_cost, cpu_cost = _clock_costs_ns()
        own_time = min(elapsed - wall_cost, cpu_elapsed - cpu_cost)
        self.samples.setdefault(operation, []).append(max(0, own_time))
        return result


class Tally:
    """Counts what calls do.

    Parameters
    ----------
    counts
        Where the policy counts.

    Attributes
    ----------
    totals
        By operation, in the order of `COUNTS`.
    calls
        By operation.
    """

    def __init__(self, counts: OperationCounts) -> None:
        self._counts = counts
        self.totals: dict[str, list[int]] = {}
        self.calls: dict[str, int] = {}

    def __call__(
        self,
        operation: str,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401
    ) -> T:
        """Call, counted."""
        before = astuple(self._counts)
        result = function(*args)
        total = self.totals.setdefault(operation, [0] * len(before))
        for index, (old, new) in enumerate(zip(before, astuple(self._counts), strict=True)):
            total[index] += new - old
        self.calls[operation] = self.calls.get(operation, 0) + 1
        return result


class CollectorWatch:
    """Notes how much of each call went to the garbage collector; a context that lets it run.

    Attributes
    ----------
    pauses_ns, calls
        By operation.
    """

    def __init__(self) -> None:
        self.pauses_ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._pause_ns = 0
        self._started = 0

    def __enter__(self) -> CollectorWatch:
        gc.callbacks.append(self._on_collection)
        gc.enable()
        return self

    def __exit__(self, *exception: object) -> None:
        gc.disable()
        gc.callbacks.remove(self._on_collection)

    def __call__(
        self,
        operation: str,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401
    ) -> T:
        """Call, and see what the collector takes of it."""
        before = self._pause_ns
        result = function(*args)
        self.pauses_ns[operation] = self.pauses_ns.get(operation, 0) + self._pause_ns - before
        self.calls[operation] = self.calls.get(operation, 0) + 1
        return result

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = perf_counter_ns()
        else:
            self._pause_ns += perf_counter_ns() - self._started


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Turn automatic collection off, and keep what is there out of the collector's sight."""
    was_enabled = gc.isenabled()
    gc.disable()
    forget_garbage()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def forget_garbage() -> None:
    """Collect, and keep what is left out of the collector's sight from now on."""
    gc.collect()
    gc.freeze()


@cache
def _clock_costs_ns() -> tuple[int, int]:
    """Wall and CPU time that a `Stopwatch` sees where nothing is between its readings."""
    wall, cpu = [], []
    for _ in range(2000):
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        wall.append(perf_counter_ns() - start)
        cpu.append(thread_time_ns() - cpu_start)
    return min(wall), min(cpu)
