"""Replays the operations of an allocator log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import policies
from sim.checked import Checked
from sim.fast.support import pool_rules_of
from sim.types import NO_MATCH, Allocator, Inspectable, PoolRules, Request, Sequence
from sim.verify.fields import (
    ANYTHING,
    BLOCK_IDS,
    OBJECT,
    POSITIVE,
    SECONDS,
    SHARE,
    STATUS,
    TEXT,
    TOKENS,
    WHOLE,
    Kind,
    shown,
)
from sim.verify.log import Divergence, Line, Log
from workloads.content import Interner, TokenIds

OK, LATER = "OK", "LATER"

Fields = dict[str, Kind]

OPERATIONS: dict[str, tuple[Fields, Fields]] = {
    "allocate": ({"now": SECONDS, "tokens": TOKENS}, {"chunk": POSITIVE}),
    "append": ({"tokens": TOKENS}, {"now": SECONDS}),
    "extend": ({"num_tokens": POSITIVE}, {"now": SECONDS}),
    "free": ({}, {"now": SECONDS}),
}
"""Required and optional fields of every operation, beside ``op``, ``request`` and ``expect``."""

ANSWERS: dict[str, Fields] = {
    "allocate": {"num_cached_tokens": WHOLE, "block_table": BLOCK_IDS},
    "append": {"block_table": BLOCK_IDS},
    "extend": {"num_computed_tokens": WHOLE, "block_table": BLOCK_IDS},
    "free": {},
}
"""What an operation that found room answers, beside its status."""

STATE: Fields = {
    "num_free_blocks": WHOLE,
    "cached_blocks": BLOCK_IDS,
    "free_queue": BLOCK_IDS,
    "hashless_free": BLOCK_IDS,
    "evictor": BLOCK_IDS,
}
"""The state, by the names of vLLM V1 and V0; a policy of one's own may show other things."""

EXPECTED = STATE | {field: kind for answer in ANSWERS.values() for field, kind in answer.items()}
"""Every field that ``expect`` may have, whether it must or not."""


def replay(log: Log, policy: str, recorded: str, *, fast: bool = False) -> Iterator[Divergence]:
    """Ask a policy what the log asked vLLM, and yield every difference in answer or state.

    Parameters
    ----------
    policy
        Name of the policy to ask.
    recorded
        Name of the policy that models what was recorded: the state that it shows is what the log
        must state.
    fast
        Ask the compiled pool of the policy, which must have one.
    """
    run = _Replay(log, policy, fast)
    state = run.state()
    if recorded != policy:
        state = _state(policies.make(recorded, num_blocks=1, block_size=1, clock=lambda: 0))
    _check(log, {field: STATE.get(field, ANYTHING) for field in state})
    if "initial" in log.config:
        yield from log.compare(log.config_number, log.config["initial"], run.state())
    for number, line in log.lines:
        yield from log.compare(number, line["expect"], run.answer(line))


def _check(log: Log, state: Fields) -> None:
    """Refuse a log that asks or answers too little to be compared."""
    if "initial" in log.config:
        log.check(log.config_number, log.config, "the configuration", {"initial": OBJECT})
        log.check(log.config_number, log.config["initial"], "initial", state)
    live: dict[str, int] = {}
    now = 0.0
    for number, line in log.lines:
        op = _check_fields(log, number, line, state)
        name = line["request"]
        if op == "allocate" and name in live:
            log.refuse_as_cut(
                number,
                f"request {shown(name)} is allocated again, though it is live since line "
                f"{live[name]} and not freed",
            )
        if op != "allocate" and name not in live:
            log.refuse_as_cut(
                number, f"{op} of request {shown(name)}, which no line before has left live"
            )
        if line.get("now", now) < now:
            log.refuse(
                number,
                f"now is {line['now']}, which is before the {now} of a line above",
                "operations stand in the order in which they happened; sort them",
            )
        now = line.get("now", now)
        if op == "free":
            del live[name]
        elif op == "allocate" and line["expect"]["status"] == OK:
            live[name] = number


def _check_fields(log: Log, number: int, line: Line, state: Fields) -> str:
    """Refuse an operation that lacks something; return which it is."""
    what = "the operation"
    log.check(number, line, what, {"op": TEXT, "request": TEXT, "expect": OBJECT})
    op: str = line["op"]
    if op not in OPERATIONS:
        log.refuse(
            number, f"operation {shown(op)} is unknown", f"a log has {', '.join(OPERATIONS)}"
        )
    log.check(number, line, what, *OPERATIONS[op])
    expect = line["expect"]
    log.check(number, expect, "expect", {"status": STATUS, **state}, EXPECTED)
    if expect["status"] == OK:
        log.check(number, expect, "expect", ANSWERS[op])
        if op == "allocate" and "free_queue" in state:
            # Only V1 prefills in chunks; V0 has no such number.
            log.check(number, expect, "expect", {"num_computed_tokens": WHOLE})
    return op


def _state(allocator: Allocator) -> Line:
    """Show the whole state of an allocator, by the names of the log."""
    if isinstance(allocator, Inspectable):
        return allocator.snapshot()
    return {"num_free_blocks": allocator.usage().free}


class _Replay:
    """The allocator under test and the requests that are live in it."""

    def __init__(self, log: Log, policy: str, fast: bool) -> None:
        self._log = log
        self._block_size = log.number("block_size", minimum=1)
        self._now_ns = 0
        self._tokens: dict[str, list[int]] = {}
        self._sequences: dict[str, Sequence] = {}
        self._interner = Interner()
        self._allocator = (
            _compiled_pool(log, policy)
            if fast
            else make_allocator(log, policy, lambda: self._now_ns)
        )
        self._operations: dict[str, Callable[[Line], Line]] = {
            "allocate": self._allocate,
            "append": self._append,
            "extend": self._extend,
            "free": self._free,
        }

    def state(self) -> Line:
        """Show the whole state of the allocator, by the names of the log."""
        return _state(self._allocator)

    def answer(self, line: Line) -> Line:
        """Carry out one operation; return its answer and the state after it."""
        op = line["op"]
        is_live = line["request"] in self._sequences
        if is_live == (op == "allocate"):
            # Here the replay has left the record: one admitted what the other refused.
            return {"status": "live already" if is_live else "not live", **self.state()}
        if "now" in line:
            self._now_ns = round(line["now"] * 1e9)
        return {**self._operations[op](line), **self.state()}

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
    """Make the policy's allocator with the pool of the log."""
    # V0 was recorded without a watermark, which is not its default.
    watermark = log.setting("watermark", SHARE) if "watermark" in log.config else 0
    takes_watermark = "watermark" in policies.options(policies.load(policy))
    size = pool_size(log, policy)
    allocator = policies.make(
        policy,
        num_blocks=size["num_blocks"],
        block_size=size["block_size"],
        clock=clock,
        args={"watermark": float(watermark)} if takes_watermark else {},
    )
    return Checked(allocator, policy) if ":" in policy else allocator


def pool_size(log: Log, policy: str) -> dict[str, int]:
    """Look up ``num_blocks`` and ``block_size`` for a policy; a log counts physical blocks."""
    num_reserved_blocks = getattr(policies.load(policy), "num_reserved_blocks", 0)
    return {
        "num_blocks": log.num_blocks(num_reserved_blocks) - num_reserved_blocks,
        "block_size": log.number("block_size", minimum=1),
    }


def rules_of(policy: str) -> PoolRules:
    """Look up the rules of a policy that has a compiled form."""
    rules = pool_rules_of(policies.load(policy))
    assert rules is not None
    return rules


def _compiled_pool(log: Log, policy: str) -> Allocator:
    # Compiled code takes half a second to load.
    from sim.fast.allocator import CompiledPool  # noqa: PLC0415

    return CompiledPool(rules_of(policy), **pool_size(log, policy))
