"""Requests served one at a time through the plain code of a policy: hits alone, and quickly.

What ``run --max-num-seqs 1`` hits, if a step takes a whole prompt: the prompt is given room in one
call and the output in another, since it makes no difference to a policy how many tokens are decoded
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.types import NO_MATCH, Allocator, Clock, Request
from sim.types import Sequence as Served

REFUSED = -1
"""Stands for the hits of a request that can never fit."""


def hits_one_at_a_time(
    make_allocator: Callable[[Clock], Allocator],
    requests: Sequence[Request],
    *,
    outputs: bool = True,
    on_done: Callable[[int], None] | None = None,
) -> NDArray[np.int64]:
    """Serve requests in order, each to its end before the next.

    Parameters
    ----------
    make_allocator
        Makes the policy, given its clock. Time is that of the arrivals; where they are equal it
        goes on by 1 ns, so that no two requests touch a block at the same time.
    requests
        In order of arrival.
    outputs
        Whether blocks that generated tokens fill are cached too.
    on_done
        Called with the number of requests served.

    Returns
    -------
    Prompt tokens that each request hit, or `REFUSED`; shape ``(num_requests,)``.
    """
    now_ns = 0

    def clock() -> int:
        return now_ns

    allocator = make_allocator(clock)
    size = allocator.block_size
    max_blocks = allocator.max_request_blocks()
    hits = np.full(len(requests), REFUSED, dtype=np.int64)
    for index, request in enumerate(requests):
        now_ns = max(request.arrival_ns, now_ns + 1)
        if -(-request.num_kv_tokens // size) <= max_blocks:
            num_named = request.num_kv_tokens if outputs else request.num_prompt_tokens
            keys = request.content.block_keys(size)[: num_named // size]
            hits[index] = _serve(allocator, Served(request, keys.tolist()))
        if on_done is not None:
            on_done(index + 1)
    return hits


def _serve(allocator: Allocator, seq: Served) -> int:
    match = allocator.match_prefix(seq)
    has_room = allocator.allocate(seq, match, seq.num_tokens - match.num_tokens)
    assert has_room, "a policy refused a request that has the pool to itself"
    seq.num_computed_tokens = seq.num_tokens
    allocator.cache_blocks(seq)
    num_decoded_tokens = seq.request.num_kv_tokens - seq.num_tokens
    if num_decoded_tokens:
        seq.num_tokens = seq.request.num_kv_tokens
        has_room = allocator.allocate(seq, NO_MATCH, num_decoded_tokens)
        assert has_room, "a policy refused a request that has the pool to itself"
        seq.num_computed_tokens = seq.num_tokens
        allocator.cache_blocks(seq)
    allocator.free(seq)
    return match.num_tokens
