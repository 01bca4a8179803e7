"""Tail-optimised LRU: what a conversation needs no more to answer in time goes first."""

from __future__ import annotations

from typing import ClassVar

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Ranked, check_range, required
from sim.types import Clock


class TailLruOrder(Order):
    """Blocks beyond the budget of their conversation in LRU order, then all others."""

    def __init__(self, capacity: int, *, block_size: int, threshold: int, next_prompt: int) -> None:
        super().__init__(capacity)
        self._ranked = Ranked(self.blocked)
        self._block_size = block_size
        self._num_tokens_to_spare = threshold - next_prompt

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Renew."""
        self._touch(key, position, access)

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Take in."""
        self._touch(key, position, access)

    def on_release(self, key: int, position: int, access: Access) -> None:
        """Renew: now the whole history is known."""
        self._touch(key, position, access)

    def victim(self) -> int:
        """Take the smallest rank."""
        key = required(self._ranked.smallest())
        self._ranked.remove(key)
        return key

    def _touch(self, key: int, position: int, access: Access) -> None:
        budget = max(0, access.num_tokens - self._num_tokens_to_spare)
        self._ranked.set(key, 0 if position * self._block_size >= budget else 1)


class TailLru(EvictorPool):
    """V1's allocator with a tail-optimised LRU order.

    A conversation of L tokens, whose next prompt brings Q more, is answered in time if no more than
    ``threshold`` tokens have to be computed: it needs B = max(0, L + Q - threshold) cached tokens,
    and its blocks beyond B are evicted before any other.

    Source: Tail-Optimized Caching for LLM Inference, arXiv 2510.15152. Threshold and Q follow from
    the latency aimed at and from the traffic, so no default is published (SGLang 0.5.23 has 0 for
    both, which is plain LRU); those here are one prefill step of 2,048 tokens and a short turn.

    Parameters
    ----------
    num_blocks, block_size, clock, leaf_only
        As for `policies._evictor_pool.EvictorPool`.
    threshold
        Tokens that can be computed in time.
    next_prompt
        Tokens that the next turn is expected to bring.
    """

    source: ClassVar[str] = "Tail-optimised LRU, arXiv 2510.15152"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        clock: Clock,
        *,
        leaf_only: bool = False,
        threshold: int = 2048,
        next_prompt: int = 512,
    ) -> None:
        check_range("threshold", threshold, 0, 10**9)
        check_range("next_prompt", next_prompt, 0, 10**9)
        order = TailLruOrder(
            num_blocks, block_size=block_size, threshold=threshold, next_prompt=next_prompt
        )
        super().__init__(num_blocks, block_size, clock, order, leaf_only=leaf_only)


POLICY = TailLru
