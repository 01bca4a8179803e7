"""``prefixsim overhead``: what the bookkeeping of each policy costs, measured here and now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sim.cli.completion import policies as policy_names
from sim.cli.completion import some_of
from sim.cli.options import output_path
from sim.cli.output import note, print_json, progress
from sim.cli.overhead_tables import show_comparison, show_evictions, show_times
from sim.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from sim.overhead.driver import MakeAllocator
    from sim.types import Allocator

T = TypeVar("T")


def command(  # noqa: PLR0917 - the command line passes them by name
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT,...",
            help="Policies to time (default: the models of vLLM).",
            autocompletion=some_of(policy_names),
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
        int,
        typer.Option(
            "--repetitions", metavar="N", help="Requests timed per cell in each of 12 rounds."
        ),
    ] = 8,
    free_blocks: Annotated[
        str | None,
        typer.Option(
            "--free-blocks",
            metavar="INTEGER,...",
            help="Time one eviction instead, in pools of so many free blocks of the first block "
            "size.",
        ),
    ] = None,
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
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Read a table of -o instead of measuring."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="DIR",
            help="Draw where the time goes (breakdown), or with --free-blocks what an eviction "
            "costs (eviction_cost).",
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
    caching off, they are. All cells take turns, round after round; the quickest round counts. Times
    are those of this machine, now: let nothing else run meanwhile.
    """
    if output is not None:
        from sim.overhead.table import check_ending  # noqa: PLC0415 - keeps --help quick

        check_ending("--output", output)
    if source is not None:
        _refuse_with("--from reads a table and measures nothing", output=output, free=free_blocks)
        measured = _read(source)
    elif free_blocks is not None:
        _refuse_of_evictions(fit, compare=compare)
        measured = _measure_evictions(policy, free_blocks, block_sizes)
    else:
        measured = _measure(policy, block_sizes, prompt_tokens, hit_rates, repetitions)
    evictions = "time_stamps" in measured
    if evictions:
        _refuse_of_evictions(fit, compare=compare)
    if output is not None:
        from sim.overhead.table import write_table  # noqa: PLC0415

        write_table(measured, output)
        note(f"wrote {len(measured)} rows to {output}.")
    if plot is not None:
        _plot(measured, plot)
    if fit is not None:
        _fit(measured, fit)
    if compare:
        show_comparison(measured, _profiles(measured), as_json=as_json)
    elif as_json:
        print_json(measured.to_dict("records"))
    elif evictions:
        show_evictions(measured)
    else:
        show_times(measured)


def _refuse_with(reason: str, *, output: Path | None, free: str | None) -> None:
    for option, value in (("--output", output), ("--free-blocks", free)):
        if value is not None:
            raise UsageError(f"{reason}; leave {option} out.")


def _refuse_of_evictions(fit: Path | None, *, compare: bool) -> None:
    if fit is not None or compare:
        raise UsageError(
            "--fit and --compare need the times of whole requests, not those of evictions; leave "
            "--free-blocks out."
        )


def _read(source: Path) -> pd.DataFrame:
    from sim.overhead.evictions import COLUMNS as OF_EVICTIONS  # noqa: PLC0415 - as above
    from sim.overhead.measure import COLUMNS  # noqa: PLC0415
    from sim.overhead.table import read_table  # noqa: PLC0415

    table = read_table(source, ("policy",))
    return read_table(source, OF_EVICTIONS if "time_stamps" in table else COLUMNS)


def _measure(
    policy: str | None, block_sizes: str, prompt_tokens: str, hit_rates: str, repetitions: int
) -> pd.DataFrame:
    from itertools import product  # noqa: PLC0415 - keeps --help quick

    from sim.overhead.driver import Cell  # noqa: PLC0415
    from sim.overhead.measure import ROUNDS, measure_grid  # noqa: PLC0415

    makers = _makers(policy)
    sizes = _numbers("--block-sizes", block_sizes, int, "a whole number", "16,64")
    prompts = _numbers("--prompt-tokens", prompt_tokens, int, "a whole number", "1024,4096")
    rates = _numbers("--hit-rates", hit_rates, float, "a number", "0,0.5,0.9")
    cells = [Cell(*values) for values in product(sizes, prompts, rates)]
    with progress() as bar:
        task = bar.add_task("measuring", total=ROUNDS * len(cells) * len(makers))
        return measure_grid(
            makers, cells, repetitions=repetitions, on_turn=lambda: bar.advance(task)
        )


def _measure_evictions(policy: str | None, free_blocks: str, block_sizes: str) -> pd.DataFrame:
    from sim.overhead import evictions  # noqa: PLC0415 - as above

    makers = _makers(policy)
    numbers = _numbers("--free-blocks", free_blocks, int, "a whole number", "1000,10000,100000")
    sizes = _numbers("--block-sizes", block_sizes, int, "a whole number", "16")
    with progress() as bar:
        cases = len(evictions.TIME_STAMPS) * len(makers)
        total = evictions.ROUNDS * len(numbers) * cases
        task = bar.add_task("measuring", total=total)
        return evictions.measure_evictions(
            makers, numbers, block_size=sizes[0], on_turn=lambda: bar.advance(task)
        )


def _makers(text: str | None) -> dict[str, MakeAllocator]:
    import policies  # noqa: PLC0415 - keeps --help quick

    measured = [name for name in policies.names() if _is_measured(policies.load(name))]
    names = measured if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        policies.load(name)
    return {name: partial(policies.make, name) for name in names}


def _is_measured(policy: type[Allocator]) -> bool:
    """Whether vLLM's own code was measured too: what comes with a profile of our own."""
    profiles: Any = getattr(policy, "overhead_profiles", {})
    return "own" in (profiles() if callable(profiles) else profiles)


def _profiles(measured: pd.DataFrame) -> dict[str, str]:
    """Name the profile of what each policy models."""
    from sim.config import RunConfig  # noqa: PLC0415 - keeps --help quick
    from sim.inputs import overhead_of  # noqa: PLC0415

    names = measured["policy"].unique()
    return {name: overhead_of(RunConfig(policy=name, overhead="vllm"))[1] for name in names}


def _numbers(option: str, text: str, kind: Callable[[str], T], rule: str, example: str) -> list[T]:
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text!r} must be {rule} or a comma list of them, such as {example}."
        ) from None


def _plot(measured: pd.DataFrame, folder: Path) -> None:
    from sim.plots import draw_overhead  # noqa: PLC0415 - keeps --help quick

    try:
        paths = draw_overhead(measured, folder)
    except OSError as error:
        raise UsageError(
            f"--plot {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from error
    for path in paths:
        note(f"drew {path}.")


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
