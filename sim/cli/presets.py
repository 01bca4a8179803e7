"""``prefixsim presets``: models and GPUs that a cost preset exists for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from sim.cli.output import note, out, print_json, table


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print as a JSON array.")] = False,
) -> None:
    """List the cost presets, the KV cache that fits, and where the costs come from."""
    from sim.presets import list_presets, load_preset  # noqa: PLC0415 - keeps --help quick

    rows = []
    for model, gpu in list_presets():
        preset = load_preset(model, gpu)
        fit = preset.residuals
        rows.append(
            {
                "model": model,
                "gpu": gpu,
                "GPUs": preset.tensor_parallel,
                "kv_capacity_tokens": preset.kv_capacity_tokens(),
                "median_error": fit["median"] if fit else None,
                "worst_error": fit["worst"] if fit else None,
                "worst_at": _point(fit["worst_at"]) if fit else "derived",
                "provenance": preset.provenance,
            }
        )
    if as_json:
        print_json(rows)
    else:
        headings = [heading for heading in rows[0] if heading != "provenance"]
        out().print(table("", headings, [[row[name] for name in headings] for row in rows]))
        note(
            "errors are relative, against the published times that the cost was fitted to; "
            "--json tells where each preset comes from."
        )


def _point(point: Mapping[str, float]) -> str:
    return f"{point['new_tokens']:,.0f} new + {point['cached_tokens']:,.0f} cached tokens"
