"""Reports of a workload, for which they run what they need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from sim import demand, experiment
from sim.breakeven import FLOOR
from sim.config import RunConfig, setting_of, settings
from sim.curves import SHOWN, Curves, ask, measure_curves
from sim.curves_rows import RELEASES
from sim.errors import UsageError
from sim.grid import Outcome, label, sweep
from sim.identity import check_repeatable, run_id_of
from sim.in_columns import all_kv_tokens
from sim.plots.runs import told_apart
from sim.plots.workload import workload_page
from sim.presets import load_preset
from sim.reporting import Extras, Report, build
from sim.reporting.advice import HIT_RATE_WITHIN, choose_block_size
from sim.reporting.cells import situations
from sim.reporting.pictures import picture_of_curves, picture_of_workload
from sim.reporting.recommended import CurveFacts
from sim.reporting.tables import table_of_curve, table_of_workload
from sim.store import ResultStore
from workloads import MEANINGS, Workload, describe
from workloads.describe import reuse_gaps
from workloads.structure import sharing

POLICIES = ("none", "vllm_v0", "vllm_v1")
BLOCK_SIZES = (16, 32, 64, 128)
"""What a report of a workload runs, unless told otherwise."""

_PARTS_OF_GPU = (8, 4, 2, 1)
"""Capacities that are run: the GPU's room, and it divided by these."""
_CLOSE = 0.1
"""Capacities within this share of another are not run beside it."""
_AT_ONCE_PER_S = 1e6

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a report of a workload is to run.

    Attributes
    ----------
    config
        Workload, engine, cost and arrivals.
    policies, block_sizes
        To run with each other.
    capacities
        As ``--kv-capacity`` spells them; empty to choose by the GPU and the curve.
    """

    config: RunConfig
    policies: tuple[str, ...] = POLICIES
    block_sizes: tuple[int, ...] = ()
    capacities: tuple[str, ...] = ()


def report_of_workload(
    plan: Plan,
    *,
    command: str,
    runs: Path | None = None,
    jobs: int = 1,
    on_progress: OnProgress = lambda what, done, total: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Report:
    """Run what a report of a workload needs, and report it.

    Parameters
    ----------
    plan
        What to run.
    command
        What makes the report.
    runs
        Folder that keeps the runs; what it has is not run again. By default none is kept.
    jobs
        Processes.
    on_progress, on_warning
        Told how far it is, and what is doubtful.

    Raises
    ------
    UsageError
        A setting that cannot be used, or no run that succeeds.
    """
    check_repeatable(plan.config)
    for policy in plan.policies:
        experiment.check(replace(plan.config, policy=policy))
    workload = demand.load_workload(plan.config)
    if not plan.block_sizes:
        plan = replace(plan, block_sizes=_block_sizes(workload))
    with ExitStack() as stack:
        folder = runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = ResultStore(folder)
        store.prepare()
        return Reporter(plan, workload, store, jobs, on_progress, on_warning).report(command)


def _block_sizes(workload: Workload) -> tuple[int, ...]:
    """Choose block sizes; of a trace with coarse ids also that of the ids."""
    own = workload.identity_block_size
    return (*BLOCK_SIZES, own) if own > BLOCK_SIZES[-1] else BLOCK_SIZES


@dataclass(frozen=True, slots=True)
class Reporter:
    """Runs a plan and reports it."""

    plan: Plan
    workload: Workload
    store: ResultStore
    jobs: int
    on_progress: OnProgress
    on_warning: Callable[[str], None]

    def report(self, command: str) -> Report:
        """Measure the curve, run the points, put everything together."""
        plan = self.plan
        curves = self._curves() if self.workload.has_prefix_info else None
        gpu = load_preset(plan.config.model, plan.config.gpu)
        gpu_tokens = gpu.kv_capacity_tokens()
        facts = (
            curve_facts(curves, gpu_tokens, f"{gpu.model_name} on {gpu.gpu_name}")
            if curves
            else None
        )
        largest = max(int(some.max()) for some in all_kv_tokens(self.workload.requests))
        capacities = plan.capacities or _capacities(
            gpu_tokens, facts, largest, max(plan.block_sizes)
        )
        first, *others = capacities
        configs = [
            self._at(policy, size, first) for policy in plan.policies for size in plan.block_sizes
        ]
        self._run("block sizes", configs)
        policy, size = self._choose(configs)
        pair = [name for name in plan.policies if name in (FLOOR, policy)]
        more = [self._at(name, size, capacity) for capacity in others for name in pair]
        self._run("capacities", more)
        full = self._at_full_load(pair, size, first)
        self._run("full load", full)
        return self._build(command, [*configs, *more], full, curves, facts)

    def _at(self, policy: str, block_size: int, capacity: str) -> RunConfig:
        config = self.plan.config
        if policy == FLOOR:
            # Nothing is lost to tiers where nothing is cached: one baseline for all of them.
            plain = RunConfig()
            tiers = [field.name for field in settings() if setting_of(field).group == "Tiers"]
            config = replace(config, **{name: getattr(plain, name) for name in tiers})
        return replace(config, policy=policy, block_size=block_size, kv_capacity=capacity)

    def _curves(self) -> Curves:
        config = self.plan.config
        self.on_progress("measuring the curve", 0, 1)
        mine = [name for name in self.plan.policies if name in RELEASES]
        names = [field.name for field in settings() if setting_of(field).group == "Workload"]
        asked = ask(
            {
                **{name: getattr(config, name) for name in names},
                "workload_args": config.workload_args,
            },
            policies=mine[:1] or None,
            block_sizes=self.plan.block_sizes,
            capacities=None,
            reuse=config.reuse,
            order="tail",
            sample=1,
            every_small_pool=False,
            model=config.model,
            gpu=config.gpu,
            seed=config.seed,
        )
        return measure_curves(asked)

    def _run(self, what: str, configs: Sequence[RunConfig]) -> None:
        done = sum(self.store.has(run_id_of(config)) for config in configs)
        self.on_progress(what, done, len(configs))

        def on_outcome(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            self.on_progress(what, done, len(configs))
            for sentence in outcome.warnings:
                self.on_warning(sentence)
            if outcome.summary is None:
                self.on_warning(f"point {label(outcome.config)} failed: {outcome.failure}")

        sweep(configs, self.store, jobs=self.jobs, on_outcome=on_outcome)
        if not any(self.store.has(run_id_of(config)) for config in configs) and configs:
            raise UsageError(
                f"none of the {len(configs)} runs over {what} succeeded; see the warnings above."
            )

    def _tables(self, configs: Sequence[RunConfig]) -> pd.DataFrame:
        run_ids = {run_id_of(config) for config in configs}
        summary = self.store.summaries()
        return summary[summary["run_id"].isin(run_ids)].reset_index(drop=True)

    def _choose(self, configs: Sequence[RunConfig]) -> tuple[str, int]:
        """Find the policy that the report is about and the block size that it recommends."""
        summary = self._tables(configs)
        cells = next(situations(told_apart(summary)[0], self.store.requests(summary["run_id"])))
        choice = choose_block_size(cells)
        if choice.row is None:
            return str(self.plan.policies[-1]), self.plan.block_sizes[0]
        return str(choice.row["policy"]), int(choice.row["block_size"])

    def _at_full_load(self, pair: Sequence[str], size: int, capacity: str) -> list[RunConfig]:
        config = self.plan.config
        if (
            FLOOR not in pair
            or len(pair) < 2
            or config.arrival == "users"
            or config.sessions != "open"
        ):
            return []
        return [
            replace(
                self._at(name, size, capacity),
                arrival="constant",
                rate=_AT_ONCE_PER_S,
                rate_scale=1.0,
            )
            for name in pair
        ]

    def _build(
        self,
        command: str,
        configs: Sequence[RunConfig],
        full: Sequence[RunConfig],
        curves: Curves | None,
        facts: CurveFacts | None,
    ) -> Report:
        summary = self._tables(configs)
        at_once = self._tables(full)
        every = [*summary["run_id"], *at_once["run_id"]]
        missing = [label(config) for config in [*configs, *full] if run_id_of(config) not in every]
        rows = [self._described(size) for size in self.plan.block_sizes]
        pictures = [picture_of_workload(self._page(rows[0]))]
        tables = [table_of_workload(rows, MEANINGS)]
        doubts = list(self.workload.warnings)
        if curves is not None:
            pictures.insert(0, picture_of_curves(curves.plot()))
            tables.insert(0, table_of_curve(curves.points, SHOWN))
            doubts += curves.warnings
        extras = Extras(
            curve=facts,
            pictures=pictures,
            tables=tables,
            doubts=tuple(dict.fromkeys(doubts)),
            full_load=at_once if len(at_once) else None,
        )
        return build(
            summary, self.store.requests(every), command=command, missing=missing, extras=extras
        )

    def _timed(self) -> Workload:
        requests = demand.prepare_requests(self.plan.config, self.workload)
        return replace(self.workload, requests=requests)

    def _described(self, block_size: int) -> Mapping[str, Any]:
        return describe(self._timed(), block_size)

    def _page(self, figures: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a figure
        timed = self._timed()
        has_gaps = timed.has_prefix_info
        gaps_s = reuse_gaps(sharing(timed.requests).gap_ns, 1e9) if has_gaps else ()
        return workload_page(timed.requests, figures, gaps_s)


def curve_facts(curves: Curves, gpu_tokens: int, gpu_name: str) -> CurveFacts:
    """Read off the curve of the smallest block size what a report says of capacity."""
    one = min(curves.measured, key=lambda each: each.block_size)
    points = one.all_capacities
    served = points[points["num_refused"] == 0]
    ceiling = one.curve.ceiling
    near = served[served["hit_rate"] >= ceiling - HIT_RATE_WITHIN].iloc[0]
    knee = one.curve.knee() * one.block_size if ceiling else int(near["kv_capacity_tokens"])

    def hit_rate(tokens: int) -> float:
        below = served[served["kv_capacity_tokens"] <= tokens]
        return float(below["hit_rate"].iloc[-1]) if len(below) else 0.0

    return CurveFacts(
        policy=one.policy,
        block_size=one.block_size,
        ceiling=ceiling,
        knee_tokens=knee,
        knee_hit_rate=hit_rate(knee),
        near_tokens=int(near["kv_capacity_tokens"]),
        gpu_tokens=gpu_tokens,
        gpu_hit_rate=hit_rate(gpu_tokens),
        gpu_name=gpu_name,
    )


def _capacities(
    gpu_tokens: int, curve: CurveFacts | None, largest: int, block_size: int
) -> tuple[str, ...]:
    """Choose capacities in tokens: the GPU's room first, then its parts, the knee and the top.

    All are whole blocks of every size that is run, hold the largest request, and fit the GPU.
    """
    marks = [] if curve is None else [curve.near_tokens, curve.knee_tokens]
    wanted = [gpu_tokens, *marks, *(gpu_tokens // part for part in _PARTS_OF_GPU)]
    chosen: list[int] = []
    for tokens in wanted:
        size = -(-tokens // block_size) * block_size
        size = min(size, gpu_tokens // block_size * block_size)
        # One block more, since vLLM keeps one to itself.
        fits = size >= largest + 2 * block_size
        if (fits or not chosen) and all(abs(size - other) > _CLOSE * other for other in chosen):
            chosen.append(size)
    return tuple(str(size) for size in chosen)
