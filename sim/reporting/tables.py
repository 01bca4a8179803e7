"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from sim.columns import Table as TableName
from sim.columns import columns_of
from sim.reporting.content import Table

_MAIN = (
    "hit_rate",
    "infinite_hit_rate",
    "ttft_ms_mean",
    "ttft_ms_p99",
    "tpot_ms_mean",
    "total_throughput",
    "overhead_share",
    "num_preemptions",
    "num_rejected",
    "num_finished",
)
_SETTINGS_SHOWN = ("policy", "block_size", "kv_capacity_tokens")


def table_of_runs(summary: pd.DataFrame) -> Table:
    """Lay out a row per run: what varies, and the main figures."""
    names = [column.name for column in columns_of("summary")]
    settings = names[1 : names.index("num_requests")]
    varying = [
        name
        for name in settings
        if name != "num_blocks"
        and not name.endswith("_digest")
        and summary[name].nunique(dropna=False) > 1
    ]
    shown = list(dict.fromkeys([*_SETTINGS_SHOWN, *varying, *_MAIN]))
    return _table(
        "runs",
        "All runs",
        "A row per run. Click a heading to sort by it; type to keep the rows that hold a word.",
        table="summary",
        names=shown,
        frame=summary,
    )


def table_of_curve(points: pd.DataFrame, shown: Sequence[str]) -> Table:
    """Lay out the capacities of a curve that are marked."""
    return _table(
        "curve-points",
        "Hit rate against capacity, one request at a time",
        "Every capacity is in the picture; these are the ones to talk of.",
        table="curve",
        names=["block_size", *shown],
        frame=points,
    )


def table_of_workload(rows: Sequence[Mapping[str, object]], meanings: Mapping[str, str]) -> Table:
    """Lay out what a workload is, a column per block size, as `workload describe` has it."""
    names = [name for name in rows[0] if name not in ("block_size", "name")]
    return Table(
        "workload",
        "The workload",
        "Before anything is simulated: what a cache that never evicts would hit, and why.",
        ("figure", *(f"block size {row['block_size']}" for row in rows), "meaning"),
        tuple((name, *(row[name] for row in rows), meanings.get(name, "")) for name in names),
        is_long=True,
    )


def _table(
    stem: str,
    title: str,
    note: str,
    *,
    table: TableName,
    names: Sequence[str],
    frame: pd.DataFrame,
) -> Table:
    columns = {column.name: column for column in columns_of(table)}
    headings = [f"{name} ({columns[name].unit})" if columns[name].unit else name for name in names]
    rows = frame[list(names)].to_numpy(dtype=object).tolist()
    return Table(
        stem,
        title,
        note,
        tuple(headings),
        tuple(tuple(row) for row in rows),
        tuple(columns[name].meaning for name in names),
        is_long=len(rows) > 20,
    )


def show(value: object) -> str:
    """Spell a cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)
