"""All policies on one workload: hit rate, share of the way to the bound, and what is noise.

Composes the points of a comparison, bounds, bootstrap, table and picture, for the command line and
for Python alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import policies
from sim import demand, doubts, inputs
from sim.comparison_points import Asked, Point, read
from sim.comparison_units import Units, units_of
from sim.comparison_verdict import REFERENCE, Rates, verdict
from sim.config import RunConfig
from sim.curve import find_paths, most_hits, references_of
from sim.errors import UsageError
from sim.noise import differences
from sim.results import make_frame
from sim.types import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BELADY, INFINITE = "belady", "infinite"
NOT_MEASURED = "not measured"
_LEAST_WAY = 0.001
"""Where the bound is nearer to the reference than this, a share of the way says nothing."""


@dataclass(frozen=True)
class Comparison:
    """Policies on one workload.

    Attributes
    ----------
    asked
        What was compared.
    table
        The table ``compare`` of `sim.columns.COLUMNS`: a row per capacity and policy, the best
        first.
    verdicts
        A sentence per capacity: which is best and whether that is more than noise.
    method
        What the bound is and how noise was told, in sentences.
    warnings
        What is doubtful.
    """

    asked: Asked
    table: pd.DataFrame
    verdicts: tuple[str, ...]
    method: tuple[str, ...]
    warnings: tuple[str, ...]

    def plot(self) -> Figure:
        """Draw the difference of each policy to the reference, a panel per capacity."""
        from sim.plots.compare import draw_comparison  # noqa: PLC0415 - matplotlib is slow

        return draw_comparison(self.table, method=self.method)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "reference": self.asked.reference,
            "verdicts": list(self.verdicts),
            "method": list(self.method),
            "rows": self.table.to_dict("records"),
        }

    def _repr_html_(self) -> str:
        """Show verdicts and table."""
        said = "".join(f"<p>{sentence}</p>" for sentence in (*self.verdicts, *self.method))
        html: str = self.table.to_html(index=False, float_format="{:,.4g}".format)
        return said + html


def compare(
    asked: Asked,
    folder: Path,
    *,
    failed: Sequence[str] = (),
) -> Comparison:
    """Lay out what the points in ``folder`` say.

    Parameters
    ----------
    asked
        What is compared; all its points but those of failed policies are in the folder.
    failed
        Policies to leave out.

    Raises
    ------
    UsageError
        The reference failed, nothing is left to compare, or the workload tells no prefixes.
    """
    labels = [label for label in asked.labels if label not in failed]
    if asked.reference not in labels or len(labels) < 2:
        raise UsageError(
            f"nothing is left to compare: of {', '.join(asked.labels)} these failed: "
            f"{', '.join(failed)}; choose another --reference or --policy."
        )
    workload = demand.load_workload(asked.first)
    if not workload.has_prefix_info:
        raise UsageError(
            f"{workload.name} says nothing about shared prefixes, so there is nothing to compare; "
            "give a trace with hash_ids, or a generator."
        )
    requests = demand.prepare_requests(asked.first, workload)
    points = read(asked, folder, labels)
    units = units_of(asked, points, labels, requests)
    reference = labels.index(asked.reference)
    rates = _rates(asked, points, labels, units, reference)
    bounds = _bounds(asked, points, labels)
    rows: list[dict[str, Any]] = []
    verdicts = []
    for index, capacity in enumerate(asked.capacities):
        bound = bounds[index]
        num_blocks = inputs.num_blocks_of(
            asked.configs[capacity, asked.reference, asked.seeds[0]], workload
        )
        found = [
            _row(asked, [points[capacity, label, seed] for seed in asked.seeds], label)
            | {
                "workload": workload.name,
                "capacity": capacity,
                "num_blocks": num_blocks,
                "kv_capacity_tokens": num_blocks * asked.first.block_size,
                **rates[index].columns(column),
                "bound": BELADY if asked.one_at_a_time else INFINITE,
                "bound_hit_rate": bound,
                "share_of_way": _share(rates[index], column, bound),
            }
            for column, label in enumerate(labels)
        ]
        rows += sorted(found, key=lambda row: -row["hit_rate"])
        size = f"{num_blocks:,} blocks"
        title = size if capacity == f"{num_blocks}blocks" else f"{capacity} ({size})"
        verdicts.append(verdict(rates[index], title, bound, _LEAST_WAY) + _quickest(found))
    return Comparison(
        asked,
        make_frame("compare", rows),
        tuple(verdicts),
        _method(asked, units),
        _warnings(asked, points, labels, units=units, rates=rates, bounds=bounds),
    )


def _quickest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say which policy has the lowest mean TTFT, where that is known; it has no interval."""
    known = [row for row in rows if not math.isnan(row["ttft_ms_mean"])]
    if not known:
        return ""
    best = min(known, key=lambda row: float(row["ttft_ms_mean"]))
    name = " ".join([best["policy"], *filter(None, best["policy_args"].split(","))])
    said = f" Lowest mean TTFT: {name}, {best['ttft_ms_mean']:,.4g} ms"
    if best["verdict"] == REFERENCE:
        return f"{said}."
    (base,) = (row["ttft_ms_mean"] for row in rows if row["verdict"] == REFERENCE)
    return f"{said}, against {base:,.4g} ms of {best['reference']}."


def _rates(
    asked: Asked,
    points: Mapping[tuple[str, str, int], Point],
    labels: Sequence[str],
    units: Units,
    reference: int,
) -> list[Rates]:
    """Compare every policy with the reference, and every two policies, at each capacity."""
    count = len(labels)
    against = np.array([(i, reference) for i in range(count) if i != reference], dtype=np.int64)
    every = np.array([(i, j) for i in range(count) for j in range(i)], dtype=np.int64)
    to_reference = differences(units.cached, units.prompts, against)
    pairwise = differences(units.cached, units.prompts, every)
    found = []
    for row, capacity in enumerate(asked.capacities):
        others = np.delete(np.arange(count), reference)
        value, low, high = np.zeros(count), np.zeros(count), np.zeros(count)
        value[others] = to_reference.value[row]
        low[others] = to_reference.low[row]
        high[others] = to_reference.high[row]
        apart = np.zeros((count, count), dtype=bool)
        for pair, (i, j) in enumerate(every.tolist()):
            is_apart = pairwise.low[row, pair] > 0 or pairwise.high[row, pair] < 0
            apart[i, j] = apart[j, i] = is_apart
        hit_rate = np.array(
            [_pooled([points[capacity, label, seed] for seed in asked.seeds]) for label in labels]
        )
        found.append(Rates(tuple(labels), reference, hit_rate, value, low, high, apart))
    return found


def _pooled(points: Sequence[Point]) -> float:
    cached = sum(int(point.tokens["num_cached_tokens"].sum()) for point in points)
    prompts = sum(int(point.tokens["num_prompt_tokens"].sum()) for point in points)
    return cached / prompts if prompts else float("nan")


def _row(asked: Asked, points: Sequence[Point], label: str) -> dict[str, Any]:
    """Fill what is known of a policy at a capacity but its hit rates."""
    config = asked.configs[asked.capacities[0], label, asked.seeds[0]]
    row: dict[str, Any] = {
        "policy": config.policy,
        "policy_args": ",".join(f"{key}={value}" for key, value in config.policy_args),
        "block_size": config.block_size,
        "num_seeds": len(asked.seeds),
        "num_refused": sum(point.num_refused for point in points),
        "ttft_ms_mean": float("nan"),
        "ttft_ms_p50": float("nan"),
        "overhead_ms": float("nan"),
        "overhead": "",
    }
    if asked.hits_only:
        return row
    summaries = pd.DataFrame([point.summary for point in points])
    row["ttft_ms_mean"] = float(summaries["ttft_ms_mean"].mean())
    row["ttft_ms_p50"] = float(summaries["ttft_ms_p50"].mean())
    profile = str(summaries["overhead"].iloc[0])
    if _is_measured(config, profile):
        finished = max(1, int(summaries["num_finished"].sum()))
        row["overhead"] = profile
        row["overhead_ms"] = 1e3 * float(summaries["overhead_s"].sum()) / finished
    else:
        row["overhead"] = NOT_MEASURED
    return row


def _is_measured(config: RunConfig, profile: str) -> bool:
    """Whether the profile was measured of this very policy, or chosen by whoever asks.

    Orders behind V1's allocator are priced as V1's own, which was not measured of them.
    """
    if config.overhead not in ("vllm", "own"):
        return True
    policy = policies.load(config.policy)
    return profile != "none" and "overhead_profiles" in vars(policy)


def _bounds(
    asked: Asked, points: Mapping[tuple[str, str, int], Point], labels: Sequence[str]
) -> list[float]:
    """Give the bound at each capacity, pooled over seeds."""
    if asked.one_at_a_time:
        hits = np.zeros(len(asked.capacities))
        prompts = np.zeros(len(asked.capacities))
        for seed in asked.seeds:
            more_hits, more_prompts = _belady(asked, seed)
            hits += more_hits
            prompts += more_prompts
        return (hits / np.where(prompts > 0, prompts, np.nan)).tolist()  # type: ignore[no-any-return]
    return [_infinite(asked, points, labels, capacity) for capacity in asked.capacities]


def _belady(asked: Asked, seed: int) -> tuple[Any, Any]:
    configs = [asked.configs[capacity, asked.reference, seed] for capacity in asked.capacities]
    workload = demand.load_workload(configs[0])
    requests: Sequence[Request] = demand.prepare_requests(configs[0], workload)
    block_size = configs[0].block_size
    paths = find_paths(references_of(requests, block_size, outputs=configs[0].reuse == "all"))
    sizes = np.array([inputs.num_blocks_of(c, workload) for c in configs], dtype=np.int64)
    held, prompts = paths.sizes.num_held_blocks, paths.sizes.num_prompt_tokens
    served = np.array([int(prompts[held <= size].sum()) for size in sizes.tolist()])
    return most_hits(paths, sizes) * block_size, served


def _infinite(
    asked: Asked,
    points: Mapping[tuple[str, str, int], Point],
    labels: Sequence[str],
    capacity: str,
) -> float:
    """Give what a cache that never evicts hits, by the rules of whichever policy hits most."""
    found = []
    for label in labels:
        summaries = [points[capacity, label, seed].summary for seed in asked.seeds]
        weights = [summary["num_prompt_tokens"] for summary in summaries]
        if sum(weights):
            rates = [summary["infinite_hit_rate"] for summary in summaries]
            found.append(float(np.average(rates, weights=weights)))
    return max(found, default=float("nan"))


def _share(rates: Rates, column: int, bound: float) -> float:
    way = bound - rates.hit_rate[rates.reference]
    if not way >= _LEAST_WAY:
        return float("nan")
    return float((rates.hit_rate[column] - rates.hit_rate[rates.reference]) / way)


def _method(asked: Asked, units: Units) -> tuple[str, ...]:
    bound = (
        "Bound: Belady's, the best choice of victims for requests served one at a time."
        if asked.one_at_a_time
        else "Bound: a cache that never evicts; Belady's is none where requests run together."
    )
    if units.cached.shape[2] < 2:
        return bound, f"{units.how} are too few to tell a difference from noise."
    return (
        bound,
        f"Intervals: 95 % for all differences at once, paired bootstrap over {units.how}.",
    )


def _warnings(
    asked: Asked,
    points: Mapping[tuple[str, str, int], Point],
    labels: Sequence[str],
    *,
    units: Units,
    rates: Sequence[Rates],
    bounds: Sequence[float],
) -> tuple[str, ...]:
    workload = demand.load_workload(asked.first)
    said = [*workload.warnings]
    said += doubts.doubts_about_sharing(workload, asked.first.block_size)
    for capacity in asked.capacities:
        refused = {label: points[capacity, label, asked.seeds[0]].num_refused for label in labels}
        if max(refused.values()):
            said.append(
                f"at {capacity}, {max(refused.values())} requests can never fit and count in no "
                "rate; rates do not compare with those of larger capacities."
            )
    if units.num_left_out:
        said.append(
            f"{units.num_left_out} requests fit with some policies only; differences leave them "
            "out, hit rates do not."
        )
    for capacity, rate, bound in zip(asked.capacities, rates, bounds, strict=True):
        above = [rate.labels[i] for i in np.flatnonzero(rate.hit_rate > bound + 1e-12)]
        if above:
            said.append(
                f"at {capacity}, {', '.join(above)} hit more than the bound, which does not hold "
                "for policies that count hits that are not there."
            )
    return tuple(dict.fromkeys(said))
