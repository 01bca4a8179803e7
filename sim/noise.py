"""Whether rates differ by more than chance: simultaneous bootstrap intervals of differences.

A rate is a sum over a sum – tokens hit over prompt tokens – and both are sums over *units* that are
taken to be drawn independently: sessions, stretches of time, or whole workloads of other seeds. All
rates come from the same units, so each resample draws units once for all of them (paired), and a
difference varies less than either rate.

Many differences are looked at, and the largest is picked. So the intervals are simultaneous: with
the given probability, *all* of them hold at once. Each is the difference plus or minus c standard
errors, with one c for all: the quantile of the largest deviation among them, in standard errors,
over resamples (the max-statistic; Romano and Wolf, 2005). A bootstrap of few units is too narrow
since it does not know that their spread is an estimate; c is widened to Student's quantile
(Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

NUM_RESAMPLES = 2000
_AT_A_TIME = 100
_NEGLIGIBLE = 1e-12
"""A standard error of a rate below this is rounding."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between rates, with intervals that hold all at once.

    Attributes
    ----------
    value, low, high
        Shape ``(groups, pairs)``; ``low`` and ``high`` are NaN where there are too few units.
    num_errors
        Standard errors from the middle to the ends of an interval: c.
    """

    value: Floats
    low: Floats
    high: Floats
    num_errors: float


def differences(
    parts: Floats,
    wholes: Floats,
    pairs: NDArray[np.int64],
    *,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Differences:
    """Estimate differences of rates within groups.

    Parameters
    ----------
    parts
        Numerator of each rate by unit, shape ``(groups, rates, units)``.
    wholes
        Denominator by unit, the same for all rates of a group, shape ``(groups, units)``.
    pairs
        Indices of the rates to compare, the first less the second, shape ``(pairs, 2)``.
    level
        Probability with which all intervals hold.
    num_resamples, seed
        Of the bootstrap.
    """
    num_groups, num_rates, num_units = parts.shape
    totals = wholes.sum(axis=1)[:, None]
    rates = parts.sum(axis=2) / np.where(totals > 0, totals, np.nan)
    first, second = pairs[:, 0], pairs[:, 1]
    value = rates[:, first] - rates[:, second]
    if num_units < 2 or not pairs.size:
        nothing = np.full_like(value, np.nan)
        return Differences(value, nothing, nothing.copy(), float("nan"))
    errors = np.stack([_errors(parts[g], wholes[g], value[g], pairs) for g in range(num_groups)])
    varies = errors > _NEGLIGIBLE
    generator = np.random.default_rng(seed)
    flat = parts.reshape(num_groups * num_rates, num_units).T
    largest = np.zeros(num_resamples)
    for begin in range(0, num_resamples, _AT_A_TIME):
        count = min(_AT_A_TIME, num_resamples - begin)
        draws = generator.multinomial(num_units, np.full(num_units, 1 / num_units), size=count)
        drawn = draws.astype(np.float64)
        sums = (drawn @ wholes.T)[:, :, None]
        resampled = (drawn @ flat).reshape(count, num_groups, num_rates)
        # A resample without anything of a group says nothing about it.
        resampled = resampled / np.where(sums > 0, sums, np.nan)
        away = np.abs(resampled[:, :, first] - resampled[:, :, second] - value)
        scaled = np.where(varies, away / np.where(varies, errors, 1.0), 0.0)
        largest[begin : begin + count] = np.nan_to_num(scaled).max(axis=(1, 2))
    num_errors = _widened(float(np.quantile(largest, level)), num_units)
    reach = num_errors * np.where(varies, errors, 0.0)
    return Differences(value, value - reach, value + reach, num_errors)


def _widened(num_errors: float, num_units: int) -> float:
    """Undo that a bootstrap of few units is too narrow.

    Resamples vary by (units - 1) / units less than samples, and the errors that they are measured
    in are estimates themselves: Student's quantile in the place of the normal one, at the tail that
    so many errors stand for.
    """
    spread = num_errors * float(np.sqrt(num_units / (num_units - 1)))
    return float(stats.t.isf(stats.norm.sf(spread), num_units - 1))


def _errors(parts: Floats, wholes: Floats, value: Floats, pairs: NDArray[np.int64]) -> Floats:
    """Give the standard error of each difference: of a ratio of sums over units (delta method)."""
    num_units = len(wholes)
    errors = np.empty(len(pairs))
    for index, (one, other) in enumerate(pairs.tolist()):
        residuals = parts[one] - parts[other] - value[index] * wholes
        errors[index] = np.sqrt((residuals**2).sum() * num_units / (num_units - 1))
    total = wholes.sum()
    return errors / total if total > 0 else np.full(len(pairs), np.nan)


def stretches(num_requests: int, most: int = 50, least_requests: int = 10) -> NDArray[np.int64]:
    """Cut requests in order of arrival into stretches, the units where there are no sessions.

    Neighbouring requests are not independent – what one leaves in the cache, the next one hits – so
    whole stretches are drawn (batch means, as in the analysis of simulations).

    Returns
    -------
    Number of the stretch of each request, shape ``(num_requests,)``.
    """
    count = max(1, min(most, num_requests // least_requests))
    return np.arange(num_requests, dtype=np.int64) * count // max(num_requests, 1)
