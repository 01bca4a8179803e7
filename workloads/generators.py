"""Generators by name, and their dials as a user gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from sim.errors import UsageError
from workloads.documents import few_shot, rag, uniform
from workloads.fields import number, show, whole
from workloads.multi_turn import agent, multi_turn
from workloads.shared_prefix import shared_prefix
from workloads.workload import Workload

GENERATORS: dict[str, Callable[..., Workload]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "agent": agent,
    "few-shot": few_shot,
    "rag": rag,
    "uniform": uniform,
}
"""A generator takes dials as keywords with numbers as defaults; its docstring's first line says
what it makes."""


def dials(name: str) -> dict[str, int | float]:
    """Give the dials of the generator ``name`` and their defaults."""
    parameters = inspect.signature(GENERATORS[name]).parameters
    return {dial: parameter.default for dial, parameter in parameters.items()}


def generate(name: str, args: Mapping[str, object]) -> Workload:
    """Run a generator with dials as they come from the command line or from Python.

    Parameters
    ----------
    name
        One of ``GENERATORS``.
    args
        Values by dial: numbers or text that is one. Dials left out keep their defaults.

    Raises
    ------
    UsageError
        If a dial is unknown, not a number of its kind, or out of range.
    """
    known = dials(name)
    values: dict[str, int | float] = {}
    for dial, value in args.items():
        if dial not in known:
            raise UsageError(f"{name} has no dial {show(dial)}; its dials are {', '.join(known)}.")
        is_whole = isinstance(known[dial], int)
        converted = whole(value) if is_whole else number(value)
        if converted is None:
            kind = "whole number" if is_whole else "number"
            raise UsageError(
                f"{dial} is {show(value)}, which is not a {kind}; give one, such as"
                f" {dial}={known[dial]}."
            )
        values[dial] = converted
    return GENERATORS[name](**values)
