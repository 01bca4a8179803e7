"""Which policy is best, in a sentence, and whether that is more than noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.noise import Floats

BETTER, WORSE, NOISE, SAME, UNKNOWN = "better", "worse", "noise", "same", "unknown"
REFERENCE = "reference"
_FEW = 4
"""Names that a sentence bears."""


@dataclass(frozen=True)
class Rates:
    """Hit rates at one capacity, and what may be said of their differences.

    Attributes
    ----------
    labels
        Policies.
    reference
        Index of the one that the others are compared with.
    hit_rate
        Of each.
    difference, low, high
        To the reference, with the ends of its interval, which are NaN where it cannot be told.
    apart
        Whether two policies differ by more than noise, shape ``(policies, policies)``.
    """

    labels: tuple[str, ...]
    reference: int
    hit_rate: Floats
    difference: Floats
    low: Floats
    high: Floats
    apart: NDArray[np.bool_]

    def verdict(self, index: int) -> str:
        """Tell how a policy stands to the reference, in a word."""
        if index == self.reference:
            return REFERENCE
        if self.difference[index] == self.low[index] == self.high[index] == 0:
            return SAME
        if np.isnan(self.low[index]):
            return UNKNOWN
        if self.low[index] > 0:
            return BETTER
        return WORSE if self.high[index] < 0 else NOISE

    def columns(self, index: int) -> dict[str, Any]:
        """Fill the columns of the table that tell of one policy's rate."""
        return {
            "hit_rate": float(self.hit_rate[index]),
            "reference": self.labels[self.reference],
            "difference": float(self.difference[index]),
            "difference_low": float(self.low[index]),
            "difference_high": float(self.high[index]),
            "verdict": self.verdict(index),
        }


def verdict(rates: Rates, where: str, bound: float, least_way: float) -> str:
    """Say which policy is best at one capacity, and by how much.

    Parameters
    ----------
    rates
        Of this capacity.
    where
        The capacity.
    bound
        Hit rate that none exceeds.
    least_way
        The least distance of the reference from the bound of which a share is told.
    """
    name = rates.labels[rates.reference]
    if np.isnan(rates.hit_rate).all():
        return f"{where}: no request fits; raise the capacity."
    if rates.hit_rate.max() == rates.hit_rate.min():
        return f"{where}: all hit the same, {_percent(rates.hit_rate[0])}: no more than noise."
    best = int(np.argmax(rates.difference))
    ahead = rates.verdict(best)
    if rates.difference[best] <= 0:
        return f"{where}: no policy beats {name}{_behind(rates)}."
    lead = f"{_points(rates.difference[best])} over {name}{_interval(rates, best)}"
    if ahead in (NOISE, SAME):
        return (
            f"{where}: no policy beats {name} by more than noise; highest is "
            f"{rates.labels[best]}, {lead}."
        )
    rate = _percent(rates.hit_rate[best])
    if ahead == UNKNOWN:
        return (
            f"{where}: highest is {rates.labels[best]}, {rate}: {lead}; whether that is more than "
            "noise cannot be told."
        )
    way = bound - rates.hit_rate[rates.reference]
    share = (
        f", {rates.difference[best] / way:.0%} of the way to the bound" if way >= least_way else ""
    )
    alike = [
        rates.labels[i]
        for i in np.argsort(-rates.difference, kind="stable").tolist()
        if i not in (best, rates.reference) and not rates.apart[best, i]
    ]
    also = f"; not told apart from it: {', '.join(alike)}" if alike else ""
    return (
        f"{where}: best here is {rates.labels[best]}, {rate}: {lead}, more than noise{share}{also}."
    )


def _behind(rates: Rates) -> str:
    """Name what comes next to the reference where that is best."""
    others = [i for i in range(len(rates.labels)) if i != rates.reference]
    equal = [rates.labels[i] for i in others if rates.difference[i] == 0]
    if equal:
        many = f"{len(equal)} others" if len(equal) > _FEW else ", ".join(equal)
        return f"; {many} {'hits' if len(equal) == 1 else 'hit'} the same"
    near = max(others, key=lambda i: float(rates.difference[i]))
    said = {WORSE: ", more than noise", NOISE: ", no more than noise"}.get(rates.verdict(near), "")
    gap = f"{_points(rates.difference[near])}{_interval(rates, near)}"
    return f"; nearest is {rates.labels[near]}, {gap}{said}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.2f} points".replace("-", "−")


def _interval(rates: Rates, index: int) -> str:
    low, high = 100 * rates.low[index], 100 * rates.high[index]
    if np.isnan(low):
        return ""
    return f" (95 %: {low:.2f} to {high:.2f})".replace("-", "−")


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"
