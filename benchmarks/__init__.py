"""How fast the simulator is, beside peers and as runs grow: ``python -m benchmarks``."""
