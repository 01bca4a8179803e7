"""What large traces share: `workloads.structure.sharing` over columns, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.compiling import entry
from workloads.content import Ints
from workloads.requests import Requests
from workloads.segment_rows import parts_of

NOBODY = -1


class Found(NamedTuple):
    """Fields of `workloads.structure.Sharing`, and where the deepest segment had begins."""

    shared: Ints
    common: Ints
    is_repeat: NDArray[np.bool_]
    gap_ns: Ints
    gap_tokens: Ints
    deepest: Ints


def find_sharing(requests: Requests) -> Found:
    """Find what each prompt shares with earlier requests; a part of all segments at a time."""
    count = len(requests)
    found = Found(
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
    )
    owners = np.arange(count, dtype=np.int64)
    if requests.sessions is not None:
        numbers, names = requests.sessions
        owners = np.where(numbers >= 0, numbers, owners + len(names))
    prompts = requests.num_prompt_tokens
    upto = np.cumsum(prompts)
    for rows in parts_of(requests, requests.num_kv_tokens):
        order = np.argsort(rows.bases, kind="stable")
        _scan(
            order,
            rows.request,
            rows.bases,
            rows.starts,
            rows.ends,
            owners,
            requests.arrival_ns,
            prompts,
            upto,
            found,
        )
    return found


@entry
def _scan(
    order: Ints,
    request: Ints,
    bases: Ints,
    starts: Ints,
    ends: Ints,
    owners: Ints,
    arrivals_ns: Ints,
    prompts: Ints,
    upto: Ints,
    found: Found,
) -> None:
    """Go through the uses of each segment in turn; ``upto`` sums the prompts so far."""
    seen = False
    # Most tokens that were had of the segment, by two different owners; as `structure._Use`.
    owner, most, most_of_others, most_in_prompts = NOBODY, 0, 0, 0
    # Uses that no later one covers, fewer tokens the later; as `structure._Use.latest`.
    latest, had, num_latest = np.empty_like(order), np.empty_like(order), 0
    for index in range(len(order)):
        row = order[index]
        if index == 0 or bases[row] != bases[order[index - 1]]:
            seen = False
        one, start, end = request[row], starts[row], ends[row]
        length, prompt, mine = end - start, prompts[one], owners[one]
        if seen and start < prompt:
            reach = min(start + min(length, most), prompt)
            found.shared[one] = max(found.shared[one], reach)
            if start > found.deepest[one]:
                found.deepest[one] = start
                place = num_latest - 1
                while had[place] < reach - start:
                    place -= 1
                last = latest[place]
                found.gap_ns[one] = arrivals_ns[one] - arrivals_ns[last]
                found.gap_tokens[one] = upto[one] - prompt - upto[last]
            by_others = most_of_others if mine == owner else most
            if by_others:
                reach = min(start + min(length, by_others), prompt)
                found.common[one] = max(found.common[one], reach)
            if end >= prompt and most_in_prompts >= prompt - start:
                found.is_repeat[one] = True
        if not seen:
            seen = True
            owner, most, most_of_others, most_in_prompts, num_latest = mine, length, 0, 0, 0
        elif mine == owner:
            most = max(most, length)
        elif length > most:
            most_of_others = most
            owner, most = mine, length
        elif length > most_of_others:
            most_of_others = length
        most_in_prompts = max(most_in_prompts, min(length, prompt - start))
        while num_latest and had[num_latest - 1] <= length:
            num_latest -= 1
        latest[num_latest], had[num_latest] = one, length
        num_latest += 1
