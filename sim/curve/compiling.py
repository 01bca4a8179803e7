"""The decorators for the kernels of this package."""

from __future__ import annotations

from pathlib import Path

from sim.compiled import Package

_PACKAGE = Package(Path(__file__).parent, "the curve", "some 20 s")

compiled = _PACKAGE.compiled
entry = _PACKAGE.entry
