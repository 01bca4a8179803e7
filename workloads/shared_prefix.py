"""Generator of requests that share prefixes, with a dial for the hit rate."""

from __future__ import annotations

import math

import numpy as np

from sim.errors import UsageError
from sim.types import Request
from workloads.arrivals import arrival_times_ns
from workloads.content import Segments
from workloads.dials import check_dial, check_rate, draw_popular
from workloads.fields import MAX_TOKENS
from workloads.workload import Workload


def shared_prefix(
    *,
    num_requests: int = 1000,
    hit_rate: float = 0.5,
    num_prefixes: int = 10,
    zipf: float = 0.0,
    prompt: int = 2048,
    output: int = 128,
    rate: float = 4.0,
    seed: int = 0,
) -> Workload:
    """Prompts of one length that begin with one of a few shared prefixes.

    The length of the prefixes, the same for all, is chosen for the hit rate that an infinite
    cache achieves, in which the first use of each prefix misses. At least the last token of a
    prompt is never shared.

    Parameters
    ----------
    num_requests
        At least 1.
    hit_rate
        Hit tokens as a share of all prompt tokens, met within half a token per request; an engine
        that caches full blocks loses up to a block per request more.
    num_prefixes
        Different prefixes to draw from.
    zipf
        Popularity of prefixes: the k-th is ``k ** -zipf`` times as popular as the first; 0 draws
        all alike.
    prompt, output
        Tokens of every request.
    rate
        Requests per second; arrivals are a Poisson process.
    seed
        Of the random numbers. Draws of prefixes do not depend on the other dials but for
        ``num_requests`` and ``num_prefixes``.

    Raises
    ------
    UsageError
        If a dial is out of range, or no prefix is long enough for ``hit_rate``.
    """
    check_dial("num_requests", num_requests, 1, 10**9)
    check_dial("hit_rate", hit_rate, 0, 1)
    check_dial("num_prefixes", num_prefixes, 1, 10**9)
    check_dial("zipf", zipf, 0, 10)
    check_dial("prompt", prompt, 1, MAX_TOKENS)
    check_dial("output", output, 0, MAX_TOKENS)
    check_dial("seed", seed, 0, 2**63)
    check_rate(rate)

    prefix_rng, arrival_rng = np.random.default_rng(seed).spawn(2)
    prefix_of = draw_popular(num_prefixes, zipf, num_requests, prefix_rng)
    num_hits = num_requests - len(np.unique(prefix_of))
    num_shared = _prefix_length(hit_rate, num_hits, num_requests, num_prefixes, prompt)
    times_ns = arrival_times_ns("poisson", num_requests, rate, 1.0, arrival_rng).tolist()

    num_own = prompt - num_shared + output
    ends = np.array([num_shared, prompt + output], dtype=np.int64)
    bases = np.empty((num_requests, 2), dtype=np.int64)
    bases[:, 0] = prefix_of * num_shared
    bases[:, 1] = num_prefixes * num_shared + np.arange(num_requests) * num_own
    if num_shared == 0:
        ends, bases = ends[1:], bases[:, 1:]
    requests = tuple(
        Request(
            request_id=str(index),
            arrival_ns=time_ns,
            content=Segments(bases[index], ends),
            num_prompt_tokens=prompt,
            num_output_tokens=output,
        )
        for index, time_ns in enumerate(times_ns)
    )
    achieved = num_hits * num_shared / (num_requests * prompt)
    note = (
        f"Prefixes of {num_shared} tokens give a hit rate of {achieved:.6f} in an infinite cache"
        " that tells prefixes apart to the token."
    )
    return Workload(name="shared-prefix", requests=requests, notes=(note,))


def _prefix_length(
    hit_rate: float, num_hits: int, num_requests: int, num_prefixes: int, prompt: int
) -> int:
    num_prompt_tokens = num_requests * prompt
    highest = num_hits * (prompt - 1) / num_prompt_tokens
    if hit_rate == 0:
        return 0
    length = round(hit_rate * num_prompt_tokens / num_hits) if num_hits else prompt
    if length >= prompt:
        raise UsageError(
            f"hit_rate is {hit_rate:g}, but {num_requests} requests of {prompt} tokens over"
            f" {num_prefixes} prefixes reach {math.floor(highest * 1e6) / 1e6:g} at most, since the"
            " first use of a prefix misses and the last token is never shared; lower hit_rate or"
            " num_prefixes, or raise num_requests or prompt."
        )
    return length
