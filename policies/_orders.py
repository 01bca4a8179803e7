"""What orders of eviction are made of: keys that may be evicted, queues, ranks, memories."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sim.errors import UsageError


class Access(NamedTuple):
    """Who touches a block, and when.

    Attributes
    ----------
    now_ns
        Simulated time.
    num_tokens
        Tokens of the request that are known: its prompt, and its output so far.
    last_hit
        Key of the last block that the request hit at admission; None if it hit nothing.
    session_id
        Conversation of the request, where the workload tells it.
    """

    now_ns: int = 0
    num_tokens: int = 0
    last_hit: int | None = None
    session_id: str | None = None


class Blocked:
    """Keys that may not be evicted for now, because a request holds them or they have children.

    A queue that comes upon such a key sets it aside, once, and gets it back when it is free again:
    so no victim is found by passing over the same blocked keys again and again.
    """

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._take_back: dict[int, Callable[[int], None]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def add(self, key: int) -> None:
        """Keep ``key`` from being evicted."""
        self._keys.add(key)

    def discard(self, key: int) -> None:
        """Let ``key`` be evicted again, and tell whoever has set it aside."""
        self._keys.discard(key)
        take_back = self._take_back.pop(key, None)
        if take_back is not None:
            take_back(key)

    def set_aside(self, key: int, take_back: Callable[[int], None]) -> None:
        """Call ``take_back`` with ``key`` once it may be evicted."""
        self._take_back[key] = take_back


class Queue:
    """Keys from the oldest to the newest; exact even where blocked keys come free out of turn."""

    def __init__(self, blocked: Blocked) -> None:
        self._blocked = blocked
        self._tickets: OrderedDict[int, int] = OrderedDict()
        self._line: OrderedDict[int, None] = OrderedDict()
        # Keys that were set aside and are free again, all older than those in line.
        self._returned: list[tuple[int, int]] = []
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, key: int) -> bool:
        return key in self._tickets

    def push(self, key: int) -> None:
        """Make ``key``, new or not, the newest."""
        self._next_ticket += 1
        self._tickets[key] = self._next_ticket
        self._tickets.move_to_end(key)
        self._line[key] = None
        self._line.move_to_end(key)

    def remove(self, key: int) -> None:
        """Take ``key`` out."""
        del self._tickets[key]
        self._line.pop(key, None)

    def first(self) -> int:
        """Find the oldest key of all; one that is blocked may still move to another queue."""
        return next(iter(self._tickets))

    def oldest(self) -> int | None:
        """Find the oldest key that may be evicted."""
        while self._returned:
            ticket, key = self._returned[0]
            if self._tickets.get(key) == ticket and key not in self._line:
                if key not in self._blocked:
                    return key
                self._blocked.set_aside(key, self._take_back)
            heapq.heappop(self._returned)
        while self._line:
            key = next(iter(self._line))
            if key not in self._blocked:
                return key
            del self._line[key]
            self._blocked.set_aside(key, self._take_back)
        return None

    def _take_back(self, key: int) -> None:
        if key in self._tickets and key not in self._line:
            heapq.heappush(self._returned, (self._tickets[key], key))


class Ranked:
    """Keys by rank, smallest first; of equal ranks the one set first."""

    def __init__(self, blocked: Blocked) -> None:
        self._blocked = blocked
        self._ranks: dict[int, tuple[float, ...]] = {}
        self._heap: list[tuple[tuple[float, ...], int]] = []
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: int) -> bool:
        return key in self._ranks

    def set(self, key: int, *rank: float) -> None:
        """Give ``key``, new or not, a rank."""
        self._next_ticket += 1
        self._ranks[key] = (*rank, self._next_ticket)
        self._push(key)
        if len(self._heap) > 64 + 4 * len(self._ranks):
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def rank(self, key: int) -> tuple[float, ...]:
        """Give the rank of ``key``; a ticket stands behind it."""
        return self._ranks[key]

    def remove(self, key: int) -> None:
        """Take ``key`` out."""
        del self._ranks[key]

    def smallest(self) -> int | None:
        """Find the key of the smallest rank that may be evicted."""
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                if key not in self._blocked:
                    return key
                self._blocked.set_aside(key, self._push)
            heapq.heappop(self._heap)
        return None

    def _push(self, key: int) -> None:
        if key in self._ranks:
            heapq.heappush(self._heap, (self._ranks[key], key))


class Memory:
    """Keys that were evicted, each with a number, the oldest forgotten first (a ghost queue)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: int) -> bool:
        return key in self._values

    def add(self, key: int, value: int = 1) -> None:
        """Remember ``key``; if that is one too many, forget the oldest."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._capacity:
            self.forget()

    def forget(self) -> None:
        """Forget the oldest, if there is any."""
        if self._values:
            self._values.popitem(last=False)

    def pop(self, key: int) -> int:
        """Forget ``key`` and give its number; 0 if it is not remembered."""
        return self._values.pop(key, 0)


class Order:
    """Decides which cached block is evicted next: the part in which policies differ.

    It knows every cached key from ``on_insert`` to ``victim``. A miss is told in two calls, with
    the evictions that make room for it in between. Blocks that are in use, or that may not go for
    another reason, are in ``blocked``; `Queue` and `Ranked` pass over them.

    Parameters
    ----------
    capacity
        Blocks of the cache.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocked = Blocked()

    def on_hit(self, key: int, position: int, access: Access) -> None:
        """Note that the cached block ``key`` was asked for, the ``position``-th of its request."""

    def on_miss(self, key: int) -> None:
        """Note that ``key`` was asked for and is not cached; `on_insert` follows."""

    def on_insert(self, key: int, position: int, access: Access) -> None:
        """Take in ``key``."""
        raise NotImplementedError

    def on_release(self, key: int, position: int, access: Access) -> None:
        """Note that nobody holds ``key`` any more."""

    def is_alive(self, key: int, now_ns: int) -> bool:
        """Whether the cached ``key`` may still be hit."""
        return True

    def victim(self) -> int:
        """Choose a key that is not blocked, and forget it. There is always one."""
        raise NotImplementedError


def check_range(option: str, value: float, low: float, high: float) -> None:
    """Refuse an option of an order outside its range, both ends included.

    Raises
    ------
    UsageError
        It is outside, or no number.
    """
    if not low <= value <= high:
        raise UsageError(f"--policy-arg {option}={value} must be from {low:,} to {high:,}.")


def required(key: int | None) -> int:
    """Hold an order to its word that there is a victim."""
    assert key is not None, "an order was asked for a victim and has none that may be evicted"
    return key
