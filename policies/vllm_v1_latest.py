"""vLLM V1, 0.33: as V1, but blocks without a key are reused first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from policies._free_queue import Block
from policies.vllm_v1 import VllmV1
from sim.types import PoolRules


class VllmV1Latest(VllmV1):
    """Block pool of vLLM V1 as of 0.33.

    A released block that never filled holds nothing that anybody could hit. 0.8.5 queues it behind
    older cached blocks and evicts those first; here it goes to the front of the queue.

    Source: ``BlockPool`` of vLLM 0.33.0 behind the rules of its single-group manager.
    """

    source: ClassVar[str] = "vLLM 0.33.0, V1 BlockPool"
    overhead_profiles: ClassVar[dict[str, str]] = {
        "vllm": "vllm-0.33-v1",
        "own": "own-vllm_v1_latest",
    }
    variants: ClassVar[tuple[str, ...]] = ("v1-0.33",)
    pool_rules: ClassVar[PoolRules] = PoolRules(caches=True, reuses_keyless_first=True)

    def _release(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self.free_queue.prepend(block)
                else:
                    self.free_queue.append(block)


POLICY = VllmV1Latest
