"""Says in words why blocks were hit, missed, taken and lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import groupby

from sim.explain.history import History
from sim.explain.labels import Labels
from sim.types import PrefixMatch, Sequence
from sim.wording import counted

_NUM_NAMED = 5
"""Requests that took blocks are named up to so many."""


class Reasons:
    """Knows what happened to every content before.

    Parameters
    ----------
    history, labels
        Of the run that is told.
    block_size
        Tokens in a block.
    caches
        Whether the policy keeps anything to be hit.
    """

    def __init__(
        self, history: History, labels: Labels, block_size: int, *, caches: bool = True
    ) -> None:
        self._history = history
        self._labels = labels
        self._block_size = block_size
        self._caches = caches

    def what_was_hit(self, match: PrefixMatch) -> list[str]:
        """Say which blocks are shared, and who filled them."""
        if not match.block_ids:
            return []
        origins = [self._history.origins.get(block_id) for block_id in match.block_ids]
        counts = Counter(origin.request_id if origin else "others" for origin in origins)
        parts = [f"{count} filled by request {name}" for name, count in counts.items()]
        return [
            f"Hit {match.num_tokens} tokens in {_blocks(match.block_ids)} ({', '.join(parts)})."
        ]

    def of_admission(
        self, seq: Sequence, match: PrefixMatch, running: Iterable[Sequence], now_ns: int
    ) -> list[str]:
        """Say where the cached tokens of a request came from, and to whom the rest was lost."""
        num_full = min(seq.num_tokens // self._block_size, len(seq.block_keys))
        sentences = [
            f"Request {seq.request_id} was admitted at {_time(now_ns)} with {seq.num_tokens} "
            f"tokens, {counted(num_full, 'full block')}; {match.num_tokens} tokens were hit."
        ]
        origins = [self._history.origins[block_id] for block_id in match.block_ids]
        for origin, group in groupby(origins):
            sentences.append(
                f"{counted(len(list(group)), 'block')} filled by request {origin.request_id} at "
                f"{_time(origin.time_ns)}."
            )
        sentences.append(self.why_no_more_hits(seq, match, running))
        missed = seq.block_keys[match.num_hit_blocks : num_full]
        lost = [self._history.losses[key] for key in missed if key in self._history.losses]
        taken_for = Counter(loss.request_id for loss in lost)
        for request_id, count in taken_for.most_common(_NUM_NAMED):
            times = [loss.time_ns for loss in lost if loss.request_id == request_id]
            sentences.append(
                f"{counted(count, 'block')} of the rest had been there and lost to request "
                f"{request_id} at {_time(min(times))}."
            )
        others = taken_for.most_common()[_NUM_NAMED:]
        if others:
            count = sum(count for _, count in others)
            sentences.append(
                f"{counted(count, 'block')} more were lost to {len(others)} other requests."
            )
        return sentences

    def why_no_more_hits(
        self, seq: Sequence, match: PrefixMatch, running: Iterable[Sequence]
    ) -> str:
        """Say why the block after the last hit one was not hit."""
        if not self._caches:
            return "Caching is off."
        num_hits = match.num_hit_blocks
        num_full = seq.num_tokens // self._block_size
        num_left = seq.num_tokens - num_hits * self._block_size
        if num_left <= 0:
            return "All of its blocks are hit; its last token is computed again, for its logits."
        if num_hits >= num_full:
            return (
                f"The last {counted(num_left, 'token')} fill no block, and only full blocks are "
                "shared."
            )
        if num_hits >= len(seq.block_keys):
            return "What it generated before it lost its blocks is not cached (--reuse prefill)."
        return self._why_missed(seq, num_hits, running, is_last=num_left == self._block_size)

    def _why_missed(
        self, seq: Sequence, index: int, running: Iterable[Sequence], *, is_last: bool
    ) -> str:
        key = seq.block_keys[index]
        label = self._labels.of_block(seq, index, self._block_size)
        if self._history.holds(key):
            return f"{label} is there too, but " + (
                "it holds the last token, which is always computed."
                if is_last
                else "it cannot be hit yet: it is being computed, or what leads to it is gone."
            )
        for other in running:
            if index < len(other.block_keys) and other.block_keys[index] == key:
                return f"{label} is about to be computed for request {other.request_id}."
        loss = self._history.losses.get(key)
        if loss is not None:
            return (
                f"{label} was in block {loss.block_id} until {_time(loss.time_ns)}, when the "
                f"block was taken for request {loss.request_id}."
            )
        if not self._history.origins:
            return "Nothing is cached yet."
        return f"No request before had {label} after this prefix."

    def what_was_taken(self, new: Collection[int], lost: Collection[tuple[int, str]]) -> list[str]:
        """Say which blocks were taken and what was lost for them."""
        if not new:
            return []
        sentences = [f"Took {_blocks(new)}."]
        if lost and self._caches:
            names = ", ".join(f"{label} (block {block_id})" for block_id, label in lost)
            sentences.append(f"Evicted {names}: first in line among the free blocks.")
        return sentences

    def what_was_filled(self, seq: Sequence, index: int) -> str:
        """Say that a block is full now, and whether it can be shared."""
        label = self._labels.of_block(seq, index, self._block_size)
        return f"Filled a block: {label}."

    def what_was_released(self, table: Collection[int], kept: Collection[int]) -> str:
        """Say which blocks are free now, and which others still hold."""
        freed = [block_id for block_id in table if block_id not in kept]
        parts = [f"Released {_blocks(freed)}" if freed else "Released nothing"]
        if kept:
            still = [block_id for block_id in table if block_id in kept]
            parts.append(f"others still hold {_blocks(still)}")
        return "; ".join(parts) + "."


def _time(time_ns: int) -> str:
    return f"{time_ns / 1e6:g} ms" if time_ns < 10**10 else f"{time_ns / 1e9:,.1f} s"


def _blocks(block_ids: Collection[int]) -> str:
    noun = "block" if len(block_ids) == 1 else "blocks"
    return f"{noun} {', '.join(map(str, block_ids))}"
