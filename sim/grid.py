"""Many runs: a grid of configurations, in parallel, resumable; `sim.backends` runs them."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import policies
from sim import backends
from sim.backends.point import Answer, perform_here
from sim.config import RunConfig, option_name, settings
from sim.errors import UsageError
from sim.identity import run_id_of
from sim.store import ResultStore

Axes = dict[str, list[Any]]
"""Values of each setting; a dial or option is named ``workload_args.hit_rate``."""

_TABLES = ("workload_args", "policy_args")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one point: a summary, or the sentence why there is none."""

    config: RunConfig
    run_id: str
    summary: dict[str, Any] | None
    warnings: tuple[str, ...] = ()
    failure: str = ""
    is_bad_input: bool = False


def read_axes(path: Path) -> Axes:
    """Read a grid from TOML: a key per setting, a list where there are several values.

    Raises
    ------
    UsageError
        The file cannot be read, is no TOML, or has a key that is no setting.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); name a TOML file of settings, or, if it is "
            f"a workload, give it as --workload {path}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML ({error}); a sweep file has lines such as "
            f'policy = ["vllm_v0", "vllm_v1"]; if it is a workload, give it as --workload {path}.'
        ) from error
    return _axes(path, data)


def _axes(path: Path, data: Mapping[str, Any]) -> Axes:
    known = [field.name for field in settings()]
    axes: Axes = {}
    for raw_name, value in data.items():
        name = raw_name.replace("-", "_")
        if name in axes:
            raise UsageError(f"{path}: {name!r} is given twice, with - and with _; leave one out.")
        if name in _TABLES and isinstance(value, dict):
            for key, entry in value.items():
                axes[f"{name}.{key}"] = entry if isinstance(entry, list) else [entry]
        elif name in known:
            axes[name] = value if isinstance(value, list) else [value]
        else:
            raise UsageError(
                f"{path}: {raw_name!r} is not a setting; known are {', '.join(known)}, and the "
                f"tables [{'] and ['.join(_TABLES)}]."
            )
    for name, values in axes.items():
        if not values:
            raise UsageError(f"{path}: {name!r} is an empty list; give at least one value.")
    return axes


def expand(axes: Axes) -> list[RunConfig]:
    """Make the configurations of a grid, the last axis varying fastest, each only once.

    An option of one policy is left out for the policies that do not have it.
    """
    names = list(axes)
    configs: dict[RunConfig, None] = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(names, values, strict=True))
        point = {name: value for name, value in chosen.items() if "." not in name}
        policy = str(point.get("policy", RunConfig().policy))
        point["workload_args"] = _args("workload_args", chosen)
        point["policy_args"] = _known_args(policy, _args("policy_args", chosen), axes)
        configs[RunConfig(**point)] = None
    return list(configs)


def _args(table: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    prefix = table + "."
    return {
        name.removeprefix(prefix): value
        for name, value in chosen.items()
        if name.startswith(prefix)
    }


def _known_args(policy: str, args: dict[str, Any], axes: Axes) -> dict[str, Any]:
    mine = policies.options(policies.load(policy))
    others = {
        option
        for name in axes.get("policy", [])
        for option in policies.options(policies.load(str(name)))
    }
    return {key: value for key, value in args.items() if key in mine or key not in others}


def sweep(
    configs: Sequence[RunConfig],
    store: ResultStore,
    *,
    jobs: int | None = None,
    backend: str = "joblib",
    address: str | None = None,
    keep_steps: bool = False,
    fresh: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run every configuration that ``store`` does not have yet.

    Parameters
    ----------
    configs
        Points of the grid.
    store
        Takes each run as soon as it is done.
    jobs
        Points that run at a time: processes, or the share of a cluster; None for all there is
        room for. One is run in this process.
    backend, address
        Where they run; see `sim.backends`.
    keep_steps
        Fill the table of steps too.
    fresh
        Run again what is there already.
    on_outcome
        Called after each point, in order of completion.

    Returns
    -------
    Outcomes of the points that were run, in the order of ``configs``; a failed one does not stop
    the others.

    Raises
    ------
    UsageError
        There is no such backend or cluster, or its workers cannot do it.
    """
    backends.check(backend, address)
    store.plan({run_id_of(config): label(config) for config in configs})
    outcomes: dict[RunConfig, Outcome] = {}
    points = missing(configs, store, fresh=fresh)
    for config, answer in _run_all(
        points, store, jobs, backend=backend, address=address, keep_steps=keep_steps
    ):
        outcome = outcomes[config] = _keep(config, answer, store)
        if on_outcome is not None:
            on_outcome(outcome)
    return [outcomes[config] for config in dict.fromkeys(configs) if config in outcomes]


def missing(
    configs: Sequence[RunConfig], store: ResultStore, *, fresh: bool = False
) -> list[RunConfig]:
    """List the configurations that a sweep has to run."""
    return [config for config in configs if fresh or not store.has(run_id_of(config))]


def _run_all(
    configs: Sequence[RunConfig],
    store: ResultStore,
    jobs: int | None,
    *,
    backend: str,
    address: str | None,
    keep_steps: bool,
) -> Iterator[tuple[RunConfig, Answer]]:
    if not configs:
        return
    if backend == "joblib" and (jobs == 1 or len(configs) == 1):
        for config in configs:
            yield config, perform_here(config, store.folder, keep_steps=keep_steps)
        return
    workers = backends.start(backend, address, jobs, len(configs))
    broken = True
    try:
        yield from backends.run_points(configs, workers, store.folder, keep_steps=keep_steps)
        broken = False
    finally:
        workers.close(broken=broken)


def _keep(config: RunConfig, answer: Answer, store: ResultStore) -> Outcome:
    run_id = run_id_of(config)
    if answer.summary is None:
        return Outcome(
            config, run_id, None, failure=answer.failure, is_bad_input=answer.is_bad_input
        )
    if answer.files is not None:
        try:
            store.write_files(answer.summary["run_id"], answer.files)
        except UsageError as error:
            return Outcome(config, run_id, None, failure=str(error), is_bad_input=True)
    return Outcome(config, run_id, answer.summary, answer.warnings)


def label(config: RunConfig) -> str:
    """Show in what a configuration differs from the defaults, as options."""
    default = RunConfig()
    parts = [
        f"{option_name(field.name)} {getattr(config, field.name)}"
        for field in settings()
        if getattr(config, field.name) != getattr(default, field.name)
    ]
    parts += [f"--workload-arg {key}={value}" for key, value in config.workload_args]
    parts += [f"--policy-arg {key}={value}" for key, value in config.policy_args]
    return " ".join(parts) or "all defaults"
