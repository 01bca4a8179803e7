"""Continuous batching with chunked prefill and preemption: the rules of vLLM V1's scheduler.

Source: ``Scheduler.schedule`` and ``update_from_output`` of vLLM 0.8.5.post1 (V1). Every policy
runs under these rules, so that policies can be compared; vLLM V0 shipped with another scheduler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sim.errors import UsageError
from sim.types import (
    NO_MATCH,
    Allocator,
    Batch,
    CacheWork,
    Load,
    OperationCounts,
    PrefixMatch,
    Request,
    Sequence,
)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step, by vLLM's names.

    Attributes
    ----------
    max_num_seqs
        Sequences that run at a time; 1 serves one request at a time.
    max_num_batched_tokens
        Tokens that a step may compute; longer prompts are prefilled in chunks.
    long_prefill_token_threshold
        Tokens of one sequence that a step may compute; 0 sets no limit.
    reserve_full_prompt
        Admit a sequence only where its whole prompt finds room now, not just its first chunk, as
        later vLLM does (``scheduler_reserve_full_isl``, on in 0.19). Blocks are still taken chunk
        by chunk.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    reserve_full_prompt: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("long_prefill_token_threshold", 0),
        ):
            # With a limit of 0 nothing would ever be computed, and the engine would not stop.
            if getattr(self, name) < minimum:
                raise UsageError(f"{name} is {getattr(self, name)} but must be at least {minimum}.")


@dataclass(slots=True)
class Step:
    """What one scheduling step decided.

    Attributes
    ----------
    scheduled
        Sequences of the step and how many tokens each computes, in the order of the running list.
    admitted
        Sequences that left the waiting queue, for the first time or again, with the tokens that
        were hit.
    preempted
        Sequences that lost their blocks and went back to the head of the queue.
    first_tokens, finished
        Sequences whose first, and whose last token came out at the end of the step.
    batch, work
        What the step computes, and what cache management does for it.
    num_block_queries, num_block_hits
        vLLM's own prefix cache counters for the step: every lookup counts, retries too.
    loads, load_ns
        What tiers below the GPU gave those who were admitted, and how long the step waits for it.
    """

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    first_tokens: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    batch: Batch = field(default_factory=Batch)
    work: CacheWork = field(default_factory=CacheWork)
    num_block_queries: int = 0
    num_block_hits: int = 0
    loads: list[tuple[Sequence, Load]] = field(default_factory=list)
    load_ns: int = 0


class Scheduler:
    """Decides, step by step, which sequences compute how many tokens.

    Attributes
    ----------
    waiting
        Sequences without blocks, next to be admitted first.
    running
        Sequences with blocks in order of admission; the last one is preempted first.
    """

    def __init__(self, config: SchedulerConfig, allocator: Allocator) -> None:
        self.config = config
        self.allocator = allocator
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        # A policy from outside may not count.
        self._counts: OperationCounts = getattr(allocator, "counts", None) or OperationCounts()
        self._freed: list[Sequence] = []
        # Who last lost its blocks although it was alone, and its tokens then.
        self._preempted_alone: tuple[str, int] | None = None

    def num_missing_blocks(self, request: Request) -> int:
        """How many blocks too few the pool has for ``request`` even if it were alone."""
        num_blocks = -(-request.num_kv_tokens // self.allocator.block_size)
        return max(0, num_blocks - self.allocator.max_request_blocks())

    def add(self, seq: Sequence) -> None:
        """Queue a sequence that fits (see `num_missing_blocks`)."""
        self.waiting.append(seq)

    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.running or self.waiting)

    def schedule(self, *, in_flight: bool = False) -> Step:
        """Hand out the token budget of one step: running sequences first, then admissions.

        Parameters
        ----------
        in_flight
            A step that was scheduled before is not released yet. Where everybody waits for its
            blocks, the step is empty, which is no fault of the policy.

        Raises
        ------
        UsageError
            The allocator refuses a request that it said would fit, although nothing else runs:
            the run would never end.
        """
        step = Step()
        counts = self._counts
        evictions, scanned = counts.evictions, counts.entries_scanned
        for seq in self._freed:
            self._count_freed(step.work, seq)
        self._freed = []
        budget = self._schedule_running(step, self.config.max_num_batched_tokens)
        # Blocks were short a moment ago: whoever is admitted now would be preempted next.
        if not step.preempted:
            self._admit_waiting(step, budget)
            if not step.scheduled and self.waiting and not in_flight:
                raise self._never_served(self.waiting[0])
        step.work.num_evicted_blocks = counts.evictions - evictions
        step.work.num_scanned_entries = counts.entries_scanned - scanned
        if step.loads:
            # An allocator whose matches tell of loads has tiers, see `sim.tiers.tiered`.
            tiers: Any = self.allocator
            step.load_ns = tiers.take_load_ns()
        return step

    def complete(self, step: Step) -> None:
        """Apply the end of a step: tokens are computed, new ones come out, requests finish."""
        self.advance(step)
        self.release(step)

    def advance(self, step: Step) -> None:
        """Count what a step computes as computed; who ends with it runs no longer."""
        allocator = self.allocator
        for seq, num_new_tokens in step.scheduled:
            seq.num_computed_tokens += num_new_tokens
            allocator.cache_blocks(seq)
        for seq, _ in step.scheduled:
            if seq.num_computed_tokens < seq.num_tokens:
                continue
            request = seq.request
            num_prompt_tokens = request.num_prompt_tokens
            num_total_tokens = num_prompt_tokens + request.num_output_tokens
            if seq.num_tokens < num_total_tokens:
                seq.num_tokens += 1
                if seq.num_tokens == num_prompt_tokens + 1:
                    step.first_tokens.append(seq)
            if seq.num_tokens == num_total_tokens:
                step.finished.append(seq)
        if step.finished:
            done = {seq.request_id for seq in step.finished}
            self.running = [seq for seq in self.running if seq.request_id not in done]

    def release(self, step: Step) -> None:
        """Take back the blocks of those who ended with a step."""
        for seq in step.finished:
            self.allocator.free(seq)
        if step.finished:
            self._freed = step.finished

    def _num_new_tokens(self, num_uncomputed: int, budget: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < num_uncomputed:
            num_uncomputed = threshold
        return min(num_uncomputed, budget)

    def _schedule_running(self, step: Step, budget: int) -> int:
        running = self.running
        allocate = self.allocator.allocate
        index = 0
        while index < len(running) and budget > 0:
            seq = running[index]
            num_new_tokens = seq.num_tokens - seq.num_computed_tokens
            if num_new_tokens > 1:  # most decode
                num_new_tokens = self._num_new_tokens(num_new_tokens, budget)
            while not allocate(seq, NO_MATCH, num_new_tokens):
                victim = running.pop()
                self._preempt(victim, step)
                if victim is seq:
                    if not running:
                        self._check_progress(seq)
                    return budget
            step.scheduled.append((seq, num_new_tokens))
            step.batch.add(num_new_tokens, seq.num_computed_tokens)
            self._count_append(step.work, seq, num_new_tokens)
            budget -= num_new_tokens
            index += 1
        return budget

    def _has_room(self, seq: Sequence, match: PrefixMatch) -> bool:
        """Whether the pool has a free block for each that ``seq`` lacks beside its hits."""
        allocator = self.allocator
        num_blocks = -(-seq.num_tokens // allocator.block_size) - len(match.block_ids)
        # A policy whose hits may be free blocks says how many are left beside them.
        count = getattr(allocator, "num_free_blocks_beside", None)
        return num_blocks <= (count(match) if count is not None else allocator.usage().free)

    def _count_append(self, work: CacheWork, seq: Sequence, num_new_tokens: int) -> None:
        block_size = self.allocator.block_size
        num_computed_tokens = seq.num_computed_tokens
        filled = num_computed_tokens % block_size
        work.num_appends += 1
        work.num_table_blocks += -(-num_computed_tokens // block_size)
        if num_new_tokens > 1:
            room = -filled % block_size
            work.num_new_blocks += -(-max(0, num_new_tokens - room) // block_size)
            work.num_new_tokens += num_new_tokens
        elif filled == 0:
            work.num_append_blocks += 1

    def _count_admission(
        self, work: CacheWork, seq: Sequence, num_new_tokens: int, num_hit_blocks: int
    ) -> None:
        num_blocks = -(-(seq.num_computed_tokens + num_new_tokens) // self.allocator.block_size)
        work.num_requests += 1
        work.num_block_hits += num_hit_blocks
        work.num_new_blocks += num_blocks - num_hit_blocks
        work.num_new_tokens += num_new_tokens
        if seq.num_cached_tokens < 0:
            work.num_hashed_tokens += seq.num_tokens

    def _count_freed(self, work: CacheWork, seq: Sequence) -> None:
        num_blocks = -(-seq.num_computed_tokens // self.allocator.block_size)
        work.num_requests_freed += 1
        work.num_blocks_freed += num_blocks - seq.num_hit_blocks
        work.num_hit_blocks_freed += seq.num_hit_blocks
        work.num_tokens_freed += max(
            0, seq.num_computed_tokens - seq.num_hit_blocks * self.allocator.block_size
        )

    def _check_progress(self, seq: Sequence) -> None:
        """Let a sequence preempt itself as long as it has come further since the last time."""
        alone = (seq.request_id, seq.num_tokens)
        if alone == self._preempted_alone:
            raise self._never_served(seq)
        self._preempted_alone = alone

    def _never_served(self, seq: Sequence) -> UsageError:
        return UsageError(
            f"the policy refuses blocks to request {seq.request_id!r} although nothing else runs "
            f"and it needs no more than the {self.allocator.max_request_blocks()} that "
            "max_request_blocks() promises: it would wait for ever; mend allocate() or "
            "max_request_blocks() of the policy."
        )

    def _preempt(self, seq: Sequence, step: Step) -> None:
        self._count_freed(step.work, seq)
        self.allocator.free(seq)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self.waiting.appendleft(seq)
        step.preempted.append(seq)

    def _admit_waiting(self, step: Step, budget: int) -> None:
        allocator = self.allocator
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            seq = self.waiting[0]
            match = allocator.match_prefix(seq)
            step.num_block_queries += match.num_queried_blocks
            step.num_block_hits += match.num_hit_blocks
            num_new_tokens = self._num_new_tokens(seq.num_tokens - match.num_tokens, budget)
            if self.config.reserve_full_prompt and not self._has_room(seq, match):
                return
            if not allocator.allocate(seq, match, num_new_tokens):
                step.work.num_refusals += 1
                step.work.num_refused_hits += match.num_hit_blocks
                return
            self.waiting.popleft()
            self.running.append(seq)
            seq.num_computed_tokens = match.num_tokens
            seq.num_hit_blocks = match.num_hit_blocks
            self._count_admission(step.work, seq, num_new_tokens, match.num_hit_blocks)
            if match.load is not None:
                step.work.num_new_tokens += match.load.num_tokens
                step.loads.append((seq, match.load))
            if seq.num_cached_tokens < 0:
                seq.num_cached_tokens = match.num_tokens
            step.admitted.append((seq, match.num_tokens))
            step.scheduled.append((seq, num_new_tokens))
            step.batch.add(num_new_tokens, match.num_tokens)
            budget -= num_new_tokens
