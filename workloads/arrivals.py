"""When requests arrive: as in the trace, or by an arrival process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.mapped import Column, picked, pieces, zeros
from sim.types import Request
from workloads.content import Ints
from workloads.fields import MAX_NS
from workloads.requests import Requests, arrivals_ns, as_requests, sessions_of, taken

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
    times_ns = zeros(num_requests)
    num_gaps = 0.0
    for part in pieces(num_requests):
        # Before the first request there is none.
        gaps = np.zeros(part.stop - part.start)
        gaps[part.start == 0 :] = _gaps(kind, len(gaps) - (part.start == 0), burstiness, rng)
        gaps[0] += num_gaps
        sums = np.cumsum(gaps)
        num_gaps = sums[-1]
        with np.errstate(over="ignore"):  # too long a time is refused
            times = _on_a_day(sums / rate) if kind == "day" else sums / rate * 1e9
        longest_ns, years = (MAX_NS / 2, 146) if kind == "day" else (MAX_NS, 292)
        if times[-1] >= longest_ns:
            raise UsageError(
                f"--rate {rate:g} spreads {num_requests} requests over more than {years} years, the"
                " longest time that can be simulated; raise it."
            )
        times_ns[part] = np.rint(times).astype(np.int64)
    return times_ns


def _gaps(
    kind: str, count: int, burstiness: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw gaps with a mean of 1."""
    if kind == "constant":
        return np.ones(count)
    if kind == "weibull":
        return rng.weibull(burstiness, size=count) / math.gamma(1 + 1 / burstiness)
    if kind == "gamma":
        return rng.gamma(burstiness, size=count) / burstiness
    return rng.exponential(size=count)


def _on_a_day(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move arrivals of a steady rate to where the day's curve has them, ns.

    Unit arrivals are mapped through the inverse of the expected number of arrivals by a time,
    found in a table of one day.
    """
    days, rest = np.divmod(counts, DAY_S)
    time_s = np.linspace(0, DAY_S, 8 * 24 * 60 + 1)
    turn = 2 * np.pi / DAY_S
    expected = time_s - _DAY_SWING / turn * np.sin(turn * time_s)
    times: NDArray[np.float64] = (days * DAY_S + np.interp(rest, expected, time_s)) * 1e9
    return times


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
    if not session_starts:
        return _at(requests, arrival_times_ns(kind, len(requests), rate, burstiness, rng))
    firsts = _first_turns(requests)
    is_first = firsts == np.arange(len(firsts))
    given = arrivals_ns(requests)
    times = zeros(len(firsts))
    times[is_first] = arrival_times_ns(kind, int(is_first.sum()), rate, burstiness, rng)
    since = given - given[firsts]
    times[:] = times[firsts] + since
    if len(times) and (times < since).any():  # it is beyond what 64 bits hold
        raise UsageError(f"--rate {rate:g} puts a turn beyond 292 years; raise it.")
    moved = _at(requests, times)
    return taken(moved, np.argsort(times, kind="stable"))


def serve_users(requests: Sequence[Request], users: int) -> Requests:
    """Hand the sessions, and requests without one, to users in turn.

    A user sends everything of one session, then at once that of the next, each request when the
    one before is answered and thought over. All start at 0.

    Parameters
    ----------
    requests
        Whose contents are paths of segments.

    Returns
    -------
    Requests in sessions named after users; one may wait for another of an earlier session.
    """
    given = as_requests(requests)
    firsts = _first_turns(given)
    # All of a session stands together, in the order of its turns.
    order = np.argsort(firsts, kind="stable")
    begins = firsts[order] == order
    user = (np.cumsum(begins) - 1) % users
    place = _place_among_equals(user)
    think_ns = np.full(len(given), -1) if given.think_ns is None else given.think_ns[order]
    think_ns = np.where(begins, 0, np.maximum(think_ns, 0))
    think_ns[place == 0] = -1
    # As every user's own order counts only, take one of each in turn.
    in_turn = np.lexsort((user, place))
    return replace(
        given.take(order[in_turn]),
        arrival_ns=np.zeros(len(given), dtype=np.int64),
        sessions=(user[in_turn], [f"user {number}" for number in range(users)]),
        think_ns=think_ns[in_turn],
    )


def _place_among_equals(numbers: Ints) -> Ints:
    """Count, for each number, the equal ones before it."""
    order = np.argsort(numbers, kind="stable")
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = numbers[order][1:] != numbers[order][:-1]
    starts = np.flatnonzero(begins)
    places = np.empty_like(numbers)
    places[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return places


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
    last_ns = math.floor(min(duration_s * 1e9, _LAST_NS))
    starts = arrivals_ns(requests)
    if sessions:
        starts = picked(starts, _first_turns(requests))
    kept = Column()
    for part in pieces(len(starts)):
        kept.extend(np.flatnonzero(starts[part] <= last_ns) + part.start)
    return taken(requests, kept.array)


def _first_turns(requests: Sequence[Request]) -> Ints:
    """Give the place of the first turn of the session of each request; its own without one."""
    numbers, names = sessions_of(requests)
    first_of = np.full(len(names), -1, dtype=np.int64)
    firsts = zeros(len(requests))
    for part in pieces(len(firsts)):
        places = np.arange(part.start, part.stop)
        in_session = numbers[part] >= 0
        sessions = numbers[part][in_session]
        met, earliest = np.unique(sessions, return_index=True)
        is_new = first_of[met] < 0
        first_of[met[is_new]] = places[in_session][earliest[is_new]]
        places[in_session] = first_of[sessions]
        firsts[part] = places
    return firsts


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
    if requests and requests[-1].arrival_ns / factor > _LAST_NS:
        raise UsageError(
            f"--rate-scale {factor:g} stretches the trace over more than 292 years, the longest"
            " time that can be simulated; raise it."
        )
    given = arrivals_ns(requests)
    scaled = zeros(len(given))
    for part in pieces(len(given)):
        scaled[part] = np.rint(given[part] / factor)
    return _at(requests, scaled)


def _at(requests: Sequence[Request], times_ns: Ints) -> Sequence[Request]:
    if isinstance(requests, Requests):
        return requests.at(times_ns)
    return tuple(
        replace(request, arrival_ns=time_ns)
        for request, time_ns in zip(requests, times_ns.tolist(), strict=True)
    )


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
