"""When requests arrive: as in the trace, or by an arrival process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.types import Request
from workloads.fields import MAX_NS
from workloads.requests import Requests, arrivals_ns, taken

ARRIVALS = ("trace", "poisson", "gamma", "weibull", "constant", "day", "users")

_LAST_NS = float(MAX_NS - 1023)
"""The latest time that a float holds and 64 bits do too."""
DAY_S = 86_400
"""Period of the day's curve, s."""
_BURSTINESS = {"gamma": (0.001, 1e6), "weibull": (0.15, 1e6)}
"""Shapes that are drawn faithfully: below, gaps vary by more than 30 times their mean, so that no
trace has the rate that was asked for; above, they are constant."""
_DAY_SWING = 0.8
"""How far the rate of the day's curve rises above and falls below its mean, as a share of it."""


def arrival_times_ns(
    kind: str, num_requests: int, rate: float, burstiness: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw arrival times; the first is 0.

    Gaps are independent with mean ``1 / rate`` seconds: all equal (``constant``), exponential
    (``poisson``), or of a gamma distribution with shape ``burstiness`` (``gamma``), whose
    coefficient of variation is ``1 / sqrt(burstiness)``: 1 is Poisson, less is burstier (as
    ``--burstiness`` of vLLM's ``benchmark_serving.py``), or of a Weibull distribution with that
    shape (``weibull``). With ``day`` they are a Poisson process whose rate follows a day: 20 % of
    ``rate`` at midnight, when it begins, 180 % at noon, a cosine in between.

    Returns
    -------
    int64 array of shape ``(num_requests,)``, ns, ascending.

    Raises
    ------
    UsageError
        If the last would lie beyond what 64 bits hold.
    """
    num_gaps = max(num_requests - 1, 0)
    if kind == "constant":
        gaps = np.ones(num_gaps)
    elif kind == "poisson":
        gaps = rng.exponential(size=num_gaps)
    elif kind == "weibull":
        gaps = rng.weibull(burstiness, size=num_gaps) / math.gamma(1 + 1 / burstiness)
    elif kind == "day":
        return _day_times_ns(num_requests, rate, rng)
    else:
        gaps = rng.gamma(burstiness, size=num_gaps) / burstiness
    with np.errstate(over="ignore"):  # too long a time is refused below
        times = np.cumsum(gaps) / rate * 1e9
    if num_gaps and times[-1] >= MAX_NS:
        raise UsageError(
            f"--rate {rate:g} spreads {num_requests} requests over more than 292 years, the longest"
            " time that can be simulated; raise it."
        )
    return np.concatenate(([0], np.rint(times).astype(np.int64)))[:num_requests]


def _day_times_ns(num_requests: int, rate: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw arrivals of a Poisson process whose rate follows the day; see `arrival_times_ns`.

    Unit arrivals are mapped through the inverse of the expected number of arrivals by a time,
    found in a table of one day.
    """
    counts = np.cumsum(rng.exponential(size=max(num_requests - 1, 0))) / rate
    days, rest = np.divmod(counts, DAY_S)
    if len(days) and days[-1] * DAY_S * 1e9 >= MAX_NS / 2:
        raise UsageError(
            f"--rate {rate:g} spreads {num_requests} requests over more than 146 years, the longest"
            " time that a day's curve can go on; raise it."
        )
    time_s = np.linspace(0, DAY_S, 8 * 24 * 60 + 1)
    turn = 2 * np.pi / DAY_S
    expected = time_s - _DAY_SWING / turn * np.sin(turn * time_s)
    times = days * DAY_S + np.interp(rest, expected, time_s)
    return np.concatenate(([0], np.rint(times * 1e9).astype(np.int64)))[:num_requests]


def retime(
    requests: Sequence[Request],
    kind: str = "trace",
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    session_starts: bool = False,
    users: int | None = None,
) -> Sequence[Request]:
    """Give requests new arrival times.

    Parameters
    ----------
    requests
        In order of arrival.
    kind
        One of ``ARRIVALS``; ``trace`` changes nothing.
    rate
        Requests per second on average; needed by, and only by, the kinds other than ``trace``.
    burstiness
        Shape of the gamma or Weibull distribution; see `arrival_times_ns`.
    seed
        Of the random numbers; the same seed gives the same times.
    session_starts
        Draw times for the first turns of sessions only, and for requests without a session; later
        turns stay as long after the first as they were. Otherwise every request gets a time of its
        own, and their order stays.
    users
        Of the kind ``users``, and only of it; see `serve_users`.

    Raises
    ------
    UsageError
        If an option is out of range or does not go with ``kind``.
    """
    if kind not in ARRIVALS:
        raise UsageError(
            f"--arrival is {kind!r}, which is none of the known kinds; choose from"
            f" {', '.join(ARRIVALS)}."
        )
    _check_burstiness(kind, burstiness)
    if (kind == "users") != (users is not None):
        raise UsageError(
            "--arrival users needs --users, such as --users 8."
            if users is None
            else f"--users {users} has no meaning with --arrival {kind}; give --arrival users or"
            " leave it out."
        )
    if kind in ("trace", "users") and rate is not None:
        raise UsageError(
            f"--rate {rate:g} has no meaning with --arrival {kind}; "
            + (
                "leave it out: the users and the answers decide it."
                if kind == "users"
                else "give another --arrival, or --rate-scale to speed a trace up."
            )
        )
    if kind == "trace":
        return requests
    if users is not None:
        if not session_starts:
            raise UsageError("--arrival users is a closed loop; give --sessions closed too.")
        return serve_users(requests, users)
    if rate is None:
        raise UsageError(
            f"--arrival {kind} needs a rate; give --rate in requests per second, such as --rate 4."
        )
    _check_positive("--rate", rate)
    rng = np.random.default_rng(seed)
    firsts = _first_turns(requests) if session_starts else list(range(len(requests)))
    num_starts = len(set(firsts))
    drawn = iter(arrival_times_ns(kind, num_starts, rate, burstiness, rng).tolist())
    times: list[int] = []
    for index, first in enumerate(firsts):
        if first == index:
            times.append(next(drawn))
        else:
            times.append(times[first] + requests[index].arrival_ns - requests[first].arrival_ns)
    if times and max(times) > MAX_NS:
        raise UsageError(f"--rate {rate:g} puts a turn beyond 292 years; raise it.")
    moved = _at(requests, times)
    return _in_order(moved) if session_starts else moved


def serve_users(requests: Sequence[Request], users: int) -> Sequence[Request]:
    """Hand the sessions, and requests without one, to users in turn.

    A user sends everything of one session, then at once that of the next, each request when the
    one before is answered and thought over. All start at 0.

    Returns
    -------
    Requests in sessions named after users; one may wait for another of an earlier session.
    """
    firsts = _first_turns(requests)
    user_of = {first: number % users for number, first in enumerate(sorted(set(firsts)))}
    queues: list[list[Request]] = [[] for _ in range(users)]
    # All of a session stands together, in the order of its turns.
    for index in sorted(range(len(requests)), key=lambda index: (firsts[index], index)):
        user = user_of[firsts[index]]
        think_ns = requests[index].think_ns if firsts[index] != index else None
        queues[user].append(
            replace(
                requests[index],
                arrival_ns=0,
                session_id=f"user {user}",
                think_ns=(think_ns or 0) if queues[user] else None,
            )
        )
    # As every user's own order counts only, take one of each in turn.
    return tuple(r for row in zip_longest(*queues) for r in row if r is not None)


def cut_duration(
    requests: Sequence[Request], duration_s: float, *, sessions: bool = False
) -> Sequence[Request]:
    """Leave out what arrives later than ``duration_s``.

    Parameters
    ----------
    requests
        In order of arrival.
    duration_s
        Seconds from the start.
    sessions
        Leave out sessions that begin later, and keep all turns of the others: in a closed loop it
        is the engine that knows when a turn is sent.

    Raises
    ------
    UsageError
        If ``duration_s`` is not above 0.
    """
    _check_positive("--duration", duration_s)
    arrivals = arrivals_ns(requests)
    if sessions:
        arrivals = arrivals[_first_turns(requests)]
    kept = np.flatnonzero(arrivals <= math.floor(min(duration_s * 1e9, _LAST_NS)))
    return taken(requests, kept)


def _first_turns(requests: Sequence[Request]) -> list[int]:
    """Give the index of the first turn of the session of each request; its own without one."""
    first_of: dict[str, int] = {}
    return [
        index if request.session_id is None else first_of.setdefault(request.session_id, index)
        for index, request in enumerate(requests)
    ]


def scale_rate(requests: Sequence[Request], factor: float) -> Sequence[Request]:
    """Make requests arrive ``factor`` times as fast: every arrival time is divided by it.

    Think times stay, since they are the users' own.

    Raises
    ------
    UsageError
        If ``factor`` is not above 0, or so small that times no longer fit.
    """
    _check_positive("--rate-scale", factor)
    if factor == 1:
        return requests
    if requests and requests[-1].arrival_ns / factor > MAX_NS:
        raise UsageError(
            f"--rate-scale {factor:g} stretches the trace over more than 292 years, the longest"
            " time that can be simulated; raise it."
        )
    return _at(requests, [round(time_ns / factor) for time_ns in arrivals_ns(requests).tolist()])


def _at(requests: Sequence[Request], times_ns: list[int]) -> Sequence[Request]:
    if isinstance(requests, Requests):
        return requests.at(np.array(times_ns, dtype=np.int64))
    return tuple(
        replace(request, arrival_ns=time_ns)
        for request, time_ns in zip(requests, times_ns, strict=True)
    )


def _in_order(requests: Sequence[Request]) -> Sequence[Request]:
    if isinstance(requests, Requests):
        return requests.take(np.argsort(requests.arrival_ns, kind="stable"))
    return tuple(sorted(requests, key=lambda request: request.arrival_ns))


def _check_burstiness(kind: str, burstiness: float) -> None:
    if kind not in _BURSTINESS:
        if burstiness != 1:
            raise UsageError(
                f"--burstiness {burstiness:g} has no meaning with --arrival {kind}; give --arrival"
                " gamma or weibull, or leave it out."
            )
        return
    low, high = _BURSTINESS[kind]
    if not low <= burstiness <= high:
        raise UsageError(
            f"--burstiness is {burstiness:g}, but must be from {low:g} to {high:g} with --arrival"
            f" {kind}: below no trace keeps the rate, and above all gaps are equal (--arrival"
            " constant)."
        )


def _check_positive(option: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} is {value:g}, but must be above 0 and finite; raise it.")
