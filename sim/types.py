"""The words that the whole house shares: requests, sequences, and the two seams.

A *workload* yields `Request`s. The scheduler wraps each in a `Sequence`, the part of it that
changes, and asks an `Allocator` (a policy) for blocks and a `CostModel` for the time of a step.

Every count named ``num_*`` is in tokens unless its name says blocks. Simulated time is an integer
number of nanoseconds; names of such values end in ``_ns``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Clock = Callable[[], int]
"""Returns the simulated time, ns."""


class Content(Protocol):
    """What a stream of tokens is, without spelling it out until someone needs the tokens."""

    @property
    def num_tokens(self) -> int:
        """Length of the stream."""
        ...

    def block_keys(self, block_size: int) -> NDArray[np.int64]:
        """Name every full block by the whole prefix that ends with it.

        Returns
        -------
        int64 array of shape ``(num_tokens // block_size,)``. Two keys of one workload are equal
        if and only if the two prefixes are equal, token for token.
        """
        ...

    def token_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` to ``stop``, shape ``(stop - start,)``; equal prefixes, equal ids."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload: when it comes, what it holds, how much it makes the model write.

    Attributes
    ----------
    request_id
        Unique in its workload.
    arrival_ns
        When the request reaches the engine. In a closed loop, the first turn's arrival; later
        turns come ``think_ns`` after the turn before them is done.
    content
        The prompt followed by the output that the model will write.
    num_prompt_tokens, num_output_tokens
        ``content`` is exactly as long as both together. With 0 output tokens the request ends
        when its prompt is computed.
    session_id
        Requests with the same one are turns of one conversation, in order.
    think_ns
        Time between the end of the turn before and this one, where the trace tells it.
    """

    request_id: str
    arrival_ns: int
    content: Content
    num_prompt_tokens: int
    num_output_tokens: int
    session_id: str | None = None
    think_ns: int | None = None

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV is computed by the end: the last output token is never fed back."""
        return self.num_prompt_tokens + max(self.num_output_tokens - 1, 0)


class Sequence:
    """A request in the engine: the part that changes while it is served.

    Attributes
    ----------
    block_keys
        Keys of the full blocks of prompt and output, in order (see `Content.block_keys`). An
        allocator may use those of blocks that ``num_tokens`` covers. Under ``reuse="prefill"``
        only blocks that lie in the prompt have one, so that no other block is ever cached.
    num_tokens
        Prompt and the tokens generated so far.
    num_computed_tokens
        Tokens whose KV is present; 0 again after a preemption.
    num_cached_tokens
        Tokens hit at first admission; -1 before it.
    num_hit_blocks
        Blocks hit at the last admission.
    """

    __slots__ = (
        "block_keys",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hit_blocks",
        "num_preemptions",
        "num_tokens",
        "request",
        "request_id",
    )

    def __init__(self, request: Request, block_keys: list[int]) -> None:
        self.request = request
        self.request_id = request.request_id
        self.block_keys = block_keys
        self.num_tokens = request.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1
        self.num_hit_blocks = 0
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return f"Sequence({self.request_id}, {self.num_computed_tokens}/{self.num_tokens} computed)"


@dataclass(frozen=True, slots=True)
class Load:
    """What tiers below the GPU give a request at its admission (see `sim.tiers`).

    Attributes
    ----------
    num_host_tokens, num_ssd_tokens
        Tokens whose KV is loaded, by the tier that it comes from.
    num_recomputed_tokens
        Tokens whose KV a tier holds and that are computed all the same, which is quicker.
    load_ns
        From the start of the step until the request's blocks are there.
    """

    num_host_tokens: int
    num_ssd_tokens: int
    num_recomputed_tokens: int
    load_ns: int

    @property
    def num_tokens(self) -> int:
        """Tokens loaded."""
        return self.num_host_tokens + self.num_ssd_tokens


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a lookup found: a leading run of cached blocks.

    Attributes
    ----------
    block_ids
        Physical blocks of the run, in order.
    num_tokens
        Tokens that the policy says need not be computed. Less than its hit blocks hold where a
        whole prompt is hit, since at least the last token is always computed.
    num_hit_blocks
        Blocks hit, as the policy counts them (``len(block_ids)`` unless it miscounts, as vLLM
        0.8.5's V0 can).
    num_queried_blocks
        Full blocks that were asked for, as vLLM's own counters count them.
    load
        What tiers below the GPU hold behind that run. Its tokens count in ``num_tokens``, its
        blocks in nothing else: they are taken and filled like those that are computed. No policy
        sets it.
    """

    block_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    num_hit_blocks: int = 0
    num_queried_blocks: int = 0
    load: Load | None = None


NO_MATCH = PrefixMatch()


@dataclass(frozen=True, slots=True)
class BlockUsage:
    """Blocks of a pool by state; ``used + free`` is always all of them.

    ``cached`` blocks carry a key that a lookup can find; they may be used or free.
    """

    used: int
    free: int
    cached: int


class Allocator(Protocol):
    """A policy as the scheduler sees it.

    A policy is made by ``Policy(num_blocks=..., block_size=..., clock=..., **options)`` where
    ``num_blocks`` counts usable blocks. Every call takes time in proportion to the blocks that it
    newly hands out, registers or gives back, never to the length of a block table.
    """

    num_blocks: int
    block_size: int

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Find the longest prefix of ``seq`` that is cached. Changes nothing."""
        ...

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Give ``seq`` the matched blocks and room for ``num_tokens`` more to be computed.

        ``match`` comes from `match_prefix` when a sequence is admitted and is `NO_MATCH` while it
        runs. Returns False, and changes nothing, where there is no room.
        """
        ...

    def cache_blocks(self, seq: Sequence) -> None:
        """Take note that ``seq.num_computed_tokens`` has grown: a step is done."""
        ...

    def free(self, seq: Sequence) -> None:
        """Let go of every block of ``seq``: it ended or is preempted."""
        ...

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        ...

    def block_table(self, seq: Sequence) -> list[int]:
        """Physical block ids of ``seq`` in order; empty if it holds none."""
        ...

    def max_request_blocks(self) -> int:
        """Blocks that a request alone in the engine may come to hold."""
        ...


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Rules of a block pool that the fast engine has compiled.

    A policy whose results follow from them alone may say so in a class attribute ``pool_rules``;
    it is simulated fast then. They are those of vLLM V1's pool with two switches.

    Attributes
    ----------
    caches
        Whether full blocks can be hit at all.
    reuses_keyless_first
        Whether a freed block that nothing can hit is reused before all others.
    """

    caches: bool
    reuses_keyless_first: bool = False


@runtime_checkable
class Inspectable(Protocol):
    """An allocator that can show its whole state, for `verify` and drawings."""

    def snapshot(self) -> dict[str, Any]:
        """State by the names that recorded logs use, as plain lists and numbers."""
        ...


@runtime_checkable
class TellsEvictions(Protocol):
    """An allocator that tells what it evicts, for tiers that are written on eviction."""

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` from now on with every key that no block holds any more.

        Of keys that go at one time, the one furthest down its prefix comes first.
        """
        ...


class Batch:
    """What one step computes, summed over its sequences: the input of a cost model.

    Attributes
    ----------
    num_new_tokens
        Tokens computed in this step.
    num_attended_pairs
        (query, key) pairs under causal attention: n new tokens after c present ones make
        ``n * c + n * (n + 1) / 2``.
    num_context_tokens
        Keys read: the sum of c + n.
    num_sequences
        Sequences that take part.
    """

    __slots__ = ("num_attended_pairs", "num_context_tokens", "num_new_tokens", "num_sequences")

    def __init__(self) -> None:
        self.num_new_tokens = 0
        self.num_attended_pairs = 0
        self.num_context_tokens = 0
        self.num_sequences = 0

    def add(self, num_new_tokens: int, num_computed_tokens: int) -> None:
        """Count a sequence that computes ``num_new_tokens`` after those present."""
        num_context_tokens = num_computed_tokens + num_new_tokens
        self.num_new_tokens += num_new_tokens
        self.num_context_tokens += num_context_tokens
        if num_new_tokens == 1:  # most decode
            self.num_attended_pairs += num_context_tokens
        else:
            self.num_attended_pairs += (
                num_new_tokens * num_computed_tokens + num_new_tokens * (num_new_tokens + 1) // 2
            )
        self.num_sequences += 1


class CacheWork:
    """What cache management does in one step: the input of an overhead profile.

    Frees at the end of a step count in the next one, which has to wait for them.

    Attributes
    ----------
    num_requests, num_hashed_tokens
        Admissions, and prompt tokens hashed for them; a request that comes back after a
        preemption is not hashed again.
    num_block_hits, num_new_blocks, num_new_tokens
        Blocks hit and blocks taken for prompts, and the tokens computed or loaded into them.
    num_evicted_blocks, num_scanned_entries
        As the policy counts them, see `OperationCounts`.
    num_refusals, num_refused_hits
        Admissions that found no room, at most one in a step, and blocks hit by their lookups.
    num_appends, num_append_blocks, num_table_blocks
        Running sequences given room, blocks taken for decoded tokens, and the lengths of the block
        tables of those sequences.
    num_requests_freed, num_blocks_freed, num_tokens_freed, num_hit_blocks_freed
        Sequences that let go of their blocks, blocks that they had taken and the tokens in them,
        and blocks that they had hit.
    """

    __slots__ = (
        "num_append_blocks",
        "num_appends",
        "num_block_hits",
        "num_blocks_freed",
        "num_evicted_blocks",
        "num_hashed_tokens",
        "num_hit_blocks_freed",
        "num_new_blocks",
        "num_new_tokens",
        "num_refusals",
        "num_refused_hits",
        "num_requests",
        "num_requests_freed",
        "num_scanned_entries",
        "num_table_blocks",
        "num_tokens_freed",
    )

    def __init__(self) -> None:
        self.num_append_blocks = 0
        self.num_appends = 0
        self.num_block_hits = 0
        self.num_blocks_freed = 0
        self.num_evicted_blocks = 0
        self.num_hashed_tokens = 0
        self.num_hit_blocks_freed = 0
        self.num_new_blocks = 0
        self.num_new_tokens = 0
        self.num_refusals = 0
        self.num_refused_hits = 0
        self.num_requests = 0
        self.num_requests_freed = 0
        self.num_scanned_entries = 0
        self.num_table_blocks = 0
        self.num_tokens_freed = 0


@dataclass(slots=True)
class OperationCounts:
    """What a policy did so far, counted where it does it; what its overhead is made of.

    Attributes
    ----------
    dict_operations
        Lookups, insertions and deletions in maps by key, block or request.
    pointer_updates
        Pointers of a linked list that were set.
    heap_pushes, heap_pops, stale_entries_skipped
        Of an evictor's heap; a stale entry is one that was popped in vain.
    entries_scanned
        Entries of a free table that were looked at to find a victim.
    objects_created
        Metadata objects made per block or request.
    evictions
        Cached blocks that lost their content.
    """

    dict_operations: int = 0
    pointer_updates: int = 0
    heap_pushes: int = 0
    heap_pops: int = 0
    stale_entries_skipped: int = 0
    entries_scanned: int = 0
    objects_created: int = 0
    evictions: int = 0


@runtime_checkable
class CostModel(Protocol):
    """Prices a step by its sums."""

    def step_ns(self, batch: Batch) -> int:
        """Time of the model's forward pass over ``batch``, ns; at least 1."""
        ...


class SequenceCost(Protocol):
    """Prices a step by its sequences, for what their sum does not tell.

    The engine asks after the step is scheduled and before it ends: ``num_computed_tokens`` is what
    was there before the step, and the block tables are those that the step computes over. What
    executes a step rather than pricing it stands here too.
    """

    def sequences_ns(self, scheduled: list[tuple[Sequence, int]]) -> int:
        """Time of a step in which each sequence computes so many tokens, ns; at least 1."""
        ...


class OverheadModel(Protocol):
    """Prices cache management."""

    def work_ns(self, work: CacheWork) -> int:
        """CPU time that ``work`` takes, ns; at least 0."""
        ...
