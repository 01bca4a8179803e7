"""The decorators for the kernels of this package."""

from __future__ import annotations

from pathlib import Path

from sim.compiled import Package

_PACKAGE = Package(Path(__file__).parent, "the fast engine", "half a minute or so")

compiled = _PACKAGE.compiled
bare_entry = _PACKAGE.bare_entry
