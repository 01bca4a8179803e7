"""``prefixsim sweep``: a grid of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import one_of, these
from sim.cli.options import (
    ARGS,
    Fresh,
    at_most_one_a_cpu,
    num_processes,
    output_path,
    parse_pairs,
    with_settings,
)
from sim.cli.output import complain, note, out, print_json, progress, table, warn
from sim.columns import columns_of
from sim.config import RunConfig
from sim.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = (
    "policy",
    "block_size",
    "kv_capacity_tokens",
    "hit_rate",
    "infinite_hit_rate",
    "ttft_ms_mean",
    "tpot_ms_mean",
    "output_throughput",
    "num_preemptions",
)

# What a run was told: every column before the first that it counts, texts of arguments left out.
_COLUMNS = [column.name for column in columns_of("summary")]
_SETTINGS = [
    name
    for name in _COLUMNS[1 : _COLUMNS.index("num_requests") + 1]
    if name not in ("workload_args", "policy_args", "num_blocks")
]


@with_settings(
    ("Workload", "Policy", "Engine", "Tiers", "Cost", "Arrivals"), many=True, workload="option"
)
def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.toml]", help="Grid: a key per setting, lists are axes."),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", parser=output_path, help="Results folder."),
    ] = Path("results"),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            parser=num_processes,
            help="Points that run at a time, on this machine at most one a CPU; default: as many "
            "as there are CPUs, or as the cluster has room for.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="joblib|dask|ray",
            help="Where points run: processes of this machine (joblib), or a Dask or Ray cluster "
            "that is running (see docs/sweeps.md).",
            autocompletion=one_of(these("joblib", "dask", "ray")),
        ),
    ] = "joblib",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="The cluster: Dask's scheduler, or Ray's head node; default for Ray: the cluster "
            "that this machine belongs to.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Keep a table of every engine step too.")
    ] = False,
    fresh: Fresh = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary rows as a JSON array.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Run every combination of the given values.

    Options take comma lists and replace what FILE.toml says. A sweep that is run again goes on
    where it stopped: points that the results folder has are not run twice. A point that fails is
    reported and does not stop the others.
    """
    from sim import backends, experiment, grid, identity, store  # noqa: PLC0415

    backends.check(backend, address)
    axes = grid.read_axes(file) if file is not None else {}
    axes.update(_axes(chosen))
    if not axes:
        raise UsageError(
            "sweep has nothing to vary: name a FILE.toml or give options with comma lists, such "
            "as --policy vllm_v0,vllm_v1."
        )
    configs = grid.expand(axes)
    for config in configs:
        experiment.check(config)
        identity.check_repeatable(config)
    results = store.ResultStore(output)
    results.prepare()
    num_missing = len(grid.missing(configs, results, fresh=fresh))
    if backend == "joblib":
        jobs = at_most_one_a_cpu(jobs)
    failures: list[grid.Outcome] = []
    with progress(rare=True) as bar:
        task = bar.add_task("sweeping", total=len(configs), completed=len(configs) - num_missing)

        def on_outcome(outcome: grid.Outcome) -> None:
            bar.advance(task)
            if outcome.summary is None:
                failures.append(outcome)
                complain(f"point {grid.label(outcome.config)} failed: {outcome.failure}")

        try:
            outcomes = grid.sweep(
                configs,
                results,
                jobs=jobs,
                backend=backend,
                address=address,
                keep_steps=steps,
                fresh=fresh,
                on_outcome=on_outcome,
            )
        except KeyboardInterrupt:
            note(f"interrupted; {output} keeps what is done, run the same command to go on.")
            raise typer.Exit(130) from None
    warn(dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings))
    num_done = len(configs) - len(failures)
    note(
        f"{num_done} of {len(configs)} points are in {output} ({len(configs) - len(outcomes)} "
        "were there before)" + (f"; draw them with 'prefixsim plot {output}'." if num_done else ".")
    )
    if num_done:
        results.write_tables()
        _print(configs, results, as_json)
    if failures:
        raise typer.Exit(2 if all(failure.is_bad_input for failure in failures) else 1)


def _axes(chosen: dict[str, Any]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for name, value in chosen.items():
        if name in ARGS:
            for key, text in parse_pairs(ARGS[name][0], value).items():
                axes[f"{name}.{key}"] = _split(f"{ARGS[name][0]} {key}", text)
        else:
            axes[name] = value if isinstance(value, list) else _split(name, value)
    return axes


def _split(name: str, value: object) -> list[Any]:
    if isinstance(value, bool):
        return [value]
    values = [part.strip() for part in str(value).split(",")]
    if not all(values):
        option = name if name.startswith("--") else "--" + name.replace("_", "-")
        raise UsageError(f"{option} {value!r} has an empty value in its list; leave it out.")
    return values


def _print(configs: list[RunConfig], results: Any, as_json: bool) -> None:  # noqa: ANN401
    from sim.identity import run_id_of  # noqa: PLC0415 - keeps --help quick

    frame = results.summaries()
    place = {run_id_of(config): index for index, config in enumerate(configs)}
    rows = frame[frame["run_id"].isin(place)]
    rows = rows.sort_values("run_id", key=lambda run_ids: run_ids.map(place), ignore_index=True)
    if as_json:
        print_json(rows.to_dict(orient="records"))
        return
    rows = rows.assign(
        **_taken_apart(rows["workload_args"], "dial"), **_taken_apart(rows["policy_args"], "option")
    )
    taken_apart = rows.columns[len(frame.columns) :]
    names = [*_SETTINGS[: _SETTINGS.index("policy")], *taken_apart, *_SETTINGS]
    varying = [name for name in dict.fromkeys(names) if rows[name].nunique() > 1]
    headings = list(dict.fromkeys([*varying, *_SHOWN]))
    tiers = [
        f"{name}_hit_rate" for name in ("host", "ssd") if rows[f"{name}_capacity_tokens"].any()
    ]
    if tiers:
        place_of = headings.index("hit_rate") + 1
        headings[place_of:place_of] = ["device_hit_rate", *tiers]
    out().print(table("", headings, rows[headings].to_numpy(dtype=object).tolist()))


def _taken_apart(texts: pd.Series[str], what: str) -> dict[str, list[str]]:
    """Make a column of each key of ``key=value,...``; a dial may be named as a figure is."""
    parts = [dict(part.split("=", 1) for part in text.split(",") if part) for text in texts]
    keys = {key: None for row in parts for key in row}
    return {f"{what} {key}": [row.get(key, "") for row in parts] for key in keys}
