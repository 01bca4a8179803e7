"""Cases distilled from issues of serving engines, each with the numbers that must come out.

A case is a list of operations. Those of equal ``t`` belong to one step, at the end of which what
was admitted or decoded counts as computed; a ``finish`` ends its step, as requests finish when a
step is done. Operations without ``t`` belong to the step under way.

=========  ========================================================================
admit      Look the prompt up and take room for all of it; ``repeat``: so many times.
decode     The next ``n`` tokens of ``out`` (or of the request's own making) come and are computed;
           what is left of ``out`` is known and not computed, as the last token always is.
finish     Release the request.
lookup     What a fresh request would hit.
state      Used and free blocks, V0's own counters, and counts over first admissions.
=========  ========================================================================
"""

import json

import numpy as np
import pytest
from helpers import SHARED, Clock, make, needs

from sim.types import NO_MATCH, Request, Sequence
from workloads.content import Interner, TokenIds

CASES_FILE = SHARED / "cases" / "cases.json"

POLICIES = {
    "v1": ("vllm_v1", "vllm_v1_latest"),
    "v0": ("vllm_v0",),
    "v0_scan": ("vllm_v0_scan",),
}


def policies_of(name, expected):
    """Map a name of the cases to policies; where both ages of V1 stand, each is its own."""
    if name == "v1_old":
        return ("vllm_v1",)
    if name == "v1" and "v1_old" in expected:
        return ("vllm_v1_latest",)
    return POLICIES[name]


class Interpreter:
    """Carries a case out with one policy."""

    def __init__(self, policy, block_size, usable_blocks):
        args = {"watermark": 0.0} if policy.startswith("vllm_v0") else {}
        self.clock = Clock()
        self.block_size = block_size
        self.allocator = make(policy, usable_blocks, block_size, self.clock, **args)
        self.interner = Interner()
        self.t = 0
        self.live = {}
        self.tokens = {}
        self.scheduled = {}
        self.counts = {"requests": 0, "queries": 0, "hits": 0}
        self.own_token = 10**6

    def run(self, operations):
        answers = {}
        for operation in operations:
            arguments = {k: v for k, v in operation.items() if k not in ("op", "t", "as")}
            if operation.get("t", self.t) != self.t:
                self.end_step()
                self.t = operation["t"]
                self.clock.now_ns = self.t * 10**9
            answer = getattr(self, operation["op"])(**arguments)
            if "as" in operation:
                answers[operation["as"]] = answer
        return answers

    def keys(self, tokens):
        content = TokenIds(np.array(tokens, dtype=np.int64), self.interner)
        return content, content.block_keys(self.block_size).tolist()

    def sequence(self, request_id, tokens):
        content, keys = self.keys(tokens)
        return Sequence(Request(request_id, 0, content, len(tokens), 0), keys)

    def end_step(self):
        for seq, num_tokens in self.scheduled.values():
            seq.num_computed_tokens += num_tokens
            self.allocator.cache_blocks(seq)
        self.scheduled = {}

    def admit(self, id, tokens, repeat=1):
        for _ in range(repeat):
            seq = self.sequence(id, tokens)
            match = self.allocator.match_prefix(seq)
            num_tokens = len(tokens) - match.num_tokens
            if self.allocator.allocate(seq, match, num_tokens):
                break
        else:
            return {"admitted": False}
        self.live[id] = seq
        self.tokens[id] = list(tokens)
        seq.num_computed_tokens = match.num_tokens
        self.scheduled[id] = seq, num_tokens
        self.counts["requests"] += 1
        self.counts["queries"] += len(tokens)
        self.counts["hits"] += match.num_tokens
        return {"admitted": True, "cached": match.num_tokens, "computed": num_tokens}

    def decode(self, id, n, out=()):
        seq = self.live[id]
        out = list(out) or [self.own_token + index for index in range(n)]
        self.own_token += n
        for token in out[:n]:
            self.end_step()
            self.know(seq, token)
            assert self.allocator.allocate(seq, NO_MATCH, 1)
            self.scheduled[id] = seq, 1
        self.end_step()
        for token in out[n:]:
            self.know(seq, token)

    def know(self, seq, token):
        self.tokens[seq.request_id].append(token)
        _, seq.block_keys = self.keys(self.tokens[seq.request_id])
        seq.num_tokens += 1

    def finish(self, id):
        self.end_step()
        self.allocator.free(self.live.pop(id))

    def lookup(self, tokens):
        return {"hit": self.allocator.match_prefix(self.sequence("lookup", tokens)).num_tokens}

    def state(self):
        usage = self.allocator.usage()
        return {
            "used": usage.used,
            "free": usage.free,
            "block_queries": getattr(self.allocator, "num_block_queries", None),
            "block_hits": getattr(self.allocator, "num_block_hits", None),
            "stats": self.counts,
        }


def admit(request_id, tokens, t, name=None, **more):
    named = {"as": name} if name else {}
    return {"op": "admit", "id": request_id, "tokens": list(tokens), "t": t, **more, **named}


def finish(request_id, t):
    return {"op": "finish", "id": request_id, "t": t}


def decode(request_id, n, t, **more):
    return {"op": "decode", "id": request_id, "n": n, "t": t, **more}


def lookup(tokens, name):
    return {"op": "lookup", "tokens": list(tokens), "as": name}


def state(name):
    return {"op": "state", "as": name}


def got(cached, computed):
    return {"admitted": True, "cached": cached, "computed": computed}


REFUSED = {"admitted": False}
ONE_TO_8 = range(1, 9)
OTHER_8 = range(101, 109)
ONE_TO_12 = range(1, 13)
ONE_TO_16 = range(1, 17)
A_LEAVES_TWO_BLOCKS_B_HOLDS_TWO = [
    admit("A", ONE_TO_8, 1),
    finish("A", 1),
    admit("B", OTHER_8, 2),
]


def second_turn(output, num_decoded):
    """Six prompt tokens, an output, and a second turn of twelve tokens that contains both."""
    history = [1, 2, 3, 4, 5, 6, *output]
    return [
        admit("A", range(1, 7), 1),
        decode("A", num_decoded, 2, out=output),
        finish("A", 2),
        admit("T2", history + list(range(31, 31 + 12 - len(history))), 3, "T2"),
    ]


# id: (block size, usable blocks, operations, what is expected by name of the policy)
CASES = {
    # Equal times of last access: V0 evicts the longest prefix first, V1 what was released first.
    "A06": (
        2,
        4,
        [
            admit("B", [31, 32], 1),
            admit("A", range(1, 7), 1),
            finish("B", 1),
            finish("A", 1),
            admit("C", range(41, 45), 2),
            lookup(range(1, 8), "A_left"),
            lookup([31, 32, 9], "B_left"),
        ],
        {
            "v1": {"A_left": {"hit": 4}, "B_left": {"hit": 0}},
            "v0": {"A_left": {"hit": 2}, "B_left": {"hit": 2}},
            "v0_scan": {"A_left": {"hit": 2}, "B_left": {"hit": 2}},
        },
    ),
    # A free cached block that is hit cannot also serve as a new one.
    "A08": (
        4,
        4,
        [
            *A_LEAVES_TWO_BLOCKS_B_HOLDS_TWO,
            admit("C", ONE_TO_16, 3, "C_try"),
            state("mid"),
            finish("B", 4),
            admit("C", ONE_TO_16, 5, "C"),
        ],
        {
            name: {"C_try": REFUSED, "mid": {"free": 2, "used": 2}, "C": got(8, 8)}
            for name in ("v1", "v0", "v0_scan")
        },
    ),
    # A prompt that is cached whole: V1 computes its last block again, V0 its last token, and 0.6.4
    # never counts the last block of a request.
    "A10": (
        4,
        16,
        [
            admit("A", ONE_TO_8, 1),
            finish("A", 1),
            admit("A2", ONE_TO_8, 2, "same8"),
            finish("A2", 2),
            admit("N", range(1, 10), 3, "plus1"),
            finish("N", 3),
            admit("S", range(1, 5), 4, "one_block"),
        ],
        {
            "v1": {"same8": got(4, 4), "plus1": got(8, 1), "one_block": got(0, 4)},
            "v0": {"same8": got(7, 1), "plus1": got(8, 1), "one_block": got(3, 1)},
            "v0_scan": {"same8": got(4, 4), "plus1": got(8, 1), "one_block": got(0, 4)},
        },
    ),
    # Two of a kind in one step: V1 hits what is only allocated; V0 counts no hit but shares.
    "A12": (
        4,
        16,
        [
            admit("P", ONE_TO_8, 1, "P"),
            admit("Q", ONE_TO_8, 1, "Q"),
            state("s"),
            admit("T", ONE_TO_8, 2, "T"),
        ],
        {
            "v1": {"P": got(0, 8), "Q": got(4, 4), "s": {"used": 3}, "T": got(4, 4)},
            "v0": {
                "P": got(0, 8),
                "Q": got(0, 8),
                "s": {"used": 2, "block_queries": 4, "block_hits": 2},
                "T": got(7, 1),
            },
            "v0_scan": {
                "P": got(0, 8),
                "Q": got(0, 8),
                "s": {"used": 2, "block_queries": 4, "block_hits": 2},
                "T": got(4, 4),
            },
        },
    ),
    # The same with no full block: nothing is shared, by design.
    "A12-partial": (
        16,
        16,
        [
            admit("P", range(1, 11), 1, "P"),
            admit("Q", range(1, 11), 1, "Q"),
            state("s"),
            admit("T", range(1, 11), 2, "T"),
            state("end"),
        ],
        {
            "v1": {
                **{"P": got(0, 10), "Q": got(0, 10), "T": got(0, 10)},
                **{"s": {"used": 2}, "end": {"used": 3, "free": 13}},
            },
            **{
                name: {
                    **{"P": got(0, 10), "Q": got(0, 10), "T": got(0, 10)},
                    "s": {"used": 2, "block_queries": 0, "block_hits": 0},
                    "end": {"used": 3, "free": 13},
                }
                for name in ("v0", "v0_scan")
            },
        },
    ),
    # What was found before a wait may be gone after it.
    "A14": (
        4,
        4,
        [
            *A_LEAVES_TWO_BLOCKS_B_HOLDS_TWO,
            lookup(ONE_TO_12, "first_look"),
            admit("C", ONE_TO_12, 3, "C_try"),
            decode("B", 1, 3),
            finish("B", 3),
            admit("C", ONE_TO_12, 4, "C"),
        ],
        {
            name: {"first_look": {"hit": 8}, "C_try": REFUSED, "C": got(4, 8)}
            for name in ("v1", "v0", "v0_scan")
        },
    ),
    # Blocks that never filled: 0.8.5's V1 queues them behind cached ones, which are evicted first.
    "A28": (
        4,
        3,
        [
            admit("A", range(1, 7), 1),
            finish("A", 1),
            admit("B", range(11, 17), 2),
            finish("B", 2),
            admit("C", [21, 22], 3),
            finish("C", 3),
            admit("A2", range(1, 7), 4, "A2"),
        ],
        {
            "v1": {"A2": got(4, 2)},
            "v1_old": {"A2": got(0, 6)},
            "v0": {"A2": got(4, 2)},
            "v0_scan": {"A2": got(4, 2)},
        },
    ),
    # Generated tokens can be hit, but for the last, which is never computed.
    "A31/2": (
        4,
        16,
        second_turn([21, 22], 1),
        {name: {"T2": got(4, 8)} for name in ("v1", "v0", "v0_scan")},
    ),
    "A31/3": (
        4,
        16,
        second_turn([21, 22, 23], 2),
        {name: {"T2": got(8, 4)} for name in ("v1", "v0", "v0_scan")},
    ),
    "A31/4": (
        4,
        16,
        second_turn([21, 22, 23, 24], 3),
        {name: {"T2": got(8, 4)} for name in ("v1", "v0", "v0_scan")},
    ),
    # Seven looks, one admission: 8 of 32 tokens hit, not 56 of 128.
    "C02": (
        4,
        4,
        [
            *A_LEAVES_TWO_BLOCKS_B_HOLDS_TWO,
            admit("C", ONE_TO_16, 3, "C_try", repeat=6),
            finish("B", 4),
            admit("C", ONE_TO_16, 5, "C"),
            state("end"),
        ],
        {
            name: {
                "C_try": REFUSED,
                "C": got(8, 8),
                "end": {"stats": {"requests": 3, "queries": 32, "hits": 8}},
            }
            for name in ("v1", "v0", "v0_scan")
        },
    ),
}


def runs(cases):
    """Yield a test per case and policy."""
    for case, (block_size, usable_blocks, operations, expected) in cases.items():
        for name, answers in expected.items():
            for policy in policies_of(name, expected):
                yield pytest.param(
                    policy, block_size, usable_blocks, operations, answers, id=f"{case}-{policy}"
                )


def check(policy, block_size, usable_blocks, operations, expected):
    answers = Interpreter(policy, block_size, usable_blocks).run(operations)
    relevant = {
        name: {field: answers[name][field] for field in fields if field in answers[name]}
        for name, fields in expected.items()
    }
    assert relevant == expected


@pytest.mark.parametrize(
    ("policy", "block_size", "usable_blocks", "operations", "expected"), list(runs(CASES))
)
def test_case(policy, block_size, usable_blocks, operations, expected):
    check(policy, block_size, usable_blocks, operations, expected)


def test_a06_in_the_other_order():
    """The note of the case: where A is released before B, V1 keeps a block of each."""
    block_size, usable_blocks, operations, _ = CASES["A06"]
    operations = operations.copy()
    operations[2], operations[3] = operations[3], operations[2]
    expected = {"A_left": {"hit": 2}, "B_left": {"hit": 2}}
    for policy in ("vllm_v1", "vllm_v1_latest", "vllm_v0", "vllm_v0_scan"):
        check(policy, block_size, usable_blocks, operations, expected)


def allocator_scenarios():
    """Yield (id, scenario, expected) of the shared cases."""
    for case in json.loads(CASES_FILE.read_text(encoding="utf-8")):
        scenario, expected = case["scenario"], case["expected"]
        if scenario["level"] == "allocator":
            yield case["id"], scenario, expected
        elif scenario["level"] == "allocator-multi":
            for variant, part in scenario["variants"].items():
                answers = {name: by_variant[variant] for name, by_variant in expected.items()}
                yield f"{case['id']}/{variant}", part, answers


@needs(CASES_FILE)
def test_the_shared_cases_are_these():
    scenarios = list(allocator_scenarios())
    assert len(scenarios) >= 10
    for case, scenario, expected in scenarios:
        config, operations = scenario["config"], scenario["ops"]
        block_size, usable_blocks, embedded, embedded_expected = CASES[case]
        assert (config["block_size"], config["usable_blocks"]) == (block_size, usable_blocks)
        assert operations == embedded, case
        for name, answers in expected.items():
            assert embedded_expected[name] == answers, case
            for policy in policies_of(name, expected):
                check(policy, block_size, usable_blocks, operations, answers)
