"""Requests one at a time, hits alone: the same as a run of one sequence at a time."""

import pytest
from helpers import make, requests_of

from sim.config import RunConfig
from sim.demand import load_workload
from sim.experiment import run
from sim.serial import REFUSED, hits_one_at_a_time


def serve(policy, num_blocks, requests, **options):
    args = options.pop("args", {})
    return hits_one_at_a_time(
        lambda clock: make(policy, num_blocks, 1, clock, **args), requests, **options
    ).tolist()


def test_hits_by_hand():
    """Blocks of one token, a pool of four: abcd, xy, abe. x and y take the places of d and c."""
    requests = requests_of(([1, 2, 3, 4], []), ([7, 8], []), ([1, 2, 9], []))
    assert serve("lru", 4, requests) == [0, 0, 2]
    assert serve("fifo", 4, requests, args={"leaf_only": "true"}) == [0, 0, 2]


def test_a_request_that_cannot_fit_is_refused_and_leaves_no_trace():
    requests = requests_of(([1, 2], []), ([1, 2, 3, 4, 5], []), ([1, 2, 3], []))
    assert serve("lru", 4, requests) == [0, REFUSED, 2]


def test_outputs_are_cached_unless_prompts_alone_are():
    """The last token of an output is never fed back."""
    requests = requests_of(([1, 2], [3, 4]), ([1, 2, 3, 4, 5], []))
    assert serve("lru", 9, requests) == [0, 3]
    assert serve("lru", 9, requests, outputs=False) == [0, 2]


def test_time_is_that_of_the_arrivals_and_never_stands_still():
    """A TTL of 5 s: what is 6 s old is gone; of two requests at once, the second is later."""
    times = []

    def watched(clock):
        times.append(clock)
        return make("ttl", 8, 1, clock, ttl_s=5)

    requests = requests_of(
        ([1, 2], []), ([1, 3], []), ([1, 4], []), arrivals_ns=[0, 0, 6 * 10**9 + 1]
    )
    hits = hits_one_at_a_time(watched, requests)
    assert hits.tolist() == [0, 1, 0]
    assert times[0]() == 6 * 10**9 + 1


def test_progress_is_told_request_by_request():
    done = []
    serve("lru", 4, requests_of(([1], []), ([2], [])), on_done=done.append)
    assert done == [1, 2]


@pytest.mark.parametrize("policy", ["lru", "arc", "vllm_v0", "vllm_v1", "sglang_radix"])
def test_a_run_of_one_sequence_at_a_time_hits_the_same(policy):
    config = RunConfig(
        workload="multi-turn", num_requests=60, policy=policy, kv_capacity="600blocks",
        max_num_seqs=1, max_num_batched_tokens=10**6,
    )  # fmt: skip
    whole = run(config).requests["num_cached_tokens"].tolist()
    requests = load_workload(config).requests
    found = hits_one_at_a_time(lambda clock: make(policy, 600, 16, clock), requests)
    assert sum(whole) > 0
    assert found.tolist() == whole
