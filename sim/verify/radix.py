"""Replays a log of a radix cache: lookups, insertions and evictions without pool or scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import policies
from sim.verify.fields import ANY_TOKENS, INTEGER, OBJECT, PATHS, TEXT, WHOLE, Kind, shown
from sim.verify.log import Divergence, Line, Log
from workloads.content import Interner, TokenIds

Fields = dict[str, Kind]

OPERATIONS: dict[str, tuple[Fields, Fields]] = {
    "begin": ({"request": TEXT, "tokens": ANY_TOKENS}, {}),
    "finish": ({"request": TEXT, "tokens": ANY_TOKENS}, {"priority": INTEGER}),
    "evict": ({"num_tokens": WHOLE}, {}),
}
"""Required and optional fields of every operation, beside ``op`` and ``expect``."""

ANSWERS: dict[str, Fields] = {
    "begin": {"num_cached_tokens": WHOLE},
    "finish": {"already_cached_tokens": WHOLE},
    "evict": {"evicted_tokens": WHOLE},
}

STATE: Fields = {
    "total_tokens": WHOLE,
    "evictable_tokens": WHOLE,
    "protected_tokens": WHOLE,
    "leaves": PATHS,
}


def is_radix(log: Log) -> bool:
    """Whether the first operation of ``log`` is one of a radix cache."""
    return bool(log.lines) and any(log.lines[0][1].get("op") == name for name in OPERATIONS)


def replay(log: Log, policy: str) -> Iterator[Divergence]:
    """Ask the tree of a policy what the log asked, and yield every difference."""
    run = _Replay(log, policy)
    for number, line in log.lines:
        yield from log.compare(number, run.checked(number, line)["expect"], run.answer(line))


class _Replay:
    """The tree under test, who has locked what in it, and the tokens behind its keys."""

    def __init__(self, log: Log, policy: str) -> None:
        self._log = log
        self._page_size = log.number("page_size", minimum=1)
        policy_class = policies.load(policy)
        eviction = {"eviction": log.text("eviction")}
        allocator: Any = policies.make(
            policy,
            num_blocks=1,
            block_size=self._page_size,
            clock=lambda: 0,
            args=eviction if "eviction" in policies.options(policy_class) else {},
        )
        if not hasattr(allocator, "tree"):
            log.refuse(
                log.lines[0][0],
                f"this log asks a radix tree, and policy {policy!r} has none",
                "choose one that has, such as sglang_radix",
            )
        self._tree = allocator.tree
        self._locked: dict[str, Any] = {}
        self._interner = Interner()
        self._page_of: dict[int, list[int]] = {}
        self._operations: dict[str, Callable[[Line], Line]] = {
            "begin": self._begin,
            "finish": self._finish,
            "evict": self._evict,
        }

    def checked(self, number: int, line: Line) -> Line:
        """Refuse a line that is no operation of such a log."""
        log = self._log
        log.check(number, line, "the operation", {"op": TEXT})
        operation = line["op"]
        if operation not in OPERATIONS:
            log.refuse(
                number,
                f"operation {shown(operation)} is unknown",
                f"a log of a radix cache has {', '.join(OPERATIONS)}",
            )
        required, optional = OPERATIONS[operation]
        log.check(number, line, "the operation", {**required, "expect": OBJECT}, optional)
        log.check(number, line["expect"], "expect", {**ANSWERS[operation], **STATE})
        if operation == "finish" and line["request"] not in self._locked:
            log.refuse(
                number,
                f"request {shown(line['request'])} finishes without a 'begin'",
                "record each request from its begin on",
            )
        if operation == "begin" and line["request"] in self._locked:
            log.refuse(
                number,
                f"request {shown(line['request'])} begins a second time before it finished",
                "give each request a name of its own",
            )
        return line

    def answer(self, line: Line) -> Line:
        """Carry out one operation; return its answer and the state after it."""
        return {**self._operations[line["op"]](line), **self._state()}

    def _begin(self, line: Line) -> Line:
        keys = self._keys(line["tokens"])
        node, num_pages = self._tree.match(keys, len(keys))
        self._tree.lock(node)
        self._locked[line["request"]] = node
        return {"num_cached_tokens": num_pages * self._page_size}

    def _finish(self, line: Line) -> Line:
        keys = self._keys(line["tokens"])
        # There is no pool: the key of a page stands for its block.
        num_present = self._tree.insert(keys, keys, line.get("priority", 0))
        self._tree.unlock(self._locked.pop(line["request"]))
        return {"already_cached_tokens": num_present * self._page_size}

    def _evict(self, line: Line) -> Line:
        freed = self._tree.evict(-(-line["num_tokens"] // self._page_size))
        return {"evicted_tokens": len(freed) * self._page_size}

    def _state(self) -> Line:
        tree, size = self._tree, self._page_size
        return {
            "total_tokens": tree.num_blocks * size,
            "evictable_tokens": tree.num_evictable_blocks * size,
            "protected_tokens": (tree.num_blocks - tree.num_evictable_blocks) * size,
            "leaves": sorted(
                [token for key in path for token in self._page_of[key]] for path in tree.leaves()
            ),
        }

    def _keys(self, tokens: list[int]) -> list[int]:
        content = TokenIds(np.array(tokens, dtype=np.int64), self._interner)
        keys: list[int] = content.block_keys(self._page_size).tolist()
        for index, key in enumerate(keys):
            start = index * self._page_size
            self._page_of.setdefault(key, tokens[start : start + self._page_size])
        return keys
