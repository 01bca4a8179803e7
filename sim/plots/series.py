"""What is drawn as one line: grouping, averaging and naming of runs. No Matplotlib here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sim.columns import columns_of

FLOOR = "none"
"""The policy that caches nothing."""

_SWEPT = ("block_size", "kv_capacity_tokens", "seed")
_POINT = ("block_size", "kv_capacity_tokens")
_METRICS = ["hit_rate", "infinite_hit_rate", "ttft_ms_mean", "ttft_ms_p90"]


def _dials() -> tuple[str, ...]:
    # Read from the schema, so that a setting added there is never drawn as a zigzag here.
    names = [column.name for column in columns_of("summary")]
    dials = names[names.index("workload") : names.index("num_requests") + 1]
    dials = ["policy", *(name for name in dials if name not in ("policy", "num_blocks", *_SWEPT))]
    return tuple(dials)


DIALS = _dials()
"""Columns that tell lines apart: every setting but block size, capacity and seed."""


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
    frame = summary.sort_values([*DIALS, *_SWEPT], ignore_index=True)
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
    variants = _names(summary, [*DIALS[1:], *_SWEPT])
    rows = zip(summary["run_id"], summary["policy"], variants, strict=True)
    return {str(run): f"{policy}, {v}" if v else str(policy) for run, policy, v in rows}


def setting(summary: pd.DataFrame, capacity: str = "") -> str:
    """Say what the runs have in common, and over how many seeds a point is averaged.

    Parameters
    ----------
    summary
        Runs.
    capacity
        What to say of the KV capacity; by default the number where all runs have the same.
    """
    parts = []
    for name in ("workload", "block_size"):
        values = summary[name].unique()
        if len(values) == 1:
            parts.append(_say(name, values[0]))
    if not capacity and summary["kv_capacity_tokens"].nunique() == 1:
        capacity = say_tokens(summary["kv_capacity_tokens"].iloc[0])
    if capacity:
        parts.append(f"KV capacity {capacity}")
    # Last, as they may be many.
    args = summary["workload_args"].unique()
    said = _say("workload_args", args[0]) if len(args) == 1 else ""
    return ", ".join(part for part in (*parts, averaging(summary), said) if part)


def averaging(summary: pd.DataFrame) -> str:
    """Say over how many seeds a point is averaged; empty where it is not."""
    points = summary.groupby([*DIALS, "block_size", "kv_capacity_tokens"], dropna=False)["seed"]
    seeds, runs = points.nunique(), points.size()
    if runs.max() == 1:
        return ""
    # The tables do not hold every setting; runs that differ in such a one are averaged as well.
    count, noun = (seeds, "seeds") if (seeds == runs).all() else (runs, "runs")
    low, high = int(count.min()), int(count.max())
    return f"mean of {high} {noun}" if low == high else f"mean of {low} to {high} {noun}"


def has_capacities(summary: pd.DataFrame) -> bool:
    """Whether any line has two capacities at one block size."""
    return any(
        points["block_size"].duplicated().any()
        for points in (line.points for line in lines_of(summary))
    )


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
    whole = _holds_all(summary)
    finite = sorted(summary.loc[~whole, "kv_capacity_tokens"].unique(), reverse=True)
    return [*(float(value) for value in finite), *([math.inf] if whole.any() else [])]


def one_cell(summary: pd.DataFrame) -> pd.DataFrame:
    """Pick the runs of one capacity, one block size and one seed, those with the most runs."""
    rows, _ = at_capacity(summary)
    for name in ("block_size", "seed"):
        rows = rows[rows[name] == rows[name].mode().iloc[0]]
    return rows


def say_tokens(value: float) -> str:
    """Spell a number of tokens."""
    return "infinite" if math.isinf(value) else f"{value:,.0f} tokens"


def _holds_all(summary: pd.DataFrame) -> pd.Series[bool]:
    return (summary["num_rejected"] == 0) & (
        summary["kv_capacity_tokens"] >= summary["num_prompt_tokens"] + summary["num_output_tokens"]
    )


def _pick(summary: pd.DataFrame, capacity: float) -> pd.DataFrame:
    tokens = summary["kv_capacity_tokens"]
    if math.isinf(capacity):
        rows, distance = summary[_holds_all(summary)], -tokens
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
                said = _differing(value, values) if owner else _say(name, value)
                if said:
                    parts[position].append(said)
    return pd.Series([", ".join(part) for part in parts], index=frame.index, dtype="str")


def _differing(value: str, values: list[str]) -> str:
    """Leave out the ``key=value`` that all have."""
    common = set.intersection(*(set(text.split(",")) for text in values))
    return " ".join(part for part in value.split(",") if part not in common)


def _say(name: str, value: object) -> str:
    if name in ("workload", "workload_args"):
        return str(value).replace(",", " ")
    if name == "block_size":
        return f"block size {value}"
    if name == "kv_capacity_tokens":
        return f"{value:,} tokens"
    if name == "reuse":
        return f"reuse of {value}"
    return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"
