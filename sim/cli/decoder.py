"""Options of every command that runs a real decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import one_of, these

Weights = Annotated[
    Path | None,
    typer.Option("--weights", metavar="DIR", help="Its safetensors; default: random weights."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cuda|cpu",
        help="Default: cuda where there is one.",
        autocompletion=one_of(these("cuda", "cpu")),
    ),
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads of the CPU.")]
