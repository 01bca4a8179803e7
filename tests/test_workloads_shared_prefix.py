import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from workloads import infinite_hit_rate
from workloads.shared_prefix import shared_prefix


def replayed_hit_rate(requests, block_size):
    cache, cached, total = set(), 0, 0
    for request in requests:
        keys = request.content.block_keys(block_size).tolist()
        hits = 0
        while hits < (request.num_prompt_tokens - 1) // block_size and keys[hits] in cache:
            hits += 1
        cached += hits * block_size
        total += request.num_prompt_tokens
        cache.update(keys)
    return cached / total


DIALS = st.fixed_dictionaries(
    {
        "num_requests": st.integers(2, 40),
        "hit_rate": st.floats(0, 0.9),
        "num_prefixes": st.integers(1, 8),
        "prompt": st.integers(2, 100),
        "output": st.integers(0, 5),
        "seed": st.integers(0, 2**32),
    }
)


@given(DIALS, st.sampled_from([1, 4, 16]))
def test_the_dial_is_met(dials, block_size):
    try:
        workload = shared_prefix(**dials)
    except UsageError:
        # At most 0.9 is asked for: first uses and last tokens must miss more than the rest.
        assert dials["num_prefixes"] / dials["num_requests"] + 1 / dials["prompt"] > 0.1
        return
    achieved = replayed_hit_rate(workload.requests, block_size)
    assert achieved == infinite_hit_rate(workload.requests, block_size)
    assert dials["hit_rate"] - block_size / dials["prompt"] <= achieved
    assert achieved <= dials["hit_rate"] + 1 / dials["prompt"]


def test_defaults_are_met_to_half_a_token_per_request():
    workload = shared_prefix()
    assert len(workload.requests) == 1000
    assert workload.requests[0].arrival_ns == 0
    assert infinite_hit_rate(workload.requests, 1) == pytest.approx(0.5, abs=0.5 / 2048)
    assert "0.499834" in workload.notes[0]


def test_no_hits_share_nothing():
    requests = shared_prefix(num_requests=50, hit_rate=0, prompt=20, output=3).requests
    ids = [i for request in requests for i in request.content.token_ids(0, 23).tolist()]
    assert len(set(ids)) == len(ids)


def test_the_highest_reachable_rate_is_reached():
    dials = {"num_requests": 100, "num_prefixes": 1, "prompt": 10}
    with pytest.raises(UsageError, match=r"hit_rate is 1, but .* reach 0\.891 at most"):
        shared_prefix(hit_rate=1, **dials)
    workload = shared_prefix(hit_rate=0.891, **dials)
    assert infinite_hit_rate(workload.requests, 1) == pytest.approx(0.891)
    with pytest.raises(UsageError, match="reach 0 at most"):
        shared_prefix(hit_rate=0.1, num_requests=1)


def test_the_same_seed_makes_the_same_workload():
    def arrivals(seed):
        workload = shared_prefix(num_requests=9, num_prefixes=1, seed=seed)
        return [request.arrival_ns for request in workload.requests]

    assert arrivals(3) == arrivals(3)
    assert arrivals(3) != arrivals(4)


@pytest.mark.parametrize(
    ("dial", "value"),
    [
        ("num_requests", 0),
        ("hit_rate", -0.1),
        ("hit_rate", float("nan")),
        ("num_prefixes", 0),
        ("prompt", 0),
        ("output", -1),
        ("rate", 0),
        ("rate", float("inf")),
        ("seed", -1),
    ],
)
def test_dials_out_of_range(dial, value):
    with pytest.raises(UsageError, match=f"^{dial} is "):
        shared_prefix(**{dial: value})
