"""``prefixsim validate``: a recorded run of a real engine against ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import one_of, policies
from sim.cli.output import note, out, print_json, table


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="requests.jsonl, meta.json and operator tables of a recorded run.",
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Its prompts; default: found near DIR."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT",
            help="Default: vllm_v1_latest.",
            autocompletion=one_of(policies),
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            "--cost", metavar="FILE", help="Cost model file instead of DIR's operator tables."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as one JSON object.")
    ] = False,
) -> None:
    """Replay what a real engine served, and compare TTFT, TPOT, latency and queues.

    Nothing is fitted to the run: steps take what the kernels took when they were measured alone.
    As the engine does, times count from when it takes a request in, between two steps.
    """
    from sim.validate import validate  # noqa: PLC0415 - keeps --help quick

    outcome = validate(folder, trace=trace, policy=policy, cost=cost)
    if as_json:
        print_json(
            {
                "times": outcome.times.to_dict("records"),
                "queues": None if outcome.queues is None else outcome.queues.to_dict("records"),
                "num_requests": outcome.num_requests,
                "num_preemptions": outcome.num_preemptions,
                "num_steps": outcome.num_steps,
                "makespan_s": outcome.makespan_s,
            }
        )
        return
    shown = outcome.times.assign(error=outcome.times["error"].map("{:+.2%}".format))
    out().print(table("s", shown.columns, shown.to_numpy(dtype=object).tolist()))
    if outcome.queues is not None:
        queues = outcome.queues.assign(error=outcome.queues["error"].map("{:+.2%}".format))
        rows = queues.to_numpy(dtype=object).tolist()
        out().print(table("sequences, mean over time", queues.columns, rows))
    real, simulated = outcome.makespan_s
    note(
        f"{outcome.num_requests} requests in {outcome.num_steps:,} steps with "
        f"{outcome.num_preemptions} preemptions (the recording has none to compare with); "
        f"{simulated:.1f} s, really {real:.1f} s."
    )
