"""``prefixsim run``: one configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.options import output_path, settings_of, with_settings
from sim.cli.output import err, note, out, print_json, progress, summary_table, table, warn
from sim.config import RunConfig
from sim.errors import UsageError


@with_settings(("Workload", "Policy", "Engine", "Tiers", "Cost", "Arrivals"))
def command(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=output_path,
            help="Add the run to this results folder.",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Keep a table of every engine step too (with -o).")
    ] = False,
    timed: Annotated[
        bool,
        typer.Option("--timed", help="Measure what our own allocator takes in this run, too."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary row as one JSON object.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Replay one workload through one policy.

    WORKLOAD is a trace ('prefixsim workload formats' lists what is read) or the name of a generator
    ('prefixsim workload generators'); - is standard input.
    """
    from sim import experiment  # noqa: PLC0415 - keeps --help quick

    config = RunConfig(**settings_of(chosen))
    experiment.check(config)
    if output is None and steps:
        raise UsageError("--steps keeps its table in a results folder; name one with -o DIR.")
    results = None
    if output is not None:
        from sim import store  # noqa: PLC0415 - pandas takes half a second

        results = store.ResultStore(output)
        results.prepare()
    started = time.perf_counter()
    with progress() as bar:
        task = bar.add_task("loading")
        result = experiment.run(
            config,
            keep_steps=steps,
            timed=timed,
            on_start=lambda total: bar.update(task, total=total, description="simulating"),
            on_done=lambda done: bar.update(task, completed=done),
        )
    wall_s = time.perf_counter() - started
    warn(result.warnings)
    for sentence in result.notes:
        note(sentence)
    if results is not None:
        results.write(result)
        results.write_tables()
        note(f"run {result.run_id} is in {output}; draw it with 'prefixsim plot {output}'.")
    if as_json:
        print_json(result.summary)
    else:
        title = f"{result.summary['workload']} through {config.policy}, block size"
        out().print(summary_table(f"{title} {config.block_size}", result.summary))
    if result.timing is not None:
        rows = result.timing.to_numpy(dtype=object).tolist()
        measured = table("measured in this run, wall time", result.timing.columns, rows)
        # With --json, stdout is the JSON object alone.
        (err() if as_json else out()).print(measured)
    note(f"simulated {result.summary['makespan_s']:.1f} s in {wall_s:.1f} s.")
