"""``prefixsim report``: what runs show, as one page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import generators, one_of
from sim.cli.options import (
    Jobs,
    at_most_one_a_cpu,
    output_path,
    settings_of,
    with_settings,
)
from sim.cli.output import note, progress, warn
from sim.config import RunConfig
from sim.errors import UsageError

if TYPE_CHECKING:
    from sim.reported_workload import Plan
    from sim.reporting import Report


@with_settings(("Workload", "Policy", "Engine", "Tiers", "Cost", "Arrivals"), workload="own")
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|WORKLOAD",
            help="Results folder of 'run -o' or 'sweep -o', or a trace file or generator.",
            show_default=False,
            autocompletion=one_of(generators),
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_path,
            help="Page to write (.html); one that is there is replaced.",
        ),
    ] = Path("report.html"),
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="Of a DIR: report the runs alone that have this value, repeatable: block_size=16, "
            "policy=none ...",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT,...",
            help="Of a WORKLOAD: policies to run; without none, what caching buys is not known. "
            "(default: none,vllm_v0,vllm_v1)",
            show_default=False,
        ),
    ] = None,
    block_size: Annotated[
        str | None,
        typer.Option(
            "--block-size",
            metavar="INTEGER,...",
            help="Of a WORKLOAD: block sizes to run, tokens. (default: 16,32,64,128, and that of "
            "the trace's hash ids where it is larger)",
            show_default=False,
        ),
    ] = None,
    kv_capacity: Annotated[
        str | None,
        typer.Option(
            "--kv-capacity",
            metavar="TEXT,...",
            help="Of a WORKLOAD: KV capacities to run, as of 'prefixsim run'; block sizes are "
            "compared at the first. (default: what the GPU has left, parts of it, and the knee)",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            metavar="DIR",
            parser=output_path,
            help="Of a WORKLOAD: keep the runs in this results folder; what it has already is not "
            "run again.",
        ),
    ] = None,
    jobs: Jobs = None,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Write one page on what runs show: words first, then pictures and tables.

    Of a results folder it reports what is there. Of a WORKLOAD it runs what it needs: the hit rate
    at every capacity, then policies, block sizes and capacities, and the full load. The page needs
    no network. What it says in short is printed too.
    """
    from sim import reported  # noqa: PLC0415 - keeps --help quick

    reported.check_output(output)
    made_by = shlex.join(["prefixsim", *sys.argv[1:]])
    if reported.is_results(source):
        lists = {"policy": policy, "block_size": block_size, "kv_capacity": kv_capacity}
        given = {name: value for name, value in lists.items() if value is not None}
        given |= {**chosen, **({} if runs is None else {"runs": str(runs)})}
        reported.refuse_settings(source, given)
        report = reported.report_of_folder(Path(source), command=made_by, where=where or ())
    else:
        reported.refuse_conditions(source, where or ())
        plan = _plan(source, policy, block_size, kv_capacity, chosen)
        report = _of_workload(plan, made_by, runs, jobs)
    reported.write(report, output)
    _print(report)
    note(f"the report is in {output}.")


def _plan(
    source: str,
    policy: str | None,
    block_size: str | None,
    kv_capacity: str | None,
    chosen: dict[str, Any],
) -> Plan:
    from sim import experiment, reported_workload  # noqa: PLC0415 - keeps --help quick

    config = RunConfig(**settings_of(chosen), workload=source)
    experiment.check(config)
    sizes = _split("--block-size", block_size)
    return reported_workload.Plan(
        config,
        tuple(_split("--policy", policy)) or reported_workload.POLICIES,
        # A setting of a run parses each, so that a bad one is named in the same words.
        tuple(RunConfig(block_size=size).block_size for size in sizes),  # type: ignore[arg-type]
        tuple(_split("--kv-capacity", kv_capacity)),
    )


def _of_workload(plan: Plan, made_by: str, runs: Path | None, jobs: int | None) -> Report:
    from sim import reported_workload  # noqa: PLC0415

    warnings: list[str] = []
    with progress() as bar:
        task = bar.add_task("loading", total=1)

        def on_progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        try:
            report = reported_workload.report_of_workload(
                plan,
                command=made_by,
                runs=runs,
                jobs=at_most_one_a_cpu(jobs),
                on_progress=on_progress,
                on_warning=warnings.append,
            )
        except KeyboardInterrupt:
            kept = f"{runs} keeps what is done, run the same command to go on"
            note(f"interrupted; {kept if runs else 'to keep what is done, give --runs DIR'}.")
            raise typer.Exit(130) from None
        finally:
            warn(dict.fromkeys(warnings))
    return report


def _split(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty value in its list; leave it out.")
    return parts


def _print(report: Report) -> None:
    warn(report.doubts)
    for situation in report.situations[:1]:
        sys.stdout.write(f"{situation.setting}\n")
        for finding in situation.findings:
            sys.stdout.write(f"{finding.topic}: {finding.text}\n")
