"""What is different among many numbers, and how often: sorted where they lie."""

from __future__ import annotations

import numpy as np

from sim.mapped import Column, filled, pieces
from workloads.content import Ints


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Sort numbers in place, and give each different one, ascending, and how often it is there.

    Equal to ``numpy.unique(values, return_counts=True)``, in a bounded amount of memory.
    """
    values.sort()
    bounds = Column()
    for part in pieces(len(values)):
        begins = np.ones(part.stop - part.start, dtype=np.bool_)
        later = slice(max(part.start, 1), part.stop)
        begins[later.start - part.start :] = (
            values[later] != values[later.start - 1 : part.stop - 1]
        )
        bounds.extend(part.start + np.flatnonzero(begins))
    num_distinct = len(bounds)
    bounds.append(len(values))
    firsts = bounds.array
    return (
        filled(num_distinct, lambda part: values[firsts[part]]),
        filled(
            num_distinct,
            lambda part: firsts[part.start + 1 : part.stop + 1] - firsts[part],
        ),
    )
