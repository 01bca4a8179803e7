"""Many runs: a grid of configurations, in parallel, resumable."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

import policies
from sim.config import RunConfig, option_name, settings
from sim.errors import UsageError
from sim.experiment import run
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
            f"{path} cannot be read ({error.strerror}); name a TOML file of settings."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML ({error}); a sweep file has lines such as "
            'policy = ["vllm_v0", "vllm_v1"].'
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
    jobs: int,
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
        Processes.
    keep_steps
        Fill the table of steps too.
    fresh
        Run again what is there already.
    on_outcome
        Called after each point, in order of completion.

    Returns
    -------
    Outcomes of the points that were run; a failed one does not stop the others.
    """
    store.plan({run_id_of(config): label(config) for config in configs})
    missing = [c for c in configs if fresh or not store.has(run_id_of(c))]
    outcomes = []
    for outcome in _run_all(missing, store, jobs, keep_steps):
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
    return outcomes


def _run_all(
    configs: Sequence[RunConfig], store: ResultStore, jobs: int, keep_steps: bool
) -> Iterator[Outcome]:
    if jobs == 1 or len(configs) <= 1:
        yield from (_run_point(config, store, keep_steps) for config in configs)
        return
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    folder = Path.cwd()
    yield from parallel(
        joblib.delayed(_run_point_in)(folder, config, store, keep_steps) for config in configs
    )


def _run_point_in(folder: Path, config: RunConfig, store: ResultStore, keep_steps: bool) -> Outcome:
    """Run a point in a process that may have served a sweep of another folder before."""
    os.chdir(folder)
    return _run_point(config, store, keep_steps)


def _run_point(config: RunConfig, store: ResultStore, keep_steps: bool) -> Outcome:
    run_id = run_id_of(config)
    try:
        result = run(config, keep_steps=keep_steps)
        store.write(result)
    except UsageError as error:
        return Outcome(config, run_id, None, failure=str(error), is_bad_input=True)
    except Exception as error:  # a policy from outside may raise anything
        return Outcome(config, run_id, None, failure=f"{type(error).__name__}: {error}")
    return Outcome(config, run_id, result.summary, result.warnings)


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
