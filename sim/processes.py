"""Points that are no runs of their own, in processes of this machine.

Runs go through `sim.grid.sweep`, which can also send them to a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from pathlib import Path
from typing import Any

from sim.backends.local import executor
from sim.config import RunConfig
from sim.errors import FAILURES, UsageError, told
from sim.grid import Outcome
from sim.identity import run_id_of

Point = Callable[[RunConfig], tuple[dict[str, Any], tuple[str, ...]]]
"""Runs and keeps one configuration; gives summary and warnings. Goes to other processes."""


def run_all(
    configs: Sequence[RunConfig],
    run_point: Point,
    jobs: int,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run every configuration, in so many processes; a failed one does not stop the others."""
    outcomes = []
    for outcome in _outcomes(configs, run_point, jobs):
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
    return outcomes


def _outcomes(configs: Sequence[RunConfig], run_point: Point, jobs: int) -> Iterator[Outcome]:
    if jobs == 1 or len(configs) <= 1:
        yield from (_outcome(run_point, config) for config in configs)
        return
    workers = executor(min(jobs, len(configs)))
    folder = Path.cwd()
    handles = {workers.submit(_outcome_in, folder, run_point, c): c for c in configs}
    is_done = False
    try:
        for handle in as_completed(handles):
            try:
                yield handle.result()
            except BrokenExecutor:
                config = handles[handle]
                why = "a worker process died, out of memory perhaps; run the same command again"
                yield Outcome(config, run_id_of(config), None, failure=why)
        is_done = True
    finally:
        if not is_done:
            workers.shutdown(wait=True, kill_workers=True)


def _outcome_in(folder: Path, run_point: Point, config: RunConfig) -> Outcome:
    """Run a point in a process that may have served a sweep of another folder before."""
    os.chdir(folder)
    return _outcome(run_point, config)


def _outcome(run_point: Point, config: RunConfig) -> Outcome:
    run_id = run_id_of(config)
    try:
        summary, warnings = run_point(config)
    except FAILURES as error:
        is_bad_input = isinstance(error, UsageError)
        return Outcome(config, run_id, None, failure=told(error), is_bad_input=is_bad_input)
    return Outcome(config, run_id, summary, warnings)
