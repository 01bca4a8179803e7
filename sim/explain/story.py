"""The events of a run and the state of the block pool after each: plain data to be drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Event = Literal["admitted", "refused", "grew", "ended", "preempted", "rejected"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One physical block after an event.

    Attributes
    ----------
    block_id
        Its id.
    label
        What it holds, see `sim.explain.labels.Labels`; empty if it never held anything.
    num_tokens
        Tokens that it holds; less than the block size while it fills.
    is_cached
        Whether a lookup can find it.
    holders
        Requests that hold it, in order of admission: its ref count is their number.
    """

    block_id: int
    label: str
    num_tokens: int
    is_cached: bool
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One event and the state after it.

    Attributes
    ----------
    number
        From 0.
    time_ns
        Simulated time.
    event, request_id
        What happened to whom.
    sentences
        What was hit, why the next block was not, what was evicted and why it.
    hit_blocks, new_blocks, evicted
        Ids of the blocks that were shared and taken, and (id, label) of what was lost for them.
    slots
        The whole pool, by id.
    free
        The structures that hold the free blocks, by name, each in order: next victim first where
        the structure is ordered so.
    tables
        Block table of each request that holds blocks, in order of admission.
    """

    number: int
    time_ns: int
    event: Event
    request_id: str
    sentences: tuple[str, ...]
    hit_blocks: tuple[int, ...] = ()
    new_blocks: tuple[int, ...] = ()
    evicted: tuple[tuple[int, str], ...] = ()
    slots: tuple[Slot, ...] = ()
    free: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def cached(self) -> dict[str, list[int]]:
        """The map that lookups use: what a block holds -> ids of the blocks that hold it."""
        found: dict[str, list[int]] = {}
        for slot in self.slots:
            if slot.is_cached:
                found.setdefault(slot.label, []).append(slot.block_id)
        return found


@dataclass(slots=True)
class Story:
    """A run of one policy, event by event; ``is_cut`` if it went on after the last of them."""

    policy: str
    block_size: int
    num_blocks: int
    moments: list[Moment] = field(default_factory=list)
    is_cut: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the pages that show it read it."""
        return {
            "policy": self.policy,
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "is_cut": self.is_cut,
            "moments": [{**asdict(moment), "cached": moment.cached} for moment in self.moments],
        }
