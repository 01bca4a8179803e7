"""vLLM V0, 0.6.4: LRU evictor that scans an ordered free table."""

from __future__ import annotations

from typing import ClassVar

from policies._evictors import Evictor, ScanEvictor
from policies.vllm_v0 import VllmV0
from sim.types import PrefixMatch, Sequence


class VllmV0Scan(VllmV0):
    """Prefix caching block allocator of vLLM V0 before the heap.

    vLLM 0.6.4 counts hits after it has allocated, over all blocks of a request but the last, and
    goes on counting behind a block that is gone. ``lookup="vllm"`` does so too;
    ``lookup="walk"`` counts the leading run.

    Source: ``PrefixCachingBlockAllocator`` and ``LRUEvictor`` of vLLM 0.6.4.post1.

    Parameters
    ----------
    num_blocks, block_size, clock, watermark, lookup
        As for `policies.vllm_v0.VllmV0`.
    """

    source: ClassVar[str] = "vLLM 0.6.4.post1, V0 PrefixCachingBlockAllocator"
    overhead_profiles: ClassVar[dict[str, str]] = {
        "vllm": "vllm-0.6.4-v0",
        "own": "own-vllm_v0_scan",
    }
    variants: ClassVar[tuple[str, ...]] = ("v0-0.6.4",)
    recomputes_last_block: ClassVar[bool] = True
    evictor_class: ClassVar[type[Evictor]] = ScanEvictor

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Count the computed blocks; the request's last block, full or not, is left out."""
        keys = seq.block_keys
        num_candidates = min((seq.num_tokens - 1) // self.block_size, len(keys))
        block_ids = self._leading_run(keys, num_candidates)
        num_hits = len(block_ids)
        if self.lookup == "vllm" and any(
            self._is_computed(keys[index]) for index in range(num_hits, num_candidates)
        ):
            num_hits = self._count_hits_after_allocating(keys, num_candidates)
        return PrefixMatch(tuple(block_ids), num_hits * self.block_size, num_hits, num_candidates)

    def _count_hits_after_allocating(self, keys: list[int], stop: int) -> int:
        """Foresee which cached blocks will still be there when the allocation reaches them."""
        num_hashless = len(self.hashless_free)
        # A lookup changes nothing, counts included: those of the rehearsal are dropped.
        evictor = ScanEvictor()
        evictor.free_table = dict(self.evictor.free_table)
        evicted: set[int] = set()
        num_hits = 0
        for key in keys[:stop]:
            if key in self.cached and key not in evicted:
                evictor.free_table.pop(self.cached[key], None)
                num_hits += self._is_computed(key)
            elif num_hashless:
                num_hashless -= 1
            elif evictor.free_table:
                evicted.add(evictor.evict()[1])
        return num_hits


POLICY = VllmV0Scan
