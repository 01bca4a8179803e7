"""Shared prefixes for traces that hold lengths only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sim.errors import UsageError
from sim.types import Content, Request
from workloads.content import Ints
from workloads.dials import check_dial, draw_popular
from workloads.fields import number, show, whole
from workloads.reuse import infinite_hit_rate
from workloads.tree import Names, with_tail
from workloads.workload import Workload

DIALS: dict[str, int | float] = {"hit_rate": 0.5, "num_prefixes": 10, "zipf": 0.0, "seed": 0}


def add_sharing(workload: Workload, args: Mapping[str, object]) -> Workload:
    """Let prompts begin with one of a few shared prefixes, cut to each prompt's length.

    Parameters
    ----------
    workload
        Without prefix information.
    args
        Of ``DIALS``, numbers or text that is one: the share of prompt tokens that an infinite cache
        hits, met within half a token per request or refused; different prefixes; their popularity,
        as in `workloads.dials.draw_popular`; seed.

    Raises
    ------
    UsageError
        If a dial is unknown or out of range, or no prefix is long enough for the hit rate.
    """
    values = dict(DIALS)
    for dial, value in args.items():
        if dial not in DIALS:
            raise UsageError(
                f"{workload.name} is a trace of lengths, to which {show(dial)} means nothing; the"
                f" dials that add sharing are {', '.join(DIALS)}."
            )
        found = whole(value) if isinstance(DIALS[dial], int) else number(value)
        if found is None:
            raise UsageError(
                f"{dial} is {show(value)}, which is not a number of its kind; give one, such as"
                f" {dial}={DIALS[dial]}."
            )
        values[dial] = found
    check_dial("hit_rate", values["hit_rate"], 0, 1)
    check_dial("num_prefixes", values["num_prefixes"], 1, 10**6)
    check_dial("zipf", values["zipf"], 0, 10)
    check_dial("seed", values["seed"], 0, 2**63)
    rng = np.random.default_rng(int(values["seed"]))
    requests = workload.requests
    prompts = np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)
    prefix_of = draw_popular(int(values["num_prefixes"]), values["zipf"], len(requests), rng)
    length = _prefix_length(prompts, prefix_of, values["hit_rate"])
    names = Names()
    bases = [names.take(length) for _ in range(int(values["num_prefixes"]))]

    def content(request: Request, prefix: int) -> Content:
        num_shared = min(length, request.num_prompt_tokens - 1)
        head = ([bases[prefix]], [num_shared]) if num_shared else ([], [])
        return with_tail(*head, request.content.num_tokens, names)

    shared = tuple(
        replace(request, content=content(request, prefix))
        for request, prefix in zip(requests, prefix_of.tolist(), strict=True)
    )
    note = (
        f"Prefixes of {length} tokens were added, which give a hit rate of"
        f" {infinite_hit_rate(shared, 1):.6f} in an infinite cache that tells prefixes apart to the"
        " token."
    )
    return replace(workload, requests=shared, has_prefix_info=True, notes=(*workload.notes, note))


def _prefix_length(prompts: Ints, prefix_of: Ints, hit_rate: float) -> int:
    """Find the length at which the hit rate is nearest; a prefix is cut to its prompt."""
    total = int(prompts.sum())
    longest = int(prompts.max()) - 1

    def num_hit(length: int) -> int:
        hit = 0
        held: dict[int, int] = {}
        for prompt, prefix in zip(prompts.tolist(), prefix_of.tolist(), strict=True):
            own = min(length, prompt - 1)
            hit += min(own, held.get(prefix, 0))
            held[prefix] = max(own, held.get(prefix, 0))
        return hit

    low, high = 0, longest
    while low < high:  # the shortest that reaches the hit rate
        middle = (low + high) // 2
        if num_hit(middle) < hit_rate * total:
            low = middle + 1
        else:
            high = middle
    if num_hit(low) < hit_rate * total:
        raise UsageError(
            f"hit_rate is {hit_rate:g}, but these prompts reach {num_hit(longest) / total:.6f} at"
            " most, since the first use of a prefix misses and the last token is never shared;"
            " lower hit_rate or num_prefixes."
        )
    nearer = low and hit_rate * total - num_hit(low - 1) < num_hit(low) - hit_rate * total
    return low - 1 if nearer else low
