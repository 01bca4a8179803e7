"""From the requests of a workload to references."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.curve.stream import Ints, References, Sizes
from sim.types import Content, Request


def references_of(
    requests: Sequence[Request], block_size: int, *, outputs: bool = True
) -> References:
    """List the blocks of every request, as the engine names and caches them.

    Parameters
    ----------
    requests
        In the order in which they are served; at least one.
    block_size
        Of the engine, tokens.
    outputs
        Whether blocks that generated tokens fill are cached too; the last generated token is never
        fed back and fills none.
    """
    prompts, kv = _lengths(requests)
    num_full = (kv if outputs else prompts) // block_size
    # Filled in place: a list of parts would take as much memory again.
    blocks = np.empty(int(num_full.sum()), dtype=np.int64)
    first = 0
    for request, count in zip(requests, num_full.tolist(), strict=True):
        blocks[first : first + count] = request.content.block_keys(block_size)[:count]
        first += count
    sizes = Sizes(
        num_full_blocks=num_full,
        num_lookup_blocks=np.minimum((prompts - 1) // block_size, num_full),
        num_held_blocks=-(-kv // block_size),
        num_prompt_tokens=prompts,
        block_size=block_size,
    )
    return References(blocks, sizes)


def stored_references_of(
    requests: Sequence[Request],
    block_size: int,
    last_name: Callable[[Content, int], int],
) -> References:
    """List the blocks of every prompt as a store of prompts keeps them (Mooncake).

    The last block of a prompt is kept though it may be partial, the whole prompt may be hit, and
    nothing is generated.

    Parameters
    ----------
    requests, block_size
        As above.
    last_name
        Names the prefix of a content that ends at a position, as its ``block_keys`` do.
    """
    prompts, _ = _lengths(requests)
    num_blocks = -(-prompts // block_size)
    blocks = []
    for request in requests:
        num_tokens = request.num_prompt_tokens
        blocks.append(request.content.block_keys(block_size)[: num_tokens // block_size])
        if num_tokens % block_size:
            blocks.append(np.array([last_name(request.content, num_tokens - 1)], dtype=np.int64))
    sizes = Sizes(
        num_full_blocks=num_blocks,
        num_lookup_blocks=num_blocks,
        num_held_blocks=num_blocks,
        num_prompt_tokens=prompts,
        block_size=block_size,
        num_missing_tokens=num_blocks * block_size - prompts,
    )
    return References(np.concatenate(blocks), sizes)


def _lengths(requests: Sequence[Request]) -> tuple[Ints, Ints]:
    prompts = np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)
    kv = np.array([request.num_kv_tokens for request in requests], dtype=np.int64)
    return prompts, kv
