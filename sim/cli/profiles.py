"""``prefixsim profiles``: overhead profiles that come with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.cli.output import note, out, print_json, table

_SHOWN = {
    "ns_per_request": "request",
    "ns_per_hashed_token": "hashed token",
    "ns_per_block_hit": "block hit",
    "ns_per_new_block": "new block",
    "ns_per_scanned_entry": "scanned entry",
    "ns_per_append": "append",
    "ns_per_block_freed": "block freed",
}


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as a JSON object.")] = False,
) -> None:
    """List the overhead profiles: what cache management costs, ns per unit of its work."""
    from sim.overhead import document_of, profile_names  # noqa: PLC0415 - keeps --help quick

    documents = {name: document_of(name) for name in profile_names()}
    if as_json:
        print_json(documents)
        return
    rows = [
        [
            name,
            *(document["coefficients"][key] for key in _SHOWN),
            document["residuals"]["allocate"]["median"],
        ]
        for name, document in documents.items()
    ]
    out().print(table("", ["profile", *_SHOWN.values(), "median error"], rows))
    note(
        "ns per unit; the error is relative, of the time of an allocation; --json shows all "
        "coefficients, residuals and where each comes from."
    )
