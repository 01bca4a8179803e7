"""Whose process this is; the command line says that it is ours."""

is_ours = False
"""Whether no code but ours runs in this process, so that nobody else needs all of numba."""
