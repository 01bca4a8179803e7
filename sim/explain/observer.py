"""Watches an allocator at work and tells what it does, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sim.explain.history import History
from sim.explain.labels import Labels
from sim.explain.reasons import Reasons
from sim.explain.story import Event, Moment, Slot, Story
from sim.types import Allocator, Clock, PrefixMatch, Request, Sequence
from sim.wrapped import Wrapped


class Enough(Exception):  # noqa: N818 - no error, the end of a story
    """A story has as many moments as were asked for."""


class Observer(Wrapped):
    """Answers as the allocator within does, and writes down a `Moment` for what changed.

    An append that takes no block and fills none is no event. A refused admission is told once,
    until something else happens.

    Parameters
    ----------
    allocator
        The one to be watched; if it has a ``snapshot``, what is cached comes from there.
    clock
        Simulated time, ns.
    story
        Takes the moments; None keeps none, which makes watching a large pool cheap.
    request_id
        Request whose admission is to be told in ``admission``.
    limit
        Moments to keep at most.
    letters
        See `Labels`.

    Attributes
    ----------
    admission
        Sentences on the first admission of the request that was asked for.

    Raises
    ------
    Enough
        The story is as long as it may be.
    """

    def __init__(
        self,
        allocator: Allocator,
        clock: Clock,
        story: Story | None = None,
        *,
        request_id: str | None = None,
        limit: int | None = None,
        letters: bool = False,
    ) -> None:
        super().__init__(allocator)
        self._clock = clock
        self.admission: list[str] = []
        self._story = story
        self._request_id = request_id
        self._limit = limit
        self.labels = Labels(self.block_size, letters=letters)
        self.history = History()
        self._reasons = Reasons(
            self.history,
            self.labels,
            self.block_size,
            caches=getattr(allocator, "caches_blocks", True),
        )
        self._running: dict[str, Sequence] = {}
        self._tables: dict[str, list[int]] = {}
        # Leading blocks of a table whose content will not change any more.
        self._num_settled: dict[str, int] = {}
        self._ref_counts: Counter[int] = Counter()
        # What each block was last used for: its label and how many tokens it holds.
        self._content: dict[int, tuple[str, int]] = {}
        self._last_refused = ""

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate, and tell what was hit, taken and lost, or why there was no room."""
        is_new = seq.request_id not in self._running
        num_total = seq.num_computed_tokens + match.num_tokens + num_tokens
        num_blocks_before = len(self._tables.get(seq.request_id, ()))
        sentences = []
        if is_new:
            self.labels.know(seq)
            running = self._running.values()
            sentences += self._reasons.what_was_hit(match)
            sentences.append(self._reasons.why_no_more_hits(seq, match, running))
        if not self._allocator.allocate(seq, match, num_tokens):
            self._refused(seq, match, num_tokens)
            return False
        if is_new and seq.request_id == self._request_id and not self.admission:
            self.admission = self._reasons.of_admission(seq, match, running, self._clock())
        self._running[seq.request_id] = seq
        fills = num_total // self.block_size > seq.num_computed_tokens // self.block_size
        if not fills and num_total <= num_blocks_before * self.block_size:
            return True
        new, lost = self._follow(seq, len(match.block_ids), num_total)
        if new or is_new:
            self._tell(
                "admitted" if is_new else "grew",
                seq,
                [*sentences, *self._reasons.what_was_taken(new, lost)],
                hit_blocks=match.block_ids,
                new_blocks=new,
                evicted=lost,
            )
        elif fills:
            index = num_total // self.block_size - 1
            self._tell("grew", seq, [self._reasons.what_was_filled(seq, index)])
        return True

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks, and tell in which order they can be taken now."""
        table = self._tables.pop(seq.request_id, [])
        self._ref_counts.subtract(table)
        self._running.pop(seq.request_id, None)
        self._num_settled.pop(seq.request_id, None)
        self._allocator.free(seq)
        request = seq.request
        has_ended = seq.num_tokens >= request.num_prompt_tokens + request.num_output_tokens
        kept = {block_id for block_id in table if self._ref_counts[block_id]}
        sentences = [self._reasons.what_was_released(table, kept)]
        if not has_ended:
            sentences.insert(0, "A running request needs its blocks; it waits and starts again.")
        self._tell("ended" if has_ended else "preempted", seq, sentences)

    def _follow(
        self, seq: Sequence, num_hits: int, num_total: int
    ) -> tuple[list[int], list[tuple[int, str]]]:
        """Bring tables, contents and history up to date; give what was taken and lost for it."""
        before = self._tables.get(seq.request_id, [])
        table = self._tables[seq.request_id] = self._allocator.block_table(seq)
        self._ref_counts.subtract(before)
        now_ns = self._clock()
        new, lost = [], []
        settled = self._num_settled.get(seq.request_id, 0)
        self._num_settled[seq.request_id] = min(num_total // self.block_size, len(table))
        for index in range(settled, len(table)):
            block_id = table[index]
            num_held = min(max(num_total - index * self.block_size, 0), self.block_size)
            # V0 may share a block that others hold while it allocates.
            if index >= max(len(before), num_hits) and not self._ref_counts[block_id]:
                new.append(block_id)
                label = self._content.get(block_id, ("", 0))[0]
                if self.history.taken(block_id, seq, now_ns) is not None:
                    lost.append((block_id, label))
            self._content[block_id] = (self.labels.of_block(seq, index, num_held), num_held)
            if num_held == self.block_size and index < len(seq.block_keys):
                self.history.filled(block_id, seq.block_keys[index], seq, now_ns)
        self._ref_counts.update(table)
        return new, lost

    def rejected(self, request: Request, reason: str) -> None:
        """Tell that a request can never be served."""
        seq = Sequence(request, [])
        self._tell("rejected", seq, [f"It {reason}, even if it were alone."])

    def _refused(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> None:
        if self._story is None or self._last_refused == seq.request_id:
            return
        # A refusal changed nothing, so the policy can still say what it refused for.
        explain: Any = getattr(self._allocator, "why_refused", None)
        sentence = (
            str(explain(seq, match, num_tokens))
            if explain is not None
            else f"No room: {self._allocator.usage().free} blocks are free."
        )
        self._tell("refused", seq, [sentence])
        self._last_refused = seq.request_id

    def _holders(self) -> dict[int, list[str]]:
        holders: dict[int, list[str]] = {}
        for request_id, table in self._tables.items():
            for block_id in table:
                holders.setdefault(block_id, []).append(request_id)
        return holders

    def _snapshot(self) -> dict[str, Any]:
        take: Any = getattr(self._allocator, "snapshot", dict)
        snapshot: dict[str, Any] = take()
        return snapshot

    def _tell(
        self,
        event: Event,
        seq: Sequence,
        sentences: Iterable[str],
        **blocks: Any,  # noqa: ANN401
    ) -> None:
        self._last_refused = ""
        story = self._story
        if story is None:
            return
        snapshot = self._snapshot()
        cached, holders = set(snapshot.get("cached_blocks", ())), self._holders()
        describe: Any = getattr(self._allocator, "free_structures", None)
        free = (
            describe()
            if describe is not None
            else {"free blocks": [str(block_id) for block_id in snapshot.get("free_queue", ())]}
        )
        first = getattr(self._allocator, "first_block_id", 0)
        slots = tuple(
            Slot(
                block_id,
                *self._content.get(block_id, ("", 0)),
                is_cached=block_id in cached,
                holders=tuple(holders.get(block_id, ())),
            )
            for block_id in range(first, first + self.num_blocks)
        )
        story.moments.append(
            Moment(
                number=len(story.moments),
                time_ns=self._clock(),
                event=event,
                request_id=seq.request_id,
                sentences=tuple(sentence for sentence in sentences if sentence),
                slots=slots,
                free=free,
                tables={name: tuple(table) for name, table in self._tables.items()},
                **{name: tuple(value) for name, value in blocks.items()},
            )
        )
        if len(story.moments) == self._limit:
            story.is_cut = True
            raise Enough
