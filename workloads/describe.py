"""Statistics of a workload, before anything is simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from sim.mapped import Column, copy, filled, pieces
from workloads.identity_blocks import identity_blocks
from workloads.requests import arrivals_ns, num_sessions, output_tokens, prompt_tokens
from workloads.reuse import Ints, cached_tokens, shared_prefix_tokens
from workloads.structure import Sharing, popularity, sharing, tree_shape
from workloads.workload import Workload

Floats = NDArray[np.float64]
Value = str | int | float | bool | None

_OF_PROMPTS = "share of all prompt tokens that an infinite cache hits"
MEANINGS: dict[str, str] = {
    "num_requests": "requests",
    "num_skipped": "rows of the trace that were left out",
    "num_sessions": "different sessions",
    "has_prefix_info": "whether prefixes are known; if not, no hit rate is available",
    "identity_block_size": "tokens that the workload tells apart: a hash id's, or 1",
    "block_size": "of the engine, tokens",
    **{
        f"{what}_tokens_{figure}": f"{spelt} of {what}s, tokens"
        for what in ("prompt", "output")
        for figure, spelt in (
            ("total", "sum"),
            ("mean", "mean"),
            ("p50", "median"),
            ("p90", "90th percentile"),
            ("p99", "99th percentile"),
            ("max", "longest"),
        )
    },
    "duration_s": "first to last arrival, s",
    "mean_rate_per_s": "gaps between arrivals / duration",
    "arrival_gap_cv": "burstiness: standard deviation / mean of gaps, 1 for Poisson arrivals",
    "num_prompt_blocks": "full blocks of block_size tokens in prompts",
    "num_distinct_prompt_blocks": "different ones of them, each with the whole prefix before it",
    "num_identity_blocks": "blocks of identity_block_size tokens, partial last ones too",
    "num_distinct_identity_blocks": "different ones of them",
    "identity_block_hit_rate": "share of identity blocks that an earlier prompt had",
    "working_set_tokens": "distinct prompt tokens",
    "infinite_hit_rate": f"{_OF_PROMPTS}: full blocks of prompts, never the last token",
    "infinite_hit_rate_with_outputs": "the same, blocks of earlier answers too",
    "infinite_hit_rate_whole_prompt": "the same, the last token too",
    "infinite_hit_rate_partial": "the same in identity blocks, partial last ones too (Mooncake)",
    "infinite_block_hit_rate": "share of the full blocks of prompts that an earlier prompt had",
    "mean_request_hit_rate": "mean over requests of each one's infinite_hit_rate",
    "infinite_hit_rate_last_half": "infinite_hit_rate over the last half of the requests",
    "infinite_hit_rate_partial_last_half": "infinite_hit_rate_partial over the last half",
    "hit_share_repeats": "share of the shared tokens: whole prompts that an earlier one began with",
    "hit_share_between_sessions": "the same: what other sessions had too, such as system prompts",
    "hit_share_earlier_turns": "the same: what only earlier turns of the session had",
    "reuse_gap_s_p50": "time since the shared prefix was last in a request, median, s",
    "reuse_gap_s_p90": "the same, 90th percentile",
    "reuse_gap_blocks_p50": "blocks of prompts that came in between, distinct or not, median",
    "reuse_gap_blocks_p90": "the same, 90th percentile",
    "num_branching_points": "prefixes that go on in more than one way",
    "fan_out_mean": "ways on from such a prefix, mean",
    "fan_out_max": "the same, most",
    "tree_depth_mean": "branching points in a prompt, mean",
    "tree_depth_max": "the same, most",
    "num_first_blocks": "different first blocks of block_size tokens",
    "top_first_block_share": "share of requests that begin with the most popular one",
    "top_10_first_blocks_share": "the same for the ten most popular",
}
"""The one list of figures: name and meaning."""


def doubt_about_block_size(workload: Workload, block_size: int) -> str | None:
    """Say why a workload cannot answer for a block size, if it cannot."""
    own = workload.identity_block_size
    if not workload.has_prefix_info or block_size % own == 0:
        return None
    if block_size < own:
        return (
            f"{workload.name} tells prefixes apart in blocks of {own} tokens: sharing below that"
            f" does not show, so hit rates at block size {block_size} are lower bounds; use a trace"
            " with finer ids to compare small block sizes."
        )
    return (
        f"block size {block_size} is no multiple of the {own}-token blocks of {workload.name}: a"
        " block that ends inside one counts as shared only if that one is."
    )


def describe(workload: Workload, block_size: int) -> dict[str, Value]:
    """Count what a workload holds and what an infinite cache would hit.

    Requests are taken one after the other in order of arrival. "Last half" leaves the first
    ``n // 2`` requests out of the shares, but not out of the cache.

    Parameters
    ----------
    workload
        With at least one request.
    block_size
        The engine's, in tokens; any.

    Returns
    -------
    A figure by each name of ``MEANINGS``, and ``name``; flat and ready for JSON; None where there
    is no such figure, as with every figure on sharing for a workload without prefix information.
    """
    requests = workload.requests
    prompts, outputs = prompt_tokens(requests), output_tokens(requests)
    return {
        "name": workload.name,
        "num_requests": len(requests),
        "num_skipped": workload.num_skipped,
        "num_sessions": num_sessions(requests),
        "has_prefix_info": workload.has_prefix_info,
        "identity_block_size": workload.identity_block_size,
        "block_size": block_size,
        **_lengths("prompt_tokens", prompts),
        **_lengths("output_tokens", outputs),
        **_arrivals(arrivals_ns(requests)),
        "num_prompt_blocks": _total(len(prompts), lambda part: prompts[part] // block_size),
        **_sharing(workload, prompts, block_size),
    }


def _lengths(name: str, lengths: Ints) -> dict[str, Value]:
    ordered = copy(lengths)  # and no other copy, so that a large one lies in a file
    p50, p90, p99 = np.percentile(ordered, [50, 90, 99], overwrite_input=True).tolist()
    return {
        f"{name}_total": int(lengths.sum()),
        f"{name}_mean": float(lengths.mean()),
        f"{name}_p50": p50,
        f"{name}_p90": p90,
        f"{name}_p99": p99,
        f"{name}_max": int(lengths.max()),
    }


def _arrivals(times_ns: Ints) -> dict[str, Value]:
    gaps = filled(len(times_ns) - 1, lambda part: np.diff(times_ns[part.start : part.stop + 1]))
    duration_s = int(times_ns[-1] - times_ns[0]) / 1e9
    timed = duration_s > 0
    return {
        "duration_s": duration_s,
        "mean_rate_per_s": len(gaps) / duration_s if timed else None,
        "arrival_gap_cv": _deviation(gaps) / float(gaps.mean()) if timed else None,
    }


def _deviation(values: Ints) -> float:
    """Compute the standard deviation, as numpy has it, over a large file."""
    mean = values.mean()
    squares = filled(len(values), lambda part: values[part] - mean, np.float64)
    squares *= squares
    return math.sqrt(squares.mean())


def _sharing(workload: Workload, prompts: Ints, block_size: int) -> Mapping[str, Value]:
    if not workload.has_prefix_info:
        return dict.fromkeys(_SHARING)
    shared = shared_prefix_tokens(workload.requests)
    by_ids = identity_blocks(workload.requests, workload.identity_block_size, shared)
    count = len(prompts)
    num_tokens = int(prompts.sum())
    num_blocks = _total(count, lambda part: prompts[part] // block_size)
    num_shared_blocks = _total(count, lambda part: shared[part] // block_size)
    engine = filled(count, lambda part: cached_tokens(prompts[part], shared[part], block_size))
    rates = filled(count, lambda part: engine[part] / prompts[part], np.float64)
    found = sharing(workload.requests)
    num_with_outputs = _total(
        count, lambda part: cached_tokens(prompts[part], found.shared[part], block_size)
    )
    num_identity_blocks = int(by_ids.num_blocks.sum())
    partial = by_ids.num_hit_tokens
    half = count // 2
    return {
        "num_distinct_prompt_blocks": num_blocks - num_shared_blocks,
        "num_identity_blocks": num_identity_blocks,
        "num_distinct_identity_blocks": num_identity_blocks - int(by_ids.num_hit_blocks.sum()),
        "identity_block_hit_rate": _share(by_ids.num_hit_blocks, by_ids.num_blocks),
        "working_set_tokens": num_tokens - int(shared.sum()),
        "infinite_hit_rate": _share(engine, prompts),
        "infinite_hit_rate_with_outputs": num_with_outputs / num_tokens,
        "infinite_hit_rate_whole_prompt": num_shared_blocks * block_size / num_tokens,
        "infinite_hit_rate_partial": _share(partial, prompts),
        "infinite_block_hit_rate": num_shared_blocks / num_blocks if num_blocks else None,
        "mean_request_hit_rate": float(rates.mean()),
        "infinite_hit_rate_last_half": _share(engine[half:], prompts[half:]),
        "infinite_hit_rate_partial_last_half": _share(partial[half:], prompts[half:]),
        **_sources(found),
        **_gaps(found, block_size),
        **_tree(workload, block_size),
    }


_SHARING = tuple(MEANINGS)[tuple(MEANINGS).index("num_distinct_prompt_blocks") :]


def _sources(found: Sharing) -> dict[str, Value]:
    total = int(found.shared.sum())
    repeats = int(found.shared.sum(where=found.is_repeat))
    common = int(found.common.sum()) - int(found.common.sum(where=found.is_repeat))
    parts = (repeats, common, total - repeats - common)
    names = ("hit_share_repeats", "hit_share_between_sessions", "hit_share_earlier_turns")
    return {name: part / total if total else None for name, part in zip(names, parts, strict=True)}


def _gaps(found: Sharing, block_size: int) -> dict[str, Value]:
    figures: dict[str, Value] = {}
    for name, gaps in (
        ("reuse_gap_s", reuse_gaps(found.gap_ns, 1e9)),
        ("reuse_gap_blocks", reuse_gaps(found.gap_tokens, block_size)),
    ):
        for percentile in (50, 90):
            value = np.percentile(gaps, percentile, overwrite_input=True) if len(gaps) else None
            figures[f"{name}_p{percentile}"] = None if value is None else float(value)
    return figures


def reuse_gaps(gaps: Ints, unit: float) -> Floats:
    """Give the gaps of `Sharing` that there are, in a unit of their own."""
    found = Column(dtype=np.float64)
    for part in pieces(len(gaps)):
        found.extend(gaps[part][gaps[part] >= 0] / unit)
    return found.array


def _tree(workload: Workload, block_size: int) -> dict[str, Value]:
    shape = tree_shape(workload.requests)
    firsts = popularity(workload.requests, block_size)
    count = len(workload.requests)
    branches = len(shape.fan_out) > 0
    return {
        "num_branching_points": len(shape.fan_out),
        "fan_out_mean": float(shape.fan_out.mean()) if branches else None,
        "fan_out_max": int(shape.fan_out.max()) if branches else None,
        "tree_depth_mean": float(shape.depth.mean()),
        "tree_depth_max": int(shape.depth.max()),
        "num_first_blocks": len(firsts),
        "top_first_block_share": int(firsts[:1].sum()) / count,
        "top_10_first_blocks_share": int(firsts[:10].sum()) / count,
    }


def _share(part: Ints, whole: Ints) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None


def _total(count: int, make: Callable[[slice], Ints]) -> int:
    """Sum what is made of so many numbers, a piece at a time."""
    return sum(int(make(part).sum()) for part in pieces(count))
