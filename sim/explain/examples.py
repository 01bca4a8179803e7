"""Small workloads that are told often enough to have a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Example(NamedTuple):
    """Requests in letters, and the pool that they meet.

    Attributes
    ----------
    block_size, num_blocks
        Of the pool.
    requests
        ``(arrival in steps, prompt, output)``; a step takes 1 ms.
    description
        What it shows.
    """

    block_size: int
    num_blocks: int
    requests: Sequence[tuple[int, str, str]]
    description: str


EXAMPLES = {
    "article": Example(
        block_size=4,
        num_blocks=10,
        requests=(
            (0, "ABCDEFGHIJKLMNO", "pq."),
            (2, "ABCDEFGHIJwxyz", "."),
            (20, "ABCDEFGHIJKLabcdefghijklmnopr", "."),
        ),
        description="The worked example of the article on vLLM V1's prefix caching.",
    ),
}
"""By name. The last output token of a request, here a full stop, is never fed back."""
