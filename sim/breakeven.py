"""What caching gains or loses against serving without it, and from which hit rate on it pays.

Both sides carry their modelled overhead: a run of a policy is compared with one of `none` whose
overhead is that of the *same engine* with its caching off.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.columns import columns_of

FLOOR = "none"
TOLERANCE = 0.001
"""A ratio that falls short of 1 by no more than this counts as no loss."""

_NEAREST_OFF = {"vllm-0.33-v1": "vllm-0.8.5-v1-off"}
"""Where an engine was not measured with its caching off: the nearest that was."""


def _settings() -> list[str]:
    # Read from the schema, so that runs that differ in a setting added there are never compared.
    names = [column.name for column in columns_of("summary")]
    mine = ("policy", "policy_args", "overhead", "overhead_digest", "num_blocks")
    return [
        name
        for name in names[names.index("workload") : names.index("num_requests") + 1]
        if name not in mine
    ]


SETTINGS = _settings()
"""Columns that a run and its baseline share."""


def relative_throughput(summary: pd.DataFrame) -> pd.DataFrame:
    """Set the throughput of every run of a caching policy against that of its baseline.

    Parameters
    ----------
    summary
        Rows of the summary table.

    Returns
    -------
    pd.DataFrame
        The rows of the caching policies, in their order, with three columns more. ``baseline``:
        overhead profile of the run of `none` that was taken, all other settings being the same.
        It is that of the policy's engine without caching (for 0.33, which was not measured
        without, that of 0.8.5's V1), and where there is no such run, the one with the policy's
        own profile, or else the first by name; empty where there is none at all. ``ratio``:
        total throughput over that of the baseline, NaN without one. ``workload_group``: the
        dials of the workload but for its hit rate.

    Notes
    -----
    Throughput tells policies apart under full load only: below it, it is that of the arrivals.
    """
    floors = summary[summary["policy"] == FLOOR]
    runs = summary[summary["policy"] != FLOOR].copy()
    # Runs that differ in what the table does not hold, such as none.
    throughput = floors.groupby([*SETTINGS, "overhead"], dropna=False)["total_throughput"].mean()
    known: dict[tuple[object, ...], dict[str, float]] = {}
    for keys, value in throughput.items():
        *setting, overhead = keys if isinstance(keys, tuple) else (keys,)
        known.setdefault(tuple(setting), {})[str(overhead)] = float(value)
    baselines, ratios = [], []
    for row in runs.to_dict("records"):
        offers = known.get(tuple(row[name] for name in SETTINGS), {})
        baseline = _choose(str(row["overhead"]), offers)
        baselines.append(baseline)
        below = offers.get(baseline, float("nan"))
        ratios.append(row["total_throughput"] / below if below > 0 else float("nan"))
    runs["baseline"] = pd.Series(baselines, index=runs.index, dtype="str")
    runs["ratio"] = pd.Series(ratios, index=runs.index, dtype="float64")
    groups = [_without_hit_rate(text) for text in runs["workload_args"]]
    runs["workload_group"] = pd.Series(groups, index=runs.index, dtype="str")
    return runs


def break_even(relative: pd.DataFrame) -> pd.DataFrame:
    """Find the hit rate from which on caching pays.

    Parameters
    ----------
    relative
        What `relative_throughput` returns.

    Returns
    -------
    pd.DataFrame
        A row for each policy, its options and the other settings; seeds are averaged, and so are
        runs whose workloads have one hit rate, as small ones have with large blocks.

        ``break_even``: the smallest hit rate of the workload (that of an infinite cache, in
        blocks of this size) at which the throughput is no lower than without caching and stays so
        at all higher ones, interpolated linearly between the two points around it. It is the
        lowest hit rate that was run, mostly 0, where caching pays there already, as it counts
        where it loses `TOLERANCE` (0.1 %) at most; NaN where it never pays. ``lowest_hit_rate``,
        ``highest_hit_rate``: what was run. ``ratio_at_lowest``: throughput relative to the
        baseline, at the lowest.
    """
    keys = ["policy", "policy_args", "overhead", "baseline", *_GROUP]
    points = relative.dropna(subset=["ratio", "infinite_hit_rate"])
    rows = []
    for key, group in points.groupby(keys, dropna=False):
        ratio = group.groupby("infinite_hit_rate")["ratio"].mean()
        rates, ratios = ratio.index.to_numpy(dtype=float), ratio.to_numpy(dtype=float)
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "break_even": crossing(rates, ratios),
                "lowest_hit_rate": rates[0],
                "highest_hit_rate": rates[-1],
                "ratio_at_lowest": ratios[0],
            }
        )
    return pd.DataFrame(rows, columns=[*keys, *_FOUND])


_GROUP = [
    "workload",
    "workload_group",
    *(name for name in SETTINGS if name not in ("workload", "workload_args", "seed")),
]
_FOUND = ["break_even", "lowest_hit_rate", "highest_hit_rate", "ratio_at_lowest"]


def crossing(rates: np.ndarray, ratios: np.ndarray) -> float:
    """Find from which of the ascending ``rates`` on ``ratios`` stay at 1 or above.

    As `break_even` defines it: within `TOLERANCE`, interpolated linearly, NaN for never.
    """
    losing = np.flatnonzero(ratios < 1 - TOLERANCE)
    if len(losing) == 0:
        return float(rates[0])
    last = int(losing[-1])
    if last == len(rates) - 1:
        return float("nan")
    share = (1 - ratios[last]) / (ratios[last + 1] - ratios[last])
    return float(rates[last] + min(share, 1.0) * (rates[last + 1] - rates[last]))


def _choose(overhead: str, offers: dict[str, float]) -> str:
    off = "own-none" if overhead.startswith("own-") else f"{overhead}-off"
    for wanted in (_NEAREST_OFF.get(overhead, off), overhead, *sorted(offers)):
        if wanted in offers:
            return wanted
    return ""


def _without_hit_rate(args: str) -> str:
    return ",".join(part for part in args.split(",") if not part.startswith("hit_rate="))
