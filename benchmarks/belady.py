"""What Belady's rule hits where a chain may break: ties, leaves, and pinned chains.

    python benchmarks/belady.py weka_710.tar.zst --num-requests 12000 --block-size 2048 \
        --kv-capacity 2,5,10

The rule – evict what is needed again last – is replayed one request at a time under the prefix
rule, in the forms in which one may write it down. They differ in three ways. Blocks that the same
request needs next are equal for the rule: the *tail* or the *head* of a chain may go first. Only
*leaves* may go, or any block. And the chain of the request that is served may be *pinned* until it
ends, as every engine must, or not, as in a simulator of single references: then a chain that is
needed late gives its own blocks away for its own rest. The bound of ``prefixsim compare`` comes
first.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import pairwise
from math import inf

import numpy as np

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Blocked, Order, Ranked, required
from sim.curve import find_paths, most_hits, references_of
from sim.serial import hits_one_at_a_time
from sim.types import Clock, Request
from workloads import load


class Future:
    """For each request and block, which later request needs the block next."""

    def __init__(self, chains: list[list[int]]) -> None:
        upcoming: dict[int, float] = {}
        self._next: list[list[float]] = [[] for _ in chains]
        for number in reversed(range(len(chains))):
            self._next[number] = [upcoming.get(key, inf) for key in chains[number]]
            upcoming.update(dict.fromkeys(chains[number], float(number)))

    def needed(self, number: int, position: int) -> float:
        """Find the next request after ``number`` that has its block at ``position``."""
        return self._next[number][position]


class BeladyOrder(Order):
    """Evicts what is needed again last; of equals, the tail or the head of a chain."""

    def __init__(self, capacity: int, future: Future, *, heads_first: bool) -> None:
        super().__init__(capacity)
        self._ranked = Ranked(self.blocked)
        self._future = future
        self._sign = 1 if heads_first else -1
        self.number = 0

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Look up when it is needed next."""
        needed = self._future.needed(self.number, position)
        self._ranked.set(key, -needed, self._sign * position)

    on_insert = on_release = on_hit

    def victim(self) -> int:
        """Take what is needed last."""
        key = required(self._ranked.smallest())
        self._ranked.remove(key)
        return key


class BeladyPool(EvictorPool):
    """V1's allocator with that order; the chain of the running request is pinned, of course."""

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, order: BeladyOrder, leaf_only: bool
    ) -> None:
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)
        self._belady = order

    def free(self, seq: object) -> None:
        """Go on to the next request."""
        super().free(seq)  # type: ignore[arg-type]
        self._belady.number += 1


def unpinned_hits(
    chains: list[list[int]], reach: list[int], capacity: int, future: Future, *, heads_first: bool
) -> int:
    """Count leading blocks found where a request's own blocks may be evicted while it is served."""
    ranked = Ranked(Blocked())
    sign = 1 if heads_first else -1
    num_hits = 0
    for number, chain in enumerate(chains):
        for key in chain[: reach[number]]:
            if key not in ranked:
                break
            num_hits += 1
        for position, key in enumerate(chain):
            if key not in ranked and len(ranked) == capacity:
                ranked.remove(required(ranked.smallest()))
            ranked.set(key, -future.needed(number, position), sign * position)
    return num_hits


def main() -> None:
    """Replay all forms at each capacity."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--num-requests", type=int)
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--kv-capacity", default="5,10", help="per cent of distinct prompt tokens")
    arguments = parser.parse_args()
    workload = load(arguments.trace, num_requests=arguments.num_requests)
    size: int = arguments.block_size
    requests: tuple[Request, ...] = workload.requests
    references = references_of(requests, size)
    bounds = references.offsets.tolist()
    blocks = references.blocks.tolist()
    chains = [blocks[i:j] for i, j in pairwise(bounds)]
    reach = references.sizes.num_lookup_blocks.tolist()
    future = Future(chains)
    paths = find_paths(references)
    total = references.sizes.num_all_prompt_tokens
    for share in map(float, arguments.kv_capacity.split(",")):
        capacity = int(share / 100 * workload.num_distinct_prompt_tokens) // size
        assert capacity >= references.sizes.max_held_blocks, "a request does not fit"
        (bound,) = most_hits(paths, np.array([capacity])).tolist()
        print(f"{share:g} %, {capacity:,} blocks: bound {bound * size / total:.4f}", flush=True)
        for heads_first in (True, False):
            first = "heads" if heads_first else "tails"
            found = unpinned_hits(chains, reach, capacity, future, heads_first=heads_first)
            print(f"  not pinned, {first} first, any block: {found * size / total:.4f}", flush=True)
            for leaf_only in (False, True):
                order = BeladyOrder(capacity, future, heads_first=heads_first)
                make = partial(BeladyPool, capacity, size, order=order, leaf_only=leaf_only)
                hits = hits_one_at_a_time(make, requests).sum()
                what = "leaves only" if leaf_only else "any block"
                print(f"  pinned, {first} first, {what}: {hits / total:.4f}", flush=True)


if __name__ == "__main__":
    main()
