"""The fast engine: the plain engine's results to the last byte, from compiled code.

What the plain engine does with objects – the pool of vLLM V1, the scheduler's step, the price of a
step – stands here once more over arrays, compiled by numba. It holds for the policies that say so
by `sim.types.PoolRules`; all others run plain. The plain code is what is studied and is the twin
that this one is held to.

state       the arrays: requests, blocks, running and waiting
keys        block keys as dense numbers, run by run
pool        free queue, key map, allocation
step        one scheduling step and its end
price       what a step takes
kernel      step after step, until somebody else has to act
engine      the compiled loop under the event loop
record      what a run leaves behind, in columns
allocator   the compiled pool behind the protocol of a policy, to be checked against records
support     which runs the fast engine can do
compiling   the decorators for what is compiled, see `sim.compiled`
"""
