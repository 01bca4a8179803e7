"""The compiled pool behind the protocol of a policy, so that what checks policies checks it too.

It is made for checks, not for speed: every call passes from Python to compiled code and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.cost import LinearCost
from sim.fast.compiling import bare_entry
from sim.fast.keys import KeyRuns
from sim.fast.pool import admit, free, grow, match_prefix
from sim.fast.state import NONE, Rules, State, make_state
from sim.fast.support import make_rules
from sim.scheduler import SchedulerConfig
from sim.types import BlockUsage, PoolRules, PrefixMatch, Sequence

_MATCH, _ADMIT, _GROW, _FREE = range(4)


@bare_entry
def _operate(rules: Rules, state: State, operation: int, r: int, num_tokens: int) -> int:
    """Do one operation of the pool for sequence ``r``."""
    result: int = 0
    if operation == _MATCH:
        match_prefix(rules, state, r)
    elif operation == _ADMIT:
        result = admit(rules, state, r, num_tokens)
    elif operation == _GROW:
        result = grow(rules, state, r, num_tokens)
    elif operation == _FREE:
        free(rules, state, r)
    return result


class CompiledPool:
    """A caching pool of the fast engine as a `sim.types.Allocator`; see `policies.vllm_v1`.

    Parameters
    ----------
    pool
        Its rules; it must cache.
    num_blocks, block_size
        As for every policy.
    """

    def __init__(self, pool: PoolRules, num_blocks: int, block_size: int) -> None:
        assert pool.caches
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._rules = make_rules(
            pool, SchedulerConfig(), LinearCost(1), num_blocks=num_blocks, block_size=block_size
        )
        # A sequence that holds blocks has a slot, and one more looks its prefix up. Each has its
        # own part of the keys, a run a block, and of the tables, both as long as the pool.
        num_slots = num_blocks + 1
        longest = np.full(num_slots, num_blocks * block_size, dtype=np.int64)
        keys = KeyRuns(
            0,
            np.zeros(num_slots, dtype=np.int64),
            np.arange(num_slots + 1, dtype=np.int64) * num_blocks,
            np.tile(np.arange(1, num_blocks + 1, dtype=np.int32), num_slots),
            np.zeros(num_slots * num_blocks, dtype=np.int64),
        )
        state = make_state(self._rules, longest, np.zeros_like(longest), keys)
        tables = np.zeros(num_slots * num_blocks, dtype=np.int32)
        self._state = state._replace(tables=tables)
        self._slots: dict[str, int] = {}
        self._free_slots = list(range(num_slots))
        self._numbers: dict[int, int] = {}

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Look up."""
        self._look_up(self._free_slots[-1], seq)
        engine = self._state.engine[0]
        start, num_hits = int(engine["tables_end"]), int(engine["num_found"])
        return PrefixMatch(
            block_ids=tuple(self._state.tables[start : start + num_hits].tolist()),
            num_tokens=num_hits * self.block_size,
            num_hit_blocks=num_hits,
            # Keys behind the length of the pool are never looked at: they cannot all be cached.
            num_queried_blocks=min((seq.num_tokens - 1) // self.block_size, len(seq.block_keys)),
        )

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Admit a sequence that has no blocks, or give one that has some room for more."""
        if seq.request_id in self._slots:
            slot = self._slots[seq.request_id]
            self._show(slot, seq)
            return self._operate(_GROW, slot, num_tokens) >= 0
        slot = self._free_slots[-1]
        self._look_up(slot, seq)
        if not match.block_ids:
            self._state.engine["num_found"] = self._state.engine["num_found_free"] = 0
        assert self._state.engine["num_found"][0] == len(match.block_ids)
        if self._operate(_ADMIT, slot, num_tokens) < 0:
            return False
        self._slots[seq.request_id] = self._free_slots.pop()
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Do nothing: full blocks were registered when they were allocated."""

    def free(self, seq: Sequence) -> None:
        """Release tail first."""
        slot = self._slots.pop(seq.request_id, None)
        if slot is not None:
            self._operate(_FREE, slot, 0)
            self._free_slots.append(slot)

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        engine = self._state.engine[0]
        num_free = int(engine["num_free_blocks"])
        return BlockUsage(self.num_blocks - num_free, num_free, int(engine["num_cached_blocks"]))

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        slot = self._slots.get(seq.request_id)
        if slot is None:
            return []
        start, num_blocks = (int(self._state.seqs[n][slot]) for n in ("table", "num_blocks"))
        table: list[int] = self._state.tables[start : start + num_blocks].tolist()
        return table

    def max_request_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    def num_common_prefix_blocks(self, seq: Sequence, num_running: int) -> int:
        """Count the leading blocks of ``seq`` that all running sequences hold."""
        counts = self._state.blocks["ref_count"][self.block_table(seq)]
        return int(np.argmin(np.append(counts, -1) == num_running))

    def snapshot(self) -> dict[str, Any]:
        """Free queue in order, ids of blocks with a key, number of free blocks."""
        blocks = self._state.blocks
        queue = []
        block = int(blocks["next"][0])
        while block != 0:
            queue.append(block)
            block = int(blocks["next"][block])
        return {
            "free_queue": queue,
            "cached_blocks": np.flatnonzero(blocks["key"] != NONE).tolist(),
            "num_free_blocks": int(self._state.engine["num_free_blocks"][0]),
        }

    def _look_up(self, slot: int, seq: Sequence) -> None:
        self._show(slot, seq)
        self._state.engine["tables_end"] = slot * self.num_blocks
        self._operate(_MATCH, slot, 0)

    def _show(self, slot: int, seq: Sequence) -> None:
        """Let compiled code see what the scheduler has changed in ``seq``."""
        numbers = [
            self._numbers.setdefault(key, len(self._numbers))
            for key in seq.block_keys[: self.num_blocks]
        ]
        start = slot * self.num_blocks
        shifts = np.array(numbers, dtype=np.int64) - np.arange(len(numbers))
        self._state.run_shift[start : start + len(numbers)] = shifts
        record = self._state.seqs[slot]
        record["num_keys"] = len(numbers)
        record["num_tokens"] = seq.num_tokens
        record["num_computed_tokens"] = seq.num_computed_tokens
        missing = len(self._numbers) - len(self._state.oldest)
        if missing > 0:
            room = np.zeros(missing + len(self._numbers), dtype=np.int32)
            oldest = np.concatenate((self._state.oldest, room))
            self._state = self._state._replace(oldest=oldest)

    def _operate(self, operation: int, slot: int, num_tokens: int) -> int:
        result: int = _operate(self._rules, self._state, operation, slot, num_tokens)
        return result
