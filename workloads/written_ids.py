"""What the ids that are written stand for: equal keys for equal ids, of many requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sim.mapped import pieces
from sim.types import Request
from workloads.content import Ints, prefix_names
from workloads.requests import Requests, output_tokens, prompt_tokens

_REQUESTS_AT_ONCE = 1 << 10
_IDS_AT_ONCE = 1 << 18


def parts(
    requests: Sequence[Request], size: int, *, spells_tokens: bool
) -> Iterator[tuple[slice, Ints]]:
    """Cut requests into parts of few ids, and count the ids of each request.

    Parameters
    ----------
    requests
        In the order of lines.
    size
        Tokens of a prompt that an id stands for.
    spells_tokens
        Whether there is an id for every token, those of the answer too.
    """
    prompts, outputs = prompt_tokens(requests), output_tokens(requests)
    for part in pieces(len(requests), _REQUESTS_AT_ONCE):
        counts = -(-prompts[part] // size)
        if spells_tokens:
            counts = prompts[part] + outputs[part]
        # Where each request is in which multiple of the ids that are taken at once.
        number = np.cumsum(counts) // _IDS_AT_ONCE
        begins = np.flatnonzero(np.diff(number, prepend=-1))
        for first, stop in zip(begins, [*begins[1:], len(counts)], strict=True):
            yield slice(part.start + int(first), part.start + int(stop)), counts[first:stop]


def keys(requests: Sequence[Request], counts: Ints, size: int, *, spells_tokens: bool) -> Ints:
    """Give the keys of some requests, of one behind those of the other; see `parts`.

    Where all of a block lies in one segment it is known by its first token, so that a partial
    block matches the same block in full. Otherwise only its last token tells the whole of it.
    Names ascend along a path, so the block lies in one if its last name is as far on as it is.
    """
    if spells_tokens:
        return 2 * _token_ids(requests, counts)
    of_request = np.repeat(np.arange(len(counts)), counts)
    starts = (np.arange(len(of_request)) - (np.cumsum(counts) - counts)[of_request]) * size
    ends = np.minimum(starts + size, prompt_tokens(requests)[of_request]) - 1
    first = _names(requests, counts, starts)
    last = _names(requests, counts, ends)
    is_whole = last - first == ends - starts
    return np.where(is_whole, 2 * first, 2 * last + 1)


def _token_ids(requests: Sequence[Request], counts: Ints) -> Ints:
    if not isinstance(requests, Requests):
        return _joined([r.content.token_ids(0, r.content.num_tokens) for r in requests])
    of_request = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(of_request)) - (np.cumsum(counts) - counts)[of_request]
    return _names_of_columns(requests, of_request, positions)


def _names(requests: Sequence[Request], counts: Ints, positions: Ints) -> Ints:
    """Name the prefixes that end with these positions, so many of each request, ascending."""
    if isinstance(requests, Requests):
        of_request = np.repeat(np.arange(len(counts)), counts)
        return _names_of_columns(requests, of_request, positions)
    own = np.split(positions, np.cumsum(counts)[:-1])
    return _joined(
        [prefix_names(one.content, some) for one, some in zip(requests, own, strict=True)]
    )


def _names_of_columns(requests: Requests, of_request: Ints, positions: Ints) -> Ints:
    counts, bases, ends = requests.paths()
    of_segment = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    starts[before] = 0
    # Streams one behind the other, so that a position tells whose it is.
    lengths = ends[before + counts - 1]
    offsets = np.cumsum(lengths) - lengths
    segment = np.searchsorted(
        ends + offsets[of_segment], positions + offsets[of_request], side="right"
    )
    names: Ints = (bases - starts)[segment] + positions
    return names


def _joined(some: list[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *some])
