"""The command line: ``prefixsim``, and ``python -m sim`` the same."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import typer

from sim.cli.output import complain, forgive_odd_characters
from sim.errors import UsageError

__all__ = ["COMMANDS", "main", "make_app"]

COMMANDS = (
    "run",
    "sweep",
    "compare",
    "curve",
    "plot",
    "report",
    "workload",
    "explain",
    "overhead",
    "policies",
    "presets",
    "profiles",
    "verify",
    "validate",
    "prove",
    "calibrate",
)
"""Each is the module of its name, in the order of ``--help``."""

# The base of all complaints about options: click's UsageError, of which typer may have its own.
_BadUse: type[Exception] = typer.BadParameter.__mro__[1]


def make_app(asked: str | None = None) -> typer.Typer:
    """Put the command line together: with all commands, or quicker with the one ``asked`` for."""
    app = typer.Typer(
        name="prefixsim",
        help="Simulate prefix caching of LLM serving engines: what hits, what it buys, "
        "what it costs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_version)
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        module = import_module(f"sim.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from sim.identity import VERSION  # noqa: PLC0415 - keeps --help quick

        typer.echo(f"prefixsim {VERSION}")
        raise typer.Exit


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    forgive_odd_characters()
    if threading.current_thread() is threading.main_thread():
        # As Ctrl-C: what runs elsewhere is stopped, and what was made for it goes.
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        app = make_app(next(iter(sys.argv[1:] if args is None else args), None))
        code = typer.main.get_command(app).main(args, prog_name="prefixsim", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        complain(str(error))
        sys.exit(2)
    except _BadUse as error:
        _explain(error)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted.")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has enough of it, as 'head' does.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        complain(f"{error.filename or 'the output'} cannot be used ({error.strerror}).")
        _drop_output()
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _explain(error: Any) -> None:  # noqa: ANN401 - typer does not name the type
    """Make one sentence of what is wrong with options or arguments, and say where to read on."""
    text = error.format_message().strip().rstrip(".")
    # Where a command was called without anything, its help is printed already.
    if text:
        command = error.ctx.command_path if error.ctx is not None else "prefixsim"
        complain(f"{text[:1].lower()}{text[1:]}; see '{command} --help'.")


def _drop_output() -> None:
    """Keep Python from writing, and failing on, what a full disk has not taken."""
    with suppress(OSError):
        sys.stdout.close()
