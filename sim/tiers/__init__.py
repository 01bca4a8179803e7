"""Tiers below the GPU: host memory and SSD behind any policy's block pool.

`Tier` is one level of memory with a link, `Tiered` puts levels behind an allocator, and
`prefill_pricer` tells what computing would take, so that the quicker of the two is done.
"""

from sim.tiers.price import prefill_pricer
from sim.tiers.tier import Tier
from sim.tiers.tiered import Tiered, Write

__all__ = ["Tier", "Tiered", "Write", "prefill_pricer"]
