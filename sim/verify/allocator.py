"""Replays the operations of an allocator log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import policies
from sim.errors import UsageError
from sim.types import NO_MATCH, Allocator, Inspectable, Request, Sequence
from sim.verify.log import Divergence, Line, Log
from workloads.content import Interner, TokenIds

OK, LATER = "OK", "LATER"


def replay(log: Log, policy: str) -> Iterator[Divergence]:
    """Ask a policy what the log asked vLLM, and yield every difference in answer or state."""
    run = _Replay(log, policy)
    initial = log.config.get("initial")
    if initial is not None:
        yield from log.compare(1, initial, run.state())
    for number, line in log.lines:
        for field in ("op", "request", "expect"):
            if field not in line:
                raise UsageError(
                    f"{log.path}:{number}: the operation has no {field!r}; recorded logs are "
                    "described in docs/recorded-logs.md."
                )
        yield from log.compare(number, line["expect"], run.answer(number, line))


class _Replay:
    """The allocator under test and the requests that are live in it."""

    def __init__(self, log: Log, policy: str) -> None:
        self._log = log
        self._block_size = log.number("block_size", minimum=1)
        self._now_ns = 0
        self._tokens: dict[str, list[int]] = {}
        self._sequences: dict[str, Sequence] = {}
        self._interner = Interner()
        self._allocator = make_allocator(log, policy, lambda: self._now_ns)
        self._operations: dict[str, Callable[[Line], Line]] = {
            "allocate": self._allocate,
            "append": self._append,
            "extend": self._extend,
            "free": self._free,
        }

    def state(self) -> Line:
        """Show the whole state of the allocator, by the names of the log."""
        if isinstance(self._allocator, Inspectable):
            return self._allocator.snapshot()
        return {"num_free_blocks": self._allocator.usage().free}

    def answer(self, number: int, line: Line) -> Line:
        """Carry out one operation; return its answer and the state after it."""
        operation = self._operations.get(line["op"])
        if operation is None:
            raise UsageError(
                f"{self._log.path}:{number}: operation {line['op']!r} is unknown; a log has "
                f"{', '.join(self._operations)}."
            )
        is_new = line["op"] == "allocate"
        if not is_new and line["request"] not in self._sequences:
            # Here the replay has left the record: what was admitted there was refused here.
            return {"request": "not live", **self.state()}
        self._now_ns = round(float(line.get("now", 0)) * 1e9)
        return {**operation(line), **self.state()}

    def _allocate(self, line: Line) -> Line:
        tokens = list(line["tokens"])
        request = Request(line["request"], self._now_ns, self._content(tokens), len(tokens), 0)
        seq = Sequence(request, request.content.block_keys(self._block_size).tolist())
        match = self._allocator.match_prefix(seq)
        num_tokens = len(tokens) - match.num_tokens
        num_tokens = min(num_tokens, line.get("chunk", num_tokens))
        if not self._allocator.allocate(seq, match, num_tokens):
            return {"status": LATER}
        self._tokens[seq.request_id] = tokens
        self._sequences[seq.request_id] = seq
        self._computed(seq, match.num_tokens + num_tokens)
        return {
            # As the log counts, a fully cached prompt is all hit, though one token is recomputed.
            "num_cached_tokens": match.num_hit_blocks * self._block_size,
            "num_computed_tokens": seq.num_computed_tokens,
            **self._allocated(seq),
        }

    def _append(self, line: Line) -> Line:
        seq = self._sequences[line["request"]]
        tokens = self._tokens[seq.request_id] + list(line["tokens"])
        keys_before = seq.block_keys
        seq.block_keys = self._content(tokens).block_keys(self._block_size).tolist()
        if not self._allocator.allocate(seq, NO_MATCH, len(tokens) - seq.num_computed_tokens):
            seq.block_keys = keys_before
            return {"status": LATER}
        self._tokens[seq.request_id] = tokens
        seq.num_tokens = len(tokens)
        self._computed(seq, len(tokens))
        return self._allocated(seq)

    def _extend(self, line: Line) -> Line:
        seq = self._sequences[line["request"]]
        num_tokens = min(line["num_tokens"], seq.num_tokens - seq.num_computed_tokens)
        if not self._allocator.allocate(seq, NO_MATCH, num_tokens):
            return {"status": LATER}
        self._computed(seq, seq.num_computed_tokens + num_tokens)
        return {"num_computed_tokens": seq.num_computed_tokens, **self._allocated(seq)}

    def _free(self, line: Line) -> Line:
        self._allocator.free(self._sequences.pop(line["request"]))
        return {"status": OK}

    def _computed(self, seq: Sequence, num_tokens: int) -> None:
        seq.num_computed_tokens = num_tokens
        self._allocator.cache_blocks(seq)

    def _allocated(self, seq: Sequence) -> Line:
        return {"status": OK, "block_table": self._allocator.block_table(seq)}

    def _content(self, tokens: list[int]) -> TokenIds:
        return TokenIds(np.array(tokens, dtype=np.int64), self._interner)


def make_allocator(log: Log, policy: str, clock: Callable[[], int]) -> Allocator:
    """Make the policy's allocator with the pool of the log; a log counts physical blocks."""
    policy_class: Any = policies.load(policy)
    num_reserved_blocks = getattr(policy_class, "num_reserved_blocks", 0)
    watermark = log.config.get("watermark")
    takes_watermark = "watermark" in policies.options(policy_class)
    return policies.make(
        policy,
        num_blocks=log.num_blocks() - num_reserved_blocks,
        block_size=log.number("block_size", minimum=1),
        clock=clock,
        # V0 was recorded without a watermark, which is not its default.
        args={"watermark": float(watermark or 0.0)} if takes_watermark else {},
    )
