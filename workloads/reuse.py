"""How much of each prompt an infinite cache would already hold.

One number per request says it all: how many leading tokens of the prompt some earlier request
already had. Hit rates at any block size, distinct blocks and the working set follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.types import Request
from workloads.content import runs

Ints = NDArray[np.int64]


def shared_prefix_tokens(requests: Sequence[Request], *, outputs: bool = False) -> Ints:
    """Find the longest prefix of each prompt that an earlier request had.

    Requests are taken one after the other, each done before the next begins.

    Parameters
    ----------
    requests
        In order of arrival.
    outputs
        Whether what earlier requests generated counts too: their prompt and output but for the
        last output token, which is never fed back. Otherwise only their prompts count.

    Returns
    -------
    int64 array of shape ``(len(requests),)``, in tokens, at most the prompt's length.
    """
    if not requests:
        return np.zeros(0, dtype=np.int64)
    pieces = [
        runs(r.content, r.num_kv_tokens if outputs else r.num_prompt_tokens) for r in requests
    ]
    base = np.concatenate([bases for bases, _ in pieces])
    length = np.concatenate([lengths for _, lengths in pieces])
    first = np.concatenate(([0], np.cumsum([len(bases) for bases, _ in pieces])))
    num_runs = np.diff(first)

    ends = np.cumsum(length)
    request_start = np.concatenate(([0], ends))[first[:-1]]
    start = ends - length - np.repeat(request_start, num_runs)
    in_prompt = np.clip(np.repeat(_prompts(requests), num_runs) - start, 0, length)
    # A name stands for one whole prefix. So where a run is held, all the runs before it are, and
    # the tokens held are their sum.
    held = np.minimum(in_prompt, _longest_before(base, length))
    total = np.concatenate(([0], np.cumsum(held)))
    return total[first[1:]] - total[first[:-1]]


def cached_tokens(
    num_prompt_tokens: Ints,
    num_shared_tokens: Ints,
    block_size: int,
    *,
    recomputes_last_block: bool = True,
) -> Ints:
    """Count the tokens that hit: full blocks, and never the last token of the prompt.

    The last token is computed even if its block is cached, since its logits are needed. vLLM V1
    then computes the whole block that holds it: a hit covers at most
    ``(prompt - 1) // block_size`` blocks (``KVCacheManager.get_computed_blocks``). vLLM 0.8.5's V0
    computes that token alone (``recomputes_last_block=False``).
    """
    if recomputes_last_block:
        return np.minimum(num_shared_tokens, num_prompt_tokens - 1) // block_size * block_size
    return np.minimum(num_shared_tokens // block_size * block_size, num_prompt_tokens - 1)


def infinite_hit_rate(
    requests: Sequence[Request],
    block_size: int,
    *,
    outputs: bool = True,
    recomputes_last_block: bool = True,
) -> float:
    """Compute the hit rate of a cache that never evicts, as a share of all prompt tokens.

    Parameters
    ----------
    requests
        In order of arrival, taken one after the other.
    block_size
        The engine's, in tokens; any.
    outputs
        Whether blocks that earlier requests generated can be hit too.
    recomputes_last_block
        See `cached_tokens`.

    Returns
    -------
    Between 0 and 1; 0 for no requests.
    """
    prompts = _prompts(requests)
    shared = shared_prefix_tokens(requests, outputs=outputs)
    total = int(prompts.sum())
    cached = cached_tokens(prompts, shared, block_size, recomputes_last_block=recomputes_last_block)
    return int(cached.sum()) / total if total else 0.0


def _prompts(requests: Sequence[Request]) -> Ints:
    return np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)


def _longest_before(base: Ints, length: Ints) -> Ints:
    """For each run, the longest earlier run of the same base; 0 for the first."""
    order = np.argsort(base, kind="stable")
    changes = np.diff(base[order]) != 0
    group = np.concatenate(([0], np.cumsum(changes)))
    # A running maximum that starts anew in each group: lift every group above the one before.
    lift = group * (int(length.max()) + 1)
    longest = np.maximum.accumulate(length[order] + lift) - lift
    before = np.zeros_like(length)
    before[1:] = np.where(changes, 0, longest[:-1])
    result = np.empty_like(before)
    result[order] = before
    return result
