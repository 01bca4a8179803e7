"""Compiles kernels, the functions over arrays that are hot, once per machine and version of them.

A package that has kernels makes one `Package` of itself, whose methods are the decorators:

compiled     into whichever kernel calls it
entry        Python calls it, with numba's dispatch: arguments of any types, anything returned
bare_entry   Python calls it without importing numba: numbers and arrays in, a whole number out

numba is imported when something has to be compiled, or an `entry` is called; a `bare_entry` whose
machine code is kept needs no more than llvmlite, which saves half a second at every start.
"""

from sim.compiled.package import Package

__all__ = ["Package"]
