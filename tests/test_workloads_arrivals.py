import math
from dataclasses import replace

import numpy as np
import pytest

from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run
from workloads import ARRIVALS, cut_duration, retime, scale_rate
from workloads.arrivals import DAY_S
from workloads.shared_prefix import shared_prefix

REQUESTS = shared_prefix(num_requests=20_000, hit_rate=0, prompt=1, output=0).requests


def gaps_s(requests):
    return np.diff([request.arrival_ns for request in requests]) / 1e9


@pytest.mark.parametrize(
    ("kind", "burstiness", "cv"),
    [
        ("poisson", 1, 1),
        ("gamma", 1, 1),
        ("gamma", 0.25, 2),
        ("gamma", 4, 0.5),
        ("constant", 1, 0),
        ("weibull", 1, 1),
        ("weibull", 0.5, 5**0.5),
        ("weibull", 2, 0.5227),
    ],
)
def test_rate_and_burstiness(kind, burstiness, cv):
    requests = retime(REQUESTS, kind, rate=8, burstiness=burstiness, seed=1)
    gaps = gaps_s(requests)
    assert requests[0].arrival_ns == 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)
    assert gaps.min() >= 0
    assert [r.request_id for r in requests] == [r.request_id for r in REQUESTS]
    assert all(type(r.arrival_ns) is int for r in requests[:10])


def test_a_day_has_its_curve():
    requests = retime(REQUESTS, "day", rate=len(REQUESTS) / DAY_S / 2, seed=1)
    hours = np.array([request.arrival_ns for request in requests]) / 3.6e12 % 24
    counts, _ = np.histogram(hours, bins=24, range=(0, 24))
    middle = np.arange(24) + 0.5
    expected = len(REQUESTS) / 24 * (1 - 0.8 * np.cos(2 * np.pi * middle / 24))
    assert requests[-1].arrival_ns / 1e9 == pytest.approx(2 * DAY_S, rel=0.02)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all(), "as far as chance goes"
    assert counts.sum() == len(REQUESTS)


def test_session_starts_are_drawn_and_turns_follow():
    ns = 10**9
    rows = [("a", 0), (None, 1), ("b", 2), ("a", 3), ("b", 4), ("a", 50)]
    requests = [
        replace(REQUESTS[i], session_id=session, arrival_ns=time * ns)
        for i, (session, time) in enumerate(rows)
    ]
    moved = retime(requests, "constant", rate=0.1, session_starts=True)
    by_id = {request.request_id: request.arrival_ns // ns for request in moved}
    assert [by_id[str(i)] for i in range(6)] == [0, 10, 20, 3, 22, 50]
    assert [request.arrival_ns // ns for request in moved] == [0, 3, 10, 20, 22, 50]


def test_the_seed_decides():
    def times(seed):
        return [r.arrival_ns for r in retime(REQUESTS[:9], "poisson", rate=1, seed=seed)]

    assert times(0) == times(0)
    assert times(0) != times(1)


def test_trace_changes_nothing():
    assert retime(REQUESTS) == REQUESTS
    assert scale_rate(REQUESTS, 1) == REQUESTS


def test_one_request_or_none():
    for kind in set(ARRIVALS) - {"trace", "users"}:
        assert retime([], kind, rate=1) == ()
        assert [r.arrival_ns for r in retime(REQUESTS[5:6], kind, rate=1)] == [0]
    assert scale_rate([], 2) == ()


def test_scale_rate():
    twice = scale_rate(REQUESTS[:100], 2)
    assert [r.arrival_ns for r in twice] == [round(r.arrival_ns / 2) for r in REQUESTS[:100]]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("uniform", {}, "--arrival is 'uniform'"),
        ("poisson", {}, "--arrival poisson needs a rate"),
        ("poisson", {"rate": 0}, "--rate is 0"),
        ("poisson", {"rate": math.nan}, "--rate is nan"),
        ("poisson", {"rate": 1e-300}, "--rate 1e-300 spreads"),
        ("poisson", {"rate": 1, "burstiness": 2}, "--burstiness 2 has no meaning"),
        ("gamma", {"rate": 1, "burstiness": 0}, "--burstiness is 0"),
        ("gamma", {"rate": 1, "burstiness": 1e-9}, "--burstiness is 1e-09, but must be from 0.001"),
        ("weibull", {"rate": 1, "burstiness": 0.005}, "--burstiness is 0.005"),
        ("weibull", {"rate": 1, "burstiness": math.nan}, "--burstiness is nan"),
        ("trace", {"rate": 1}, "--rate 1 has no meaning"),
        ("users", {"users": 2, "rate": 1}, "--rate 1 has no meaning"),
        ("users", {}, "--arrival users needs --users"),
        ("users", {"users": 2}, "--arrival users is a closed loop"),
        ("poisson", {"rate": 1, "users": 2}, "--users 2 has no meaning"),
    ],
)
def test_options_are_checked(kind, options, said):
    with pytest.raises(UsageError, match=f"^{said}"):
        retime(REQUESTS[:9], kind, **options)


@pytest.mark.parametrize("factor", [0, -1, math.inf, math.nan, 1e-300])
def test_rate_scale_is_checked(factor):
    with pytest.raises(UsageError, match=r"^--rate-scale "):
        scale_rate(REQUESTS[:9], factor)


def test_users_take_sessions_in_turn():
    rows = [("a", None), (None, None), ("a", 7), (None, None), ("b", None), ("b", 9)]
    requests = [
        replace(REQUESTS[i], session_id=session, think_ns=think)
        for i, (session, think) in enumerate(rows)
    ]
    served = retime(requests, "users", users=2, session_starts=True)
    chains = {}
    for request in served:
        assert request.arrival_ns == 0
        chains.setdefault(request.session_id, []).append((request.request_id, request.think_ns))
    assert chains == {
        "user 0": [("0", None), ("2", 7), ("3", 0)],
        "user 1": [("1", None), ("4", 0), ("5", 9)],
    }


def test_a_closed_loop_keeps_as_many_requests_in_flight_as_it_has_users():
    config = RunConfig(
        workload="uniform", num_requests=30, arrival="users", users=3, sessions="closed"
    )
    rows = run(config).requests
    starts, ends = rows["arrival_s"].to_numpy(), rows["finished_s"].to_numpy()
    in_flight = [((starts <= moment) & (ends > moment)).sum() for moment in starts]
    assert in_flight[2:-2] == [3] * 26


def test_duration_cuts():
    assert len(cut_duration(REQUESTS, REQUESTS[99].arrival_ns / 1e9)) == 100
    with pytest.raises(UsageError, match="--duration is 0"):
        cut_duration(REQUESTS, 0)


def test_a_duration_beyond_all_time_cuts_nothing():
    assert len(cut_duration(REQUESTS, 1e300)) == len(REQUESTS)
    assert RunConfig(duration=1e300).until_ns == 2**63 - 1024
