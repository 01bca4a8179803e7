"""Times our own policies: what each operation takes, and what it counts.

Timing begins once the pool has wrapped, so that every miss evicts. Operations, each timed by
itself, per request (``append``: per token):

``hash``
    Keys of the prompt's full blocks from its token ids, chained as the engines do.
``lookup``
    `Allocator.match_prefix`.
``allocate``
    `Allocator.allocate` of an admission: takes blocks, evicts, registers.
``request``
    The three together: what vLLM's table calls allocate.
``cache``
    `Allocator.cache_blocks` after the step that computed the prompt.
``append``
    One decoded token: room for it, and the hash of the block that it fills.
``free``
    `Allocator.free`.
``evict``
    What evictions add to ``allocate``: its time in the pool that wrapped against that in new
    pools, where the same misses take blocks that never held anything. Each round compares the two
    at one speed of the machine; the median share of ``allocate`` that a new pool saves is what
    evictions take. Hence without quantiles; where it is lost in the noise it may be negative.

With caching off nothing is hashed and nothing evicted: those rows are left out.

All policies and cells take turns, a few requests at a time, round after round, so that a slow
minute of the machine strikes all of them and no cell alone. A round that was disturbed takes
longer than one that was not; hence medians and means are those of the quickest round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from sim.errors import UsageError
from sim.overhead.driver import Cell, Driver, MakeAllocator
from sim.overhead.provenance import provenance
from sim.overhead.watch import (
    BYTES_PER_TOKEN,
    COUNTS,
    CollectorWatch,
    Stopwatch,
    Tally,
    forget_garbage,
    quiet_collector,
    unwatched,
)

OPERATIONS = ("hash", "lookup", "allocate", "request", "cache", "append", "free", "evict")
PARTS_OF_REQUEST = ("hash", "lookup", "allocate")
ROUNDS = 12
REPETITIONS = 8
COLUMNS = (
    "policy", "block_size_tokens", "prompt_tokens", "target_hit_rate", "measured_hit_rate",
    "operation", "calls_per_request", "num_samples", "p50_us", "mean_us", "p99_us", "min_us",
    "gc_us_mean", "evicted_blocks_per_request", "scanned_entries_per_request", "num_blocks",
    *(f"count_{name}" for name in COUNTS), "count_bytes_hashed",
    "python", "machine", "commit", "version",
)  # fmt: skip
"""Of the table, in this order."""


def measure_grid(
    makers: Mapping[str, MakeAllocator],
    cells: Sequence[Cell],
    *,
    repetitions: int = REPETITIONS,
    rounds: int = ROUNDS,
    on_turn: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Time policies in cells.

    Parameters
    ----------
    makers
        What makes the allocator of each policy, by its name.
    cells
        What is served to each.
    repetitions
        Requests that are timed per cell and round.
    rounds
        How often each cell has its turn; `on_turn` is called after each.

    Returns
    -------
    A row per policy, cell and operation, times in µs, columns as in `COLUMNS`:

    ``p50_us``, ``mean_us``
        Median and mean of the round in which they were lowest, the garbage collector being off.
    ``p99_us``
        99th percentile of a round, the median of all rounds.
    ``min_us``
        Of all ``num_samples`` samples of all rounds.
    ``gc_us_mean``
        What the collector, left to itself, added to an operation in another round. Objects that
        were there before the measurement are kept out of its sight.
    ``evicted_blocks_per_request``, ``scanned_entries_per_request``
        Of an admission.
    ``count_*``
        What one such operation counts, see `OperationCounts`; ``count_bytes_hashed``: token ids
        that it hashes, at 8 bytes each. A lookup changes nothing and counts nothing.
    ``calls_per_request``
        Of the operation, in the life of a request.

    Raises
    ------
    UsageError
        A policy that cannot be driven, or ``repetitions`` below 1.
    """
    if repetitions < 1:
        raise UsageError(
            f"--repetitions {repetitions} must be at least 1; the default is {REPETITIONS}."
        )
    with quiet_collector():
        subjects = [
            _Subject(name, makers[name], cell, repetitions)
            for cell, name in itertools.product(cells, makers)
        ]
        for _ in range(rounds):
            # What warming up or the round before left behind is kept out of the collector's way.
            forget_garbage()
            for subject in subjects:
                subject.take_turn()
                on_turn()
        for subject in subjects:
            subject.watch_collector()
    rows = [row | provenance() for subject in subjects for row in subject.rows()]
    return pd.DataFrame(rows)[list(COLUMNS)]


class _Subject:
    """A policy in a cell, and what was seen of it.

    Attributes
    ----------
    rounds, fresh_rounds
        Times by operation, ns, of each round: in the pool that wrapped, and in new ones.
    """

    def __init__(self, policy: str, make: MakeAllocator, cell: Cell, repetitions: int) -> None:
        self.policy, self.make, self.cell, self.repetitions = policy, make, cell, repetitions
        self.driver = Driver(policy, make, cell)
        self.driver.warm_up()
        self.rounds: list[dict[str, list[int]]] = []
        self.fresh_rounds: list[dict[str, list[int]]] = []
        self.collector = CollectorWatch()
        self.counted = _count(self.driver, repetitions)
        self.evicts = self.counted["allocate"]["evictions"] > 0
        if self.evicts:
            fresh = self._new_driver()
            self.counted["evict"] = _difference(
                self.counted["allocate"], _count(fresh, self._num_fresh_requests())["allocate"]
            )

    def take_turn(self) -> None:
        """Serve one round, timed."""
        stopwatch = Stopwatch()
        for _ in range(self.repetitions):
            self.driver.serve(stopwatch)
        self.rounds.append(stopwatch.samples)
        if self.evicts:
            self.fresh_rounds.append(self._time_without_evictions())

    def watch_collector(self) -> None:
        """Serve one round and let the garbage collector run as it likes."""
        forget_garbage()
        with self.collector:
            for _ in range(self.repetitions):
                self.driver.serve(self.collector)

    def rows(self) -> list[dict[str, object]]:
        """Give a row per operation."""
        allocated = self.counted["allocate"]
        common = {
            "policy": self.policy,
            "block_size_tokens": self.cell.block_size,
            "prompt_tokens": self.cell.prompt_tokens,
            "target_hit_rate": self.cell.hit_rate,
            "measured_hit_rate": self.driver.num_cached_tokens / self.cell.prompt_tokens,
            "evicted_blocks_per_request": allocated["evictions"],
            "scanned_entries_per_request": allocated["entries_scanned"],
            "num_blocks": self.cell.num_blocks,
        }
        times = {name: _statistics(self.rounds, name) for name in self.rounds[0]}
        times["request"] = _statistics(self.rounds, *self._parts())
        pauses = {
            name: pause / self.collector.calls[name] / 1e3
            for name, pause in self.collector.pauses_ns.items()
        }
        pauses["request"] = sum(pauses[name] for name in self._parts())
        if self.evicts:
            times["evict"] = self._evict_statistics(times["allocate"])
        return [
            common
            | {
                "operation": name,
                "calls_per_request": self.cell.num_decoded_tokens if name == "append" else 1,
                "gc_us_mean": pauses.get(name, 0.0),
            }
            | times[name]
            | self._counts_of(name)
            for name in OPERATIONS
            if name in times
        ]

    def _parts(self) -> list[str]:
        return [name for name in PARTS_OF_REQUEST if name in self.rounds[0]]

    def _counts_of(self, operation: str) -> dict[str, float]:
        """Lay out what an operation counts, with the token ids that it hashes."""
        names = self._parts() if operation == "request" else [operation]
        found = {
            f"count_{count}": sum(self.counted[name][count] for name in names) for count in COUNTS
        }
        hashed = 0.0
        if self.driver.hashes and operation in ("hash", "request"):
            hashed = self.cell.prompt_tokens // self.cell.block_size * self.cell.block_size
        elif self.driver.hashes and operation == "append":
            # Blocks that decoded tokens fill are hashed once they are full.
            end = self.cell.prompt_tokens + self.cell.num_decoded_tokens
            size = self.cell.block_size
            filled = end // size - self.cell.prompt_tokens // size
            hashed = filled * size / self.cell.num_decoded_tokens
        return found | {"count_bytes_hashed": BYTES_PER_TOKEN * hashed}

    def _evict_statistics(self, allocate: Mapping[str, float]) -> dict[str, float]:
        """Find what evictions take of ``allocate``, µs."""
        found = {"p99_us": float("nan"), "min_us": float("nan")}
        for name, average in (("p50_us", np.median), ("mean_us", np.mean)):
            shares = [
                1 - float(average(new["allocate"])) / float(average(wrapped["allocate"]))
                for wrapped, new in zip(self.rounds, self.fresh_rounds, strict=True)
            ]
            found[name] = float(np.median(shares)) * allocate[name]
        return found | {"num_samples": sum(len(new["allocate"]) for new in self.fresh_rounds)}

    def _new_driver(self) -> Driver:
        """Make a driver of a new pool in which the prefix that all share is cached."""
        driver = Driver(self.policy, self.make, self.cell)
        # The first request finds no prefix, the second sees everything for the first time.
        for _ in range(2):
            driver.serve(unwatched)
        return driver

    def _num_fresh_requests(self) -> int:
        """Count the requests that a new pool then surely serves without reusing a block."""
        num_requests = self.cell.num_blocks // self.cell.num_new_blocks - 3
        return max(1, min(num_requests, self.repetitions))

    def _time_without_evictions(self) -> dict[str, list[int]]:
        """Time admissions of new pools: the same misses, and nothing to evict."""
        stopwatch = Stopwatch()
        while len(stopwatch.samples.get("allocate", ())) < self.repetitions:
            driver = self._new_driver()
            for _ in range(self._num_fresh_requests()):
                driver.serve(stopwatch)
        return stopwatch.samples


def _count(driver: Driver, num_requests: int) -> dict[str, dict[str, float]]:
    """Serve requests and count what each operation does, per call."""
    tally = Tally(driver.counts)
    for _ in range(num_requests):
        driver.serve(tally)
    return {
        operation: {
            name: value / tally.calls[operation] for name, value in zip(COUNTS, totals, strict=True)
        }
        for operation, totals in tally.totals.items()
    }


def _difference(with_it: dict[str, float], without: dict[str, float]) -> dict[str, float]:
    return {name: with_it[name] - without[name] for name in with_it}


def _statistics(rounds: Sequence[Mapping[str, list[int]]], *operations: str) -> dict[str, float]:
    """Summarise the times of an operation, or of several that follow each other, in µs."""
    times = [np.sum([times_ns[name] for name in operations], axis=0) / 1e3 for times_ns in rounds]
    together = np.concatenate(times)
    return {
        "num_samples": len(together),
        "p50_us": min(float(np.median(one)) for one in times),
        "mean_us": min(float(np.mean(one)) for one in times),
        # Of all samples together it would tell of the worst moments of the machine.
        "p99_us": float(np.median([np.quantile(one, 0.99) for one in times])),
        "min_us": float(np.min(together)),
    }
