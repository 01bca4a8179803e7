"""When requests arrive: as in the trace, or by an arrival process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.types import Request
from workloads.fields import MAX_NS

ARRIVALS = ("trace", "poisson", "gamma", "constant")


def arrival_times_ns(
    kind: str, num_requests: int, rate: float, burstiness: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw arrival times; the first is 0.

    Gaps are independent with mean ``1 / rate`` seconds: all equal (``constant``), exponential
    (``poisson``), or of a gamma distribution with shape ``burstiness`` (``gamma``), whose
    coefficient of variation is ``1 / sqrt(burstiness)``: 1 is Poisson, less is burstier (as
    ``--burstiness`` of vLLM's ``benchmark_serving.py``).

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


def retime(
    requests: Sequence[Request],
    kind: str = "trace",
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> tuple[Request, ...]:
    """Give requests new arrival times and leave their order as it is.

    Parameters
    ----------
    requests
        In order of arrival.
    kind
        One of ``ARRIVALS``; ``trace`` changes nothing.
    rate
        Requests per second on average; needed by, and only by, the kinds other than ``trace``.
    burstiness
        Shape of the gamma distribution; see `arrival_times_ns`.
    seed
        Of the random numbers; the same seed gives the same times.

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
    if burstiness != 1 and kind != "gamma":
        raise UsageError(
            f"--burstiness {burstiness:g} has no meaning with --arrival {kind}; give --arrival"
            " gamma or leave it out."
        )
    _check_positive("--burstiness", burstiness)
    if kind == "trace":
        if rate is not None:
            raise UsageError(
                f"--rate {rate:g} has no meaning with --arrival trace; give another --arrival, or"
                " --rate-scale to speed the trace up."
            )
        return tuple(requests)
    if rate is None:
        raise UsageError(
            f"--arrival {kind} needs a rate; give --rate in requests per second, such as --rate 4."
        )
    _check_positive("--rate", rate)
    rng = np.random.default_rng(seed)
    return _at(requests, arrival_times_ns(kind, len(requests), rate, burstiness, rng).tolist())


def scale_rate(requests: Sequence[Request], factor: float) -> tuple[Request, ...]:
    """Make requests arrive ``factor`` times as fast: every arrival time is divided by it.

    Think times stay, since they are the users' own.

    Raises
    ------
    UsageError
        If ``factor`` is not above 0, or so small that times no longer fit.
    """
    _check_positive("--rate-scale", factor)
    if factor == 1:
        return tuple(requests)
    if requests and requests[-1].arrival_ns / factor > MAX_NS:
        raise UsageError(
            f"--rate-scale {factor:g} stretches the trace over more than 292 years, the longest"
            " time that can be simulated; raise it."
        )
    return _at(requests, [round(request.arrival_ns / factor) for request in requests])


def _at(requests: Sequence[Request], times_ns: list[int]) -> tuple[Request, ...]:
    return tuple(
        replace(request, arrival_ns=time_ns)
        for request, time_ns in zip(requests, times_ns, strict=True)
    )


def _check_positive(option: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} is {value:g}, but must be above 0 and finite; raise it.")
