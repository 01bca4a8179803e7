"""Where the content of blocks came from, and to whom it was lost."""

from __future__ import annotations

from dataclasses import dataclass

from sim.types import Sequence


@dataclass(frozen=True, slots=True)
class Origin:
    """Who filled a block, and when, ns."""

    request_id: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Loss:
    """For whom the last block of a content was taken, and when, ns."""

    block_id: int
    request_id: str
    time_ns: int


class History:
    """Follows the keys of full blocks through a run, by looking at block tables only.

    Costs time in proportion to the blocks that are newly handed out, and keeps an entry per key
    that was lost.

    Attributes
    ----------
    origins
        For each block that holds a full block, who filled it.
    losses
        For each key that no block holds any more, how it was lost.
    """

    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self.losses: dict[int, Loss] = {}
        self._key_of: dict[int, int] = {}
        self._num_holding: dict[int, int] = {}

    def holds(self, key: int) -> bool:
        """Whether a block holds this content, whoever may hit it."""
        return key in self._num_holding

    def taken(self, block_id: int, seq: Sequence, now_ns: int) -> int | None:
        """Note that a block was handed out anew; return the key of what it held, if anything."""
        key = self._key_of.pop(block_id, None)
        if key is None:
            return None
        del self.origins[block_id]
        self._num_holding[key] -= 1
        if not self._num_holding[key]:
            del self._num_holding[key]
            self.losses[key] = Loss(block_id, seq.request_id, now_ns)
        return key

    def filled(self, block_id: int, key: int, seq: Sequence, now_ns: int) -> None:
        """Note that a block holds the full block named ``key``."""
        if self._key_of.get(block_id) == key:
            return
        self._key_of[block_id] = key
        self._num_holding[key] = self._num_holding.get(key, 0) + 1
        self.origins[block_id] = Origin(seq.request_id, now_ns)
        self.losses.pop(key, None)
