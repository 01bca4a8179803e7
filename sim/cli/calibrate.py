"""``prefixsim calibrate``: the cost of a step, measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.completion import decoders, one_of, these
from sim.cli.decoder import Device, Threads, Weights
from sim.cli.options import output_path
from sim.cli.output import err, note, out, print_json, progress, table


def command(  # noqa: PLR0917 - the command line passes them by name
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME|config.json",
            help="Model to run: tiny, small, llama-3-8b, qwen3-8b, or a Hugging Face config.json.",
            autocompletion=one_of(decoders),
        ),
    ] = "small",
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="fp32|bf16",
            help="Default: bf16 on cuda, fp32 on cpu.",
            autocompletion=one_of(these("fp32", "bf16")),
        ),
    ] = None,
    weights: Weights = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_path,
            help="Cost model to write, for 'run --cost'; its plot goes beside it.",
        ),
    ] = Path("calibration.json"),
    block_size: Annotated[
        int, typer.Option("--block-size", metavar="N", min=1, help="Tokens in a KV cache block.")
    ] = 16,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=32,
            help="New tokens of a step at most (default: 8192 on cuda, 512 on cpu).",
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            metavar="N",
            min=64,
            help="Tokens of a sequence at most (default: 32768 on cuda, 2048 on cpu).",
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            metavar="N",
            min=4,
            help="Sequences of a decode step at most (default: 256 on cuda, 32 on cpu).",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="CSV",
            help="Fit others' times instead: new_tokens, cached_tokens, batch, seconds.",
        ),
    ] = None,
    ns_per_context_token: Annotated[
        float | None,
        typer.Option(
            "--ns-per-context-token",
            metavar="NS",
            min=0,
            help="Reading one token's KV, where --from holds no decode steps to tell it.",
        ),
    ] = None,
    ns_per_sequence: Annotated[
        float | None,
        typer.Option(
            "--ns-per-sequence",
            metavar="NS",
            min=0,
            help="What a sequence adds, where --from has one batch size only.",
        ),
    ] = None,
    passes: Annotated[
        int, typer.Option("--passes", metavar="N", min=1, help="Times to measure the grid.")
    ] = 5,
    threads: Threads = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON object.")
    ] = False,
) -> None:
    """Measure a real decoder with a paged KV cache here, and fit the cost of a step.

    Prefills over a grid of new and cached tokens, decodes over batch and context, and both in one
    step; then block sizes, copies from the host, and peaks. Called again after an interruption, it
    goes on where it stopped. On one CPU thread the clock is the thread's own, so that what else
    the machine does counts little.
    """
    from sim import calibrate  # noqa: PLC0415 - keeps --help quick

    if source is not None:
        _import(source, output, ns_per_context_token, ns_per_sequence, as_json)
        return
    from sim.plots.calibration import calibration  # noqa: PLC0415
    from sim.plots.style import save  # noqa: PLC0415
    from sim.prove import ModelChoice  # noqa: PLC0415

    with progress() as bar:
        task = bar.add_task("loading")
        document = calibrate.calibrate(
            ModelChoice(model, device, dtype, weights, threads),
            output,
            block_size=block_size,
            limits=calibrate.Limits(max_tokens, max_context, max_batch, passes),
            on_progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )
    paths = save(calibration(document), output.parent, output.stem)
    if as_json:
        print_json(document)
    else:
        _show(document)
    note(f"use it with 'prefixsim run --cost {output}'; drawn in {paths[0]}.")
    if document["machine"]["device"] == "cpu":
        note("measured on the CPU: the times are this machine's, not a GPU's.")


def _import(
    source: Path,
    output: Path,
    ns_per_context_token: float | None,
    ns_per_sequence: float | None,
    as_json: bool,
) -> None:
    from sim.calibrate import import_measurements  # noqa: PLC0415

    document = import_measurements(
        source,
        output,
        ns_per_context_token=ns_per_context_token,
        ns_per_sequence=ns_per_sequence,
    )
    if as_json:
        print_json(document)
    else:
        rows = [[name, value] for name, value in document["coefficients"].items()]
        out().print(table(document["provenance"], ("coefficient", "ns"), rows))
        _show_errors(document)
    note(f"use it with 'prefixsim run --cost {output}'.")


def _show_errors(document: dict[str, Any]) -> None:
    checks = {
        "all points": document["residuals"],
        "fits that did not see them": document["held_out"],
    }
    if document.get("preset"):
        checks[f"preset {document['preset']['name']}"] = document["preset"]
    errors = [
        [name, fit["num_points"], *(f"{fit[part]:.1%}" for part in ("median", "p90", "worst"))]
        for name, fit in checks.items()
    ]
    out().print(table("errors", ("against", "points", "median", "p90", "worst"), errors))


def _show(document: dict[str, Any]) -> None:
    share = document["roofline"]["share"]
    rows = [
        [name, value, f"{share[name]:.0%}" if share.get(name) else "n/a"]
        for name, value in document["coefficients"].items()
    ]
    title = document["provenance"]
    out().print(table(title, ("coefficient", "ns", "peak / fitted"), rows))
    _show_errors(document)
    sizes = document["blocks"]["measured"]["sizes"]
    step = document["blocks"]["measured"]["step"]
    out().print(
        table(
            f"decode of {step['sequences']} sequences after {step['cached_tokens']:,} tokens",
            ("block size", "blocks", "ms"),
            [[row["block_size"], row["num_blocks"], 1e3 * row["seconds"]] for row in sizes],
        )
    )
    out().print(
        table(
            "copies of blocks from the host",
            ("block size", "blocks", "us per block", "GB/s"),
            [
                [
                    row["block_size"],
                    row["num_blocks"],
                    1e6 * row["seconds"] / row["num_blocks"],
                    row["num_bytes"] / row["seconds"] / 1e9,
                ]
                for row in document["copies"]
            ],
        )
    )
    sys.stdout.flush()
    err().print(f"a block read costs {document['blocks']['ns_per_block']:,.0f} ns", style="dim")
