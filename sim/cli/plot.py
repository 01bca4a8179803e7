"""``prefixsim plot``: pictures of a results folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import output_path
from sim.cli.output import note


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Results folder of 'run -o' or 'sweep -o'.")
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="capacity|block-size|ttft|overhead|break-even",
            help="What to draw, repeatable; default: all that the results can show.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=output_path,
            help="Where to; default: DIR/plots.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="vllm-v1-alpha",
            help="Published figures to draw into overhead: throughput relative to no caching.",
        ),
    ] = None,
) -> None:
    """Draw hit rate against KV capacity and block size, TTFT, and what caching gains and loses.

    Every picture is written as PNG and SVG; break-even has its table as break_even.csv too.
    """
    from sim import plots, store  # noqa: PLC0415 - keeps --help quick

    results = store.ResultStore(folder)
    paths = plots.draw(
        results.summaries(),
        results.requests(),
        output or folder / "plots",
        kinds=kind,
        reference=reference,
    )
    for path in paths:
        sys.stdout.write(f"{path}\n")
    note(f"{len(paths)} files drawn.")
