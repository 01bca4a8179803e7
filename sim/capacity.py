"""How large the block pool is: ``--kv-capacity`` in any of its units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from sim.errors import UsageError
from sim.in_columns import all_kv_tokens
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
        num_blocks = sum(int((-(-some // block_size)).sum()) for some in all_kv_tokens(requests))
        num_blocks = num_blocks_to_hold(max(1, num_blocks), len(requests))
        return _checked(capacity, num_blocks, block_size)
    if text == "auto":
        num_blocks = num_gpu_tokens() // block_size
    else:
        num_blocks = _parse(
            "--kv-capacity",
            capacity,
            block_size,
            num_distinct_tokens=num_distinct_tokens,
            num_bytes_per_token=num_bytes_per_token,
            words="'infinite' or 'auto'",
        )
    if num_blocks < 1:
        raise _too_small("--kv-capacity", capacity, block_size)
    return _checked(capacity, num_blocks, block_size)


def num_tier_blocks(
    option: str,
    capacity: str,
    block_size: int,
    requests: Sequence[Request],
    *,
    num_distinct_tokens: Callable[[], int],
    num_bytes_per_token: Callable[[], int],
) -> int:
    """Resolve the capacity of a tier below the GPU to blocks; 0 for none.

    Parameters
    ----------
    option
        Names the tier in errors.
    capacity, block_size, requests, num_distinct_tokens, num_bytes_per_token
        As for `num_usable_blocks`; there is no ``auto``.

    Raises
    ------
    UsageError
        Another form, or less than one block and not 0.
    """
    if is_nothing(capacity):
        return 0
    if capacity.strip().lower() == "infinite":
        return max(1, sum(int((some // block_size).sum()) for some in all_kv_tokens(requests)))
    num_blocks = _parse(
        option,
        capacity,
        block_size,
        num_distinct_tokens=num_distinct_tokens,
        num_bytes_per_token=num_bytes_per_token,
        words="'infinite' or 0",
    )
    if num_blocks < 1:
        raise _too_small(option, capacity, block_size)
    return num_blocks


def is_nothing(capacity: str) -> bool:
    """Whether a capacity is 0, in any unit."""
    form = _FORM.fullmatch(capacity.strip().lower())
    return form is not None and float(form["number"]) == 0


def _parse(
    option: str,
    capacity: str,
    block_size: int,
    *,
    num_distinct_tokens: Callable[[], int],
    num_bytes_per_token: Callable[[], int],
    words: str,
) -> int:
    """Turn a number with its unit into whole blocks."""
    form = _FORM.fullmatch(capacity.strip().lower())
    if form is None:
        raise UsageError(
            f"{option} {capacity!r} is not a capacity: give tokens (163840), blocks "
            "(10000blocks), the model's KV (40GiB), a share of the workload's distinct prompt "
            f"tokens (5%), {words}."
        )
    number = float(form["number"])
    if not math.isfinite(number):
        raise UsageError(f"{option} {capacity[:12]!r}... is more than any memory holds; lower it.")
    if form["unit"] not in ("%", "gib") and not number.is_integer():
        raise UsageError(
            f"{option} {capacity!r} must be a whole number of {form['unit'] or 'tokens'}; drop the "
            "fraction."
        )
    if form["unit"] == "blocks":
        return int(number)
    if form["unit"] == "gib":
        num_tokens = float(int(number * 2**30 / num_bytes_per_token()))
    elif form["unit"] == "%":
        num_tokens = num_distinct_tokens() * number / 100
    else:
        num_tokens = number
    return int(num_tokens // block_size)


def _too_small(option: str, capacity: str, block_size: int) -> UsageError:
    return UsageError(
        f"{option} {capacity!r} is less than one block of --block-size {block_size}; raise it."
    )


def _checked(capacity: str, num_blocks: int, block_size: int) -> int:
    if num_blocks > MAX_BLOCKS:
        raise UsageError(
            f"--kv-capacity {capacity!r} is {num_blocks:,} blocks of --block-size {block_size}, "
            f"more than the {MAX_BLOCKS:,} that can be simulated; lower it or use larger blocks."
        )
    return num_blocks
