"""Rebuilds the profiles that come with the package: ``python -m sim.overhead.build``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from sim.overhead.fit import fit_profile, fit_refusals
from sim.overhead.profile import profile_to_document
from sim.overhead.table import CELL, wide

TABLE = "vllm_allocator_overhead.csv"
REFUSALS = "vllm_refusals.csv"
OWN_TABLE = "own_overhead.csv"
_SOURCE = (
    "Fitted to CPU times of the block manager of the released package vLLM {version} ({engine}, "
    "prefix caching {caching}), driven directly: one thread, CPython 3.11.7, an Intel Xeon virtual "
    "machine, November 2026 (see README.md beside the table); blocks of 8 to 128 tokens, prompts "
    "of 1,024 to 16,384 tokens, hit rates of 0 to 99 %. Refused admissions were timed of 0.8.5 on "
    "an AMD EPYC and scaled by how much longer an admission took there."
)
_REFUSES_LIKE = {"0.6.4": "0.8.5", "0.33": "0.8.5"}
"""Releases whose refused admissions were not timed, and one whose were and does the same work: V0
asks for room without a lookup while a request waits, V1 looks up the keys that it hashed before."""


def read_recorded() -> pd.DataFrame:
    """Read the recorded times of vLLM's block managers."""
    return _read(TABLE)


def _read(table: str) -> pd.DataFrame:
    with resources.as_file(resources.files("sim.overhead") / "data" / table) as path:
        return pd.read_csv(path, dtype={"vllm_version": str})


def profile_name(version: str, engine: str, *, caching: bool) -> str:
    """Name the profile of a release."""
    return f"vllm-{version}-{engine}" + ("" if caching else "-off")


def recorded_profile(recorded: pd.DataFrame) -> list[str]:
    """Name the profile that each row of the recorded times belongs to."""
    return [
        profile_name(str(row.vllm_version), str(row.engine), caching=bool(row.prefix_caching))
        for row in recorded.itertuples()
    ]


def documents() -> dict[str, dict[str, Any]]:
    """Fit every release of the table; name to what its file holds."""
    found = {}
    refusals = _refusals()
    for (version, engine, caching), rows in read_recorded().groupby(
        ["vllm_version", "engine", "prefix_caching"]
    ):
        profile, residuals = fit_profile(
            rows.reset_index(drop=True), evicts=bool(caching), scans=version == "0.6.4"
        )
        like = _REFUSES_LIKE.get(str(version), str(version))
        refused = refusals[profile_name(like, str(engine), caching=bool(caching))]
        profile = replace(profile, **refused)
        provenance = _SOURCE.format(
            version=version, engine=str(engine).upper(), caching="on" if caching else "off"
        )
        by_operation = {r.operation: asdict(r) for r in residuals}
        name = profile_name(str(version), str(engine), caching=bool(caching))
        found[name] = profile_to_document(profile, provenance, by_operation)
    return found


def _refusals() -> dict[str, dict[str, float]]:
    """Fit the refused admissions of each engine that was timed, at the speed of the other table."""
    cell = ["vllm_version", "engine", "prefix_caching", *CELL]
    timed = _read(REFUSALS).merge(read_recorded()[[*cell, "allocate_us_p50"]], on=cell)
    speed = timed["allocate_us_p50"] / timed["request_us"]
    timed["refusal_ns"] = 1e3 * speed * (timed["lookup_us"] + timed["refused_us"])
    timed["profile"] = recorded_profile(timed)
    return {
        str(name): fit_refusals(
            rows["hit_blocks"].to_numpy(dtype=float), rows["refusal_ns"].to_numpy(dtype=float)
        )
        for name, rows in timed.groupby("profile")
    }


def fit_measured(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Fit a profile to each policy of a table that ``prefixsim overhead`` measured."""
    found = {}
    for policy, group in wide(table).groupby("policy"):
        rows = group.reset_index(drop=True)
        profile, residuals = fit_profile(
            rows,
            evicts=bool(rows["evicted_blocks"].any()),
            scans=bool(rows["scanned_entries"].any()),
        )
        lookups = table[(table["policy"] == policy) & (table["operation"] == "lookup")]
        hit_tokens = lookups["measured_hit_rate"] * lookups["prompt_tokens"]
        hit_blocks = (hit_tokens / lookups["block_size_tokens"]).to_numpy(dtype=float)
        refused = fit_refusals(hit_blocks, 1e3 * lookups["p50_us"].to_numpy(dtype=float))
        profile = replace(profile, **refused)
        where = f"{table['python'].iloc[0]}, {table['machine'].iloc[0]}"
        found[str(policy)] = profile_to_document(
            profile,
            f"Fitted to CPU times of our own policy {policy}, as 'prefixsim overhead' measures "
            f"them: one thread, {where}, prefixsim {table['version'].iloc[0]}. A refused admission "
            "costs its lookup.",
            {r.operation: asdict(r) for r in residuals},
        )
    return found


def own_documents() -> dict[str, dict[str, Any]]:
    """Fit our own policies, by the table that comes with the package."""
    measured = fit_measured(_read(OWN_TABLE))
    return {f"own-{policy}": document for policy, document in measured.items()}


def main() -> None:
    """Write all profiles."""
    folder = Path(__file__).parent / "data"
    for name, document in (documents() | own_documents()).items():
        text = json.dumps(document, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
