from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.types import Request
from workloads import Workload, describe, infinite_hit_rate, read_mooncake, shared_prefix_tokens
from workloads.content import Interner, Segments, TokenIds

TRACES = Path(__file__).parents[1] / ".." / "shared" / "traces"


def request(index, content, num_prompt_tokens, arrival_ns=0):
    num_output_tokens = content.num_tokens - num_prompt_tokens
    return Request(str(index), arrival_ns, content, num_prompt_tokens, num_output_tokens)


def explicit(rows):
    interner = Interner()
    return [
        request(index, TokenIds(np.array(prompt + output, dtype=np.int64), interner), len(prompt))
        for index, (prompt, output) in enumerate(rows)
    ]


def naive_cached(requests, block_size, *, outputs):
    """Replay through an infinite cache, block by block."""
    cache, cached = set(), []
    for r in requests:
        keys = r.content.block_keys(block_size).tolist()
        hits = 0
        while hits < (r.num_prompt_tokens - 1) // block_size and keys[hits] in cache:
            hits += 1
        cached.append(hits * block_size)
        cache.update(keys[: (r.num_kv_tokens if outputs else r.num_prompt_tokens) // block_size])
    return cached


def test_worked_by_hand():
    requests = explicit(
        [([1, 2, 3, 4, 5], [6, 7]), ([1, 2, 3, 9], [1]), ([1, 2, 3, 4, 5, 6, 7], [8])]
    )
    assert shared_prefix_tokens(requests).tolist() == [0, 3, 5]
    # Token 7 is the last output of the first request and is never fed back.
    assert shared_prefix_tokens(requests, outputs=True).tolist() == [0, 3, 6]
    assert infinite_hit_rate(requests, 2, outputs=False) == (2 + 4) / 16
    assert infinite_hit_rate(requests, 2) == (2 + 6) / 16
    assert infinite_hit_rate([], 2) == 0


def test_last_token_is_always_computed():
    requests = explicit([([1, 2, 3, 4], [5])] * 2)
    assert infinite_hit_rate(requests, 2) == 2 / 8
    assert infinite_hit_rate(requests, 3) == 3 / 8
    assert infinite_hit_rate(requests, 4) == 0
    figures = describe(Workload("w", tuple(requests)), 2)
    assert figures["infinite_hit_rate_whole_prompt"] == 4 / 8
    assert figures["num_prompt_blocks"] == 4
    assert figures["num_distinct_prompt_blocks"] == 2
    assert figures["working_set_tokens"] == 4


@pytest.mark.parametrize(
    ("block_size", "cached"), [(1, 240), (16, 240), (64, 192), (128, 128), (256, 0), (784, 0)]
)
def test_a_hit_is_floored_to_blocks(block_size, cached):
    ends = np.array([240, 300], dtype=np.int64)
    requests = [
        request(i, Segments(np.array([0, 1000 + 60 * i], dtype=np.int64), ends), 300)
        for i in range(11)
    ]
    assert naive_cached(requests, block_size, outputs=True) == [0] + [cached] * 10
    assert infinite_hit_rate(requests, block_size) == pytest.approx(cached * 10 / 3300)


token = st.integers(0, 1)
rows = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=9), st.lists(token, max_size=4)),
    min_size=1,
    max_size=8,
)


@given(rows, st.integers(1, 5), st.booleans())
def test_closed_form_equals_a_replay(rows, block_size, outputs):
    requests = explicit(rows)
    cached = sum(naive_cached(requests, block_size, outputs=outputs))
    total = sum(r.num_prompt_tokens for r in requests)
    assert infinite_hit_rate(requests, block_size, outputs=outputs) == cached / total


@given(rows, st.integers(1, 5))
def test_describe_counts_distinct_blocks(rows, block_size):
    requests = explicit(rows)
    figures = describe(Workload("w", tuple(requests)), block_size)
    blocks = [
        key
        for r in requests
        for key in r.content.block_keys(block_size)[: r.num_prompt_tokens // block_size].tolist()
    ]
    assert figures["num_prompt_blocks"] == len(blocks)
    assert figures["num_distinct_prompt_blocks"] == len(set(blocks))
    prefixes = {tuple(prompt[: n + 1]) for prompt, _ in rows for n in range(len(prompt))}
    assert figures["working_set_tokens"] == len(prefixes)


def test_describe_lengths_and_arrivals():
    ends = np.array([10], dtype=np.int64)
    requests = tuple(
        request(i, Segments(np.array([i * 10], dtype=np.int64), ends), 8, arrival_ns=i * 10**9)
        for i in range(5)
    )
    figures = describe(Workload("w", requests), 4)
    assert figures["prompt_tokens_total"] == 40
    assert figures["output_tokens_p99"] == 2
    assert figures["duration_s"] == 4
    assert figures["mean_rate_per_s"] == 1
    assert figures["arrival_gap_cv"] == 0
    assert figures["infinite_hit_rate"] == 0


def test_describe_knows_what_it_cannot_know():
    content = Segments(np.array([0], dtype=np.int64), np.array([10], dtype=np.int64))
    figures = describe(Workload("w", (request(0, content, 8),), has_prefix_info=False), 4)
    assert figures["mean_rate_per_s"] is None
    assert figures["infinite_hit_rate"] is None
    assert figures["working_set_tokens"] is None
    assert figures["num_prompt_blocks"] == 2


MOONCAKE = {
    "conversation": (288_500, 182_790, 0.366412, 0.373624, 0.373380, 0.398113),
    "synthetic": (121_877, 43_924, 0.639604, 0.651244, 0.650431, 0.862750),
}


@pytest.mark.parametrize("name", MOONCAKE)
def test_figures_of_the_mooncake_traces(name):
    path = TRACES / f"{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"needs {name}_trace.jsonl of Mooncake in ../shared/traces")
    workload = read_mooncake(path)
    assert workload.warnings == ()
    figures = describe(workload, 512)
    num_blocks, num_distinct, by_block, partial, full, last_half = MOONCAKE[name]
    assert figures["num_identity_blocks"] == num_blocks
    assert figures["num_distinct_identity_blocks"] == num_distinct
    assert figures["identity_block_hit_rate"] == pytest.approx(by_block, abs=5e-7)
    assert figures["infinite_hit_rate_partial"] == pytest.approx(partial, abs=5e-7)
    assert figures["infinite_hit_rate"] == pytest.approx(full, abs=5e-7)
    assert figures["infinite_hit_rate_partial_last_half"] == pytest.approx(last_half, abs=5e-7)
    for block_size in (48, 512):
        head = workload.requests[:500]
        cached = sum(naive_cached(head, block_size, outputs=True))
        total = sum(r.num_prompt_tokens for r in head)
        assert infinite_hit_rate(head, block_size) == cached / total
