"""What the head does: hand points out, take what comes back, and deal with workers that die."""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sim.backends.base import Backend, Handle, Shared, WorkerLostError
from sim.backends.fingerprint import fingerprint
from sim.backends.modules import sources_of
from sim.backends.point import Answer, Point, Task
from sim.config import RunConfig
from sim.demand import WorkloadKey, read_workload, workload_key
from sim.errors import UsageError
from sim.identity import digests
from sim.inputs import cost_of, overhead_of
from workloads import GENERATORS, to_columns

_ALONE = 2
"""Deaths of its worker after which a point runs with no other beside it."""


@dataclass(slots=True)
class _Waiting:
    config: RunConfig
    num_deaths: int = 0


@dataclass(slots=True)
class _Sender:
    """Makes tasks of configurations; sends each workload once."""

    backend: Backend
    results: Path
    keep_steps: bool
    shared: dict[WorkloadKey, tuple[str, Shared, str]] = field(default_factory=dict)

    def task(self, config: RunConfig) -> tuple[Task, Shared | None]:
        """Read what the configuration names, as far as it was not read before.

        Raises
        ------
        UsageError
            It cannot be used.
        """
        key, shared, digest = self._workload(config)
        found = digests(config, workload_digest=digest)
        point = Point(
            config,
            cost_of(config),
            overhead_of(config),
            found,
            self.keep_steps,
            workload_key=key,
            folder=str(Path.cwd()) if self.backend.same_machine else None,
            results=self.results if self.backend.same_machine else None,
            modules=() if self.backend.same_machine else sources_of(config.policy),
        )
        # On this machine both are the same, even if someone edits it meanwhile.
        head = {} if self.backend.same_machine else fingerprint()
        return (head, pickle.dumps(point)), shared

    def _workload(self, config: RunConfig) -> tuple[str, Shared | None, str]:
        if config.workload in GENERATORS:
            return "", None, ""
        key = workload_key(config)
        if key not in self.shared:
            workload = read_workload(config)
            name = hashlib.sha256(repr(key).encode()).hexdigest()
            self.shared[key] = (name, self.backend.share(to_columns(workload)), workload.digest)
        return self.shared[key]


def run_points(
    configs: Sequence[RunConfig], backend: Backend, results: Path, *, keep_steps: bool
) -> Iterator[tuple[RunConfig, Answer]]:
    """Run points and yield what becomes of each as soon as it is known.

    A point whose worker dies is run again. If that happens twice it is run once more when all
    others are done, with none beside it: if its worker dies of that, too, it is the one to blame
    and has failed.

    Parameters
    ----------
    configs
        The points.
    backend
        Runs them.
    results
        Results folder, which workers of this machine write themselves.
    keep_steps
        Keep a table of steps too.

    Raises
    ------
    UsageError
        The workers are of another version, or cannot be reached any more.
    """
    sender = _Sender(backend, results, keep_steps)
    waiting = deque(_Waiting(config) for config in _grouped(configs))
    alone: deque[_Waiting] = deque()
    running: dict[Handle, _Waiting] = {}
    while waiting or alone or running:
        while waiting and len(running) < backend.num_slots():
            yield from _hand_in(waiting.popleft(), sender, running)
        if not running and not waiting and alone:
            yield from _hand_in(alone.popleft(), sender, running)
        if not running:
            continue
        for handle in backend.wait(running):
            point = running.pop(handle)
            try:
                answer = backend.answer(handle)
            except WorkerLostError:
                point.num_deaths += 1
                if point.num_deaths > _ALONE:
                    yield point.config, Answer(failure=_blame(point))
                else:
                    (alone if point.num_deaths == _ALONE else waiting).append(point)
                continue
            if answer.difference:
                raise UsageError(
                    f"{answer.difference}; results would not be the same, so install the same on "
                    "both, then restart the workers."
                )
            yield point.config, answer


def _hand_in(
    point: _Waiting, sender: _Sender, running: dict[Handle, _Waiting]
) -> Iterator[tuple[RunConfig, Answer]]:
    """Hand a point in, or yield at once why it cannot be run."""
    try:
        task, shared = sender.task(point.config)
    except UsageError as error:
        yield point.config, Answer(failure=str(error), is_bad_input=True)
        return
    running[sender.backend.submit(task, shared)] = point


def _blame(point: _Waiting) -> str:
    return (
        f"its worker process died {point.num_deaths} times, the last time with no other point "
        "beside it (killed, or out of memory?); run it by itself with 'prefixsim run' to see why."
    )


def _grouped(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Put points that share a workload behind each other, for a worker keeps only a few."""
    groups: dict[WorkloadKey, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(workload_key(config), []).append(config)
    return [config for group in groups.values() for config in group]
