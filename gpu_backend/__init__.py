"""Real prefill on a GPU (or the CPU), to calibrate the cost model.

The package is reserved for it and holds nothing yet: costs come from the presets in `sim.cost` or
from a file. It will be the only place that imports torch.
"""
