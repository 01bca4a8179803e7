"""``prefixsim plot``: pictures of a results folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.output import note


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Results folder of 'run -o' or 'sweep -o'.")
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="capacity|block-size|ttft",
            help="What to draw, repeatable; default: all that the results can show.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to; default: DIR/plots."),
    ] = None,
) -> None:
    """Draw hit rate against KV capacity, against block size, and the distribution of TTFT.

    Every picture is written as PNG and SVG.
    """
    from sim import plots, store  # noqa: PLC0415 - keeps --help quick

    results = store.ResultStore(folder)
    paths = plots.draw(
        results.summaries(), results.requests(), output or folder / "plots", kinds=kind
    )
    for path in paths:
        sys.stdout.write(f"{path}\n")
    note(f"{len(paths)} files drawn.")
