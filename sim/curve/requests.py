"""From the requests of a workload to references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.curve.compiling import entry
from sim.curve.stream import Ints, References, Sizes
from sim.mapped import filled, zeros
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
    prompts, kv = _column(requests, "num_prompt_tokens"), _column(requests, "num_kv_tokens")
    stops = kv if outputs else prompts
    count = len(stops)
    num_full = filled(count, lambda part: stops[part] // block_size)
    sizes = Sizes(
        num_full_blocks=num_full,
        num_lookup_blocks=filled(
            count, lambda part: np.minimum((prompts[part] - 1) // block_size, num_full[part])
        ),
        num_held_blocks=filled(count, lambda part: -(-kv[part] // block_size)),
        num_prompt_tokens=prompts,
        block_size=block_size,
    )
    blocks = zeros(int(num_full.sum()))
    references = References(blocks, sizes)
    if _are_columns(requests):
        _name_in_columns(requests, stops, block_size, references.offsets, blocks)
        return references
    first = 0
    for request, num_blocks in zip(requests, num_full.tolist(), strict=True):
        keys = request.content.block_keys(block_size)[:num_blocks]
        blocks[first : first + num_blocks] = keys
        first += num_blocks
    return references


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
    prompts = _column(requests, "num_prompt_tokens")
    num_blocks = filled(len(prompts), lambda part: -(-prompts[part] // block_size))
    sizes = Sizes(
        num_full_blocks=num_blocks,
        num_lookup_blocks=num_blocks,
        num_held_blocks=num_blocks,
        num_prompt_tokens=prompts,
        block_size=block_size,
        num_missing_tokens=filled(
            len(prompts), lambda part: num_blocks[part] * block_size - prompts[part]
        ),
    )
    blocks = zeros(int(num_blocks.sum()))
    references = References(blocks, sizes)
    if _are_columns(requests):
        _name_in_columns(requests, prompts, block_size, references.offsets, blocks)
        return references
    first = 0
    for request in requests:
        num_tokens = request.num_prompt_tokens
        keys = request.content.block_keys(block_size)[: num_tokens // block_size]
        blocks[first : first + len(keys)] = keys
        first += len(keys)
        if num_tokens % block_size:
            blocks[first] = last_name(request.content, num_tokens - 1)
            first += 1
    return references


def _column(requests: Sequence[Request], name: str) -> Ints:
    """Lay out a number of each request; whoever keeps requests in columns has it already."""
    found: Ints | None = getattr(requests, name, None)
    if found is None:
        return np.array([getattr(request, name) for request in requests], dtype=np.int64)
    return found


def _are_columns(requests: Sequence[Request]) -> bool:
    """Whether contents lie in columns, as paths of segments; see `sim.types.Request`."""
    return hasattr(requests, "first_segment")


def _name_in_columns(
    requests: Any,  # noqa: ANN401 - no workload is known here
    stops: Ints,
    block_size: int,
    offsets: Ints,
    blocks: Ints,
) -> None:
    _name_blocks(
        requests.first_segment,
        requests.bases,
        requests.ends,
        stops,
        block_size,
        offsets,
        blocks,
    )


@entry
def _name_blocks(
    first_segment: Ints,
    bases: Ints,
    ends: Ints,
    stops: Ints,
    block_size: int,
    offsets: Ints,
    blocks: Ints,
) -> None:
    """Name each block by its last token, and the last one of a request by where that stops."""
    for request in range(len(stops)):
        segment = first_segment[request]
        start = np.int64(0)
        position = np.int64(-1)
        for block in range(offsets[request], offsets[request + 1]):
            position = min(position + block_size, stops[request] - 1)
            while ends[segment] <= position:
                start = ends[segment]
                segment += 1
            blocks[block] = bases[segment] + position - start
