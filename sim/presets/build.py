"""Rebuild the presets: ``python -m sim.presets.build`` writes ``data/`` anew.

Pairs with a table are fitted to it. The tables of prefills tell nothing about decode steps: there
the cost of reading a token's KV and of a sequence come from the RTX 4090, whose table holds decode
steps, moved by `sim.presets.derive`. Pairs without a table are derived from a fitted one; how far
off that is, is checked where there is a table: a fitted pair is derived from another one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from sim.cost import StepCost, cost_to_document
from sim.cost_fit import Residuals, fit_step_cost, residuals_of
from sim.presets import BYTES_PER_VALUE, GpuFacts, ModelFacts
from sim.presets.derive import Roofline, derive_cost
from sim.presets.published import table_points

HERE: Final = Path(__file__).parent
DIGITS: Final = 7

Pair = tuple[str, str]


def build() -> dict[Pair, dict[str, Any]]:
    """Return the JSON object of every pair (model, gpu)."""
    facts = json.loads((HERE / "facts.json").read_text(encoding="utf-8"))
    models = {name: _model(entry) for name, entry in facts["models"].items()}
    gpus = {name: GpuFacts(**entry) for name, entry in facts["gpus"].items()}

    def roofline(entry: dict[str, Any]) -> Roofline:
        return Roofline(models[entry["model"]], gpus[entry["gpu"]], entry["tensor_parallel"])

    def document(
        entry: dict[str, Any],
        cost: StepCost,
        provenance: str,
        residuals: Residuals | None,
        checks: list[dict[str, Any]],
    ) -> dict[str, Any]:
        return {
            "model": asdict(models[entry["model"]]),
            "gpu": asdict(gpus[entry["gpu"]]),
            "tensor_parallel": entry["tensor_parallel"],
            "cost": cost_to_document(
                cost,
                provenance=provenance,
                residuals=_rounded(asdict(residuals)) if residuals else None,
            ),
            "roofline_share": _rounded(roofline(entry).share(cost)),
            "checks": checks,
        }

    documents: dict[Pair, dict[str, Any]] = {}
    fitted: dict[Pair, tuple[StepCost, dict[str, Any]]] = {}
    decode: tuple[StepCost, Roofline] | None = None
    for entry in facts["fitted"]:
        points = table_points(entry["table"], entry["rows"])
        provenance = entry["provenance"]
        if decode is None:
            cost, _ = fit_step_cost(points)
            decode = cost, roofline(entry)
        else:
            moved = derive_cost(*decode, roofline(entry))
            cost, _ = fit_step_cost(
                points,
                ns_per_context_token=moved.ns_per_context_token,
                ns_per_sequence=moved.ns_per_sequence,
            )
            provenance += (
                " min_ns rests on its steps of 64 to 512 new tokens. It holds no decode steps: "
                "ns_per_context_token and ns_per_sequence are those measured on an RTX 4090 "
                "(preset llama-3-8b on rtx4090), scaled by KV bytes and by weight bytes over "
                "memory bandwidth."
            )
        cost = _rounded_cost(cost)
        pair = entry["model"], entry["gpu"]
        fitted[pair] = cost, entry
        documents[pair] = document(entry, cost, provenance, residuals_of(cost, points), [])

    def check(derived: list[str], **names: list[str]) -> dict[str, Any]:
        """Derive a pair that has a table, as if it had none, and compare."""
        _, entry = fitted[derived[0], derived[1]]
        cost, source_entry = fitted[names["from"][0], names["from"][1]]
        residuals = residuals_of(
            derive_cost(cost, roofline(source_entry), roofline(entry)),
            table_points(entry["table"], entry["rows"]),
        )
        return {"derived": derived, **names, "residuals": _rounded(asdict(residuals))}

    for entry in facts["derived"]:
        source = entry["from"][0], entry["from"][1]
        cost, source_entry = fitted[source]
        cost = derive_cost(cost, roofline(source_entry), roofline(entry))
        checks = [check(**names) for names in entry["checks"]]
        documents[entry["model"], entry["gpu"]] = document(
            entry,
            _rounded_cost(cost),
            f"No table; derived from the preset {source[0]} on {source[1]} (tensor parallel "
            f"{source_entry['tensor_parallel']}) by data sheets: ns_per_new_token and ns_per_pair "
            "by FLOPs over peak bf16 FLOP/s, the others by bytes over memory bandwidth, both over "
            "the GPUs that share the model; min_ns is reading the weights at full bandwidth and "
            "the time per layer that the source takes beyond that.",
            None,
            checks,
        )
    return documents


def _model(entry: dict[str, Any]) -> ModelFacts:
    """Add the counts of bytes that follow from a model's shape."""
    values = 2 * entry["num_layers"] * entry["num_kv_heads"] * entry["head_dim"]
    return ModelFacts(
        **entry,
        weight_bytes=entry["num_params"] * BYTES_PER_VALUE,
        kv_bytes_per_token=values * BYTES_PER_VALUE,
    )


def _rounded_cost(cost: StepCost) -> StepCost:
    return replace(cost, **_rounded(asdict(cost)))


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Keep the digits that mean something, so that files of two machines are alike."""
    return {
        name: _rounded(value)
        if isinstance(value, dict)
        else float(f"{value:.{DIGITS}g}")
        if isinstance(value, float)
        else value
        for name, value in values.items()
    }


def main() -> None:
    """Write every file of ``data/``."""
    for (model, gpu), document in build().items():
        text = json.dumps(document, indent=2) + "\n"
        (HERE / "data" / f"{model}_{gpu}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
