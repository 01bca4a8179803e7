"""What is drawn anew to tell a difference from noise: seeds, sessions or stretches of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sim.comparison_points import Asked, Point
from sim.noise import Floats, stretches
from sim.types import Request

_FEWEST_SESSIONS = 20
_FEWEST_STRETCHES = 5


@dataclass(frozen=True)
class Units:
    """Tokens by unit.

    Attributes
    ----------
    cached
        Tokens hit, shape ``(capacities, policies, units)``.
    prompts
        Prompt tokens, shape ``(capacities, units)``.
    how
        What a unit is, for a sentence: ``50 stretches of time``.
    num_left_out
        Requests that some policies of a capacity serve and others do not; they are in no unit.
    """

    cached: Floats
    prompts: Floats
    how: str
    num_left_out: int


def units_of(
    asked: Asked,
    points: Mapping[tuple[str, str, int], Point],
    labels: Sequence[str],
    requests: Sequence[Request],
) -> Units:
    """Sum tokens up by unit.

    Parameters
    ----------
    asked, points
        What was compared, and what each point hit.
    labels
        Policies that are there.
    requests
        The workload of the first seed, in order of arrival.
    """
    many_seeds = len(asked.seeds) > 1
    places, num_units, how = _places(requests)
    if many_seeds:
        num_units, how = len(asked.seeds), f"{len(asked.seeds)} seeds"
    cached = np.zeros((len(asked.capacities), len(labels), num_units))
    prompts = np.zeros((len(asked.capacities), num_units))
    num_left_out = 0
    for row, capacity in enumerate(asked.capacities):
        for index, seed in enumerate(asked.seeds):
            frames = [points[capacity, label, seed].tokens for label in labels]
            common = frames[0].index
            for frame in frames[1:]:
                if not frame.index.equals(common):
                    common = common.intersection(frame.index)
            num_left_out += max(len(frame) for frame in frames) - len(common)
            at = np.full(len(common), index) if many_seeds else places.loc[common].to_numpy()
            for column, frame in enumerate(frames):
                tokens = frame.loc[common]
                hits = tokens["num_cached_tokens"].to_numpy()
                cached[row, column] += np.bincount(at, weights=hits, minlength=num_units)
            lengths = tokens["num_prompt_tokens"].to_numpy()
            prompts[row] += np.bincount(at, weights=lengths, minlength=num_units)
    return Units(cached, prompts, how, num_left_out)


def _places(requests: Sequence[Request]) -> tuple[pd.Series[int], int, str]:
    """Give the unit of each request by id, their number, and what they are."""
    ids = [request.request_id for request in requests]
    sessions = Counter(request.session_id for request in requests if request.session_id)
    alone = [r.session_id or f"\0{r.request_id}" for r in requests]
    names = {name: place for place, name in enumerate(dict.fromkeys(alone))}
    if len(sessions) >= _FEWEST_SESSIONS and max(sessions.values()) > 1:
        places = pd.Series([names[name] for name in alone], index=ids, dtype=np.int64)
        num_single = len(names) - len(sessions)
        single = f" and {num_single:,} requests of none" if num_single else ""
        return places, len(names), f"{len(sessions):,} sessions{single}"
    parts = stretches(len(requests))
    count = int(parts[-1]) + 1 if len(parts) else 0
    if count < _FEWEST_STRETCHES:
        return pd.Series(0, index=ids, dtype=np.int64), 1, f"{len(requests)} requests"
    return pd.Series(parts, index=ids), count, f"{count} stretches of time"
