"""``prefixsim compare``: all policies on one workload, and whether they differ."""

from __future__ import annotations

import math
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import (
    Fresh,
    Jobs,
    at_most_one_a_cpu,
    output_path,
    parse_pairs,
    settings_of,
    with_settings,
)
from sim.cli.output import complain, note, out, print_json, progress, table, warn
from sim.errors import UsageError

if TYPE_CHECKING:
    from sim.comparison import Comparison
    from sim.comparison_points import Asked
    from sim.grid import Outcome

_WORTH_SAYING = 20
"""Points from which on it is said how many there are, and what is quicker."""


@with_settings(
    ("Workload", "Policy", "Engine", "Cost", "Arrivals"),
    without=("policy_args",),
)
def command(  # noqa: PLR0917 - the command line passes them by name
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT,...",
            help="Policies to compare; the reference is added. (default: all but 'none')",
            rich_help_panel="Policy",
            show_default=False,
        ),
    ] = None,
    policy_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--policy-arg",
            metavar="KEY=VALUE,...",
            help="Values of an option, each tried with every policy that has it, repeatable: "
            "leaf_only=false,true.",
            rich_help_panel="Policy",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="POLICY",
            help="Policy that the others are compared with.",
            rich_help_panel="Policy",
        ),
    ] = "lru",
    kv_capacity: Annotated[
        str,
        typer.Option(
            "--kv-capacity",
            metavar="TEXT,...",
            help="Capacities: tokens, 10000blocks, 40GiB, shares of the workload's distinct prompt "
            "tokens (5%), 'infinite' or 'auto'.",
            rich_help_panel="Engine",
        ),
    ] = "5%,10%,20%,50%",
    hits_only: Annotated[
        bool,
        typer.Option(
            "--hits-only",
            help="Serve requests one at a time and count hits alone: no latency, much quicker, "
            "and Belady's bound holds.",
        ),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            metavar="N",
            help="Workloads to generate, by seeds from --seed on; noise is then told from them.",
        ),
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=output_path,
            help="Keep runs, table and picture here; what is here already is not run again.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the picture here (png, svg, pdf)."),
    ] = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print rows and verdicts as one JSON object.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Compare policies on one workload at several capacities.

    Tells the hit rate of each, how far it is on the way from the reference to the bound, latency
    and cost of management; which is best, by how much, and whether that is more than noise.
    """
    from sim import comparison, comparison_points, store  # noqa: PLC0415 - keeps --help quick

    asked = comparison_points.ask(
        settings_of(chosen),
        names=_split("--policy", policy) if policy is not None else None,
        policy_args={
            key: _split(f"--policy-arg {key}", text)
            for key, text in parse_pairs("--policy-arg", policy_arg).items()
        },
        capacities=_split("--kv-capacity", kv_capacity),
        num_seeds=seeds,
        reference=reference,
        hits_only=hits_only,
    )
    with ExitStack() as stack:
        if output is not None:
            folder = output
            store.ResultStore(folder).prepare()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prefixsim-")))
        failures = _run(asked, folder, jobs=jobs, fresh=fresh, is_kept=output is not None)
        found = comparison.compare(
            asked,
            folder,
            failed=list(dict.fromkeys(comparison_points.label_of(f.config) for f in failures)),
        )
    warn(found.warnings)
    if output is not None:
        _write(output, found)
    if plot is not None:
        from sim.plots.workload import save_page  # noqa: PLC0415 - matplotlib is slow

        save_page(found.plot(), plot)
        note(f"the picture is in {plot}.")
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if failures:
        raise typer.Exit(2 if all(failure.is_bad_input for failure in failures) else 1)


def _run(
    asked: Asked, folder: Path, *, jobs: int | None, fresh: bool, is_kept: bool
) -> list[Outcome]:
    """Run what is missing; return what failed."""
    from sim import comparison_points, grid  # noqa: PLC0415

    count = len(asked.configs) if fresh else comparison_points.num_missing(asked, folder)
    if count >= _WORTH_SAYING and not asked.hits_only:
        note(
            f"{count} runs to simulate; --hits-only is much quicker and leaves out latency, and -o "
            "DIR keeps what is done."
        )
    failures: list[Outcome] = []
    warnings: dict[str, None] = {}
    with progress() as bar:
        task = bar.add_task("comparing", total=count)

        def on_outcome(outcome: Outcome) -> None:
            bar.advance(task)
            warnings.update(dict.fromkeys(outcome.warnings))
            if outcome.summary is None:
                failures.append(outcome)
                complain(f"point {grid.label(outcome.config)} failed: {outcome.failure}")

        try:
            comparison_points.run(
                asked,
                folder,
                jobs=at_most_one_a_cpu(jobs),
                fresh=fresh,
                on_outcome=on_outcome,
            )
        except KeyboardInterrupt:
            note(
                f"interrupted; {folder} keeps what is done, run the same command to go on."
                if is_kept
                else "interrupted; with -o DIR what is done would have been kept."
            )
            raise typer.Exit(130) from None
    warn(warnings)
    return failures


def _split(option: str, text: str) -> list[str]:
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty value in its list; leave it out.")
    return parts


def _write(folder: Path, found: Comparison) -> None:
    from sim.plots.style import save  # noqa: PLC0415 - keeps --help quick

    found.table.to_parquet(folder / "compare.parquet", index=False)
    found.table.to_csv(folder / "compare.csv", index=False)
    save(found.plot(), folder, "compare")
    note(f"compare.csv, compare.parquet and compare.png are in {folder}.")


def _print(found: Comparison) -> None:
    frame = found.table
    names = ["policy", "hit_rate", "difference", "interval", "verdict", "share_of_way"]
    if not found.asked.hits_only:
        names += ["ttft_ms_mean", "ttft_ms_p50", "overhead_ms"]
    rows = [_shown(row) for row in frame.to_dict("records")]
    title = f"{frame['workload'].iloc[0]}, block size {frame['block_size'].iloc[0]}"
    headings = ["capacity", "num_blocks", *names]
    out().print(table(title, headings, [[row[name] for name in headings] for row in rows]))
    for sentence in (*found.verdicts, *found.method):
        out().print(sentence, soft_wrap=True)


def _shown(row: dict[Any, Any]) -> dict[str, Any]:
    """Put a row into words: shares in per cent, differences in points."""
    is_reference = row["verdict"] == "reference"
    low, high = 100 * row["difference_low"], 100 * row["difference_high"]
    return {
        **row,
        "policy": _label(row),
        "hit_rate": f"{100 * row['hit_rate']:.2f} %",
        "difference": "" if is_reference else f"{100 * row['difference']:+.2f}",
        "interval": "" if is_reference or math.isnan(low) else f"{low:+.2f} to {high:+.2f}",
        "share_of_way": (
            "n/a" if math.isnan(row["share_of_way"]) else f"{row['share_of_way']:.0%}"
        ),
        "overhead_ms": (
            row["overhead"] if row["overhead"] == "not measured" else row["overhead_ms"]
        ),
    }


def _label(row: dict[Any, Any]) -> str:
    return " ".join([row["policy"], *filter(None, str(row["policy_args"]).split(","))])
