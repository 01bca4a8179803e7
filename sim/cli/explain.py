"""``prefixsim explain``: what happens to the blocks, event by event."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.completion import one_of, these
from sim.cli.options import output_path, settings_of, with_settings
from sim.cli.output import note, print_json
from sim.config import RunConfig, option_name
from sim.errors import UsageError
from sim.wording import counted

_FORMS = (".html", ".png", ".svg", ".json")


@with_settings(("Workload", "Policy", "Engine", "Cost", "Arrivals"), workload="optional argument")
def command(
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help="Explain a built-in example: article.",
            autocompletion=one_of(these("article")),
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request",
            metavar="ID",
            help="Only say where the cached tokens of one request came from, and to whom the rest "
            "was lost; for runs of any size.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_path,
            help="Page to step through (.html), storyboard (.png, .svg) or data (.json) to write.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Events to tell at most.")
    ] = 60,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events as one JSON object.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Tell what a policy does with its blocks: what is hit, taken and evicted, and why.

    WORKLOAD is a small trace or a generator; or name one with --example. --policy takes a comma
    list: two policies stand side by side, on the same requests.
    """
    from sim import explained  # noqa: PLC0415 - keeps --help quick
    from sim.cli._story import print_story  # noqa: PLC0415

    _check_options(request, output, limit)
    names = [name.strip() for name in str(chosen.pop("policy", "vllm_v1")).split(",")]
    _check_source(example, chosen)
    configs = [RunConfig(**settings_of(chosen), policy=name) for name in names]
    for config in configs:
        explained.check(config, example)
    if request is not None:
        told = {c.policy: explained.tell_request(c, request, example=example) for c in configs}
        if as_json:
            print_json(told)
            return
        for policy, sentences in told.items():
            for sentence in sentences:
                sys.stdout.write(f"{policy}: {sentence}\n")
        return
    stories = [explained.tell(config, example=example, limit=limit) for config in configs]
    if as_json:
        print_json({"stories": [story.to_dict() for story in stories]})
    if output is not None:
        title = f"Blocks of {example or configs[0].workload}: {', '.join(names)}"
        explained.write(stories, output, title, shlex.join(["prefixsim", *sys.argv[1:]]))
        note(f"{output} tells {counted(sum(len(story.moments) for story in stories), 'event')}.")
    elif not as_json:
        for story in stories:
            print_story(story)
    if any(story.is_cut for story in stories):
        note(f"these are the first {limit} events; tell more with --limit N.")


def _check_options(request: str | None, output: Path | None, limit: int) -> None:
    if limit < 1:
        raise UsageError(f"--limit {limit} must be at least 1.")
    if output is not None and output.suffix not in _FORMS:
        raise UsageError(f"-o {output} must end in one of {', '.join(_FORMS)}.")
    if request is not None and output is not None:
        raise UsageError("--request tells in words and writes no file; leave -o out, or --request.")


def _check_source(example: str | None, chosen: dict[str, Any]) -> None:
    if example is None:
        if "workload" not in chosen:
            raise UsageError("explain needs a WORKLOAD or --example article; give one.")
        return
    for name in chosen:
        if name != "policy_args":
            raise UsageError(
                f"--example {example} brings its own requests and pool, so "
                f"{'WORKLOAD' if name == 'workload' else option_name(name)} has no effect; leave "
                "it out."
            )
