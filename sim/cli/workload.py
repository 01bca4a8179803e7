"""``prefixsim workload``: look at a workload, or write it as a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.options import output_path, settings_of, with_settings
from sim.cli.output import note, out, print_json, table, warn
from sim.config import RunConfig

app = typer.Typer(
    help="Look at a workload, or write it as a trace.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command("describe")
@with_settings(("Workload", "Arrivals"))
def describe_command(
    block_size: Annotated[
        str,
        typer.Option(
            "--block-size",
            metavar="INTEGER,...",
            help="Block sizes of the engine to count for, tokens.",
        ),
    ] = "16",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (an array for several sizes).")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Count lengths, arrivals, sharing, and what an infinite cache would hit."""
    from sim import experiment  # noqa: PLC0415 - keeps --help quick
    from workloads import describe  # noqa: PLC0415

    sizes = [
        RunConfig(**settings_of(chosen), block_size=size.strip())  # type: ignore[arg-type]
        for size in block_size.split(",")
    ]
    workload = experiment.load_workload(sizes[0])
    timed = dataclasses.replace(workload, requests=experiment.prepare_requests(sizes[0], workload))
    rows = [describe(timed, config.block_size) for config in sizes]
    warn(workload.warnings)
    for sentence in workload.notes:
        note(sentence)
    if as_json:
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    headings = ["figure", *(f"block size {config.block_size}" for config in sizes)]
    names = [name for name in rows[0] if name != "block_size"]
    out().print(table("", headings, [[name, *(row[name] for row in rows)] for name in names]))


@app.command("write")
@with_settings(("Workload", "Arrivals"))
def write_command(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_path,
            help="Trace file to write (JSONL).",
        ),
    ],
    ids_block_size: Annotated[
        str | None,
        typer.Option(
            "--ids-block-size",
            metavar="INTEGER",
            help="Tokens that one written hash id stands for. (default: 512)",
            show_default=False,
        ),
    ] = None,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Write a workload as Mooncake JSONL that reads back with the same hits."""
    from sim import experiment  # noqa: PLC0415 - keeps --help quick
    from workloads import write_mooncake  # noqa: PLC0415

    config = RunConfig(**settings_of(chosen))
    # Parsed as a setting is, so that a bad value is named in the same words.
    size = RunConfig(trace_block_size=ids_block_size or 512)  # type: ignore[arg-type]
    workload = experiment.load_workload(config)
    timed = dataclasses.replace(workload, requests=experiment.prepare_requests(config, workload))
    warn(workload.warnings)
    warn(write_mooncake(timed, output, trace_block_size=size.trace_block_size))
    note(f"{len(timed.requests)} requests are in {output}.")


@app.command("generators")
def generators_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as a JSON array.")] = False,
) -> None:
    """List the generators with their dials and defaults."""
    import inspect  # noqa: PLC0415 - keeps --help quick

    from workloads import GENERATORS, dials  # noqa: PLC0415

    rows = [
        {
            "generator": name,
            "description": (inspect.getdoc(generator) or "").partition("\n")[0],
            "dials": ", ".join(f"{dial}={value}" for dial, value in dials(name).items()),
        }
        for name, generator in GENERATORS.items()
    ]
    if as_json:
        print_json(rows)
    else:
        out().print(table("", rows[0], [row.values() for row in rows]))
