"""Prefix caching policies: one file, one policy, one name.

A file of this folder that does not begin with an underscore is a policy; it names its class as
``POLICY``. The class implements `sim.types.Allocator` and says where its rules come from:

``source``
    The release or paper that it follows.
``variants``
    Recorded logs (see `sim.verify`) that it reproduces.
``overhead_profiles``
    Names of the overhead profiles that price it, by ``vllm`` (the real code) and ``own`` (ours).
``num_reserved_blocks``
    Physical blocks beyond the usable ones, such as vLLM V1's null block.
``recomputes_last_block``
    Whether a prompt that is cached whole has its last block computed again (as by default), or its
    last token only: what a cache that never evicts would hit depends on it.
``pool_rules``
    Rules by which the fast engine can stand in for the policy, where there are such. They hold for
    the class that names them, not for those that inherit from it.
``num_blocks_to_hold``
    A function from blocks, requests and the policy's options to the size of a pool that is never
    short for them; by default it is those blocks.

An allocator counts what it does in ``counts``, a `sim.types.OperationCounts`; its lookups are not
counted, since they change nothing. What a loop does is counted once, after it.

Most policies are an `Order` of eviction behind one allocator, `EvictorPool`.
"""

from policies._evictor_pool import EvictorPool
from policies._orders import Access, Order, Queue, Ranked
from policies._registry import convert_args, load, make, names, options, variants

__all__ = [
    "Access",
    "EvictorPool",
    "Order",
    "Queue",
    "Ranked",
    "convert_args",
    "load",
    "make",
    "names",
    "options",
    "variants",
]
