"""What large traces share: `workloads.structure.sharing` over columns, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.mapped import filled, full, zeros
from workloads.compiling import entry
from workloads.content import Ints
from workloads.requests import Requests
from workloads.segment_rows import bases_of, parts_of, rows_of

NOBODY = -1


class Found(NamedTuple):
    """Fields of `workloads.structure.Sharing`."""

    shared: Ints
    common: Ints
    is_repeat: NDArray[np.bool_]
    gap_ns: Ints
    gap_tokens: Ints


class Seen(NamedTuple):
    """Of each segment, what `workloads.structure._Use` keeps; shape ``(segments,)``.

    Attributes
    ----------
    owner
        Who had most of it; `NOBODY` where nobody has had it yet.
    most, most_of_others, most_in_prompts
        Tokens that the owner, another one, and any prompt had of it.
    latest
        Its last use; -1 for none.
    """

    owner: Ints
    most: Ints
    most_of_others: Ints
    most_in_prompts: Ints
    latest: Ints


class Uses(NamedTuple):
    """Of each segment of each request, in order; shape ``(uses,)``.

    Attributes
    ----------
    request
        Whose it is.
    had
        Its tokens.
    before
        The use of the same segment before it that had more tokens; -1 for none.
    """

    request: Ints
    had: Ints
    before: Ints


def find_sharing(requests: Requests) -> Found:
    """Find what each prompt shares with earlier requests; some requests at a time."""
    count = len(requests)
    found = Found(
        zeros(count), zeros(count), zeros(count, np.bool_), full(count, -1), full(count, -1)
    )
    owners = filled(count, lambda part: _owners(requests, part))
    upto = zeros(count)
    np.cumsum(requests.num_prompt_tokens, out=upto)
    stops = requests.num_kv_tokens
    bases = bases_of(requests, stops)
    seen = Seen(*(zeros(len(bases)) for _ in Seen._fields))
    seen.owner.fill(NOBODY)
    seen.latest.fill(-1)
    uses = Uses(*(zeros(int(requests.num_segments.sum())) for _ in Uses._fields))
    num_uses = 0
    for part in parts_of(requests):
        rows = rows_of(requests, stops, part)
        _scan(
            np.searchsorted(bases, rows.bases),
            rows.request,
            rows.starts,
            rows.ends,
            owners,
            requests.arrival_ns,
            requests.num_prompt_tokens,
            upto,
            num_uses,
            uses,
            seen,
            found,
        )
        num_uses += len(rows.bases)
    return found


def _owners(requests: Requests, part: slice) -> Ints:
    """Give the session of each of some requests; one without a session is a session of its own."""
    own = np.arange(part.start, part.stop)
    if requests.sessions is None:
        return own
    numbers, names = requests.sessions
    return np.where(numbers[part] >= 0, numbers[part], own + len(names))


@entry
def _scan(
    segments: Ints,
    request: Ints,
    starts: Ints,
    ends: Ints,
    owners: Ints,
    arrivals_ns: Ints,
    prompts: Ints,
    upto: Ints,
    first_use: int,
    uses: Uses,
    seen: Seen,
    found: Found,
) -> None:
    """Go through the segments of some requests in order; ``upto`` sums the prompts so far."""
    for row in range(len(segments)):
        segment, one, start, end = segments[row], request[row], starts[row], ends[row]
        length, prompt, mine = end - start, prompts[one], owners[one]
        owner, most = seen.owner[segment], seen.most[segment]
        if owner != NOBODY and start < prompt:
            # The deepest segment that was had comes last, and goes furthest.
            reach = min(start + min(length, most), prompt)
            found.shared[one] = reach
            use = seen.latest[segment]
            while uses.had[use] < reach - start:
                use = uses.before[use]
            last = uses.request[use]
            found.gap_ns[one] = arrivals_ns[one] - arrivals_ns[last]
            found.gap_tokens[one] = upto[one] - prompt - upto[last]
            by_others = seen.most_of_others[segment] if mine == owner else most
            if by_others:
                found.common[one] = min(start + min(length, by_others), prompt)
            if end >= prompt and seen.most_in_prompts[segment] >= prompt - start:
                found.is_repeat[one] = True
        if owner == NOBODY:
            seen.owner[segment], seen.most[segment] = mine, length
        elif mine == owner:
            seen.most[segment] = max(most, length)
        elif length > most:
            seen.most_of_others[segment] = most
            seen.owner[segment], seen.most[segment] = mine, length
        elif length > seen.most_of_others[segment]:
            seen.most_of_others[segment] = length
        in_prompt = min(length, prompt - start)
        seen.most_in_prompts[segment] = max(seen.most_in_prompts[segment], in_prompt)
        # Uses that this one covers are not looked at again.
        before = seen.latest[segment]
        while before >= 0 and uses.had[before] <= length:
            before = uses.before[before]
        this = first_use + row
        uses.request[this], uses.had[this], uses.before[this] = one, length, before
        seen.latest[segment] = this
