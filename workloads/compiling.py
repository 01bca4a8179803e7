"""The decorators for the kernels of this package, which large traces are worth."""

from __future__ import annotations

from pathlib import Path

from sim.compiled import Package

_PACKAGE = Package(Path(__file__).parent, "what reads large traces", "some 5 s")

compiled = _PACKAGE.compiled
entry = _PACKAGE.entry
