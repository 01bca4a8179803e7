"""Replays a log of a radix cache: lookups, insertions and evictions without pool or scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import policies
from sim.errors import UsageError
from sim.verify.log import Divergence, Line, Log
from workloads.content import Interner, TokenIds

OPERATIONS = {
    "begin": ("request", "tokens"),
    "finish": ("request", "tokens"),
    "evict": ("num_tokens",),
}
"""Operations of such a log, and the fields that each needs beside ``expect``."""


def is_radix(log: Log) -> bool:
    """Whether the first operation of ``log`` is one of a radix cache."""
    return bool(log.lines) and log.lines[0][1].get("op") in OPERATIONS


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
        eviction = {"eviction": log.setting("eviction")}
        allocator: Any = policies.make(
            policy,
            num_blocks=1,
            block_size=self._page_size,
            clock=lambda: 0,
            args=eviction if "eviction" in policies.options(policy_class) else {},
        )
        if not hasattr(allocator, "tree"):
            raise UsageError(
                f"{log.path}:2: this log asks a radix tree, and policy {policy!r} has none; "
                "choose one that has, such as sglang_radix."
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
        operation = line.get("op")
        if operation not in OPERATIONS:
            raise UsageError(
                f"{self._log.path}:{number}: operation {operation!r} is unknown; a log of a radix "
                f"cache has {', '.join(OPERATIONS)}."
            )
        for field in (*OPERATIONS[operation], "expect"):
            if field not in line:
                raise UsageError(
                    f"{self._log.path}:{number}: the operation has no {field!r}; recorded logs "
                    "are described in docs/recorded-logs.md."
                )
        if operation == "finish" and line["request"] not in self._locked:
            raise UsageError(
                f"{self._log.path}:{number}: request {line['request']!r} finishes without a "
                "'begin'; record each request from its begin on."
            )
        if operation == "begin" and line["request"] in self._locked:
            raise UsageError(
                f"{self._log.path}:{number}: request {line['request']!r} begins a second time "
                "before it finished; give each request a name of its own."
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
