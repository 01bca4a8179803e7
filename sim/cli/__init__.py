"""The command line: ``prefixsim``, and ``python -m sim`` the same."""

from __future__ import annotations

import sys
from typing import Any

import typer

from sim.cli import overhead, plot, policies, presets, profiles, run, sweep, verify, workload
from sim.cli.output import complain, forgive_odd_characters
from sim.errors import UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="prefixsim",
    help="Simulate prefix caching of LLM serving engines: what hits, what it buys, what it costs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.command)
app.command("sweep")(sweep.command)
app.command("plot")(plot.command)
app.add_typer(workload.app, name="workload")
app.command("overhead")(overhead.command)
app.command("policies")(policies.command)
app.command("presets")(presets.command)
app.command("profiles")(profiles.command)
app.command("verify")(verify.command)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from sim.experiment import VERSION  # noqa: PLC0415 - keeps --help quick

        typer.echo(f"prefixsim {VERSION}")
        raise typer.Exit


def main(args: list[str] | None = None) -> Any:  # noqa: ANN401 - the command line never returns
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    forgive_odd_characters()
    try:
        app(args)
    except UsageError as error:
        complain(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # Whoever read the output has enough of it, as 'head' does.
        sys.stderr.close()
        sys.exit(0)
