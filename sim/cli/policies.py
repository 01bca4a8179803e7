"""``prefixsim policies``: what there is to compare."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from sim.cli.output import out, print_json, table


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as a JSON array.")] = False,
) -> None:
    """List the policies with their source and options.

    A policy of your own is a class that implements sim.types.Allocator; use it with
    --policy package.module:Class.
    """
    import policies  # noqa: PLC0415 - keeps --help quick

    rows = []
    for name in policies.names():
        policy = policies.load(name)
        module_doc = inspect.getdoc(inspect.getmodule(policy)) or ""
        options = ", ".join(
            f"{key}={str(p.default).lower()}" for key, p in policies.options(policy).items()
        )
        rows.append(
            {
                "policy": name,
                "description": module_doc.partition("\n")[0],
                "source": getattr(policy, "source", ""),
                "options": options,
            }
        )
    if as_json:
        print_json(rows)
    else:
        out().print(table("", rows[0], [row.values() for row in rows]))
