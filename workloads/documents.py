"""Generators of prompts made of shared documents in varying order, and of prompts alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.types import Request
from workloads.arrivals import arrival_times_ns
from workloads.content import Ints
from workloads.dials import MAX_REQUESTS, check_dial, check_rate, draw_popular
from workloads.fields import MAX_TOKENS
from workloads.reuse import shared_prefix_tokens
from workloads.tree import Names, PrefixTree, with_tail
from workloads.workload import Workload


def few_shot(
    *,
    num_requests: int = 1000,
    examples: int = 8,
    pool: int = 8,
    shuffle: float = 0.0,
    example: int = 256,
    prompt: int = 128,
    output: int = 64,
    rate: float = 4.0,
    seed: int = 0,
) -> Workload:
    """Prompts of the same examples and a question of their own, in one order or shuffled.

    Parameters
    ----------
    num_requests
        At least 1.
    examples, pool
        Examples in a prompt, drawn without repetition from so many.
    shuffle
        Share of requests whose examples stand in an order of their own; those of the others stand
        in the pool's.
    example, prompt, output
        Tokens of an example, of a question and of an answer.
    rate
        Requests per second; arrivals are a Poisson process.
    seed
        Of the random numbers.
    """
    _check(num_requests, (prompt, output), rate, seed)
    check_dial("examples", examples, 1, pool)
    check_dial("example", example, 1, MAX_TOKENS)
    kind = _Documents("few-shot", examples, pool, 0.0, example, shuffle, prompt, output)
    return _of_documents(kind, num_requests, rate, seed)


def rag(
    *,
    num_requests: int = 1000,
    documents: int = 5,
    pool: int = 500,
    zipf: float = 1.0,
    shuffle: float = 1.0,
    document: int = 512,
    prompt: int = 128,
    output: int = 128,
    rate: float = 4.0,
    seed: int = 0,
) -> Workload:
    """Prompts of retrieved documents and a question: the documents repeat, prefixes hardly.

    Its note states how much repeats at all, and how much of that a prefix cache can reuse.

    Parameters
    ----------
    num_requests
        At least 1.
    documents, pool, zipf
        Documents in a prompt, drawn without repetition from so many, the k-th of which is
        ``k ** -zipf`` times as popular as the first.
    shuffle
        Share of requests whose documents stand in the order drawn; those of the others stand in
        the pool's.
    document, prompt, output
        Tokens of a document, of a question and of an answer.
    rate
        Requests per second; arrivals are a Poisson process.
    seed
        Of the random numbers.
    """
    _check(num_requests, (prompt, output), rate, seed)
    check_dial("documents", documents, 1, pool)
    check_dial("document", document, 1, MAX_TOKENS)
    kind = _Documents("rag", documents, pool, zipf, document, shuffle, prompt, output)
    return _of_documents(kind, num_requests, rate, seed)


def uniform(
    *,
    num_requests: int = 1000,
    prompt: int = 1024,
    output: int = 128,
    rate: float = 4.0,
    seed: int = 0,
) -> Workload:
    """Prompts that share nothing: the case without any hit.

    Parameters
    ----------
    num_requests
        At least 1.
    prompt, output
        Tokens of every request.
    rate
        Requests per second; arrivals are a Poisson process.
    seed
        Of the random numbers.
    """
    _check(num_requests, (prompt, output), rate, seed)
    times_ns = arrival_times_ns("poisson", num_requests, rate, 1.0, np.random.default_rng(seed))
    names = Names()
    requests = tuple(
        Request(str(i), time_ns, with_tail([], [], prompt + output, names), prompt, output)
        for i, time_ns in enumerate(times_ns.tolist())
    )
    return Workload("uniform", requests, notes=("No two prompts share a token: nothing can hit.",))


def _check(num_requests: int, lengths: tuple[int, int], rate: float, seed: int) -> None:
    prompt, output = lengths
    check_dial("num_requests", num_requests, 1, MAX_REQUESTS)
    check_dial("prompt", prompt, 1, MAX_TOKENS)
    check_dial("output", output, 0, MAX_TOKENS)
    check_rate(rate)
    check_dial("seed", seed, 0, 2**63)


@dataclass(frozen=True, slots=True)
class _Documents:
    """What prompts of either kind are made of; lengths in tokens."""

    name: str
    count: int
    pool: int
    zipf: float
    size: int
    shuffle: float
    prompt: int
    output: int


def _of_documents(kind: _Documents, num_requests: int, rate: float, seed: int) -> Workload:
    count, size = kind.count, kind.size
    check_dial("pool", kind.pool, 1, 10**6)
    check_dial("zipf", kind.zipf, 0, 10)
    check_dial("shuffle", kind.shuffle, 0, 1)
    check_dial("the whole prompt", count * size + kind.prompt, 1, MAX_TOKENS)

    draw_rng, arrival_rng = np.random.default_rng(seed).spawn(2)
    times_ns = arrival_times_ns("poisson", num_requests, rate, 1.0, arrival_rng).tolist()
    names = Names()
    tree = PrefixTree(names, size)
    root = tree.root()
    seen = np.zeros(kind.pool, dtype=bool)
    num_repeated = 0
    requests = []
    num_prompt_tokens = count * size + kind.prompt
    for index, time_ns in enumerate(times_ns):
        chosen = _draw(count, kind.pool, kind.zipf, draw_rng)
        order = chosen if draw_rng.random() < kind.shuffle else np.sort(chosen)
        bases, ends = tree.insert(order, root)
        content = with_tail(bases, ends, num_prompt_tokens + kind.output, names)
        requests.append(Request(str(index), time_ns, content, num_prompt_tokens, kind.output))
        num_repeated += int(seen[chosen].sum()) * size
        seen[chosen] = True
    total = num_requests * num_prompt_tokens
    hit = int(shared_prefix_tokens(requests).sum())
    note = (
        f"{num_repeated / total:.6f} of the prompt tokens repeat earlier ones, wherever they stand;"
        f" an infinite prefix cache hits {hit / total:.6f}, as the rest follows other text."
    )
    return Workload(name=kind.name, requests=tuple(requests), notes=(note,))


def _draw(count: int, pool: int, zipf: float, rng: np.random.Generator) -> Ints:
    """Draw things without repetition, in the order drawn."""
    if zipf == 0:
        return rng.permutation(pool)[:count].astype(np.int64)
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        drawn = draw_popular(pool, zipf, count, rng).tolist()
        chosen.update(dict.fromkeys(drawn))
        if len(chosen) < count and count > pool // 4:
            # Rare ones would take for ever to come up: draw the rest by weight at once.
            weights = np.arange(1, pool + 1, dtype=np.float64) ** -zipf
            weights[list(chosen)] = 0
            rest = rng.choice(pool, count - len(chosen), False, weights / weights.sum())
            chosen.update(dict.fromkeys(rest.tolist()))
    return np.array(list(chosen)[:count], dtype=np.int64)
