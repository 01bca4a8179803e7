"""How much of each prompt an infinite cache would already hold.

One number per request says it all: how many leading tokens of the prompt some earlier request
already had. Hit rates at any block size, distinct blocks and the working set follow from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.types import Request
from workloads import segment_rows
from workloads.content import path
from workloads.requests import Requests, prompt_tokens

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
    if isinstance(requests, Requests):
        stops = requests.num_kv_tokens if outputs else requests.num_prompt_tokens
        return segment_rows.shared_prefix_tokens(requests, stops)
    longest: dict[int, int] = {}  # tokens of each segment that some earlier request had
    shared = np.zeros(len(requests), dtype=np.int64)
    for index, request in enumerate(requests):
        stop = request.num_kv_tokens if outputs else request.num_prompt_tokens
        bases, ends = path(request.content, stop)
        # A name stands for one whole prefix: where a segment was had, all those before it were.
        num_had = bisect_left(bases, True, key=lambda base: base not in longest)
        start = 0
        if num_had:
            last = num_had - 1
            start = ends[last - 1] if last else 0
            had = longest[bases[last]]
            shared[index] = min(start + min(ends[last] - start, had), request.num_prompt_tokens)
            longest[bases[last]] = max(ends[last] - start, had)
            start = ends[last]
        for base, end in zip(bases[num_had:], ends[num_had:], strict=True):
            longest[base] = end - start
            start = end
    return shared


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
    prompts = prompt_tokens(requests)
    shared = shared_prefix_tokens(requests, outputs=outputs)
    total = int(prompts.sum())
    cached = cached_tokens(prompts, shared, block_size, recomputes_last_block=recomputes_last_block)
    return int(cached.sum()) / total if total else 0.0
