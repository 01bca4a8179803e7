"""Command line options made from the settings of `sim.config.RunConfig`.

A command that takes settings is written as a function of its own options and ``**chosen``;
`with_settings` puts the settings in the place of ``chosen``. Values arrive as text and are parsed
by `RunConfig`, so that the command line, TOML and Python say the same of a bad value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sim.cli import completion
from sim.config import Group, kind_of, option_name, setting_of, settings
from sim.errors import UsageError

ARGS = {
    "workload_args": (
        "--workload-arg",
        "Workload",
        "Dial of the generator, repeatable: hit_rate=0.5 (see 'prefixsim workload generators').",
    ),
    "policy_args": (
        "--policy-arg",
        "Policy",
        "Option of the policy, repeatable (see 'prefixsim policies').",
    ),
}
_METAVARS = {str: "TEXT", int: "INTEGER", float: "NUMBER"}
_NAMES: dict[str, completion.Names] = {
    "workload": completion.generators,
    "policy": completion.policies,
    "model": completion.models,
    "gpu": completion.gpus,
    "overhead": completion.overheads,
    "kv_capacity": completion.these("auto", "infinite"),
}
"""What a shell offers for settings that have no choices of their own."""


def with_settings(
    groups: Collection[Group],
    *,
    many: bool = False,
    workload: Literal["argument", "optional argument", "option", "own"] = "argument",
    without: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings of ``groups`` as options.

    Parameters
    ----------
    groups
        Which settings.
    many
        Each option takes a comma list, for a grid.
    workload
        Whether the workload is the first argument, and whether it may be left out; or whether the
        command names it by an argument of its own.
    without
        Settings that the command has options of another name for; what it has an option of the
        same name for is left to it anyway.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        own_names = {parameter.name for parameter in own}
        if workload == "own":
            own_names.add("workload")
        positional = workload in ("argument", "optional argument") and "Workload" in groups
        added = [
            _argument(field, required=workload == "argument")
            if field.name == "workload" and positional
            else _option(field, many)
            for field in settings()
            if setting_of(field).group in groups and field.name not in {*own_names, *without}
        ]
        added += [
            _args_parameter(name, many)
            for name, row in ARGS.items()
            if row[1] in groups and name not in without
        ]
        parameters = [*added, *own] if positional else [*own, *added]

        def wrapper(**values: Any) -> None:  # noqa: ANN401
            chosen = {k: v for k, v in values.items() if k not in own_names and v is not None}
            command(**{k: v for k, v in values.items() if k in own_names}, **chosen)

        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        vars(wrapper)["__signature__"] = inspect.Signature(keyword_only)
        wrapper.__annotations__ = {p.name: p.annotation for p in keyword_only}
        return wrapper

    return decorate


def parse_pairs(option: str, pairs: list[str] | None) -> dict[str, str]:
    """Split ``KEY=VALUE`` texts.

    Raises
    ------
    UsageError
        No ``=``, no key, or a key given twice.
    """
    parsed: dict[str, str] = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not separator or not key:
            raise UsageError(f"{option} {pair!r} must be KEY=VALUE, such as hit_rate=0.5.")
        if key in parsed:
            raise UsageError(f"{option} {key} is given twice; leave one out.")
        parsed[key] = value.strip()
    return parsed


def output_path(text: str) -> Path:
    """Read the value of ``-o``; an empty one, as of an unset variable, would mean right here."""
    if not text:
        raise UsageError("-o '' names no place to write to; give one, or . for this folder.")
    return Path(text)


def num_processes(text: str) -> int:
    """Read the value of ``--jobs``."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--jobs {text!r} must be a whole number of at least 1, such as 2.")
    return int(text)


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        parser=num_processes,
        help="Processes, at most one a CPU; default: all CPUs.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again what the folder has already.")]


def at_most_one_a_cpu(jobs: int | None) -> int:
    """Give the processes that ``--jobs`` asks for; by default one a CPU, and never more."""
    import joblib  # noqa: PLC0415 - keeps --help quick

    num_cpus: int = joblib.cpu_count()
    return min(jobs or num_cpus, num_cpus)


def settings_of(chosen: dict[str, Any]) -> dict[str, Any]:
    """Turn the options of a command into arguments of `RunConfig`."""
    pairs = {name: parse_pairs(ARGS[name][0], chosen.get(name)) for name in ARGS}
    return {**chosen, **pairs}


def _argument(field: Field[Any], *, required: bool) -> inspect.Parameter:
    help = setting_of(field).help
    metavar = "WORKLOAD" if required else "[WORKLOAD]"
    annotation: Any = Annotated[
        str if required else str | None,
        typer.Argument(
            metavar=metavar,
            help=help,
            show_default=False,
            autocompletion=completion.one_of(completion.generators),
        ),
    ]
    default = inspect.Parameter.empty if required else None
    return _keyword(field.name, default, annotation)


def _option(field: Field[Any], many: bool) -> inspect.Parameter:
    setting, kind = setting_of(field), kind_of(field)
    option = option_name(field.name)
    annotation: Any
    if kind is bool:
        annotation = Annotated[
            bool | None,
            typer.Option(
                option, help=setting.help, rich_help_panel=setting.group, show_default=False
            ),
        ]
    else:
        metavar = "|".join(setting.choices) if setting.choices else _METAVARS[kind]
        names = completion.these(*setting.choices) if setting.choices else _NAMES.get(field.name)
        # explain takes two policies where run takes one.
        complete = completion.some_of if many or field.name == "policy" else completion.one_of
        annotation = Annotated[
            str | None,
            typer.Option(
                option,
                metavar=f"{metavar},..." if many else metavar,
                help=setting.help
                + ("" if field.default is None else f" (default: {field.default})"),
                rich_help_panel=setting.group,
                autocompletion=complete(names) if names else None,
                show_default=False,
            ),
        ]
    return _keyword(field.name, None, annotation)


def _args_parameter(name: str, many: bool) -> inspect.Parameter:
    option, group, text = ARGS[name]
    annotation: Any = Annotated[
        list[str] | None,
        typer.Option(
            option,
            metavar="KEY=VALUE,..." if many else "KEY=VALUE",
            help=text,
            rich_help_panel=group,
            show_default=False,
        ),
    ]
    return _keyword(name, None, annotation)


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
