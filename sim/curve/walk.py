"""Walks along paths when each edge knows who touched it last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.curve.compiling import compiled
from sim.curve.stream import Integer

Edges = NDArray[np.int32]


@compiled
def take_group(
    edges: Edges, lengths: Edges, last: Edges, at: Integer, stop: Integer, request: Integer
) -> tuple[Integer, Integer]:
    """Touch the next edges of a path that one request touched last: one group of blocks.

    Parameters
    ----------
    edges, lengths
        See `sim.curve.paths.Paths`.
    last
        Of each edge, who touched it last; -1 for nobody.
    at, stop
        Place of the next edge, which somebody touched, and of the path's end.
    request
        Who touches them now.

    Returns
    -------
    Place behind the group, and its blocks.
    """
    owner = last[edges[at]]
    num_blocks = np.int64(0)
    while at < stop and last[edges[at]] == owner:
        num_blocks += lengths[edges[at]]
        last[edges[at]] = request
        at += 1
    return at, num_blocks


@compiled
def take_rest(edges: Edges, last: Edges, at: Integer, stop: Integer, request: Integer) -> None:
    """Touch the edges that nobody touched before, from ``at`` to the path's end."""
    while at < stop:
        last[edges[at]] = request
        at += 1
