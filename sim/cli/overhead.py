"""``prefixsim overhead``: what the bookkeeping of each policy costs, measured here and now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sim.cli.options import output_path
from sim.cli.output import note, out, print_json, progress, table
from sim.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
PASSES = 2
_ENDINGS = (".csv", ".parquet")


def command(  # noqa: PLR0917 - the command line passes them by name
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="TEXT,...", help="Policies to time (default: the models of vLLM)."
        ),
    ] = None,
    block_sizes: Annotated[
        str, typer.Option("--block-sizes", metavar="INTEGER,...", help="Tokens in a block.")
    ] = "16,64",
    prompt_tokens: Annotated[
        str, typer.Option("--prompt-tokens", metavar="INTEGER,...", help="Tokens in a prompt.")
    ] = "1024,4096",
    hit_rates: Annotated[
        str,
        typer.Option(
            "--hit-rates", metavar="NUMBER,...", help="Share of a prompt that is shared, 0 to <1."
        ),
    ] = "0,0.5,0.9",
    repetitions: Annotated[
        int, typer.Option("--repetitions", metavar="N", help="Requests timed per cell and pass.")
    ] = 30,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_path,
            help="Table to write: .csv or .parquet.",
        ),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            "--fit",
            metavar="DIR",
            help="Fit an overhead profile to each policy; write POLICY.json, for 'run --overhead'.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Show times beside those measured of vLLM's own code."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as a JSON array.")
    ] = False,
) -> None:
    """Time the bookkeeping of policies: hashing, lookup, allocation, decoding, freeing, eviction.

    Shows the medians of each cell in µs and how many times those of 'none', the same work with
    caching off, they are. Runs the whole grid twice and keeps the smaller times. Times are those
    of this machine, now: let nothing else run meanwhile.
    """
    from sim.overhead.measure import measure_grid  # noqa: PLC0415 - keeps --help quick

    names = _policies(policy)
    sizes = _numbers("--block-sizes", block_sizes, int, "a whole number", "16,64")
    prompts = _numbers("--prompt-tokens", prompt_tokens, int, "a whole number", "1024,4096")
    rates = _numbers("--hit-rates", hit_rates, float, "a number", "0,0.5,0.9")
    if output is not None and output.suffix not in _ENDINGS:
        raise UsageError(
            f"--output {output} must end in {' or '.join(_ENDINGS)}, which says how it is written; "
            "rename it."
        )
    num_cells = len(names) * len(sizes) * len(prompts) * len(rates)
    with progress() as bar:
        task = bar.add_task("measuring", total=PASSES * num_cells)
        measured = measure_grid(
            names,
            sizes,
            prompts,
            rates,
            repetitions=repetitions,
            passes=PASSES,
            on_cell=lambda: bar.advance(task),
        )
    if output is not None:
        _write(measured, output)
    if fit is not None:
        _fit(measured, fit)
    if compare:
        _show_comparison(measured, as_json=as_json)
    elif as_json:
        print_json(measured.to_dict("records"))
    else:
        _show(measured)


def _policies(text: str | None) -> list[str]:
    import policies  # noqa: PLC0415 - keeps --help quick
    from sim.overhead.compare import RELEASES  # noqa: PLC0415

    if text is None:
        return list(RELEASES)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        policies.load(name)
    return names


def _numbers(option: str, text: str, kind: Callable[[str], T], rule: str, example: str) -> list[T]:
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text!r} must be {rule} or a comma list of them, such as {example}."
        ) from None


def _write(measured: pd.DataFrame, output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".csv":
            measured.to_csv(output, index=False, float_format="%.4g")
        else:
            measured.to_parquet(output, index=False)
    except OSError as error:
        raise UsageError(
            f"--output {output} cannot be written ({error.strerror or error}); name another file."
        ) from error
    note(f"wrote {len(measured)} rows to {output}.")


def _fit(measured: pd.DataFrame, folder: Path) -> None:
    import json  # noqa: PLC0415 - keeps --help quick

    from sim.overhead.build import fit_measured  # noqa: PLC0415

    documents = fit_measured(measured)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for policy, document in documents.items():
            # A policy from outside is named package.module:Class.
            path = folder / f"{policy.replace(':', '.')}.json"
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            error = document["residuals"]["allocate"]["median"]
            note(f"wrote {path}; median error of an allocation {error:.1%}.")
    except OSError as error:
        raise UsageError(
            f"--fit {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from error


def _show(measured: pd.DataFrame) -> None:
    """Print a row per policy and cell, its operations side by side."""
    from sim.overhead.measure import OPERATIONS  # noqa: PLC0415 - keeps --help quick

    cell = ["block_size_tokens", "prompt_tokens", "target_hit_rate"]
    medians = measured.pivot_table(
        index=[*cell, "policy"], columns="operation", values="p50_us", dropna=False
    ).reindex(columns=list(OPERATIONS))
    rows = []
    for key, times in medians.dropna(how="all").iterrows():
        assert isinstance(key, tuple)
        base = (*key[:-1], "none")
        ratio = times["request"] / medians.loc[base, "request"] if base in medians.index else None
        shown = [None if time != time else f"{time:,.2f}" for time in times]  # noqa: PLR0124 - NaN
        rows.append([key[-1], *key[:-1], *shown, None if ratio is None else f"{ratio:,.1f}"])
    headings = ["policy", "block", "prompt", "hit rate", *OPERATIONS, "request/none"]
    grid = table("Median time, µs", headings, rows)
    for column in grid.columns[4:]:
        column.justify = "right"
    out().print(grid)
    note(
        "request = hash + lookup + allocate; evict is a part of allocate; append is per token, all "
        "others per request; --json and --output have means, quantiles and counts too."
    )


def _show_comparison(measured: pd.DataFrame, *, as_json: bool) -> None:
    from sim.overhead import compare as comparing  # noqa: PLC0415 - keeps --help quick
    from sim.overhead.measure import wide  # noqa: PLC0415 - keeps --help quick

    comparison = comparing.compare(wide(measured))
    if comparison.empty:
        raise UsageError(
            "--compare found no cell that was measured of vLLM: choose from --block-sizes "
            "8,16,32,64,128, --prompt-tokens 1024,4096,16384 and --hit-rates "
            "0,0.25,0.5,0.75,0.9,0.99."
        )
    ratios, reasons = comparing.engine_ratios(comparison), comparing.explain(comparison)
    if as_json:
        print_json(
            {
                "times": comparison.to_dict("records"),
                "v0_per_v1": ratios.to_dict("records"),
                "explanations": reasons,
            }
        )
        return
    headings = ["policy", "vLLM", "block", "prompt", "hit rate", "operation"]
    console = out()
    console.print(
        table(
            "Time, µs", [*headings, "own", "vLLM's", "vLLM's/own"], comparison.to_numpy().tolist()
        )
    )
    if not ratios.empty:
        console.print(
            table(
                "V0 by V1",
                ["policy", "block", "prompt", "hit rate", "operation", "own", "vLLM's"],
                ratios.to_numpy().tolist(),
            )
        )
    for sentence in reasons:
        console.print(sentence)
    note(
        "medians, of append means; vLLM's were taken on another machine (an Intel Xeon virtual "
        "machine, CPython 3.11.7), so compare ratios rather than times."
    )
