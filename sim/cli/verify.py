"""``prefixsim verify``: recorded logs against our policies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import one_of, policies, these
from sim.cli.output import complain, note, print_json
from sim.errors import UsageError

SHOWN_PER_FILE = 20
"""Once a replay has left the record, most later lines differ too."""


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Recorded logs (.jsonl), or folders of them."),
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT",
            help="Replay with this policy instead of the one that models each file's variant.",
            autocompletion=one_of(policies),
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="DIR", help="Folder of the traces that logs name."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="plain|fast",
            help="Replay with the plain code, or with the compiled form of policies that have one.",
            autocompletion=one_of(these("plain", "fast")),
        ),
    ] = "plain",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as one JSON object.")
    ] = False,
) -> None:
    """Replay recorded runs of real engines and name every line that differs.

    Exits with 0 if every file agrees, 1 if any diverges, 2 if any cannot be replayed or is not
    whole. The format of the logs is described in docs/recorded-logs.md; you can record your own.
    """
    from sim.verify import Divergence, verify  # noqa: PLC0415 - keeps --help quick

    if engine not in ("plain", "fast"):
        raise UsageError(f"--engine {engine!r} must be one of plain, fast.")

    def on_file(path: Path, divergences: list[Divergence]) -> None:
        if as_json:
            return
        for divergence in divergences[:SHOWN_PER_FILE]:
            sys.stdout.write(f"{divergence}\n")
        if len(divergences) > SHOWN_PER_FILE:
            num_more = len(divergences) - SHOWN_PER_FILE
            sys.stdout.write(f"{path}: {num_more} more; --json lists them all\n")

    outcome = verify(paths, policy=policy, traces=traces, fast=engine == "fast", on_file=on_file)
    for error in outcome.errors:
        complain(error)
    if as_json:
        print_json(outcome.to_json())
    else:
        unread = f", {len(outcome.errors)} not replayed" if outcome.errors else ""
        sys.stdout.write(
            f"verified {outcome.num_files} files: {outcome.num_agreeing} agree, "
            f"{outcome.num_diverging} diverge{unread}\n"
        )
        if outcome.num_without_fast:
            note(
                f"{outcome.num_without_fast} of them were replayed plain: their policies have no "
                "compiled form."
            )
    if outcome.errors:
        raise typer.Exit(2)
    if outcome.num_diverging:
        raise typer.Exit(1)
