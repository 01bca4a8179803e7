"""How large the block pool is: ``--kv-capacity`` in any of its units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from sim.errors import UsageError
from sim.types import Request

_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|blocks|tokens|)")


def num_usable_blocks(
    capacity: str,
    block_size: int,
    requests: Iterable[Request],
    *,
    num_distinct_tokens: Callable[[], int],
    num_gpu_tokens: Callable[[], int],
) -> int:
    """Resolve a capacity to usable blocks of ``block_size`` tokens.

    Parameters
    ----------
    capacity
        ``163840`` or ``163840tokens``, ``10000blocks``, ``5%`` of the distinct prompt tokens,
        ``infinite``: so many blocks that nothing is ever evicted, or ``auto``.
    block_size
        Of the engine, tokens.
    requests
        The workload, for ``infinite``.
    num_distinct_tokens
        Distinct prompt tokens of the workload.
    num_gpu_tokens
        What the GPU of the preset holds.

    Raises
    ------
    UsageError
        Another form, or less than one block.
    """
    text = capacity.strip().lower()
    if text == "infinite":
        return max(1, sum(-(-request.num_kv_tokens // block_size) for request in requests))
    if text == "auto":
        num_tokens = float(num_gpu_tokens())
    else:
        form = _FORM.fullmatch(text)
        if form is None:
            raise UsageError(
                f"--kv-capacity {capacity!r} is not a capacity: give tokens (163840), blocks "
                "(10000blocks), a share of the workload's distinct prompt tokens (5%), 'infinite' "
                "or 'auto'."
            )
        number = float(form["number"])
        if form["unit"] == "blocks":
            num_tokens = int(number) * block_size
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
    return num_blocks
