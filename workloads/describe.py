"""Statistics of a workload, before anything is simulated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workloads.reuse import Ints, cached_tokens, shared_prefix_tokens
from workloads.workload import Workload

Value = str | int | float | bool | None


def describe(workload: Workload, block_size: int) -> dict[str, Value]:
    """Count what a workload holds and what an infinite cache would hit.

    Hit rates take requests one after the other in order of arrival and are shares of all prompt
    tokens unless their name says otherwise. "Last half" leaves the first ``n // 2`` requests out
    of the shares, but not out of the cache.

    Parameters
    ----------
    workload
        With at least one request.
    block_size
        The engine's, in tokens; any.

    Returns
    -------
    Flat and ready for JSON; None where there is no such figure, as with every figure on sharing
    for a workload without prefix information.

    ``prompt_tokens_*``, ``output_tokens_*``
        Sum, mean, percentiles (linear) and maximum over requests.
    ``duration_s``, ``mean_rate_per_s``, ``arrival_gap_cv``
        From the first to the last arrival; gaps over duration; burstiness as the coefficient of
        variation of gaps, 1 for Poisson arrivals.
    ``num_prompt_blocks``, ``num_distinct_prompt_blocks``
        Full blocks of ``block_size`` tokens in prompts.
    ``num_identity_blocks``, ``num_distinct_identity_blocks``, ``block_hit_rate``
        Blocks of ``identity_block_size`` tokens, the last of a prompt counted though partial; the
        rate is the share of them that an earlier prompt had.
    ``working_set_tokens``
        Distinct prompt tokens.
    ``infinite_hit_rate``
        The engine's own rule: full blocks, and at least the last token is computed, so
        ``(prompt - 1) // block_size`` blocks at most.
    ``infinite_hit_rate_with_outputs``
        The same where generated blocks of earlier requests can be hit too.
    ``infinite_hit_rate_whole_prompt``
        Full blocks, ``prompt // block_size`` of them at most.
    ``infinite_hit_rate_partial``
        Blocks of ``identity_block_size``, of which the last may be partial: Mooncake's rule.
    ``mean_request_hit_rate``
        Mean over requests of each one's own hit rate, under the rule of ``infinite_hit_rate``.
    ``infinite_hit_rate_last_half``, ``infinite_hit_rate_partial_last_half``
        Over the last half of requests.
    """
    requests = workload.requests
    prompts = np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)
    outputs = np.array([request.num_output_tokens for request in requests], dtype=np.int64)
    arrivals = np.array([request.arrival_ns for request in requests], dtype=np.int64)
    sessions = {request.session_id for request in requests} - {None}
    return {
        "name": workload.name,
        "num_requests": len(requests),
        "num_skipped": workload.num_skipped,
        "num_sessions": len(sessions),
        "has_prefix_info": workload.has_prefix_info,
        "identity_block_size": workload.identity_block_size,
        "block_size": block_size,
        **_lengths("prompt_tokens", prompts),
        **_lengths("output_tokens", outputs),
        **_arrivals(arrivals),
        "num_prompt_blocks": int((prompts // block_size).sum()),
        **_sharing(workload, prompts, block_size),
    }


def _lengths(name: str, lengths: Ints) -> dict[str, Value]:
    p50, p90, p99 = np.percentile(lengths, [50, 90, 99]).tolist()
    return {
        f"{name}_total": int(lengths.sum()),
        f"{name}_mean": float(lengths.mean()),
        f"{name}_p50": p50,
        f"{name}_p90": p90,
        f"{name}_p99": p99,
        f"{name}_max": int(lengths.max()),
    }


def _arrivals(arrivals_ns: Ints) -> dict[str, Value]:
    gaps = np.diff(arrivals_ns)
    duration_s = int(arrivals_ns[-1] - arrivals_ns[0]) / 1e9
    timed = duration_s > 0
    return {
        "duration_s": duration_s,
        "mean_rate_per_s": len(gaps) / duration_s if timed else None,
        "arrival_gap_cv": float(gaps.std() / gaps.mean()) if timed else None,
    }


def _sharing(workload: Workload, prompts: Ints, block_size: int) -> Mapping[str, Value]:
    if not workload.has_prefix_info:
        return dict.fromkeys(_SHARING)
    shared = shared_prefix_tokens(workload.requests)
    with_outputs = shared_prefix_tokens(workload.requests, outputs=True)
    identity = workload.identity_block_size
    num_prompt_blocks = int((prompts // block_size).sum())
    num_identity_blocks = -(-prompts // identity)
    num_shared_identity_blocks = -(-shared // identity)
    engine = cached_tokens(prompts, shared, block_size)
    whole = shared // block_size * block_size
    partial = np.minimum(num_shared_identity_blocks * identity, prompts)
    half = len(prompts) // 2
    values = (
        num_prompt_blocks - int((shared // block_size).sum()),
        int(num_identity_blocks.sum()),
        int((num_identity_blocks - num_shared_identity_blocks).sum()),
        _share(num_shared_identity_blocks, num_identity_blocks),
        workload.num_distinct_prompt_tokens,
        _share(engine, prompts),
        _share(cached_tokens(prompts, with_outputs, block_size), prompts),
        _share(whole, prompts),
        _share(partial, prompts),
        float((engine / prompts).mean()),
        _share(engine[half:], prompts[half:]),
        _share(partial[half:], prompts[half:]),
    )
    return dict(zip(_SHARING, values, strict=True))


_SHARING = (
    "num_distinct_prompt_blocks",
    "num_identity_blocks",
    "num_distinct_identity_blocks",
    "block_hit_rate",
    "working_set_tokens",
    "infinite_hit_rate",
    "infinite_hit_rate_with_outputs",
    "infinite_hit_rate_whole_prompt",
    "infinite_hit_rate_partial",
    "mean_request_hit_rate",
    "infinite_hit_rate_last_half",
    "infinite_hit_rate_partial_last_half",
)


def _share(part: Ints, whole: Ints) -> float:
    return int(part.sum()) / int(whole.sum())
