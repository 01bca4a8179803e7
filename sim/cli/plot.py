"""``prefixsim plot``: pictures of a results folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import one_of, these
from sim.cli.options import output_path
from sim.cli.output import note, warn
from sim.wording import counted


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Results folder of 'run -o' or 'sweep -o'.")
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="capacity|tiers|block-size|ttft|overhead|break-even",
            help="What to draw, repeatable; default: all that the results can show.",
            autocompletion=one_of(
                these("capacity", "block-size", "ttft", "overhead", "break-even")
            ),
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="SETTING",
            help="Draw hit rate, TTFT and throughput against this numeric setting, repeatable: "
            "rate_scale, rate, max_num_seqs, kv_capacity, a dial of the generator ...; default, "
            "without --kind: all that vary.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="Draw the runs alone that have this value, repeatable: block_size=16, policy=none "
            "...",
        ),
    ] = None,
    *,
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
            autocompletion=one_of(these("vllm-v1-alpha")),
        ),
    ] = None,
) -> None:
    """Draw hit rate, TTFT and throughput against what varies, and what caching gains and loses.

    Every picture is written as PNG and SVG; break-even has its table as break_even.csv too. Points
    are means over seeds and over nothing else: what a picture does not show is said below its
    title and to stderr, and --where chooses it.
    """
    from sim import plots, store  # noqa: PLC0415 - keeps --help quick

    results = store.ResultStore(folder)
    summary = results.summaries()
    for condition in where or []:
        summary = plots.where(summary, condition)
    notes: list[str] = []
    paths = plots.draw(
        summary,
        results.requests(summary["run_id"]),
        output or folder / "plots",
        kinds=kind,
        settings=against,
        reference=reference,
        on_note=notes.append,
    )
    warn(notes)
    if any("not shown: " in sentence for sentence in notes):
        note("choose what is shown with --where NAME=VALUE, such as --where block_size=16.")
    for path in paths:
        sys.stdout.write(f"{path}\n")
    note(f"{counted(len(paths), 'file')} drawn.")
