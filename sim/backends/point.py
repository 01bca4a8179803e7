"""What a worker does: one point of a sweep, from what the head has sent it."""

from __future__ import annotations

import os
import pickle
import platform
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.backends.fingerprint import difference
from sim.backends.modules import Sources, install
from sim.config import RunConfig
from sim.demand import load_workload
from sim.errors import FAILURES, UsageError, told
from sim.experiment import Run, run
from sim.inputs import Inputs
from sim.overhead import OverheadProfile
from sim.run_files import files_of
from sim.run_folders import write
from sim.types import CostModel, SequenceCost
from workloads import Columns, Workload, from_columns

Task = tuple[dict[str, str], bytes]
"""Fingerprint of the head, and a pickled `Point`, which is opened only if that agrees."""

_NUM_KEPT = 2
"""Workloads that a worker keeps; points that share one are handed out one after the other."""


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration and what its files hold, but for the workload.

    Attributes
    ----------
    workload_key
        Names the workload that comes beside the point; empty for one that the worker generates.
    folder, results
        Where names of files start from, and the results folder, on the machine of the head only.
    modules
        Source of a policy from outside, for another machine.
    """

    config: RunConfig
    cost: tuple[CostModel | SequenceCost, str]
    overhead: tuple[OverheadProfile, str]
    digests: dict[str, str]
    keep_steps: bool
    workload_key: str = ""
    folder: str | None = None
    results: Path | None = None
    modules: Sources = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a point: its summary, or the sentence why there is none.

    Beside the summary come the files, from where they could not be written.
    """

    files: dict[str, bytes] | None = None
    summary: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    failure: str = ""
    is_bad_input: bool = False
    difference: str = ""


_workloads: OrderedDict[str, Workload] = OrderedDict()
_one_at_a_time = threading.Lock()
"""A worker may have threads, which would only share its interpreter."""


def get_ready() -> None:
    """Load what most points need; who can call this has loaded the rest."""
    import sim.fast.engine  # noqa: F401, PLC0415 - a plain run needs none of it


def perform(task: Task, shared: str | Columns | None) -> Answer:
    """Run a point that another process has sent.

    Parameters
    ----------
    task
        See `Task`.
    shared
        The workload: its columns, or the folder that holds them; None where it is generated.
    """
    head, pickled = task
    differs = difference(head)
    if differs:
        return Answer(difference=f"worker {platform.node()} {differs}")
    with _one_at_a_time:
        point: Point = pickle.loads(pickled)
        return _answer(lambda: _run(point, shared), point.results)


def perform_here(config: RunConfig, results: Path, *, keep_steps: bool) -> Answer:
    """Run a point in the process of the head, from the files that it names."""
    return _answer(lambda: run(config, keep_steps=keep_steps), results)


def _answer(make: Callable[[], Run], results: Path | None) -> Answer:
    try:
        result = make()
        if results is None:
            return Answer(files_of(result), result.summary, result.warnings)
        write(results, result)
        return Answer(None, result.summary, result.warnings)
    except FAILURES as error:
        return Answer(failure=told(error), is_bad_input=isinstance(error, UsageError))


def _run(point: Point, shared: str | Columns | None) -> Run:
    if point.folder is not None:
        os.chdir(point.folder)
    install(point.modules)
    workload = (
        load_workload(point.config) if shared is None else _workload(point.workload_key, shared)
    )
    inputs = Inputs(workload, *point.cost, *point.overhead, point.digests)
    return run(point.config, inputs=inputs, keep_steps=point.keep_steps)


def _workload(key: str, shared: str | Columns) -> Workload:
    """Find the workload among those that this process has, or make it from its columns."""
    if key in _workloads:
        _workloads.move_to_end(key)
        return _workloads[key]
    columns = map_columns(Path(shared)) if isinstance(shared, str) else shared
    _workloads[key] = from_columns(columns)
    while len(_workloads) > _NUM_KEPT:
        _workloads.popitem(last=False)
    return _workloads[key]


def map_columns(folder: Path) -> Columns:
    """Map columns into memory, which all processes of a machine then share."""
    return {
        path.stem: np.load(path, mmap_mode="r").view(np.ndarray) for path in folder.glob("*.npy")
    }
