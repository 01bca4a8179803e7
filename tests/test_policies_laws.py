"""Laws that every policy keeps, whatever is asked of it.

A new file in policies/ is tested here without a change. `World` drives one allocator with random
operations, as a scheduler may, and keeps an oracle: which prefix each slot of each physical block
was last written with.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers import (
    ORDERS,
    VLLM,
    Clock,
    make,
    policy_cases,
    requests_of,
    sequence_of,
    serve_in_turn,
    serve_in_two_calls,
    state_of,
)
from hypothesis import given
from hypothesis import strategies as st

import policies
from sim.types import NO_MATCH, Inspectable, Request, Sequence
from workloads import infinite_hit_rate, shared_prefix_tokens
from workloads.content import Interner, TokenIds

CASES = [
    pytest.param(name, args, exact, id=case_id) for case_id, name, args, exact in policy_cases()
]
CACHING = (*VLLM, *ORDERS)
"""Policies that keep every full block until it is evicted."""

every_policy = pytest.mark.parametrize(("policy", "args", "exact"), CASES)


@dataclass
class Live:
    """A request in the world; ``names`` holds one name per prefix of its content."""

    seq: Sequence
    names: list[int]
    num_scheduled: int = 0


class World:
    """One allocator, the requests that live in it, and what its blocks hold.

    Parameters
    ----------
    rename
        Applied to every block key: a key is a name and its value must not matter.
    noisy
        Look up before every operation and try every refused allocation again: nothing of that may
        show in ``log``.
    """

    def __init__(self, policy, args, exact, setup, *, rename=lambda key: key, noisy=False):
        self.num_blocks, self.block_size, self.segments = setup
        self.clock = Clock()
        self.allocator = make(policy, self.num_blocks, self.block_size, self.clock, **args)
        self.exact = exact
        self.caches = policy in CACHING
        self.rename = rename
        self.noisy = noisy
        self.interner = Interner()
        self.live = []
        self.preempted = []
        self.num_requests = 0
        self.kv = {}
        self.taken_keys = set()
        self.log = []

    def run(self, operations):
        for name, *arguments in operations:
            if self.noisy:
                self.lookup([0, 1, 2], 1)
                for live in self.preempted:
                    self.match(live.seq)
            getattr(self, name)(*arguments)
            self.check_blocks()
            self.log.append((name, self.state()))
        self.tick()
        for live in self.live:
            self.allocator.free(live.seq)
        usage = self.allocator.usage()
        assert (usage.used, usage.free) == (0, self.num_blocks)
        self.log.append(("end", self.state()))
        return self.log

    def state(self):
        return state_of(self.allocator, [live.seq for live in self.live])

    def check_blocks(self):
        usage = self.allocator.usage()
        assert usage.used + usage.free == self.num_blocks
        assert 0 <= usage.cached <= self.num_blocks
        tables = [self.allocator.block_table(live.seq) for live in self.live]
        assert usage.used == len({block_id for table in tables for block_id in table})
        for live, table in zip(self.live, tables, strict=True):
            assert len(set(table)) == len(table)
            num_tokens = live.seq.num_computed_tokens + live.num_scheduled
            assert len(table) * self.block_size >= num_tokens
        if isinstance(self.allocator, Inspectable):
            snapshot = self.allocator.snapshot()
            assert snapshot["num_free_blocks"] == usage.free
            assert len(set(snapshot["cached_blocks"])) == usage.cached

    def new(self, path, cut, num_output_tokens):
        """Make a request whose prompt is a path of shared segments without its last tokens."""
        prompt = [token for index in path for token in self.segments[index % len(self.segments)]]
        prompt = prompt[: max(1, len(prompt) - cut)]
        # Generated tokens repeat what prompts hold, so that they can be hit too.
        output = (self.segments[0] * num_output_tokens)[:num_output_tokens]
        content = TokenIds(np.array(prompt + output, dtype=np.int64), self.interner)
        self.num_requests += 1
        request = Request(f"r{self.num_requests}", 0, content, len(prompt), len(output))
        seq = sequence_of(request, self.block_size)
        seq.block_keys = [self.rename(key) for key in seq.block_keys]
        return Live(seq, content.block_keys(1).tolist())

    def match(self, seq):
        before = self.state()
        match = self.allocator.match_prefix(seq)
        assert self.allocator.match_prefix(seq) == match
        assert self.state() == before
        return match

    def lookup(self, path, cut):
        live = self.new(path, cut, 0)
        self.check_match(live, self.match(live.seq))

    def check_match(self, live, match):
        num_run_tokens = len(match.block_ids) * self.block_size
        assert 0 <= match.num_tokens <= max(0, live.seq.num_tokens - 1)
        assert match.num_hit_blocks <= match.num_queried_blocks
        # Whatever counts as hit had been given to an earlier request.
        assert self.taken_keys.issuperset(live.seq.block_keys[: match.num_hit_blocks])
        if self.exact:
            assert match.num_hit_blocks == len(match.block_ids)
            assert match.num_tokens == min(num_run_tokens, max(0, live.seq.num_tokens - 1))
        else:
            assert match.num_hit_blocks >= len(match.block_ids)

    def admit(self, path, cut, num_output_tokens, chunk):
        self.start(self.new(path, cut, num_output_tokens), chunk)

    def start(self, live, chunk):
        seq = live.seq
        match = self.match(seq)
        self.check_match(live, match)
        num_tokens = min(chunk, seq.num_tokens - match.num_tokens)
        if not self.allocated(seq, match, num_tokens):
            assert self.allocator.block_table(seq) == []
            return False
        self.live.append(live)
        assert tuple(self.allocator.block_table(seq)[: len(match.block_ids)]) == match.block_ids
        seq.num_computed_tokens = match.num_tokens
        live.num_scheduled = num_tokens
        if not self.exact:
            # Tokens that are counted though their block is gone: take them for present.
            self.write(live, len(match.block_ids) * self.block_size, match.num_tokens)
        self.note_keys(live)
        return True

    def allocated(self, seq, match, num_tokens):
        before = self.state()
        for _ in range(3 if self.noisy else 1):
            if self.allocator.allocate(seq, match, num_tokens):
                return True
            assert self.state() == before
        return False

    def note_keys(self, live):
        num_tokens = live.seq.num_computed_tokens + live.num_scheduled
        self.taken_keys.update(live.seq.block_keys[: num_tokens // self.block_size])

    def idle(self, which):
        """Choose a request that takes no part in the step under way, as preemption must."""
        idle = [live for live in self.live if not live.num_scheduled]
        return idle[which % len(idle)] if idle else None

    def compute(self, which, chunk):
        """Schedule a running request: the next chunk of its prompt, or a decoded token."""
        live = self.idle(which)
        if live is None:
            return
        num_tokens = min(chunk, live.seq.num_tokens - live.seq.num_computed_tokens)
        if self.allocated(live.seq, NO_MATCH, num_tokens):
            live.num_scheduled = num_tokens
            self.note_keys(live)

    def abort(self, which):
        live = self.idle(which)
        if live is not None:
            self.live.remove(live)
            self.allocator.free(live.seq)

    def preempt(self, which):
        live = self.idle(which)
        if live is not None:
            self.abort(which)
            live.seq.num_computed_tokens = 0
            self.preempted.append(live)

    def resume(self, chunk):
        if self.preempted and self.start(self.preempted[0], chunk):
            del self.preempted[0]

    def write(self, live, start, stop):
        table = self.allocator.block_table(live.seq)
        for position in range(start, stop):
            index, slot = divmod(position, self.block_size)
            self.kv.setdefault(table[index], {})[slot] = live.names[position]

    def tick(self):
        """End the step: what was scheduled is computed, tokens come out, requests finish."""
        scheduled = [live for live in self.live if live.num_scheduled]
        for live in scheduled:
            seq = live.seq
            stop = seq.num_computed_tokens + live.num_scheduled
            self.write(live, seq.num_computed_tokens, stop)
            seq.num_computed_tokens = stop
            live.num_scheduled = 0
            self.allocator.cache_blocks(seq)
        self.check_content()
        self.check_hits()
        for live in scheduled:
            seq, request = live.seq, live.seq.request
            num_total_tokens = request.num_prompt_tokens + request.num_output_tokens
            if seq.num_computed_tokens == seq.num_tokens:
                seq.num_tokens = min(seq.num_tokens + 1, num_total_tokens)
                if seq.num_tokens == num_total_tokens:
                    self.live.remove(live)
                    self.allocator.free(seq)
        self.clock.now_ns += 1

    def check_content(self):
        """Every block of every table holds that request's own prefix, shared or not."""
        for live in self.live:
            table = self.allocator.block_table(live.seq)
            for position in range(live.seq.num_computed_tokens):
                index, slot = divmod(position, self.block_size)
                assert self.kv[table[index]][slot] == live.names[position]

    def check_hits(self):
        """What a live request has computed is hit by whoever comes with it and a token more."""
        if not (self.caches and self.exact):
            return
        for live in self.live:
            num_tokens = live.seq.num_computed_tokens
            request = replace(live.seq.request, request_id="twin", num_prompt_tokens=num_tokens + 1)
            num_blocks = min(num_tokens // self.block_size, len(live.seq.block_keys))
            twin = Sequence(request, live.seq.block_keys[:num_blocks])
            assert self.allocator.match_prefix(twin).num_hit_blocks == num_blocks


SMALL = st.integers(0, 7)
PATH = st.lists(SMALL, min_size=1, max_size=4)
CHUNK = st.sampled_from([1, 2, 3, 5, 8, 1000])
SEGMENTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=3)


BLOCK_SIZES = st.integers(1, 4) | st.integers(1, 16)
POOL_SIZES = st.integers(1, 12) | st.integers(1, 30)
SETUPS = st.tuples(POOL_SIZES, BLOCK_SIZES, SEGMENTS)


OPERATION = st.one_of(
    st.tuples(st.just("admit"), PATH, SMALL, st.integers(0, 12), CHUNK),
    st.tuples(st.just("admit"), PATH, SMALL, st.integers(0, 12), CHUNK),
    st.tuples(st.just("compute"), SMALL, CHUNK),
    st.tuples(st.just("compute"), SMALL, CHUNK),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("lookup"), PATH, SMALL),
    st.tuples(st.just("abort"), SMALL),
    st.tuples(st.just("preempt"), SMALL),
    st.tuples(st.just("resume"), CHUNK),
)
# Lists of lists are long enough to fill a pool and evict, and still shrink to a few operations.
OPERATIONS = st.lists(st.lists(OPERATION, min_size=3, max_size=12), max_size=20).map(
    lambda parts: [operation for part in parts for operation in part]
)


@every_policy
@given(setup=SETUPS, operations=OPERATIONS)
def test_keeps_the_laws_of_blocks(policy, args, exact, setup, operations):
    World(policy, args, exact, setup).run(operations)


@every_policy
@given(setup=SETUPS, operations=OPERATIONS)
def test_lookups_refusals_and_the_values_of_keys_leave_no_trace(
    policy, args, exact, setup, operations
):
    plain = World(policy, args, exact, setup).run(operations)
    again = World(policy, args, exact, setup).run(operations)
    assert again == plain
    noisy = World(policy, args, exact, setup, noisy=True).run(operations)
    assert noisy == plain
    renamed = World(policy, args, exact, setup, rename=lambda key: -7 - 3 * key).run(operations)
    assert renamed == plain


@every_policy
@pytest.mark.parametrize("num_blocks", [1, 2, 99, 100, 101, 1000])
def test_a_request_alone_gets_all_the_blocks_it_was_promised(policy, args, exact, num_blocks):
    allocator = make(policy, num_blocks, 4, **args)
    num_promised = allocator.max_request_blocks()
    assert 1 <= num_promised <= num_blocks
    (request,) = requests_of((range(4 * num_promised), []))
    seq = sequence_of(request, 4)
    assert allocator.allocate(seq, allocator.match_prefix(seq), seq.num_tokens)
    assert allocator.usage().used == num_promised


ROWS = st.lists(st.tuples(PATH, st.integers(0, 12)), min_size=1, max_size=6)
PARTS = st.lists(ROWS, min_size=1, max_size=6)


@st.composite
def workloads(draw, unique_outputs=False):
    """Requests that share prefixes and, unless told not to, come back with what was generated."""
    segments = draw(SEGMENTS)
    rows = []
    for index, (path, num_output_tokens) in enumerate(row for part in draw(PARTS) for row in part):
        prompt = [token for step in path for token in segments[step % len(segments)]]
        output = [100 + index] if unique_outputs else segments[-1]
        rows.append((prompt, (output * num_output_tokens)[:num_output_tokens]))
    return requests_of(*rows)


def exact_cases():
    return [pytest.param(*case.values[:2], id=case.id) for case in CASES if case.values[2]]


@pytest.mark.parametrize(("policy", "args"), exact_cases())
@given(requests=workloads(), block_size=BLOCK_SIZES, num_blocks=POOL_SIZES)
def test_hits_at_least_nothing_and_at_most_what_an_infinite_cache_does(
    policy, args, requests, block_size, num_blocks
):
    clock = Clock()
    allocator = make(policy, num_blocks, block_size, clock, **args)
    room = allocator.max_request_blocks() * block_size
    requests = [request for request in requests if request.num_kv_tokens <= room]
    cached = np.array(serve_in_turn(allocator, requests, clock), dtype=np.int64)
    assert (cached >= 0).all()
    assert (cached <= infinite_hits(policy, requests, block_size)).all()


def infinite_hits(policy, requests, block_size):
    """Tokens that each request hits where nothing is ever evicted, by the policy's rules."""
    shared = shared_prefix_tokens(requests, outputs=True)
    prompts = np.array([request.num_prompt_tokens for request in requests], dtype=np.int64)
    if policy == "vllm_v0":
        # A fully cached prompt counts as hit but for its last token.
        return np.minimum(shared // block_size * block_size, prompts - 1).tolist()
    return (np.minimum(shared, prompts - 1) // block_size * block_size).tolist()


@pytest.mark.parametrize("policy", [*CACHING, "sglang_radix"])
@given(requests=workloads(), block_size=BLOCK_SIZES)
def test_with_room_for_everything_nothing_is_lost(policy, requests, block_size):
    clock = Clock()
    num_blocks = sum(-(-request.num_kv_tokens // block_size) for request in requests) * 2 + 100
    cached = serve_in_turn(make(policy, num_blocks, block_size, clock), requests, clock)
    assert cached == infinite_hits(policy, requests, block_size)
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    assert sum(cached) / num_prompt_tokens == infinite_hit_rate(
        requests,
        block_size,
        outputs=True,
        recomputes_last_block=getattr(policies.load(policy), "recomputes_last_block", True),
    )


@given(requests=workloads(), block_size=BLOCK_SIZES)
def test_without_caching_nothing_is_hit(requests, block_size):
    clock = Clock()
    allocator = make("none", 10_000, block_size, clock)
    assert serve_in_turn(allocator, requests, clock) == [0] * len(requests)
    assert allocator.usage().cached == 0


# The reuse times that this order learns from are other ones where tokens come one by one.
TIMELESS = [case for case in CASES if case.values[0] != "workload_aware"]


@pytest.mark.parametrize(("policy", "args", "exact"), TIMELESS)
@given(
    requests=workloads(unique_outputs=True),
    block_size=BLOCK_SIZES,
    num_blocks=st.integers(20, 60),
)
def test_a_whole_output_in_one_call_is_as_good_as_token_by_token(
    *, policy, args, exact, requests, block_size, num_blocks
):
    """What lets tests on real traces be quick."""
    clocks = Clock(), Clock()
    allocators = [make(policy, num_blocks, block_size, clock, **args) for clock in clocks]
    room = (allocators[0].max_request_blocks() - 1) * block_size
    requests = [request for request in requests if request.num_kv_tokens <= room]
    one_by_one = serve_in_turn(allocators[0], requests, clocks[0])
    assert serve_in_two_calls(allocators[1], requests, clocks[1]) == one_by_one
    one_call, one_by_one = (state_of(allocator) for allocator in reversed(allocators))
    assert one_call["usage"] == one_by_one["usage"]
    assert one_call["snapshot"] == one_by_one["snapshot"]


class CountingKeys(list):
    """Block keys that count how many of them are read."""

    num_reads = 0

    def __getitem__(self, index):
        self.num_reads += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self):
        self.num_reads += len(self)
        return super().__iter__()


def decoding_request(policy, args, num_blocks, block_size=16):
    """Put a request of ``num_blocks`` full blocks, all computed, into a pool twice as large."""
    allocator = make(policy, 2 * num_blocks + 10, block_size, **args)
    (request,) = requests_of((range(num_blocks * block_size), [7] * 200))
    seq = sequence_of(request, block_size)
    seq.block_keys = CountingKeys(seq.block_keys)
    assert allocator.allocate(seq, allocator.match_prefix(seq), seq.num_tokens)
    seq.num_computed_tokens = seq.num_tokens
    allocator.cache_blocks(seq)
    return allocator, seq


def decode(allocator, seq):
    seq.num_tokens += 1
    assert allocator.allocate(seq, NO_MATCH, 1)
    seq.num_computed_tokens += 1
    allocator.cache_blocks(seq)
    allocator.usage()


@every_policy
def test_a_decoded_token_reads_no_more_keys_than_it_fills_blocks(policy, args, exact):
    allocator, seq = decoding_request(policy, args, 2000)
    seq.block_keys.num_reads = 0
    for _ in range(64):
        decode(allocator, seq)
    num_filled_blocks = 64 // 16
    assert seq.block_keys.num_reads <= 4 * num_filled_blocks
    assert len(allocator.block_table(seq)) == 2004


def count_opcodes(action):
    """Count the Python instructions that ``action`` executes: time, without a clock."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@every_policy
def test_a_decoded_token_costs_the_same_with_20_blocks_and_with_2000(policy, args, exact):
    counts = []
    for num_blocks in (20, 2000):
        allocator, seq = decoding_request(policy, args, num_blocks)
        counts.append([count_opcodes(lambda a=allocator, s=seq: decode(a, s)) for _ in range(34)])
    few, many = counts
    assert all(count > 0 for count in few)
    assert many == few


@every_policy
def test_an_allocator_of_the_same_name_is_the_same_policy(policy, args, exact):
    allocator = make(policy, 3, 4, **args)
    assert type(allocator) is policies.load(policy)
    assert (allocator.num_blocks, allocator.block_size) == (3, 4)
