"""Block keys as dense numbers: as equal and as different as the keys."""

import numpy as np
from helpers import requests_of
from hypothesis import given
from hypothesis import strategies as st

from sim.fast.keys import key_runs, no_keys
from sim.types import Request
from workloads.content import Segments


def numbers_of(runs):
    """Spell the number of every block out, request by request."""
    spelled = []
    for r, num_keys in enumerate(runs.num_keys.tolist()):
        numbers, j = [], int(runs.first_run[r])
        for i in range(num_keys):
            while runs.run_stop[j] <= i:
                j += 1
            numbers.append(int(runs.run_shift[j]) + i)
        assert j < runs.first_run[r + 1] or not num_keys
        spelled.append(numbers)
    return spelled


def assert_as_the_keys(requests, num_tokens, block_size):
    runs = key_runs(requests, np.array(num_tokens, dtype=np.int64), block_size)
    keys = [
        r.content.block_keys(block_size)[: n // block_size].tolist()
        for r, n in zip(requests, num_tokens, strict=True)
    ]
    numbers = numbers_of(runs)
    assert [len(part) for part in numbers] == [len(part) for part in keys]
    pairs = {
        (key, number)
        for some_keys, some_numbers in zip(keys, numbers, strict=True)
        for key, number in zip(some_keys, some_numbers, strict=True)
    }
    assert len(pairs) == len({key for key, _ in pairs}) == len({number for _, number in pairs})
    assert all(0 <= number < runs.num_distinct for _, number in pairs)
    return runs


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), max_size=6),
    block_size=st.integers(1, 4),
)
def test_token_ids(prompts, block_size):
    requests = requests_of(*((prompt, [7]) for prompt in prompts))
    assert_as_the_keys(requests, [r.num_kv_tokens for r in requests], block_size)


@given(
    paths=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), max_size=6),
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    cuts=st.lists(st.integers(0, 8), min_size=6, max_size=6),
    block_size=st.integers(1, 12),
)
def test_segments_of_any_length(paths, lengths, cuts, block_size):
    # A segment's length depends on its depth, and the last of a path may be cut.
    names, requests = {}, []
    for index, path in enumerate(paths):
        bases = [names.setdefault(tuple(path[: i + 1]), 100 * len(names)) for i in range(len(path))]
        ends = np.cumsum(lengths[: len(path)])
        ends[-1] -= min(cuts[index], lengths[len(path) - 1] - 1)
        content = Segments(np.array(bases, dtype=np.int64), ends)
        requests.append(Request(f"r{index}", 0, content, content.num_tokens, 0))
    assert_as_the_keys(requests, [r.num_prompt_tokens for r in requests], block_size)


def test_a_run_spans_a_segment():
    content = Segments(np.array([0, 512]), np.array([512, 600]))
    runs = assert_as_the_keys([Request("a", 0, content, 600, 0)], [600], 16)
    # 32 blocks of the first segment, five of the second; the last 8 tokens fill none.
    assert (runs.run_stop.tolist(), runs.run_shift.tolist()) == ([32, 37], [0, 0])
    assert runs.num_distinct == 37


def test_nothing():
    assert key_runs([], np.zeros(0, dtype=np.int64), 16).num_distinct == 0
    assert no_keys(3).num_keys.tolist() == [0, 0, 0]
