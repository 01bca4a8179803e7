"""``prefixsim prove``: a policy's block tables, run through a real model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import decoders, one_of, these
from sim.cli.decoder import Device, Threads, Weights
from sim.cli.options import settings_of, with_settings
from sim.cli.output import note, out, print_json, progress, table, warn
from sim.config import RunConfig

if TYPE_CHECKING:
    from sim.prove import Measured, ModelChoice, Proven

SHOWN_WRONG = 10


@with_settings(("Workload", "Policy", "Engine", "Cost", "Arrivals"))
def command(  # noqa: PLR0917 - the command line passes them by name
    decoder: Annotated[
        str,
        typer.Option(
            "--decoder",
            metavar="NAME|config.json",
            help="Model to run: tiny, small, llama-3-8b, qwen3-8b, or a Hugging Face config.json "
            "(--model names the cost preset).",
            autocompletion=one_of(decoders),
        ),
    ] = "tiny",
    weights: Weights = None,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="fp32|bf16",
            help="Default: fp32; with --time bf16 on cuda.",
            autocompletion=one_of(these("fp32", "bf16")),
        ),
    ] = None,
    threads: Threads = 1,
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Measure instead: execute the workload as it is, and compare with --cost.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as one JSON object.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Execute a workload's steps over the blocks of a policy and compare with no cache.

    The steps are those that 'run' simulates with the same settings, but that --kv-capacity auto
    keeps half of the distinct prompt tokens, so that blocks are evicted and reused. Every position
    that is computed counts: its logits must be those of the model alone. Exits with 0 if all
    agree, 1 if any does not or a request could not be served.
    """
    from sim import experiment, prove  # noqa: PLC0415 - keeps --help quick

    config = RunConfig(**settings_of(chosen))
    experiment.check(config, seed_is_used=True)  # it makes the weights
    choice = prove.ModelChoice(
        decoder, device, dtype or (None if timed else "fp32"), weights, threads, config.seed
    )
    with progress() as bar:
        task = bar.add_task("loading")
        shown: dict[str, Any] = {
            "on_start": lambda total: bar.update(task, total=total, description="executing"),
            "on_done": lambda done: bar.update(task, completed=done),
        }
        if timed:
            measured = prove.measure(config, choice, **shown)
        else:
            proven = prove.prove(config, choice, **shown)
    if timed:
        _show_time(config, choice, measured, as_json)
    else:
        _show_proof(proven, as_json)
        if not proven.agrees:
            raise typer.Exit(1)


def _show_proof(proven: Proven, as_json: bool) -> None:
    evictions = proven.num_evictions
    note(
        f"{proven.num_blocks:,} blocks, "
        + (f"{evictions:,} evictions, " if evictions is not None else "")
        + f"{proven.num_preemptions:,} preemptions, "
        f"{sum(one.num_cached_tokens for one in proven.compared):,} prompt tokens hit, "
        f"{sum(one.num_positions for one in proven.compared):,} positions compared."
    )
    if evictions == 0:
        warn(["nothing was evicted: that blocks are reused rightly is not shown."])
    if proven.num_rejected:
        warn(
            [
                f"{proven.num_rejected} of {proven.num_requests} requests can never fit and were "
                "not executed; raise --kv-capacity."
            ]
        )
    if as_json:
        print_json(
            {
                "agrees": proven.agrees,
                "num_requests": proven.num_requests,
                "num_proven": len(proven.compared) - len(proven.wrong),
                "num_rejected": proven.num_rejected,
                "num_blocks": proven.num_blocks,
                "num_evictions": evictions,
                "num_preemptions": proven.num_preemptions,
                "largest_difference": proven.largest_difference,
                "tolerance": proven.tolerance,
                "wrong": [
                    {
                        "request_id": one.request_id,
                        "difference": one.difference,
                        "position": one.position,
                        "num_cached_tokens": one.num_cached_tokens,
                        "num_preemptions": one.num_preemptions,
                    }
                    for one in proven.wrong
                ],
            }
        )
        return
    if proven.wrong:
        names = {
            "request_id": "request",
            "difference": "difference",
            "position": "at position",
            "num_prompt_tokens": "prompt",
            "num_cached_tokens": "cached",
            "num_preemptions": "preemptions",
        }
        rows = [[getattr(one, name) for name in names] for one in proven.wrong[:SHOWN_WRONG]]
        out().print(table("logits that differ, the worst first", names.values(), rows))
    num_right = len(proven.compared) - len(proven.wrong)
    sys.stdout.write(
        f"proven {num_right} of {proven.num_requests} requests, largest difference "
        f"{proven.largest_difference:.2g} (tolerance {proven.tolerance:g} standard deviations of "
        "the logits)\n"
    )


def _show_time(config: RunConfig, choice: ModelChoice, measured: Measured, as_json: bool) -> None:
    """Print what was measured, beside what the cost model says of the same workload."""
    from sim import prove  # noqa: PLC0415

    simulated = prove.simulate(config) if config.cost is not None else None
    rows = prove.compare(measured, simulated)
    if as_json:
        print_json(rows.to_dict("index"))
        return
    served = int((measured.requests["status"] == "finished").sum())
    title = f"{served} requests in {measured.num_steps} steps of {choice.name}"
    values = [[name, *row] for name, row in zip(rows.index, rows.to_numpy().tolist(), strict=True)]
    out().print(table(title, ["figure", *rows.columns], values))
    note(f"by the {measured.clock} clock; the steps took {measured.wall_s:.2f} s of wall time.")
    if config.cost is None:
        note("give --cost FILE to compare with what 'run' says of the same workload.")
