"""What one eviction costs, against the number of free blocks that could be the victim.

All blocks of a pool are free and cached. A request that hits nothing takes eight of them, which
are evicted, and gives them back. What a policy does to find its victims shows in how the time and
the counts per eviction grow with the pool.

Two cases differ in the time stamps by which V0 orders blocks:

``one``
    All free blocks were last accessed at one time, as those of one long request are, or of requests
    that ran in the same step.
``many``
    The blocks of every 1,024 tokens, as of one request, share a time of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from sim.errors import UsageError
from sim.overhead.driver import MakeAllocator, Tokens
from sim.overhead.provenance import provenance
from sim.overhead.watch import COUNTS, Stopwatch, Tally, Watch, quiet_collector, unwatched
from sim.types import OperationCounts, Request
from sim.types import Sequence as Seq

ROUNDS = 8
REPETITIONS = 6
NUM_EVICTED = 8
"""Blocks that a timed request takes."""
REQUEST_TOKENS = 1024
TIME_STAMPS = ("one", "many")
COLUMNS = (
    "policy", "time_stamps", "num_free_blocks", "num_samples", "p50_ns", "min_ns",
    *(f"count_{name}" for name in COUNTS), "python", "machine", "commit", "version",
)  # fmt: skip
"""Of the table, in this order."""
MIN_FREE_BLOCKS = 1000
"""A pool of fewer blocks shows nothing."""


def measure_evictions(
    makers: Mapping[str, MakeAllocator],
    free_blocks: Sequence[int],
    *,
    block_size: int = 16,
    repetitions: int = REPETITIONS,
    on_turn: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Time and count evictions.

    Parameters
    ----------
    makers
        What makes the allocator of each policy, by its name.
    free_blocks
        Sizes of the pools, at least `MIN_FREE_BLOCKS`.
    block_size
        Tokens in a block.
    repetitions
        Requests that are timed in each of eight rounds, eight evictions each. In each round all
        policies and cases of a size take turns.
    on_turn
        Called after each turn.

    Returns
    -------
    A row per policy that evicts, size and case: ``policy``, ``time_stamps``, ``num_free_blocks``,
    ``num_samples``; ``p50_ns``, ``min_ns``: time to take one block that has to be evicted, its new
    key registered, ns, the median being that of the quickest round; ``count_*``: what that counts,
    see `OperationCounts`.

    Raises
    ------
    UsageError
        A pool that is too small.
    """
    for number in free_blocks:
        if number < MIN_FREE_BLOCKS:
            raise UsageError(
                f"--free-blocks {number} must be at least {MIN_FREE_BLOCKS:,}: growth with the "
                "number of free blocks does not show below; try 1000,10000,100000."
            )
    rows: list[dict[str, object]] = []
    for number in free_blocks:
        pools = [
            _Pool(policy, make, number, block_size, time_stamps)
            for time_stamps in TIME_STAMPS
            for policy, make in makers.items()
        ]
        with quiet_collector():
            for _ in range(ROUNDS):
                for pool in pools:
                    pool.take_turn(repetitions)
                    on_turn()
        rows += [pool.row() | provenance() for pool in pools if pool.evicts]
    if not rows:
        raise UsageError(
            f"--free-blocks found no evictions: {', '.join(makers)} caches nothing, or does not "
            "count them; add --policy vllm_v0,vllm_v1."
        )
    return pd.DataFrame(rows)[list(COLUMNS)]


class _Pool:
    """A pool whose blocks are all free and cached, and what was seen of it.

    Attributes
    ----------
    evicts
        Whether its policy evicts, and counts that.
    rounds
        Times to take eight blocks, ns.
    """

    def __init__(
        self, policy: str, make: MakeAllocator, num_blocks: int, block_size: int, time_stamps: str
    ) -> None:
        self.policy, self.num_blocks, self.block_size = policy, num_blocks, block_size
        self.time_stamps = time_stamps
        self.now_ns = 0
        self.allocator = make(
            num_blocks=num_blocks, block_size=block_size, clock=lambda: self.now_ns
        )
        self.rounds: list[list[int]] = []
        self._next_token = 0
        blocks_per_request = max(1, REQUEST_TOKENS // block_size)
        for start in range(0, num_blocks, blocks_per_request):
            self.serve(unwatched, min(blocks_per_request, num_blocks - start))
        tally = Tally(getattr(self.allocator, "counts", None) or OperationCounts())
        self.serve(tally, NUM_EVICTED)
        self.counted = dict(zip(COUNTS, tally.totals["allocate"], strict=True))
        self.evicts = self.counted["evictions"] > 0

    def take_turn(self, repetitions: int) -> None:
        """Take blocks and give them back, timed."""
        stopwatch = Stopwatch()
        for _ in range(repetitions):
            self.serve(stopwatch, NUM_EVICTED)
        self.rounds.append(stopwatch.samples["allocate"])

    def row(self) -> dict[str, object]:
        """Give its row of the table."""
        times = np.array(self.rounds) / NUM_EVICTED
        return {
            "policy": self.policy,
            "time_stamps": self.time_stamps,
            "num_free_blocks": self.num_blocks,
            "num_samples": times.size,
            "p50_ns": float(np.median(times, axis=1).min()),
            "min_ns": float(times.min()),
            **{f"count_{name}": value / NUM_EVICTED for name, value in self.counted.items()},
        }

    def serve(self, watch: Watch, num_blocks: int) -> None:
        """Serve a request of so many blocks that hits nothing."""
        num_tokens = num_blocks * self.block_size
        tokens = range(self._next_token, self._next_token + num_tokens)
        self._next_token += num_tokens
        request = Request(str(self._next_token), 0, Tokens(list(tokens)), num_tokens, 0)
        seq = Seq(request, list(tokens[self.block_size - 1 :: self.block_size]))
        if self.time_stamps != "one":
            self.now_ns += 1
        match = self.allocator.match_prefix(seq)
        if not watch("allocate", self.allocator.allocate, seq, match, num_tokens):
            raise UsageError(
                f"--policy {self.policy!r} has no room for {num_blocks} blocks though all are "
                "free; it cannot be measured by this method."
            )
        seq.num_computed_tokens = num_tokens
        self.allocator.cache_blocks(seq)
        self.allocator.free(seq)
