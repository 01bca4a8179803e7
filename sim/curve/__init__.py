"""Hit rate against capacity for every capacity at once, from references alone.

`references_of` lists what requests touch, `find_paths` turns that into a few edges per request, and
`measure_curve` gives the curve; `measure_pool` gives one capacity, `most_hits` Belady's bound, and
`Sample` an estimate for traces too large to hold. No policy or workload is known here.
"""

from sim.curve.belady import most_hits
from sim.curve.curve import Curve, measure_curve, measure_pool
from sim.curve.paths import Paths, find_paths
from sim.curve.pools import Pool
from sim.curve.requests import references_of, stored_references_of
from sim.curve.sample import Sample
from sim.curve.stack import Release
from sim.curve.stream import References, Sizes

__all__ = [
    "Curve",
    "Paths",
    "Pool",
    "References",
    "Release",
    "Sample",
    "Sizes",
    "find_paths",
    "measure_curve",
    "measure_pool",
    "most_hits",
    "references_of",
    "stored_references_of",
]
