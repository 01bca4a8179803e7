"""How much of each prompt an earlier one had, in the ids of the trace: Mooncake's convention.

An id is hit whole where an earlier prompt had it after the same ids, however much of its block
either prompt fills. What later turns tell of a block beyond its id does not count here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.mapped import zeros
from sim.types import Request
from workloads.content import Ints, Segments, path
from workloads.requests import Requests
from workloads.reuse import shared_prefix_tokens
from workloads.segment_rows import parts_of, rows_of


@dataclass(frozen=True, slots=True)
class IdentityBlocks:
    """Per request, in order of arrival; arrays of shape ``(n,)``.

    Attributes
    ----------
    num_blocks
        Blocks of the prompt, partial ones too. Where a turn holds only what is new, its blocks
        begin where the answer before ends.
    num_hit_blocks
        Those of them that an earlier prompt had.
    num_hit_tokens
        Tokens of the prompt in them.
    """

    num_blocks: Ints
    num_hit_blocks: Ints
    num_hit_tokens: Ints


def identity_blocks(
    requests: Sequence[Request], block_size: int, shared: Ints | None = None
) -> IdentityBlocks:
    """Count blocks of identity, and those that an earlier prompt had.

    Parameters
    ----------
    requests
        In order of arrival, taken one after the other.
    block_size
        Tokens that an id stands for.
    shared
        Their `shared_prefix_tokens`, where they are known; they hold where no request was told
        more than its own row says.
    """
    rows = _as_read(requests)
    if shared is None or rows is not requests:
        shared = shared_prefix_tokens(rows)
    requests = rows
    prompts = (
        np.fromiter((request.num_prompt_tokens for request in requests), np.int64, len(requests))
        if not isinstance(requests, Requests)
        else requests.num_prompt_tokens
    )
    if block_size == 1:
        return IdentityBlocks(prompts, shared, shared)
    if isinstance(requests, Requests):
        return _of_columns(requests, shared, block_size)
    found = np.array(
        [
            _of_one(request, int(num_shared), block_size)
            for request, num_shared in zip(requests, shared, strict=True)
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    return IdentityBlocks(*found.T)


def _of_one(request: Request, num_shared: int, block_size: int) -> tuple[int, int, int]:
    """Count the blocks of one prompt, those that are hit, and the tokens in these."""
    ends = [request.num_prompt_tokens]
    if isinstance(request.content, Segments):
        ends = path(request.content, request.num_prompt_tokens)[1]
    num_blocks = num_hit_blocks = num_hit_tokens = start = 0
    for end in ends:
        num_blocks += -(-(end - start) // block_size)
        num_hit = -(-max(min(num_shared, end) - start, 0) // block_size)
        num_hit_blocks += num_hit
        num_hit_tokens += min(num_hit * block_size, end - start)
        start = end
    return num_blocks, num_hit_blocks, num_hit_tokens


def _of_columns(requests: Requests, shared: Ints, block_size: int) -> IdentityBlocks:
    """Do what `_of_one` does, for many requests at once."""
    found = IdentityBlocks(*(zeros(len(requests)) for _ in range(3)))
    for part in parts_of(requests):
        rows = rows_of(requests, requests.num_prompt_tokens, part)
        lengths = rows.ends - rows.starts
        num_shared = np.clip(shared[rows.request] - rows.starts, 0, lengths)
        num_hit = -(-num_shared // block_size)
        for column, values in (
            (found.num_blocks, -(-lengths // block_size)),
            (found.num_hit_blocks, num_hit),
            (found.num_hit_tokens, np.minimum(num_hit * block_size, lengths)),
        ):
            np.add.at(column, rows.request, values)
    return found


def _as_read(requests: Sequence[Request]) -> Sequence[Request]:
    """Give the requests with what their own rows say of them."""
    if isinstance(requests, Requests):
        return requests.by_their_rows()
    return [
        replace(request, content=as_read)
        if (as_read := getattr(request.content, "as_read", None)) is not None
        else request
        for request in requests
    ]
