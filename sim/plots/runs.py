"""Which runs a picture shows: files told apart, runs picked, what is left out. No Matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from sim.columns import columns_of
from sim.errors import UsageError

FLOOR = "none"
"""The policy that caches nothing."""

SWEPT = ("block_size", "kv_capacity_tokens", "seed")

DIGESTS = {
    "workload": "workload_digest",
    "policy": "policy_digest",
    "cost": "cost_digest",
    "overhead": "overhead_digest",
}
"""Columns that name a file, and those that tell files of one name apart."""


def _dials() -> tuple[str, ...]:
    # Read from the schema, so that a setting added there is never drawn as a zigzag here.
    names = [column.name for column in columns_of("summary")]
    dials = names[names.index("workload") : names.index("num_requests") + 1]
    others = {"policy", "num_blocks", *SWEPT, *DIGESTS.values()}
    return ("policy", *(name for name in dials if name not in others))


DIALS = _dials()
"""Columns that tell lines apart: every setting but block size, capacity and seed.

Digests are not among them: `told_apart` writes them into the names of the files.
"""


def told_apart(summary: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Name files apart, and leave out runs that no setting of the table tells apart.

    Parameters
    ----------
    summary
        Rows of the summary table.

    Returns
    -------
    tuple[pd.DataFrame, list[str]]
        The rows, with the start of its digest added to the name of a file where two files have
        the name; and a sentence where runs of equal settings and seed had different results, of
        which none is kept: which of them belong together is not known. Twice the same result is
        kept once, without a word.

    Raises
    ------
    UsageError
        No run is left.
    """
    frame = summary.copy()
    for name, digest in DIGESTS.items():
        if digest not in frame:
            continue
        digests = frame[digest].fillna("").astype("str")
        clash = digests.groupby(frame[name]).transform("nunique") > 1
        marked = frame[name].astype("str") + " (" + digests.str[:6] + ")"
        frame[name] = frame[name].where(~clash | (digests == ""), marked)
        frame[digest] = ""
    results = [name for name in frame.columns if name not in ("run_id", *DIGESTS.values())]
    first = frame.sort_values("run_id").drop_duplicates(results).index
    frame = frame.loc[frame.index.isin(first)]
    unknown = frame.duplicated([*DIALS, *SWEPT], keep=False)
    if not unknown.any():
        return frame, []
    names = sorted(str(run_id) for run_id in frame.loc[unknown, "run_id"])
    said = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    what = (
        f"{len(names)} runs ({said}) that are equal in every setting but not in result, as of "
        "another release of prefixsim or of files that have changed: delete what is outdated"
    )
    if unknown.all():
        raise UsageError(f"there is nothing to draw but {what}, and run the same sweep again.")
    return frame[~unknown], [f"Not shown: {what}."]


def holds_all(summary: pd.DataFrame) -> pd.Series[bool]:
    """Tell where the cache is as large as the whole workload."""
    return (summary["num_rejected"] == 0) & (
        summary["kv_capacity_tokens"] >= summary["num_prompt_tokens"] + summary["num_output_tokens"]
    )


def axis_values(summary: pd.DataFrame, name: str) -> pd.Series[float]:
    """Read the values of a numeric setting: a column, the rate of arrivals, a dial or an option.

    NaN where a run has no such setting or one that is no number.
    """
    if name in (*DIALS, *SWEPT) and _is_number(summary[name]):
        return summary[name].astype("float64")
    found = [
        _number(_process(arrival).get(name, _pairs(f"{workload},{policy}").get(name, "")))
        for arrival, workload, policy in zip(
            summary["arrival"], summary["workload_args"], summary["policy_args"], strict=True
        )
    ]
    return pd.Series(found, index=summary.index, dtype="float64")


def without_axis(summary: pd.DataFrame, name: str) -> pd.DataFrame:
    """Let a numeric setting, which makes the points of a line, not tell lines apart."""
    frame = summary.copy()
    if name in (*DIALS, *SWEPT):
        frame[name] = 0
    for column in ("workload_args", "policy_args"):
        frame[column] = [
            ",".join(part for part in text.split(",") if part.partition("=")[0] != name)
            for text in frame[column]
        ]
    pattern = {"rate": r" [^ ,]+/s", "burstiness": r" burstiness=[^ ,]+"}.get(name)
    if pattern:
        frame["arrival"] = [re.sub(pattern, "", text) for text in frame["arrival"]]
    return frame


def axes_of(summary: pd.DataFrame) -> list[str]:
    """List the numeric settings of which a line has two values, all else being equal."""
    columns = [name for name in (*DIALS, "block_size") if _is_number(summary[name])]
    texts = ",".join({*summary["workload_args"], *summary["policy_args"]})
    candidates = ["rate", "burstiness", *columns, *sorted(_pairs(texts))]
    return [name for name in dict.fromkeys(candidates) if num_points(summary, name) > 1]


def num_points(summary: pd.DataFrame, name: str) -> int:
    """Count the values that a line has at most of a numeric setting, all else being equal."""
    if not len(summary):
        return 0
    values = axis_values(summary, name)
    frame = without_axis(summary, name)
    # Infinite caches differ in size with the workload, and are one for all that.
    frame["kv_capacity_tokens"] = frame["kv_capacity_tokens"].where(~holds_all(summary), -1)
    keys = [frame[column] for column in (*DIALS, "block_size", "kv_capacity_tokens")]
    return int(values.groupby(keys, dropna=False).nunique().max())


def where(summary: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Keep the runs that meet ``NAME=VALUE``: a column, the rate of arrivals, a dial or an option.

    Raises
    ------
    UsageError
        No ``=``, a name that no run has, or a value that no run has.
    """
    name, separator, value = (part.strip() for part in condition.partition("="))
    name = name.replace("-", "_")
    if not separator or not name or not value:
        raise UsageError(f"--where {condition!r} must be NAME=VALUE, such as block_size=16.")
    name = {"kv_capacity": "kv_capacity_tokens"}.get(name, name)
    known = [*DIALS, *SWEPT]
    if name in known and not _is_number(summary[name]):
        offers: pd.Series[Any] = summary[name].astype("str")
        rows = summary[offers == value]
    elif name == "kv_capacity_tokens" and value == "infinite":
        offers = summary[name].astype("float64")
        rows = summary[holds_all(summary)]
    else:
        offers = axis_values(summary, name)
        rows = summary[(offers - _number(value.replace(",", ""))).abs() <= 1e-9 * offers.abs()]
    if offers.dropna().empty:
        texts = ",".join({*summary["workload_args"], *summary["policy_args"]})
        raise UsageError(
            f"--where {condition}: these runs have no setting {name!r}; theirs are "
            f"{', '.join([*known, 'rate', *sorted(_pairs(texts))])}."
        )
    if rows.empty:
        raise UsageError(
            f"--where {condition}: no run has it; choose one of {list_values(offers)}."
        )
    return rows


def left_out(summary: pd.DataFrame, shown: pd.DataFrame) -> list[str]:
    """Say which values of which settings a picture does not show; nothing where it shows all."""
    rest, parts = summary, []
    for name in ("workload", "cost", "kv_capacity_tokens", "block_size", *DIALS, "seed"):
        mine = shown[name].unique()
        is_shown = rest[name].isin(mine)
        if name == "kv_capacity_tokens":
            # Equal within two blocks, as in `at_capacity`, or infinite as those that are shown.
            room = 2 * rest["block_size"]
            near = [bool((abs(mine - v) < r).any()) for v, r in zip(rest[name], room, strict=True)]
            is_shown = is_shown | pd.Series(near, index=rest.index, dtype="bool")
            if len(shown) and holds_all(shown).all():
                is_shown = is_shown | holds_all(rest)
        missing = rest.loc[~is_shown, name]
        if len(missing):
            if name == "kv_capacity_tokens":
                missing = _whole_blocks(missing, int(rest["block_size"].max()))
            if name in ("workload_args", "policy_args"):
                texts = list(rest[name])
                missing = pd.Series([differing(text, texts) for text in missing], dtype="str")
            what = {"kv_capacity_tokens": "KV capacity", "block_size": "block size"}.get(name, name)
            parts.append(f"{what} {list_values(missing)}")
            rest = rest[is_shown]
    return [f"Not shown: {'; '.join(parts)}."] if parts else []


def _whole_blocks(capacities: pd.Series[int], block_size: int) -> pd.Series[int]:
    """Keep the largest of capacities that differ by whole blocks alone."""
    kept: list[int] = []
    for value in sorted(capacities.unique(), reverse=True):
        if not kept or kept[-1] - value >= 2 * block_size:
            kept.append(int(value))
    return pd.Series(kept, dtype="int64")


def differing(value: str, values: Sequence[str]) -> str:
    """Leave out the ``key=value`` that all have."""
    common = set.intersection(*(set(text.split(",")) for text in values))
    return " ".join(part for part in value.split(",") if part not in common)


def list_values(values: pd.Series[Any]) -> str:
    """List the different values, the first of many."""
    found = sorted(values.dropna().unique())
    texts = [f"{v:,}" if isinstance(v, int | np.integer) else say_number(v) for v in found[:6]]
    if len(found) > 6:
        texts.append(f"and {len(found) - 6} more")
    return ", ".join(texts)


def say_number(value: object) -> str:
    """Spell a number as briefly as tells it from any other; anything else as text."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return str(value)
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _is_number(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _pairs(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _process(arrival: str) -> dict[str, str]:
    """Take an arrival process apart, such as ``gamma 4/s burstiness=0.5, closed loop``."""
    rate = re.match(r"\w+ ([^ ,]+)/s", arrival)
    burstiness = re.search(r"burstiness=([^ ,]+)", arrival)
    found = {"rate": rate, "burstiness": burstiness}
    return {name: match[1] for name, match in found.items() if match}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def fewer(summary: pd.DataFrame, keys: Sequence[str], limit: int) -> pd.DataFrame:
    """Keep one value of a setting after the other until ``keys`` tell no more than ``limit`` lines.

    The setting with the most values goes first, and keeps the value with the most runs, of
    several the first. Policies and what goes with them (options, overhead) are all kept.
    """
    rows = summary
    while len(rows.drop_duplicates(list(keys))) > limit:
        counts = {
            name: rows[name].nunique()
            for name in keys
            if name not in ("policy", "policy_args", "overhead")
        }
        name = max(counts, key=lambda each: counts[each], default="")
        if not name or counts[name] < 2:
            break
        rows = rows[rows[name] == rows[name].mode().iloc[0]]
    return rows
