"""What is asked of many requests, be they objects or kept in columns.

Whoever keeps requests in columns (`workloads.requests.Requests`) answers without making objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.mapped import pieces
from sim.types import Request

Ints = NDArray[np.int64]


def column(requests: Sequence[Request], name: str) -> Ints:
    """Lay out a number of each request, shape ``(requests,)``."""
    found = getattr(requests, name, None)
    if found is None:
        found = [getattr(request, name) for request in requests]
    return np.asarray(found, dtype=np.int64)


def numbers_of(requests: Sequence[Request], name: str, which: Ints) -> Ints:
    """Lay out a number of some requests, by their places."""
    found = getattr(requests, name, None)
    if found is not None:
        in_columns: Ints = found[which]
        return in_columns
    return np.array([getattr(requests[index], name) for index in which.tolist()], dtype=np.int64)


def names_of(requests: Sequence[Request], which: Ints) -> list[str]:
    """List the ids of some requests, by their places."""
    if hasattr(requests, "names"):
        in_columns: list[str] = requests.names(which)
        return in_columns
    return [requests[index].request_id for index in which.tolist()]


def think_ns_of(requests: Sequence[Request], index: int) -> int | None:
    """Tell how long after the turn before a request comes, by its place; None for unknown."""
    if not hasattr(requests, "think_ns"):
        return requests[index].think_ns
    think_ns = -1 if requests.think_ns is None else int(requests.think_ns[index])
    return None if think_ns < 0 else think_ns


def kv_tokens(num_prompt_tokens: Ints, num_output_tokens: Ints) -> Ints:
    """Count the tokens that have KV by the end, see `Request.num_kv_tokens`."""
    tokens: Ints = num_prompt_tokens + np.maximum(num_output_tokens - 1, 0)
    return tokens


def all_kv_tokens(requests: Sequence[Request]) -> Iterator[Ints]:
    """Yield `kv_tokens` of some requests after the other."""
    prompt, output = (column(requests, f"num_{what}_tokens") for what in ("prompt", "output"))
    for part in pieces(len(prompt)):
        yield kv_tokens(prompt[part], output[part])
