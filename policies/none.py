"""No prefix caching: blocks come from a free list and go back to it."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from sim.errors import UsageError
from sim.types import NO_MATCH, BlockUsage, Clock, OperationCounts, PoolRules, PrefixMatch, Sequence


class NoCaching:
    """vLLM V1 with prefix caching off: the floor that every policy is compared with.

    Source: ``KVCacheManager`` of vLLM 0.8.5.post1 with ``enable_prefix_caching=False``; block 0
    is the null block there and here.

    Parameters
    ----------
    num_blocks, block_size, clock
        As for every policy.
    engine
        Whose bookkeeping without caching is modelled as overhead: ``v1-0.8.5``, ``v0-0.8.5`` or
        ``v0-0.6.4``. It changes nothing else.
    """

    source: ClassVar[str] = "vLLM 0.8.5.post1, V1 with enable_prefix_caching=False"
    variants: ClassVar[tuple[str, ...]] = ()
    num_reserved_blocks: ClassVar[int] = 1
    first_block_id: ClassVar[int] = 1
    caches_blocks: ClassVar[bool] = False
    pool_rules: ClassVar[PoolRules] = PoolRules(caches=False)

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, engine: str = "v1-0.8.5"
    ) -> None:
        self.overhead_profiles(engine)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = OperationCounts()
        self.free_list = deque(range(1, num_blocks + 1))
        self.request_blocks: dict[str, list[int]] = {}

    @staticmethod
    def overhead_profiles(engine: str = "v1-0.8.5") -> dict[str, str]:
        """Name the profiles of an engine without caching."""
        known = {
            "v1-0.8.5": "vllm-0.8.5-v1-off",
            "v0-0.8.5": "vllm-0.8.5-v0-off",
            "v0-0.6.4": "vllm-0.6.4-v0-off",
        }
        if engine not in known:
            raise UsageError(
                f"--policy-arg engine={engine} was not measured without caching: choose "
                f"{', '.join(known)}."
            )
        return {"vllm": known[engine], "own": "own-none"}

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Find nothing."""
        return NO_MATCH

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Take blocks from the front of the list."""
        blocks = self.request_blocks.get(seq.request_id)
        num_total = seq.num_computed_tokens + num_tokens
        num_new_blocks = -(-num_total // self.block_size) - (len(blocks) if blocks else 0)
        if num_new_blocks > len(self.free_list):
            return False
        self.counts.dict_operations += 1
        if blocks is None:
            blocks = self.request_blocks[seq.request_id] = []
            self.counts.dict_operations += 1
            self.counts.objects_created += 1
        for _ in range(num_new_blocks):
            blocks.append(self.free_list.popleft())
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Do nothing."""

    def free(self, seq: Sequence) -> None:
        """Put the blocks at the end of the list, head first."""
        self.free_list.extend(self.request_blocks.pop(seq.request_id, ()))
        self.counts.dict_operations += 1

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        free = len(self.free_list)
        return BlockUsage(self.num_blocks - free, free, 0)

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return list(self.request_blocks.get(seq.request_id, ()))

    def max_request_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    def snapshot(self) -> dict[str, Any]:
        """Free list in order; nothing is ever cached."""
        return {
            "free_queue": list(self.free_list),
            "cached_blocks": [],
            "num_free_blocks": len(self.free_list),
        }

    def why_refused(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> str:
        """Say for a reader what an allocation would be refused for."""
        held = len(self.request_blocks.get(seq.request_id, ()))
        num_new = -(-(seq.num_computed_tokens + num_tokens) // self.block_size) - held
        return f"No room: it needs {num_new} more and {len(self.free_list)} are free."

    def free_structures(self) -> dict[str, list[str]]:
        """Show the free list for a reader, next block first."""
        return {"free list": [str(block_id) for block_id in self.free_list]}


POLICY = NoCaching
