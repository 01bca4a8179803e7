"""How large the block pool is: ``--kv-capacity`` in any of its units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from sim.errors import UsageError
from sim.types import Request

MAX_BLOCKS = 50_000_000
"""A pool keeps an object for each block, some hundred bytes."""

_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|blocks|tokens|gib|)")


def num_usable_blocks(
    capacity: str,
    block_size: int,
    requests: Sequence[Request],
    *,
    num_distinct_tokens: Callable[[], int],
    num_gpu_tokens: Callable[[], int],
    num_bytes_per_token: Callable[[], int],
    num_blocks_to_hold: Callable[[int, int], int] = lambda num_blocks, num_requests: num_blocks,
) -> int:
    """Resolve a capacity to usable blocks of ``block_size`` tokens.

    Parameters
    ----------
    capacity
        ``163840`` or ``163840tokens``, ``10000blocks``, ``40GiB`` of KV, ``5%`` of the distinct
        prompt tokens, ``infinite``: so many blocks that nothing is ever evicted, or ``auto``.
    block_size
        Of the engine, tokens.
    requests
        The workload, for ``infinite``.
    num_distinct_tokens
        Distinct prompt tokens of the workload.
    num_gpu_tokens
        What the GPU of the preset holds.
    num_bytes_per_token
        KV of a token of the preset's model.
    num_blocks_to_hold
        Blocks that the policy asks of a pool which so many blocks of so many requests never fill.

    Raises
    ------
    UsageError
        Another form, less than one block, or more than `MAX_BLOCKS`.
    """
    text = capacity.strip().lower()
    if text == "infinite":
        num_blocks = sum(-(-request.num_kv_tokens // block_size) for request in requests)
        num_blocks = num_blocks_to_hold(max(1, num_blocks), len(requests))
        return _checked(capacity, num_blocks, block_size)
    if text == "auto":
        num_tokens = float(num_gpu_tokens())
    else:
        form = _FORM.fullmatch(text)
        if form is None:
            raise UsageError(
                f"--kv-capacity {capacity!r} is not a capacity: give tokens (163840), blocks "
                "(10000blocks), the model's KV (40GiB), a share of the workload's distinct prompt "
                "tokens (5%), 'infinite' or 'auto'."
            )
        number = float(form["number"])
        if not math.isfinite(number):
            raise UsageError(
                f"--kv-capacity {capacity[:12]!r}... is more than any memory holds; lower it."
            )
        if form["unit"] not in ("%", "gib") and not number.is_integer():
            raise UsageError(
                f"--kv-capacity {capacity!r} must be a whole number of {form['unit'] or 'tokens'}; "
                "drop the fraction."
            )
        if form["unit"] == "blocks":
            num_tokens = int(number) * block_size
        elif form["unit"] == "gib":
            num_tokens = int(number * 2**30 / num_bytes_per_token())
        elif form["unit"] == "%":
            num_tokens = num_distinct_tokens() * number / 100
        else:
            num_tokens = number
    num_blocks = int(num_tokens // block_size)
    if num_blocks < 1:
        raise UsageError(
            f"--kv-capacity {capacity!r} is {num_tokens:g} tokens, less than one block of "
            f"--block-size {block_size}; raise it."
        )
    return _checked(capacity, num_blocks, block_size)


def _checked(capacity: str, num_blocks: int, block_size: int) -> int:
    if num_blocks > MAX_BLOCKS:
        raise UsageError(
            f"--kv-capacity {capacity!r} is {num_blocks:,} blocks of --block-size {block_size}, "
            f"more than the {MAX_BLOCKS:,} that can be simulated; lower it or use larger blocks."
        )
    return num_blocks
