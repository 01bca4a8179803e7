"""``prefixsim workload``: look at a workload, or write it as a trace."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import models, one_of, these
from sim.cli.options import output_path, settings_of, with_settings
from sim.cli.output import note, out, print_json, table, warn
from sim.config import Group, RunConfig
from sim.errors import UsageError
from sim.wording import counted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from workloads import Workload

_TRACE: tuple[Group, ...] = ("Workload",)

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
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Model whose KV cache the working set is stated for.",
            autocompletion=one_of(models),
        ),
    ] = "llama-3-8b",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw a page of pictures too (png, svg, pdf)."),
    ] = None,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Count lengths, arrivals, sharing, and what an infinite cache would hit."""
    from sim import demand  # noqa: PLC0415 - keeps --help quick
    from sim.presets import list_presets, load_preset  # noqa: PLC0415
    from workloads import MEANINGS, describe, doubt_about_block_size  # noqa: PLC0415

    sizes = [
        RunConfig(**settings_of(chosen), block_size=size.strip())  # type: ignore[arg-type]
        for size in block_size.split(",")
    ]
    workload = demand.load_workload(sizes[0])
    timed = dataclasses.replace(workload, requests=demand.prepare_requests(sizes[0], workload))
    gpus = [gpu for name, gpu in list_presets() if name == model]
    bytes_per_token = load_preset(model, *gpus[:1] or ("h100",)).model.kv_bytes_per_token
    rows = [describe(timed, config.block_size) for config in sizes]
    for row in rows:
        tokens = row["working_set_tokens"]
        row["working_set_gib"] = (
            tokens * bytes_per_token / 2**30 if isinstance(tokens, int) else None
        )
    warn(workload.warnings)
    warn(filter(None, (doubt_about_block_size(timed, config.block_size) for config in sizes)))
    if not workload.has_prefix_info:
        warn([f"{workload.name} says nothing about shared prefixes: no hit rate is available."])
    for sentence in workload.notes:
        note(sentence)
    if plot is not None:
        _draw(timed, rows[0], plot)
    if as_json:
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    headings = ["figure", *(f"block size {config.block_size}" for config in sizes), "meaning"]
    meanings = {**MEANINGS, "working_set_gib": f"their KV cache in {model}, bf16, GiB"}
    names = [name for name in rows[0] if name not in ("block_size", "name")]
    title = str(rows[0]["name"])
    grid = [[name, *(row[name] for row in rows), meanings[name]] for name in names]
    out().print(table(title, headings, grid))


def _draw(workload: Workload, figures: dict[str, Any], path: Path) -> None:
    from sim.plots.workload import save_page, workload_page  # noqa: PLC0415
    from workloads.describe import reuse_gaps  # noqa: PLC0415
    from workloads.structure import sharing  # noqa: PLC0415

    gaps_s: ArrayLike = ()
    if workload.has_prefix_info:
        gaps_s = reuse_gaps(sharing(workload.requests).gap_ns, 1e9)
    save_page(workload_page(workload.requests, figures, gaps_s), path)
    note(f"the page is in {path}.")


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
    form: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="mooncake|bailian|tokens",
            help="Form to write; tokens keeps every hit.",
            autocompletion=one_of(these("mooncake", "bailian", "tokens")),
        ),
    ] = "mooncake",
    ids_block_size: Annotated[
        str | None,
        typer.Option(
            "--ids-block-size",
            metavar="INTEGER",
            help="Tokens that one written hash id stands for. (default: the workload's own, else"
            " 512, or 16 for bailian)",
            show_default=False,
        ),
    ] = None,
    anonymise: Annotated[
        str | None,
        typer.Option(
            "--anonymise",
            metavar="KEY",
            help="Write keyed hashes in place of all ids, so that traffic can be shared.",
        ),
    ] = None,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Write a workload as a trace; what the form cannot hold is found by reading it back."""
    from sim import demand  # noqa: PLC0415 - keeps --help quick
    from workloads.write import FORMS, default_block_size, write_trace  # noqa: PLC0415

    config = RunConfig(**settings_of(chosen))
    size = _ids_block_size(ids_block_size)
    workload = demand.load_workload(config)
    timed = dataclasses.replace(workload, requests=demand.prepare_requests(config, workload))
    warn(workload.warnings)
    warn(write_trace(timed, output, form, trace_block_size=size, key=anonymise))
    note(f"{output} holds {counted(len(timed.requests), 'request')}.")
    size = size or default_block_size(timed, form)
    if size != FORMS[form]:
        note(f"its ids stand for {size} tokens: read it with --trace-block-size {size}.")


def _ids_block_size(text: str | None) -> int | None:
    """Parse ``--ids-block-size``.

    Raises
    ------
    UsageError
        It is no whole number of tokens that a block can have.
    """
    if text is None:
        return None
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0
    if not 1 <= size < 2**31:
        raise UsageError(
            f"--ids-block-size {text!r} must be a whole number of tokens from 1 to {2**31 - 1},"
            " such as 512."
        )
    return size


@app.command("check")
@with_settings(_TRACE)
def check_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as one JSON object.")] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """List every problem of a trace, with file and line; exit with 1 if there is one."""
    from sim import demand  # noqa: PLC0415 - keeps --help quick

    found = demand.check_workload(RunConfig(**settings_of(chosen)))
    warnings = found.workload.warnings if found.workload else ()
    num_requests = len(found.workload.requests) if found.workload else 0
    if as_json:
        print_json({"num_requests": num_requests, "problems": found.problems, "warnings": warnings})
    else:
        for sentence in found.problems:
            sys.stdout.write(f"{sentence}\n")
    warn(warnings)
    note(
        f"{counted(num_requests, 'usable request')} and {counted(len(found.problems), 'problem')}"
        " were found."
    )
    if found.problems:
        raise typer.Exit(1)


@app.command("formats")
def formats_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as a JSON array.")] = False,
) -> None:
    """List the formats that can be read."""
    from workloads import FORMATS  # noqa: PLC0415 - keeps --help quick

    rows = [
        {
            "format": name,
            "title": form.title,
            "fields": form.fields.replace("`", ""),
            "time": form.time.replace("`", ""),
            "ids stand for": form.block.replace("`", ""),
            "lacks": form.lacks.replace("`", ""),
        }
        for name, form in FORMATS.items()
    ]
    if as_json:
        print_json(rows)
    else:
        out().print(table("", rows[0], [row.values() for row in rows]))


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
