"""A stream of requests and what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sim.types import Request
from workloads.requests import prompt_tokens
from workloads.reuse import shared_prefix_tokens


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and where they came from.

    Attributes
    ----------
    name
        File name without its endings, or the generator's name.
    requests
        Sorted by ``arrival_ns``; requests of equal arrival stand in the order of the source. Those
        of a trace are `workloads.requests.Requests`, which keep columns.
    identity_block_size
        Tokens per unit of identity: the trace's block size, or 1 where any two prefixes can be
        told apart to the token. Sharing below it does not show.
    has_prefix_info
        Whether the source says anything about shared prefixes; if not, no hit rate is available.
    warnings
        Sentences about what the source left out or got wrong, and what was done about it.
    notes
        Sentences about what was made, such as the hit rate that a generator achieved.
    num_skipped
        Rows that were left out.
    digest
        SHA-256 of the bytes that were read, in hex; empty for a generator. With ``--num-requests``
        it covers what was read so far, in whole buffers.
    """

    name: str
    requests: Sequence[Request]
    identity_block_size: int = 1
    has_prefix_info: bool = True
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_skipped: int = 0
    digest: str = ""

    @cached_property
    def num_distinct_prompt_tokens(self) -> int:
        """Working set: tokens of KV that a cache holds if it keeps every prompt once."""
        shared = shared_prefix_tokens(self.requests)
        return int(prompt_tokens(self.requests).sum()) - int(shared.sum())
