"""Times our own policies, by the method by which vLLM's block managers were timed.

The pool holds 12 prompts. Every request shares a prefix with all others; five are live at a time;
each decodes two blocks' worth of tokens (32 for blocks above 32) as soon as it is admitted. Timing
begins once the pool has wrapped, so that every miss evicts.

Operations, each timed by itself, per request (``append``: per token):

``hash``
    Keys of the prompt's full blocks from its token ids, chained as the engines do. The policies
    are not given these keys: a hash could collide, and would differ from process to process.
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
    What evictions add to ``allocate``: the difference between its time in the pool that wrapped
    and in a new pool, where the same misses take blocks that never held anything. A difference of
    means or medians, hence without quantiles; it may be lost in the noise, and then be negative.

A time is the smaller of wall time and the thread's CPU time: the clock of the first is finer, the
second leaves out what other processes took meanwhile. The cost of reading clocks is taken off.

With caching off nothing is hashed and nothing evicted: those rows are left out.
"""

from __future__ import annotations

import gc
import itertools
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import policies
from sim.errors import UsageError
from sim.types import NO_MATCH, OperationCounts, Request, Sequence

POOL_PROMPTS = 12
NUM_LIVE = 5
FRESH_REQUESTS = 9
"""Requests that a new pool surely serves without reusing a block."""
OPERATIONS = ("hash", "lookup", "allocate", "request", "cache", "append", "free", "evict")

Samples = dict[str, list[int]]
T = TypeVar("T")


def measure(
    policy_name: str,
    *,
    block_size: int = 16,
    prompt_tokens: int = 1024,
    hit_rate: float = 0.0,
    repetitions: int = 100,
    policy_args: Mapping[str, object] | None = None,
) -> pd.DataFrame:
    """Time one policy in one cell.

    Parameters
    ----------
    policy_name
        As for ``--policy``.
    block_size, prompt_tokens
        Of the engine and of every request.
    hit_rate
        Share of the prompt that all requests share, in [0, 1); rounded down to whole blocks.
    repetitions
        Requests that are timed, and again as many to see what the garbage collector takes.
    policy_args
        Options of the policy.

    Returns
    -------
    A row per operation, in µs. The garbage collector is off while ``p50_us``, ``mean_us``,
    ``p99_us`` and ``min_us`` are taken.
    ``gc_us_mean`` is what the collector, left to itself, added to an operation in a second round;
    objects that are there before the measurement are kept out of its sight.
    ``evicted_blocks_per_request`` and ``scanned_entries_per_request`` are those of an admission,
    the columns ``count_*`` (see `OperationCounts`) of the whole life of a request.

    Raises
    ------
    UsageError
        A value out of its range, or an unknown policy.
    """
    _check(block_size, prompt_tokens, hit_rate, repetitions)

    def new_driver() -> _Driver:
        return _Driver(policy_name, policy_args or {}, block_size, prompt_tokens, hit_rate)

    with _quiet_collector():
        driver = new_driver()
        driver.warm_up()
        counted = asdict(driver.counts)
        samples: Samples = {}
        for _ in range(repetitions):
            gc.collect()
            driver.serve(samples)
        per_request = {k: (v - counted[k]) / repetitions for k, v in asdict(driver.counts).items()}
        evicted, scanned = driver.num_evicted / repetitions, driver.num_scanned / repetitions
        cached_tokens = sum(driver.cached_tokens[-repetitions:])
        if evicted:
            fresh = _time_without_evictions(new_driver, repetitions)
            samples["evict"] = [0]  # its place; the figures are differences
        pauses = _time_collector(driver, repetitions)
    common = {
        "policy": policy_name,
        "block_size_tokens": block_size,
        "prompt_tokens": prompt_tokens,
        "target_hit_rate": hit_rate,
        "measured_hit_rate": cached_tokens / (repetitions * prompt_tokens),
        "num_blocks": driver.num_blocks,
        "evicted_blocks_per_request": evicted,
        "scanned_entries_per_request": scanned,
        **{f"count_{name}": value for name, value in per_request.items()},
        **_provenance(),
    }
    statistics = {name: _statistics(np.array(samples[name])) for name in samples}
    if evicted:
        statistics["evict"] = _differences(statistics["allocate"], _statistics(np.array(fresh)))
    rows = [
        common | {"operation": name, **statistics[name], "gc_us_mean": pauses.get(name, 0.0)}
        for name in OPERATIONS
        if name in statistics
    ]
    return pd.DataFrame(rows)[_columns(rows[0])]


def measure_grid(
    policy_names: list[str],
    block_sizes: list[int],
    prompts: list[int],
    hit_rates: list[float],
    *,
    repetitions: int = 30,
    passes: int = 2,
    on_cell: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Time policies over a grid, in several passes; each time is the smallest of the passes'.

    The time of a pass that was disturbed is larger than that of one that was not, hence the
    smallest; ``evict``, a difference, and ``gc_us_mean`` are means over the passes instead.
    ``num_samples`` counts all passes. `on_cell` is called after each policy in each cell of each
    pass.
    """
    # Policies take turns in each cell, so that a slow minute of the machine strikes all of them.
    cells = list(itertools.product(block_sizes, prompts, hit_rates, policy_names))
    for block_size, prompt, hit_rate, _ in cells:
        _check(block_size, prompt, hit_rate, repetitions)
    tables = []
    for _ in range(passes):
        measured = []
        for block_size, prompt, hit_rate, policy_name in cells:
            measured.append(
                measure(
                    policy_name,
                    block_size=block_size,
                    prompt_tokens=prompt,
                    hit_rate=hit_rate,
                    repetitions=repetitions,
                )
            )
            on_cell()
        tables.append(pd.concat(measured, ignore_index=True))
    return _merge(tables)


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """Give a row per policy and cell, with the columns of vLLM's table.

    As there, ``allocate`` includes hashing and lookup, and means include the garbage collector.
    ``evicted_blocks`` and ``scanned_entries`` are per admission.
    """
    columns = {"request": "allocate", "append": "append", "free": "free"}
    cell = ["policy", "block_size_tokens", "prompt_tokens", "target_hit_rate"]
    indexed = table.set_index(cell)
    requests = indexed[indexed["operation"] == "request"]
    result = pd.DataFrame(
        {
            "measured_hit_rate": requests["measured_hit_rate"],
            "num_blocks": requests["num_blocks"],
            "requests_timed": requests["num_samples"],
        }
    )
    for operation, name in columns.items():
        rows = indexed[indexed["operation"] == operation]
        result[f"{name}_us_p50"] = rows["p50_us"]
        result[f"{name}_us_mean"] = rows["mean_us"] + rows["gc_us_mean"]
    result["evicted_blocks"] = requests["evicted_blocks_per_request"]
    result["scanned_entries"] = requests["scanned_entries_per_request"]
    return result.reset_index()


class _Tokens:
    """A stream in which every prefix ends with a token of its own, which names it."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.num_tokens = len(tokens)

    def block_keys(self, block_size: int) -> NDArray[np.int64]:
        return np.array(self.tokens[block_size - 1 :: block_size], dtype=np.int64)

    def token_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.array(self.tokens[start:stop], dtype=np.int64)


class _Driver:
    """One allocator and the requests that it serves, one after the other."""

    def __init__(
        self,
        policy_name: str,
        policy_args: Mapping[str, object],
        block_size: int,
        prompt_tokens: int,
        hit_rate: float,
    ) -> None:
        self.block_size = block_size
        self.prompt_tokens = prompt_tokens
        num_prompt_blocks = -(-prompt_tokens // block_size)
        self.num_blocks = POOL_PROMPTS * num_prompt_blocks
        # 0.9 of 10 blocks are 9, whatever floating point says.
        num_shared = int(round(hit_rate * prompt_tokens / block_size, 9)) * block_size
        self.num_decoded = 2 * block_size if block_size <= 32 else 32
        self.num_new_blocks = (
            -(-(prompt_tokens + self.num_decoded) // block_size) - num_shared // block_size
        )
        self.allocator = policies.make(
            policy_name,
            num_blocks=self.num_blocks,
            block_size=block_size,
            clock=lambda: self.now_ns,
            args=policy_args,
        )
        self.policy_name = policy_name
        self.counts: OperationCounts = getattr(self.allocator, "counts", None) or OperationCounts()
        self.now_ns = 0
        self.num_evicted = self.num_scanned = 0
        self.cached_tokens: list[int] = []
        self.hashes = True
        self.pause_ns = 0
        self.pauses: dict[str, int] = {}
        self._prefix = list(range(num_shared))
        self._next_token = num_shared
        self._live: list[Sequence] = []

    def warm_up(self) -> None:
        """Serve until no block of the pool is new, and half a pool more."""
        num_requests = NUM_LIVE + -(-3 * self.num_blocks // (2 * self.num_new_blocks))
        for _ in range(num_requests):
            self.serve({})
        self.hashes = self.allocator.usage().cached > 0
        self.num_evicted = self.num_scanned = 0

    def serve(self, samples: Samples) -> None:
        """End the oldest request if five are live, admit another and let it decode."""
        if len(self._live) == NUM_LIVE:
            self._timed(samples, "free", self.allocator.free, self._live.pop(0))
        seq, tokens = self._new_sequence()
        self.now_ns += 1
        if self.hashes:
            size = self.block_size
            self._timed(samples, "hash", _hash_blocks, tokens[: self.prompt_tokens], size)
        match = self._timed(samples, "lookup", self.allocator.match_prefix, seq)
        evicted, scanned = self.counts.evictions, self.counts.entries_scanned
        num_tokens = seq.num_tokens - match.num_tokens
        if not self._timed(samples, "allocate", self.allocator.allocate, seq, match, num_tokens):
            raise UsageError(
                f"--policy {self.policy_name!r} has no room for {NUM_LIVE} requests in "
                f"{POOL_PROMPTS} prompts' worth of blocks; it cannot be measured by this method."
            )
        self.num_evicted += self.counts.evictions - evicted
        self.num_scanned += self.counts.entries_scanned - scanned
        parts = [name for name in ("hash", "lookup", "allocate") if name in samples]
        samples.setdefault("request", []).append(sum(samples[name][-1] for name in parts))
        self.pauses["request"] = sum(self.pauses.get(name, 0) for name in parts)
        self.cached_tokens.append(match.num_tokens)
        seq.num_computed_tokens = seq.num_tokens
        self._timed(samples, "cache", self.allocator.cache_blocks, seq)
        self._decode(samples, seq, tokens)
        self._live.append(seq)

    def _decode(self, samples: Samples, seq: Sequence, tokens: list[int]) -> None:
        for _ in range(self.num_decoded):
            self.now_ns += 1
            seq.num_tokens += 1
            self._timed(samples, "append", self._append, seq, tokens)
            seq.num_computed_tokens += 1
            self.allocator.cache_blocks(seq)

    def _append(self, seq: Sequence, tokens: list[int]) -> None:
        if not self.allocator.allocate(seq, NO_MATCH, 1):
            raise UsageError(
                f"--policy {self.policy_name!r} refuses a token though blocks are free."
            )
        if self.hashes and seq.num_tokens % self.block_size == 0:
            _hash_blocks(tokens[seq.num_tokens - self.block_size : seq.num_tokens], self.block_size)

    def _new_sequence(self) -> tuple[Sequence, list[int]]:
        num_own = self.prompt_tokens - len(self._prefix) + self.num_decoded
        tokens = self._prefix + list(range(self._next_token, self._next_token + num_own))
        self._next_token += num_own
        request = Request(
            str(self._next_token),
            self.now_ns,
            _Tokens(tokens),
            self.prompt_tokens,
            # The last output token is never fed back.
            self.num_decoded + 1,
        )
        return Sequence(request, tokens[self.block_size - 1 :: self.block_size]), tokens

    def _timed(
        self,
        samples: Samples,
        operation: str,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401
    ) -> T:
        pause_before = self.pause_ns
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        result = function(*args)
        elapsed = perf_counter_ns() - start
        cpu_elapsed = thread_time_ns() - cpu_start
        self.pauses[operation] = self.pauses.get(operation, 0) + self.pause_ns - pause_before
        wall_cost, cpu_cost = _clock_costs_ns()
        own_time = min(elapsed - wall_cost, cpu_elapsed - cpu_cost)
        samples.setdefault(operation, []).append(max(0, own_time))
        return result


def _hash_blocks(tokens: list[int], block_size: int) -> list[int]:
    """Hash full blocks as the engines do: each over its tokens and the hash before it."""
    parent, hashes = 0, []
    for stop in range(block_size, len(tokens) + 1, block_size):
        parent = hash((parent, tuple(tokens[stop - block_size : stop])))
        hashes.append(parent)
    return hashes


@cache
def _clock_costs_ns() -> tuple[int, int]:
    """Wall and CPU time that `_Driver._timed` sees where nothing is between its readings."""
    wall, cpu = [], []
    for _ in range(2000):
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        wall.append(perf_counter_ns() - start)
        cpu.append(thread_time_ns() - cpu_start)
    return min(wall), min(cpu)


def _time_without_evictions(new_driver: Callable[[], _Driver], repetitions: int) -> list[int]:
    """Time admissions of new pools: the same misses, and nothing to evict."""
    times: list[int] = []
    while len(times) < repetitions:
        driver = new_driver()
        num_requests = min(FRESH_REQUESTS, driver.num_blocks // driver.num_new_blocks - 1)
        samples: Samples = {}
        for _ in range(max(num_requests, 3)):
            gc.collect()
            driver.serve(samples)
        # The first request finds no prefix, the second sees everything for the first time.
        times += samples["allocate"][2:]
    return times


def _time_collector(driver: _Driver, repetitions: int) -> dict[str, float]:
    """Let the garbage collector run as it likes; give its mean part in each operation, µs."""
    started = 0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = perf_counter_ns()
        else:
            driver.pause_ns += perf_counter_ns() - started

    driver.pauses = {}
    samples: Samples = {}
    gc.callbacks.append(on_collection)
    gc.enable()
    try:
        for _ in range(repetitions):
            driver.serve(samples)
    finally:
        gc.disable()
        gc.callbacks.remove(on_collection)
    return {name: pause / len(samples[name]) / 1e3 for name, pause in driver.pauses.items()}


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Turn automatic collection off, and keep what is there already out of explicit ones."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _statistics(times_ns: NDArray[np.int64]) -> dict[str, float]:
    return {
        "num_samples": len(times_ns),
        "p50_us": float(np.median(times_ns)) / 1e3,
        "mean_us": float(np.mean(times_ns)) / 1e3,
        "p99_us": float(np.quantile(times_ns, 0.99)) / 1e3,
        "min_us": float(np.min(times_ns)) / 1e3,
    }


def _differences(with_it: dict[str, float], without: dict[str, float]) -> dict[str, float]:
    return {
        "num_samples": with_it["num_samples"],
        "p50_us": with_it["p50_us"] - without["p50_us"],
        "mean_us": with_it["mean_us"] - without["mean_us"],
        "p99_us": float("nan"),
        "min_us": float("nan"),
    }


def _merge(passes: list[pd.DataFrame]) -> pd.DataFrame:
    """Put passes over the same grid together."""
    merged = passes[0].copy()
    evict = merged["operation"] == "evict"
    for name in ("p50_us", "mean_us", "p99_us", "min_us"):
        times = np.stack([table[name].to_numpy(dtype=float) for table in passes])
        merged[name] = np.where(evict, times.mean(axis=0), times.min(axis=0))
    merged["gc_us_mean"] = sum(table["gc_us_mean"] for table in passes) / len(passes)
    merged["num_samples"] = sum(table["num_samples"] for table in passes)
    return merged


def _columns(row: Mapping[str, object]) -> list[str]:
    first = [
        "policy", "block_size_tokens", "prompt_tokens", "target_hit_rate", "measured_hit_rate",
        "operation", "num_samples", "p50_us", "mean_us", "p99_us", "min_us", "gc_us_mean",
        "evicted_blocks_per_request", "scanned_entries_per_request", "num_blocks",
    ]  # fmt: skip
    return first + [name for name in row if name not in first]


@cache
def _provenance() -> dict[str, str]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": _processor(),
        "commit": _commit(),
        "version": version("prefixsim"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Name the commit of the working tree that this file lies in, if it lies in one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(root),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=10",
                "--exclude=*",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _check(block_size: int, prompt_tokens: int, hit_rate: float, repetitions: int) -> None:
    if block_size < 1:
        raise UsageError(f"--block-sizes {block_size} must be at least 1; 16 is vLLM's default.")
    if prompt_tokens < block_size:
        raise UsageError(
            f"--prompt-tokens {prompt_tokens} is less than a block of {block_size}: nothing could "
            "be cached; give prompts of at least one block."
        )
    if not 0 <= hit_rate < 1:
        raise UsageError(
            f"--hit-rates {hit_rate} is outside [0, 1): it is the share of a prompt that all "
            "requests have in common; try 0.9."
        )
    if repetitions < 1:
        raise UsageError(f"--repetitions {repetitions} must be at least 1; the default is 30.")
