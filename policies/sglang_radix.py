"""SGLang, 0.5.23: a radix tree of whole pages; unlocked leaves are evicted by a chosen order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from policies._radix_tree import RadixTree
from sim.types import BlockUsage, Clock, OperationCounts, PrefixMatch, Sequence


class Held:
    """What a request holds.

    Attributes
    ----------
    blocks
        Its block table: first blocks of the tree, which it has locked, then its own.
    num_tree_blocks
        How many of them are the tree's.
    node
        The node that it has locked, with all above it.
    num_inserted
        Leading pages that it has put into the tree itself.
    prefill_stop
        Tokens known when it was admitted; beyond them it decodes.
    """

    __slots__ = ("blocks", "node", "num_inserted", "num_tree_blocks", "prefill_stop")

    def __init__(self, tree: RadixTree, prefill_stop: int) -> None:
        self.blocks: list[int] = []
        self.num_tree_blocks = 0
        self.node = tree.root
        self.num_inserted = 0
        self.prefill_stop = prefill_stop


class SglangRadix:
    """Radix cache and paged token pool of SGLang; a page is a block.

    A request locks the prefix that it hits. Each chunk of its prompt goes into the tree once it is
    computed; pages that the tree has by then are let go and the tree's are used, so a block table
    changes in the middle. What it decodes goes in when it finishes, split from the prompt, so that
    the output can be evicted alone; the prompt part then ranks one priority higher. A request that
    is preempted leaves in the tree what its prompt put there. Only unlocked leaves are evicted,
    whole: a leaf may free more than was asked for.

    Source: ``RadixCache``, its eviction strategies and ``release_kv_cache`` of SGLang 0.5.23. There
    a request makes room for a page more than it needs, as a margin, and waiting requests touch the
    tree whenever the scheduler looks them up; here an eviction frees what is needed, and a lookup
    changes nothing. Requests have no priorities of their own.

    An insertion walks down from the root, so every chunk of a prompt costs as much as the nodes and
    pages before it.

    Parameters
    ----------
    num_blocks
        Usable pages. SGLang keeps one more, page 0, to write padding to.
    block_size
        Tokens in a page.
    clock
        Not used: the tree counts its operations, each later than the one before it.
    eviction
        ``lru``, ``lfu`` (fewest insertions, then LRU), ``fifo``, ``mru``, ``filo``, ``priority``
        (smallest, then LRU) or ``slru`` (inserted less than twice first, then LRU). SGLang's
        default is ``lru``.
    """

    source: ClassVar[str] = "SGLang 0.5.23, RadixCache"
    variants: ClassVar[tuple[str, ...]] = ("sglang-0.5.23",)
    num_reserved_blocks: ClassVar[int] = 1

    def __init__(
        self, num_blocks: int, block_size: int, clock: Clock, *, eviction: str = "lru"
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = OperationCounts()
        self.tree = RadixTree(eviction, self.counts)
        self.free_list = deque(range(1, num_blocks + 1))
        self.held: dict[str, Held] = {}

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Walk down the tree; the last token is always left to compute."""
        num_candidates = min((seq.num_tokens - 1) // self.block_size, len(seq.block_keys))
        block_ids, _ = self.tree.find(seq.block_keys, num_candidates)
        return PrefixMatch(
            block_ids=tuple(block_ids),
            num_tokens=len(block_ids) * self.block_size,
            num_hit_blocks=len(block_ids),
            num_queried_blocks=num_candidates,
        )

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Lock what is hit, then take free pages, and evict where they do not suffice."""
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        held = self.held.get(seq.request_id)
        num_hits = len(match.block_ids)
        num_new_blocks = -(-num_total // self.block_size) - num_hits
        num_available = len(self.free_list) + self.tree.num_evictable_blocks
        if held is not None:
            num_new_blocks -= len(held.blocks)
        elif num_hits:
            # What is hit and not locked yet cannot make room for the rest.
            num_available -= self.tree.find(seq.block_keys, num_hits)[1]
        if num_new_blocks > num_available:
            return False
        self.counts.dict_operations += 1
        if held is None:
            held = self.held[seq.request_id] = Held(self.tree, seq.num_tokens)
            self.counts.dict_operations += 1
            self.counts.objects_created += 1
            held.node, held.num_tree_blocks = self.tree.match(seq.block_keys, num_hits)
            held.blocks += match.block_ids
            self.tree.lock(held.node)
        if num_new_blocks > len(self.free_list):
            self.free_list += self.tree.evict(num_new_blocks - len(self.free_list))
        for _ in range(num_new_blocks):
            held.blocks.append(self.free_list.popleft())
        return True

    def cache_blocks(self, seq: Sequence) -> None:
        """Put a computed chunk of the prompt into the tree; decoded tokens wait for the end."""
        held = self.held[seq.request_id]
        self.counts.dict_operations += 1
        if seq.num_computed_tokens <= held.prefill_stop:
            self._insert(seq, held)

    def free(self, seq: Sequence) -> None:
        """Leave what a finished request computed to the tree, and give the rest back."""
        held = self.held.pop(seq.request_id, None)
        if held is None:
            return
        if seq.num_computed_tokens >= seq.request.num_kv_tokens:
            self._insert(seq, held)
        self.free_list += held.blocks[held.num_tree_blocks :]
        self.tree.unlock(held.node)
        self.counts.dict_operations += 1

    def usage(self) -> BlockUsage:
        """Count pages by state; locked ones are in use."""
        free = len(self.free_list) + self.tree.num_evictable_blocks
        return BlockUsage(self.num_blocks - free, free, self.tree.num_blocks)

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        held = self.held.get(seq.request_id)
        return list(held.blocks) if held else []

    def max_request_blocks(self) -> int:
        """All of them."""
        return self.num_blocks

    def num_common_prefix_blocks(self, seq: Sequence, num_running: int) -> int:
        """Count the leading blocks of ``seq`` that all running sequences have locked."""
        held = self.held.get(seq.request_id)
        if held is None:
            return 0
        above = self.tree.path(held.node)
        return sum(len(node.keys) for node in above if node.lock_ref == num_running)

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the keys of every leaf that is evicted, last page first."""
        self.tree.on_evict = listener

    def snapshot(self) -> dict[str, Any]:
        """Free pages in order, pages in the tree, leaves as paths of keys, number of free pages."""
        return {
            "free_list": list(self.free_list),
            "cached_blocks": sorted(self.tree.block_ids()),
            "num_leaves": sum(1 for _ in self.tree.leaves()),
            "num_free_blocks": self.usage().free,
        }

    def _insert(self, seq: Sequence, held: Held) -> None:
        """Hand the full pages of ``seq`` to the tree and use the tree's from then on."""
        num_pages = min(seq.num_computed_tokens // self.block_size, len(seq.block_keys))
        keys = seq.block_keys[:num_pages]
        tree, blocks = self.tree, held.blocks
        num_present = tree.insert(keys, blocks[:num_pages], num_inserted=held.num_inserted)
        num_prompt_pages = seq.request.num_prompt_tokens // self.block_size
        if 0 < num_prompt_pages < num_pages:
            tree.insert(
                keys[:num_prompt_pages],
                blocks[:num_prompt_pages],
                priority=1,
                num_inserted=num_prompt_pages,
            )
        self.free_list += blocks[held.num_tree_blocks : num_present]
        node, _ = tree.match(keys, num_pages)
        blocks[held.num_tree_blocks : num_pages] = tree.find(keys, num_pages)[0][
            held.num_tree_blocks :
        ]
        tree.unlock(held.node)
        tree.lock(node)
        held.node, held.num_tree_blocks = node, num_pages
        held.num_inserted = max(held.num_inserted, num_pages)


POLICY = SglangRadix
