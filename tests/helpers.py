"""What several tests share: where the shared files are, requests made by hand, serving them."""

from pathlib import Path

import numpy as np
import pytest

import policies
from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import NO_MATCH, Batch, Inspectable, Request, Sequence
from workloads.content import Interner, TokenIds

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"


def needs(path):
    """Skip a test where a shared file or folder is not there."""
    return pytest.mark.skipif(not path.exists(), reason=f"{path} is not there")


class Clock:
    """Simulated time that a test sets by hand."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


def make(policy, num_blocks, block_size, clock=None, **args):
    """Make an allocator; the clock stands still unless one is given."""
    return policies.make(
        policy, num_blocks=num_blocks, block_size=block_size, clock=clock or Clock(), args=args
    )


VLLM = ("vllm_v0", "vllm_v0_scan", "vllm_v1", "vllm_v1_latest")
"""Policies that model vLLM's own allocators."""

ORDERS = tuple(
    name for name in policies.names() if "leaf_only" in policies.options(policies.load(name))
)
"""Policies that are an order of eviction behind V1's allocator."""


def policy_cases():
    """Every shipped policy, and once more with its exact lookup where it may miscount by default.

    An order that may evict parents and one that never would are tried with leaves only, too.
    Yields (id, name, args, exact).
    """
    for name in ("fifo", "sieve", "lru"):
        yield f"{name}-leaf", name, {"leaf_only": True}, True
    for name in policies.names():
        lookup = policies.options(policies.load(name)).get("lookup")
        if lookup is None:
            yield name, name, {}, True
        else:
            yield f"{name}-{lookup.default}", name, {}, lookup.default == "walk"
            yield f"{name}-walk", name, {"lookup": "walk"}, True


def requests_of(*rows, names=None, arrivals_ns=None, interner=None):
    """Make requests from (prompt tokens, output tokens), with ids r0, r1, ... unless named.

    Requests can share prefixes if they were made in one call or with one interner.
    """
    interner = interner or Interner()
    requests = []
    for index, (prompt, output) in enumerate(rows):
        content = TokenIds(np.array([*prompt, *output], dtype=np.int64), interner)
        name = names[index] if names else f"r{index}"
        arrival_ns = arrivals_ns[index] if arrivals_ns else 0
        requests.append(Request(name, arrival_ns, content, len(prompt), len(output)))
    return requests


def sequence_of(request, block_size):
    """Wrap a request as the engine does: keys of the blocks whose KV will be computed."""
    keys = request.content.block_keys(block_size)[: request.num_kv_tokens // block_size]
    return Sequence(request, keys.tolist())


def state_of(allocator, sequences=()):
    """Everything that can be seen of an allocator."""
    return {
        "usage": allocator.usage(),
        "tables": [allocator.block_table(seq) for seq in sequences],
        "snapshot": allocator.snapshot() if isinstance(allocator, Inspectable) else None,
        "counters": [getattr(allocator, f"num_block_{what}", 0) for what in ("queries", "hits")],
    }


def serve_in_turn(allocator, requests, clock):
    """Serve one request at a time, step by step; return what each had cached."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=10**6), allocator)
    cached = []
    for request in requests:
        assert scheduler.num_missing_blocks(request) == 0
        seq = sequence_of(request, allocator.block_size)
        scheduler.add(seq)
        while scheduler.has_work():
            clock.now_ns += 1
            scheduler.complete(scheduler.schedule())
        cached.append(seq.num_cached_tokens)
    return cached


def serve_in_two_calls(allocator, requests, clock):
    """Serve one request at a time, its whole output in one call: quick enough for real traces."""
    cached = []
    for request in requests:
        clock.now_ns += 1
        seq = sequence_of(request, allocator.block_size)
        match = allocator.match_prefix(seq)
        cached.append(match.num_tokens)
        assert allocator.allocate(seq, match, seq.num_tokens - match.num_tokens)
        seq.num_computed_tokens = seq.num_tokens
        allocator.cache_blocks(seq)
        num_decoded_tokens = request.num_kv_tokens - request.num_prompt_tokens
        if num_decoded_tokens:
            clock.now_ns += 1
            seq.num_tokens = request.num_kv_tokens
            assert allocator.allocate(seq, NO_MATCH, num_decoded_tokens)
            seq.num_computed_tokens = seq.num_tokens
            allocator.cache_blocks(seq)
        allocator.free(seq)
    return cached


def batch_of(*sequences):
    """Sum a step up from (new tokens, computed tokens) per sequence."""
    batch = Batch()
    for num_new_tokens, num_computed_tokens in sequences:
        batch.add(num_new_tokens, num_computed_tokens)
    return batch
