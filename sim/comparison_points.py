"""The points of a comparison – policies, capacities, seeds – run, kept and read again."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import policies
from sim import demand, experiment, grid, inputs
from sim.checked import Checked
from sim.config import RunConfig
from sim.errors import UsageError
from sim.identity import check_repeatable, run_id_of
from sim.processes import run_all
from sim.serial import REFUSED, hits_one_at_a_time
from sim.store import ResultStore
from sim.types import Allocator, Clock
from workloads import GENERATORS

DEFAULT_CAPACITIES = ("5%", "10%", "20%", "50%")
FLOOR = "none"
_SERIAL = "serial"


@dataclass(frozen=True)
class Asked:
    """What is compared.

    Attributes
    ----------
    configs
        By capacity as it was spelled, policy with its options, and seed.
    capacities, labels, seeds
        Their names in order.
    reference
        The label that the others are compared with.
    hits_only
        Whether requests are served one at a time for their hits alone.
    """

    configs: Mapping[tuple[str, str, int], RunConfig]
    capacities: tuple[str, ...]
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    reference: str
    hits_only: bool

    @property
    def first(self) -> RunConfig:
        """One of the configurations, for what they have in common."""
        return next(iter(self.configs.values()))

    @property
    def one_at_a_time(self) -> bool:
        """Whether requests are served one at a time in the order of the workload."""
        alone = self.first.max_num_seqs == 1 and self.first.sessions == "open"
        return self.hits_only or alone


def label_of(config: RunConfig) -> str:
    """Name a policy with its options."""
    return " ".join([config.policy, *(f"{key}={value}" for key, value in config.policy_args)])


def all_that_cache() -> list[str]:
    """List every policy that ships, but the one that caches nothing."""
    return [name for name in policies.names() if name != FLOOR]


def ask(
    settings: Mapping[str, Any],
    *,
    names: Sequence[str] | None = None,
    policy_args: Mapping[str, Sequence[Any]] | None = None,
    capacities: Sequence[str] = DEFAULT_CAPACITIES,
    num_seeds: int = 1,
    reference: str = "lru",
    hits_only: bool = False,
) -> Asked:
    """Check what is to be compared.

    Parameters
    ----------
    settings
        Of `sim.config.RunConfig`, the same for all points.
    names
        Policies; None for all that cache. The reference is added where it is missing.
    policy_args
        Values of options of policies; each is tried with each policy that has it.
    capacities
        As ``--kv-capacity`` spells them.
    num_seeds
        Workloads to generate, by consecutive seeds.
    reference
        Policy that the others are compared with.
    hits_only
        Serve requests one at a time, for their hits alone.

    Raises
    ------
    UsageError
        Something cannot be used, or there is nothing to compare.
    """
    chosen = list(dict.fromkeys(names if names is not None else all_that_cache()))
    if reference not in chosen:
        chosen.insert(0, reference)
    axes: grid.Axes = {"policy": chosen}
    axes |= {f"policy_args.{key}": list(values) for key, values in (policy_args or {}).items()}
    axes["kv_capacity"] = list(dict.fromkeys(capacities))
    base = RunConfig(**{**settings, "policy": reference})
    seeds = _seeds(base, num_seeds)
    axes["seed"] = list(seeds)
    for name, value in base.to_dict().items():
        if name == "workload_args":
            axes |= {f"workload_args.{key}": [text] for key, text in value.items()}
        elif name not in (*axes, "policy_args"):
            axes[name] = [value]
    axes["engine"] = [base.engine]
    configs = {(c.kv_capacity, label_of(c), c.seed): c for c in grid.expand(axes)}
    labels = tuple(dict.fromkeys(label for _, label, _ in configs))
    if len(labels) < 2:
        raise UsageError(
            f"compare has nothing to compare {reference!r} with; name another --policy, or leave "
            "it out for all that cache."
        )
    if hits_only:
        _check_order(base)
    for config in configs.values():
        experiment.check(config)
        check_repeatable(config)
    return Asked(
        configs,
        capacities=tuple(axes["kv_capacity"]),
        labels=labels,
        seeds=seeds,
        reference=next(label for label in labels if label.split(" ")[0] == reference),
        hits_only=hits_only,
    )


def _seeds(base: RunConfig, num_seeds: int) -> tuple[int, ...]:
    if num_seeds < 1:
        raise UsageError(f"--seeds {num_seeds} must be at least 1: so many workloads are made.")
    if num_seeds > 1 and base.workload not in GENERATORS:
        raise UsageError(
            f"--seeds {num_seeds} is for generators ({', '.join(GENERATORS)}), and "
            f"{base.workload} is one workload; leave it out, and noise is told from its sessions."
        )
    return tuple(range(base.seed, base.seed + num_seeds))


def _check_order(base: RunConfig) -> None:
    if base.sessions == "closed" or base.arrival == "users":
        option = "--sessions closed" if base.sessions == "closed" else "--arrival users"
        raise UsageError(
            f"{option} does not go with --hits-only: in a closed loop, the order of requests "
            "depends on how long each takes; leave one of them out."
        )


def run(
    asked: Asked,
    folder: Path,
    *,
    jobs: int = 1,
    fresh: bool = False,
    on_outcome: Callable[[grid.Outcome], None] | None = None,
) -> list[grid.Outcome]:
    """Run the points that ``folder`` does not have yet; return what became of these."""
    configs = list(asked.configs.values())
    if not asked.hits_only:
        return grid.sweep(
            configs, ResultStore(folder), jobs=jobs, fresh=fresh, on_outcome=on_outcome
        )
    missing = [c for c in configs if fresh or not _file(folder, c).is_file()]
    return run_all(missing, partial(_run_hits, folder), jobs, on_outcome)


def num_missing(asked: Asked, folder: Path) -> int:
    """Count the points that ``folder`` does not have."""
    store = ResultStore(folder)
    return sum(
        not (_file(folder, config).is_file() if asked.hits_only else store.has(run_id_of(config)))
        for config in asked.configs.values()
    )


def _file(folder: Path, config: RunConfig) -> Path:
    return folder / _SERIAL / f"{run_id_of(config)}.parquet"


def _run_hits(folder: Path, config: RunConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run and keep one point one at a time; its file is written whole or not at all."""
    workload = demand.load_workload(config)
    requests = demand.prepare_requests(config, workload)
    num_blocks = inputs.num_blocks_of(config, workload)

    def make_allocator(clock: Clock) -> Allocator:
        allocator = policies.make(
            config.policy,
            num_blocks=num_blocks,
            block_size=config.block_size,
            clock=clock,
            args=dict(config.policy_args),
        )
        return Checked(allocator, config.policy) if ":" in config.policy else allocator

    hits = hits_one_at_a_time(make_allocator, requests, outputs=config.reuse == "all")
    frame = pd.DataFrame(
        {
            "request_id": [request.request_id for request in requests],
            "num_prompt_tokens": [request.num_prompt_tokens for request in requests],
            "num_cached_tokens": hits,
        }
    )
    path = _file(folder, config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as part:
            frame.to_parquet(part, index=False)
        Path(part.name).chmod(0o644)
        os.replace(part.name, path)
    except OSError as error:
        raise UsageError(
            f"-o {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from error
    num_refused = int((hits == REFUSED).sum())
    return {}, _refusals(num_refused, len(requests), num_blocks)


def _refusals(num_refused: int, num_requests: int, num_blocks: int) -> tuple[str, ...]:
    if not num_refused:
        return ()
    return (
        f"{num_refused} of {num_requests} requests can never fit in {num_blocks} blocks and were "
        "refused; no rate counts them.",
    )


@dataclass(frozen=True)
class Point:
    """What one point hit.

    Attributes
    ----------
    tokens
        Of the requests that were served: ``num_prompt_tokens`` and ``num_cached_tokens``, by id.
    num_refused
        Requests that could never fit.
    summary
        The row of its run; empty where hits alone were counted.
    """

    tokens: pd.DataFrame
    num_refused: int
    summary: Mapping[str, Any]


def read(asked: Asked, folder: Path, labels: Iterable[str]) -> dict[tuple[str, str, int], Point]:
    """Read the points of these policies, which must be there."""
    keys = list(itertools.product(asked.capacities, labels, asked.seeds))
    if asked.hits_only:
        return {key: _read_hits(_file(folder, asked.configs[key])) for key in keys}
    store = ResultStore(folder)
    summaries = store.summaries().set_index("run_id", drop=False)
    points = {}
    for key in keys:
        run_id = run_id_of(asked.configs[key])
        summary: dict[str, Any] = {str(k): v for k, v in summaries.loc[run_id].items()}
        rows = store.requests([run_id])
        rows = rows[rows["status"] == "finished"]
        tokens = rows.set_index("request_id")[["num_prompt_tokens", "num_cached_tokens"]]
        points[key] = Point(tokens, int(summary["num_rejected"]), summary)
    return points


def _read_hits(path: Path) -> Point:
    try:
        rows = pd.read_parquet(path)
        served = rows[rows["num_cached_tokens"] != REFUSED]
        tokens = served.set_index("request_id")[["num_prompt_tokens", "num_cached_tokens"]]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{path} is broken or cannot be read; delete it and run the same command again."
        ) from error
    return Point(tokens.astype(np.int64), len(rows) - len(served), {})
