"""Runs and sweeps from Python, by the names of the command line; for notebooks and scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sim import comparison, comparison_points, experiment
from sim.cli.output import SHOWN, progress, shown, warn
from sim.columns import columns_of
from sim.comparison import Comparison
from sim.config import RunConfig, setting_of
from sim.config import settings as all_settings
from sim.curves import Curves, ask, measure_curves
from sim.errors import UsageError
from sim.grid import Axes, expand, label, missing, read_axes
from sim.grid import sweep as run_sweep
from sim.identity import run_id_of
from sim.store import ResultStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_OF_WORKLOAD = [
    field_.name
    for field_ in all_settings()
    if setting_of(field_).group == "Workload" and field_.name != "workload"
]


@dataclass(frozen=True, slots=True)
class Plots:
    """Pictures of results, each a Matplotlib figure that a notebook shows.

    Seeds are averaged; what a picture leaves out stands below its title.

    Raises
    ------
    UsageError
        From each method: the results do not show what it draws.
    """

    _summary: pd.DataFrame
    _requests: pd.DataFrame

    def capacity(self) -> Figure:
        """Hit rate against KV capacity."""
        return self._draw("capacity")

    def tiers(self) -> Figure:
        """Hit rate by where it comes from, against the capacity of host memory or SSD."""
        return self._draw("tiers")

    def block_size(self) -> Figure:
        """Hit rate and TTFT against block size."""
        return self._draw("block-size")

    def ttft(self) -> Figure:
        """Distribution of the time to first token."""
        return self._draw("ttft")

    def overhead(self) -> Figure:
        """Throughput relative to no caching, and the share of cache management."""
        return self._draw("overhead")

    def break_even(self) -> Figure:
        """Hit rate from which caching pays, against block size."""
        return self._draw("break-even")

    def against(self, setting: str) -> Figure:
        """Hit rate, TTFT and throughput against any numeric setting that varies."""
        from sim import plots  # noqa: PLC0415 - matplotlib is slow to load

        return plots.against(self._summary, setting)

    def trade_off(self) -> Figure:
        """Hit rate, share of cache management and unfilled slots against block size."""
        from sim import plots  # noqa: PLC0415 - matplotlib is slow to load

        return plots.block_size_trade_off(self._summary, self._requests)

    def _draw(self, kind: str) -> Figure:
        from sim import plots  # noqa: PLC0415 - matplotlib is slow to load

        return plots.KINDS[kind](self._summary, self._requests)


@dataclass(frozen=True, slots=True)
class Results:
    """Tables of one or many runs, with the columns that `sim.columns.COLUMNS` names.

    Attributes
    ----------
    summary
        One row per run.
    requests
        One row per request and run.
    steps
        One row per engine step and run, empty unless steps were kept.
    """

    summary: pd.DataFrame
    requests: pd.DataFrame
    steps: pd.DataFrame = field(repr=False)

    @property
    def plot(self) -> Plots:
        """Pictures of these results."""
        return Plots(self.summary, self.requests)

    def report(self, output: str | Path = "report.html") -> Path:
        """Write one page on these results, as ``prefixsim report DIR`` does.

        Parameters
        ----------
        output
            Page to write; one that is there is replaced.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        UsageError
            It cannot be written.
        """
        from sim import reported  # noqa: PLC0415 - matplotlib is slow to load
        from sim.reporting import build  # noqa: PLC0415

        path = Path(output)
        reported.check_output(path)
        command = f"results.report({str(output)!r})"
        reported.write(build(self.summary, self.requests, command=command), path)
        return path

    def _repr_html_(self) -> str:
        """Show what varies and the main figures, a row per run."""
        settings = [column.name for column in columns_of("summary")]
        settings = settings[1 : settings.index("num_requests")]
        varying = [name for name in settings if self.summary[name].nunique() > 1]
        shown = list(dict.fromkeys([*varying, *SHOWN]))
        html: str = self.summary[shown].to_html(index=False, float_format="{:,.4g}".format)
        return html


@dataclass(frozen=True, slots=True)
class Run(Results):
    """One run: its tables of one row and of all requests, and what there is to say of it.

    Attributes
    ----------
    config
        What decided it.
    warnings, notes
        Sentences on what is doubtful, and on what was made.
    timing
        Wall time that our own allocator took, where it was measured (``timed=True``).
    """

    config: RunConfig = field(default_factory=RunConfig)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    timing: pd.DataFrame | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a column of any type
        """Look up a figure of the summary: ``run["hit_rate"]``."""
        return self.summary[name].iloc[0]

    def _repr_html_(self) -> str:
        """Show the main figures with their units and meanings."""
        columns = {column.name: column for column in columns_of("summary")}
        rows = [
            {"figure": name, "value": self[name], "unit": columns[name].unit,
             "meaning": columns[name].meaning}
            for name in shown(self.summary.iloc[0])
        ]  # fmt: skip
        html: str = pd.DataFrame(rows).to_html(index=False, float_format="{:,.4g}".format)
        return html


def run(
    workload: str = "shared-prefix",
    *,
    keep_steps: bool = False,
    timed: bool = False,
    **settings: Any,  # noqa: ANN401
) -> Run:
    """Simulate one workload through one policy, as ``prefixsim run`` does.

    Parameters
    ----------
    workload
        Trace file, or name of a generator.
    keep_steps
        Fill the table of steps too.
    timed
        Measure what our own allocator takes, which slows the run down.
    **settings
        Of `sim.config.RunConfig`, by the names of the options with underscores; ``workload_args``
        and ``policy_args`` are mappings.

    Raises
    ------
    UsageError
        A setting that there is not, or that cannot be used.
    """
    config = _config({"workload": workload, **settings})
    with progress() as bar:
        task = bar.add_task("simulating")
        result = experiment.run(
            config,
            keep_steps=keep_steps,
            timed=timed,
            on_start=lambda total: bar.update(task, total=total),
            on_done=lambda done: bar.update(task, completed=done),
        )
    warn(result.warnings)
    return Run(
        pd.DataFrame([result.summary]),
        result.requests,
        result.steps,
        config,
        result.warnings,
        result.notes,
        result.timing,
    )


def sweep(
    file: str | Path | None = None,
    *,
    folder: str | Path | None = None,
    jobs: int | None = None,
    backend: str = "joblib",
    address: str | None = None,
    keep_steps: bool = False,
    fresh: bool = False,
    **axes: Any,  # noqa: ANN401
) -> Results:
    """Run every combination of the given values, as ``prefixsim sweep`` does.

    Parameters
    ----------
    file
        Grid in TOML.
    folder
        Keeps the results; what it has already is not run again. By default nothing is kept.
    jobs
        Points that run at a time; by default as many as there are CPUs, or as the cluster has room
        for. With 1, on this machine, they run in this process.
    backend, address
        Where points run: ``joblib``, processes of this machine; ``dask`` or ``ray``, a cluster that
        is running, and where.
    keep_steps
        Fill the table of steps too.
    fresh
        Run again what the folder has.
    **axes
        Values of settings, single or as lists, instead of what the file says; ``workload_args`` and
        ``policy_args`` are mappings of such.

    Raises
    ------
    UsageError
        A setting, file or cluster that cannot be used, or a point that failed.
    """
    chosen = read_axes(Path(file)) if file is not None else {}
    chosen |= _axes(axes)
    options: dict[str, Any] = {
        "jobs": jobs,
        "backend": backend,
        "address": address,
        "keep_steps": keep_steps,
        "fresh": fresh,
    }
    if folder is not None:
        return _sweep(chosen, Path(folder), **options)
    with tempfile.TemporaryDirectory() as temporary:
        return _sweep(chosen, Path(temporary), **options)


def compare(
    workload: str = "shared-prefix",
    *,
    policy: str | Sequence[str] | None = None,
    kv_capacity: str | Sequence[str] = comparison_points.DEFAULT_CAPACITIES,
    policy_args: Mapping[str, Any] | None = None,
    reference: str = "lru",
    hits_only: bool = False,
    seeds: int = 1,
    folder: str | Path | None = None,
    jobs: int = 1,
    **settings: Any,  # noqa: ANN401
) -> Comparison:
    """Compare policies on one workload, as ``prefixsim compare`` does.

    Parameters
    ----------
    workload
        Trace file, or name of a generator.
    policy, kv_capacity
        One or many; by default all policies that cache, at four capacities.
    policy_args
        Values of options, one or many, each tried with every policy that has it.
    reference, hits_only, seeds
        As the options of the command line.
    folder
        Keeps the runs; what it has already is not run again. By default nothing is kept.
    jobs
        Processes.
    **settings
        Of `sim.config.RunConfig`, the same for all.

    Raises
    ------
    UsageError
        A setting that there is not, or that cannot be used, or a point that failed.
    """
    config = _config({"workload": workload, **settings})
    asked = comparison_points.ask(
        {**config.to_dict(), "engine": config.engine},
        names=None if policy is None else _values("policy", policy),
        policy_args={key: _values(key, value) for key, value in (policy_args or {}).items()},
        capacities=[str(each) for each in _values("kv_capacity", kv_capacity)],
        num_seeds=seeds,
        reference=reference,
        hits_only=hits_only,
    )
    with ExitStack() as stack:
        kept = folder or stack.enter_context(tempfile.TemporaryDirectory())
        for outcome in comparison_points.run(asked, Path(kept), jobs=jobs):
            if outcome.summary is None:
                raise UsageError(f"point {label(outcome.config)} failed: {outcome.failure}")
        found = comparison.compare(asked, Path(kept))
    warn(found.warnings)
    return found


def curve_of(
    workload: str = "shared-prefix",
    *,
    policy: str | Sequence[str] | None = None,
    block_size: int | Sequence[int] = 16,
    kv_capacity: str | Sequence[str] | None = None,
    reuse: str | None = None,
    order: str = "tail",
    sample: int = 1,
    every_small_pool: bool = False,
    model: str = "llama-3-8b",
    gpu: str = "h100",
    seed: int = 0,
    **settings: Any,  # noqa: ANN401
) -> Curves:
    """Measure the hit rate at every capacity in one pass, as ``prefixsim curve`` does.

    Parameters
    ----------
    workload
        Trace file, or name of a generator.
    policy, block_size
        One or many: ``vllm_v1``, the default, and ``vllm_v1_latest``; tokens in a block.
    kv_capacity
        Capacities that the table of points shows, one or many; by default chosen from the curve.
    reuse, order, sample, every_small_pool, model, gpu, seed
        As the options of the command line.
    **settings
        Of the workload, such as ``num_requests`` and ``workload_args``.

    Raises
    ------
    UsageError
        A setting that there is not, or that cannot be used.
    """
    for name in settings:
        if name != "workload_args" and name not in _OF_WORKLOAD:
            raise UsageError(
                f"{name!r} is no setting of a curve's workload; those are workload_args, "
                f"{', '.join(_OF_WORKLOAD)}."
            )
    asked = ask(
        {"workload": workload, **settings},
        policies=None if policy is None else _values("policy", policy),
        block_sizes=_values("block_size", block_size),
        capacities=None
        if kv_capacity is None
        else [str(each) for each in _values("kv_capacity", kv_capacity)],
        reuse=reuse,
        order=order,
        sample=sample,
        every_small_pool=every_small_pool,
        model=model,
        gpu=gpu,
        seed=seed,
    )
    curves = measure_curves(asked)
    warn(curves.warnings)
    return curves


def load(folder: str | Path) -> Results:
    """Read a results folder of ``prefixsim run -o`` or ``sweep -o``.

    Raises
    ------
    UsageError
        It holds no results.
    """
    store = ResultStore(Path(folder))
    return Results(store.summaries(), store.requests(), store.steps())


def report(
    source: str | Path = "shared-prefix",
    output: str | Path = "report.html",
    *,
    where: str | Sequence[str] | None = None,
    policy: str | Sequence[str] | None = None,
    block_size: int | Sequence[int] | None = None,
    kv_capacity: str | Sequence[str] | None = None,
    runs: str | Path | None = None,
    jobs: int = 1,
    **settings: Any,  # noqa: ANN401
) -> Path:
    """Write one page on a results folder or a workload, as ``prefixsim report`` does.

    Parameters
    ----------
    source
        Results folder, trace file, or name of a generator.
    output
        Page to write; one that is there is replaced.
    where
        Of a folder: conditions such as ``block_size=16``, all of which the reported runs meet.
    policy, block_size, kv_capacity
        Of a workload: what to run, one or many; by default as the command line has it.
    runs
        Of a workload: folder that keeps the runs.
    jobs
        Processes.
    **settings
        Of a workload: other settings of `sim.config.RunConfig`.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    UsageError
        A source, setting or output that cannot be used.
    """
    from sim import reported, reported_workload  # noqa: PLC0415 - matplotlib is slow to load

    path = Path(output)
    reported.check_output(path)
    lists = {"policy": policy, "block_size": block_size, "kv_capacity": kv_capacity, "runs": runs}
    given = {name: value for name, value in {**lists, **settings}.items() if value is not None}
    said = [repr(str(source)), repr(str(output))]
    said += [f"{name}={str(v) if isinstance(v, Path) else v!r}" for name, v in given.items()]
    conditions = [] if where is None else [str(each) for each in _values("where", where)]
    said += [f"where={conditions!r}"] if conditions else []
    command = f"sim.report({', '.join(said)})"
    if reported.is_results(str(source)):
        reported.refuse_settings(str(source), given)
        made = reported.report_of_folder(Path(source), command=command, where=conditions)
        reported.write(made, path)
        return path
    reported.refuse_conditions(str(source), conditions)
    _check_jobs(jobs)
    sizes = [] if block_size is None else _values("block_size", block_size)
    plan = reported_workload.Plan(
        _config({"workload": source, **settings}),
        tuple(str(one) for one in _values("policy", policy or reported_workload.POLICIES)),
        tuple(_config({"block_size": size}).block_size for size in sizes),
        tuple(str(one) for one in (_values("kv_capacity", kv_capacity) if kv_capacity else ())),
    )
    warnings: list[str] = []
    with progress() as bar:
        task = bar.add_task("loading", total=1)
        made = reported_workload.report_of_workload(
            plan,
            command=command,
            runs=None if runs is None else Path(runs),
            jobs=jobs,
            on_progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
            on_warning=warnings.append,
        )
    warn(dict.fromkeys(warnings))
    reported.write(made, path)
    return path


def _config(settings: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig(**settings)
    except TypeError as error:
        raise UsageError(f"{error}; settings are the fields of sim.config.RunConfig.") from error


def _axes(given: Mapping[str, Any]) -> Axes:
    axes: Axes = {}
    for name, value in given.items():
        if name in ("workload_args", "policy_args"):
            if not isinstance(value, Mapping):
                raise UsageError(
                    f"{name} {value!r} must be a mapping from dial to value or list of values, "
                    'such as {"hit_rate": [0.2, 0.5]}.'
                )
            axes |= {f"{name}.{key}": _values(f"{name}.{key}", one) for key, one in value.items()}
        else:
            axes[name] = _values(name, value)
    return axes


def _values(name: str, value: Any) -> list[Any]:  # noqa: ANN401
    if isinstance(value, np.ndarray | pd.Series):
        value = value.tolist()
    if isinstance(value, set | Mapping):
        raise UsageError(f"{name} {value!r} must be a value or a list of values.")
    values = list(value) if isinstance(value, list | tuple | range) else [value]
    if not values:
        raise UsageError(f"{name} is an empty list; give at least one value.")
    return values


def _sweep(
    axes: Axes,
    folder: Path,
    *,
    jobs: int | None,
    fresh: bool,
    **options: Any,  # noqa: ANN401
) -> Results:
    for name in axes:
        if name.partition(".")[0] not in RunConfig.__dataclass_fields__:
            raise UsageError(f"{name!r} is no setting; see the fields of sim.config.RunConfig.")
    _check_jobs(jobs)
    configs = expand(axes)
    for config in configs:
        experiment.check(config)
    store = ResultStore(folder)
    store.prepare()
    num_there = len(configs) - len(missing(configs, store, fresh=fresh))
    with progress(rare=True) as bar:
        task = bar.add_task("sweeping", total=len(configs), completed=num_there)
        outcomes = run_sweep(
            configs,
            store,
            jobs=jobs,
            fresh=fresh,
            **options,
            on_outcome=lambda _: bar.advance(task),
        )
    warn(dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings))
    failed = [outcome for outcome in outcomes if outcome.summary is None]
    if failed:
        raise UsageError(f"{len(failed)} of {len(configs)} points failed: {failed[0].failure}")
    results = load(folder)
    run_ids = {run_id_of(config) for config in configs}
    return Results(
        *(
            frame[frame["run_id"].isin(run_ids)].reset_index(drop=True)
            for frame in (results.summary, results.requests, results.steps)
        )
    )


def _check_jobs(jobs: int | None) -> None:
    if jobs is None:
        return
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UsageError(f"jobs {jobs!r} must be a whole number of at least 1.")
