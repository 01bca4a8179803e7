"""What is drawn as one line: grouping, averaging and naming of runs. No Matplotlib here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sim.config import RunConfig
from sim.plots.runs import (
    DIALS,
    SWEPT,
    differing,
    fewer,
    holds_all,
    left_out,
    say_number,
    told_apart,
)

MAX_LINES = 20
"""More lines than this in one picture cannot be told apart."""

_POINT = ("block_size", "kv_capacity_tokens")
_METRICS = ["hit_rate", "infinite_hit_rate", "ttft_ms_mean", "ttft_ms_p90"]


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ in nothing but block size, capacity and seed.

    Attributes
    ----------
    label
        Policy and whatever else differs between the lines.
    policy, variant
        The two parts of the label.
    points
        One row per block size and capacity, or whatever tells points: means over seeds.
    """

    label: str
    policy: str
    variant: str
    points: pd.DataFrame


def lines_of(
    summary: pd.DataFrame, by: Sequence[str] = _POINT, metrics: Sequence[str] = _METRICS
) -> list[Line]:
    """Group runs into lines, averaging ``metrics`` over seeds; a point of a line is told ``by``."""
    frame = summary.sort_values([*DIALS, *SWEPT], ignore_index=True)
    frame["variant"] = _names(frame, DIALS[1:])
    found = []
    for keys, rows in frame.groupby(["policy", "variant"], sort=False):
        policy, variant = (str(key) for key in keys)
        points = rows.groupby(list(by), as_index=False)[list(metrics)].mean()
        label = f"{policy}, {variant}" if variant else policy
        found.append(Line(label, policy, variant, points))
    return found


def run_labels(summary: pd.DataFrame) -> dict[str, str]:
    """Name every run by its policy and whatever else differs between the runs."""
    variants = _names(summary, [*DIALS[1:], *SWEPT])
    rows = zip(summary["run_id"], summary["policy"], variants, strict=True)
    return {str(run): f"{policy}, {v}" if v else str(policy) for run, policy, v in rows}


def setting(summary: pd.DataFrame, capacity: str = "", *, cost: bool = True) -> str:
    """Say what the runs have in common, and over how many seeds a point is averaged.

    Settings at their defaults are left out, but for workload, cost, block size and capacity.

    Parameters
    ----------
    summary
        Runs.
    capacity
        What to say of the KV capacity; by default the number where all runs have the same.
    cost
        Whether to say the cost preset.
    """
    parts = []
    for name in ("cost", "workload", "block_size") if cost else ("workload", "block_size"):
        values = summary[name].unique()
        if len(values) == 1:
            parts.append(str(values[0]) if name == "cost" else _say(name, values[0]))
    if not capacity and summary["kv_capacity_tokens"].nunique() == 1:
        capacity = say_tokens(summary["kv_capacity_tokens"].iloc[0])
    if capacity:
        parts.append(f"KV capacity {capacity}")
    for name in ("host_capacity_tokens", "ssd_capacity_tokens"):
        if summary[name].nunique() == 1 and summary[name].iloc[0]:
            parts.append(f"{name.split('_')[0]} {say_tokens(summary[name].iloc[0])}")
    for name, default in _DEFAULTS.items():
        values = summary[name].unique()
        if len(values) == 1 and values[0] != default:
            parts.append(_say(name, values[0]))
    # Last, as they may be many.
    args = summary["workload_args"].unique()
    said = _say("workload_args", args[0]) if len(args) == 1 else ""
    return ", ".join(part for part in (*parts, averaging(summary), said) if part)


_DEFAULTS = {
    name: getattr(RunConfig(), name)
    for name in DIALS
    if name not in ("workload", "workload_args", "policy", "policy_args", "cost", "overhead")
    and getattr(RunConfig(), name, None) is not None
}


def averaging(summary: pd.DataFrame) -> str:
    """Say over how many seeds a point is averaged; empty where it is not."""
    points = summary.groupby([*DIALS, "block_size", "kv_capacity_tokens"], dropna=False)["seed"]
    low, high = int(points.nunique().min()), int(points.nunique().max())
    if high == 1:
        return ""
    return f"mean of {high} seeds" if low == high else f"mean of {low} to {high} seeds"


def drawable(summary: pd.DataFrame, limit: int = MAX_LINES) -> tuple[pd.DataFrame, list[str]]:
    """Pick the runs of no more lines than can be told apart; see `told_apart` for the notes."""
    frame, notes = told_apart(summary)
    shown = fewer(frame, DIALS, limit)
    return shown, [*notes, *left_out(frame, shown)]


def has_capacities(summary: pd.DataFrame) -> bool:
    """Whether any line has two capacities at one block size."""
    return any(
        points["block_size"].duplicated().any()
        for points in (line.points for line in lines_of(summary))
    )


def has_hit_rate(summary: pd.DataFrame) -> bool:
    """Whether any run has a hit rate, or would have one in an infinite cache."""
    return bool(summary[["hit_rate", "infinite_hit_rate"]].notna().any(axis=None))


def has_ttft(summary: pd.DataFrame) -> bool:
    """Whether any run has a time to first token."""
    return bool(summary["ttft_ms_mean"].notna().any())


NO_TTFT = "Without time to first token: no request finished in these runs."
"""Why there is no panel of it."""


def no_hit_rate(summary: pd.DataFrame) -> str:
    """Say why there is no panel of hit rates."""
    names = ", ".join(str(name) for name in summary["workload"].unique())
    return f"Without hit rate: {names} carries no prefix information, so that it is not known."


def has_block_sizes(summary: pd.DataFrame) -> bool:
    """Whether any line has two block sizes at one capacity."""
    return _num_block_sizes(at_capacity(summary, None)[0]) > 1


def at_capacity(summary: pd.DataFrame, capacity: float | None = None) -> tuple[pd.DataFrame, float]:
    """Pick the runs with one capacity.

    Capacities count as equal within two blocks, as they are whole blocks (and vLLM keeps one of
    them), and where the cache holds the whole workload.

    Parameters
    ----------
    summary
        Runs.
    capacity
        Tokens, or infinity for caches that hold the whole workload. By default that with the most
        block sizes; of several the largest, but not one that holds the whole workload, since
        there all policies are the same.

    Returns
    -------
    tuple[pd.DataFrame, float]
        The runs, at most one capacity for each setting and block size, and the capacity.
    """
    if capacity is None:
        found = [_pick(summary, value) for value in capacities(summary)]
        sizes = [_num_block_sizes(rows) for rows in found]
        best = max(range(len(found)), key=lambda i: (sizes[i], -i))
        return found[best], capacities(summary)[best]
    return _pick(summary, capacity), capacity


def capacities(summary: pd.DataFrame) -> list[float]:
    """List the capacities, largest first; last, infinity where a cache holds the workload."""
    whole = holds_all(summary)
    finite = sorted(summary.loc[~whole, "kv_capacity_tokens"].unique(), reverse=True)
    return [*(float(value) for value in finite), *([math.inf] if whole.any() else [])]


def one_cell(summary: pd.DataFrame) -> pd.DataFrame:
    """Pick the runs of one capacity, one block size and one seed, those with the most runs."""
    rows, _ = at_capacity(summary)
    for name in ("block_size", "seed"):
        rows = rows[rows[name] == rows[name].mode().iloc[0]]
    return rows


def say_capacity(rows: pd.DataFrame, capacity: float) -> str:
    """Say the capacity that `at_capacity` picked."""
    if math.isinf(capacity) and rows["kv_capacity_tokens"].nunique() == 1:
        return f"{rows['kv_capacity_tokens'].iloc[0]:,} tokens (more than the workload fills)"
    return say_tokens(capacity)


def say_tokens(value: float) -> str:
    """Spell a number of tokens."""
    return "infinite" if math.isinf(value) else f"{value:,.0f} tokens"


def _pick(summary: pd.DataFrame, capacity: float) -> pd.DataFrame:
    tokens = summary["kv_capacity_tokens"]
    if math.isinf(capacity):
        rows, distance = summary[holds_all(summary)], -tokens
    else:
        distance = (tokens - capacity).abs()
        rows = summary[distance < 2 * summary["block_size"]]
    distance = distance[rows.index]
    keys = [rows[name] for name in (*DIALS, "block_size")]
    nearest = distance.groupby(keys, dropna=False).transform("min")
    return rows[distance == nearest]


def _num_block_sizes(rows: pd.DataFrame) -> int:
    sizes = rows.groupby(list(DIALS), dropna=False)["block_size"].nunique()
    return int(sizes.max()) if len(sizes) else 0


def _names(frame: pd.DataFrame, names: Sequence[str]) -> pd.Series[str]:
    """Name each row by those of its settings that differ between the rows."""
    parts: list[list[str]] = [[] for _ in range(len(frame))]
    for name in names:
        # Arguments of two workloads differ as a matter of course; the workload's name says it.
        # So do the overhead profiles of two policies.
        owner = {
            "workload_args": ["workload"],
            "policy_args": ["policy"],
            "overhead": ["policy", "policy_args"],
        }.get(name)
        groups = [rows for _, rows in frame.groupby(owner)] if owner else [frame]
        for rows in groups:
            if rows[name].nunique(dropna=False) < 2:
                continue
            values = [str(value) for value in rows[name]] if owner else list(rows[name])
            for position, value in zip(frame.index.get_indexer(rows.index), values, strict=True):
                said = differing(value, values) if owner else _say(name, value)
                if name == "overhead":
                    said = f"overhead {value}"
                if said:
                    parts[position].append(said)
    return pd.Series([", ".join(part) for part in parts], index=frame.index, dtype="str")


def _say(name: str, value: object) -> str:
    if name == "arrival":
        return f"{value} arrivals"
    if name in ("workload", "workload_args"):
        return str(value).replace(",", " ")
    if name == "block_size":
        return f"block size {value}"
    if name == "kv_capacity_tokens":
        return f"{value:,} tokens"
    if name == "reuse":
        return f"reuse of {value}"
    return f"{name} {say_number(value)}"
