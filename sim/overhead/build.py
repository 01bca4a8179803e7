"""Rebuilds the profiles that come with the package: ``python -m sim.overhead.build``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from sim.overhead.fit import fit_profile
from sim.overhead.measure import wide
from sim.overhead.profile import profile_to_document

TABLE = "vllm_allocator_overhead.csv"
OWN_TABLE = "own_overhead.csv"
_SOURCE = (
    "Fitted to CPU times of the block manager of the released package vLLM {version} ({engine}, "
    "prefix caching {caching}), driven directly: one thread, CPython 3.11.7, an Intel Xeon virtual "
    "machine, November 2026 (see README.md beside the table); blocks of 8 to 128 tokens, prompts "
    "of 1,024 to 16,384 tokens, hit rates of 0 to 99 %."
)


def read_table() -> pd.DataFrame:
    """Read the recorded times of vLLM's block managers."""
    with resources.as_file(resources.files("sim.overhead") / "data" / TABLE) as path:
        return pd.read_csv(path, dtype={"vllm_version": str})


def profile_name(version: str, engine: str, *, caching: bool) -> str:
    """Name the profile of a release."""
    return f"vllm-{version}-{engine}" + ("" if caching else "-off")


def documents() -> dict[str, dict[str, Any]]:
    """Fit every release of the table; name to what its file holds."""
    found = {}
    for (version, engine, caching), rows in read_table().groupby(
        ["vllm_version", "engine", "prefix_caching"]
    ):
        profile, residuals = fit_profile(
            rows.reset_index(drop=True), evicts=bool(caching), scans=version == "0.6.4"
        )
        provenance = _SOURCE.format(
            version=version, engine=str(engine).upper(), caching="on" if caching else "off"
        )
        by_operation = {r.operation: asdict(r) for r in residuals}
        name = profile_name(str(version), str(engine), caching=bool(caching))
        found[name] = profile_to_document(profile, provenance, by_operation)
    return found


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
        where = f"{table['python'].iloc[0]}, {table['machine'].iloc[0]}"
        found[str(policy)] = profile_to_document(
            profile,
            f"Fitted to CPU times of our own policy {policy}, as 'prefixsim overhead' measures "
            f"them: one thread, {where}, prefixsim {table['version'].iloc[0]}.",
            {r.operation: asdict(r) for r in residuals},
        )
    return found


def own_documents() -> dict[str, dict[str, Any]]:
    """Fit our own policies, by the table that comes with the package."""
    with resources.as_file(resources.files("sim.overhead") / "data" / OWN_TABLE) as path:
        measured = fit_measured(pd.read_csv(path))
    return {f"own-{policy}": document for policy, document in measured.items()}


def main() -> None:
    """Write all profiles."""
    folder = Path(__file__).parent / "data"
    for name, document in (documents() | own_documents()).items():
        text = json.dumps(document, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
