"""The simulator: scheduler, engine, cost model, results. Knows no policy and no trace format.

In Python and in notebooks, ``sim.run``, ``sim.sweep``, ``sim.compare``, ``sim.curve_of``,
``sim.load`` and ``sim.report`` do what the command line does; tables they return draw themselves
(see `sim.api`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.api import Results, Run, compare, curve_of, load, report, run, sweep
    from sim.comparison import Comparison
    from sim.curves import Curves

__all__ = [
    "Comparison", "Curves", "Results", "Run", "compare", "curve_of", "load", "report", "run",
    "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the interface has
    # Every policy imports sim.types and thereby this: the interface, which imports policies, waits.
    if name in __all__:
        from sim import api  # noqa: PLC0415

        return getattr(api, name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")
