"""Overhead: the CPU time that cache management itself takes, modelled and measured.

*Modelled*: an `OverheadProfile` prices the work of each step (`sim.types.CacheWork`); simulated
time advances by it. Profiles of vLLM's releases come with the package, fitted to measurements of
their own code. *Measured*: `sim.overhead.measure` times our own policies.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from sim.cost import read_json
from sim.errors import UsageError
from sim.overhead.profile import (
    NO_OVERHEAD,
    OverheadProfile,
    load_profile,
    profile_from_document,
)

__all__ = [
    "NO_OVERHEAD",
    "OverheadProfile",
    "load_profile",
    "load_shipped",
    "profile_names",
    "resolve",
]

_DATA = resources.files("sim.overhead") / "data"


def profile_names() -> list[str]:
    """List the profiles that come with the package."""
    return sorted(entry.name[:-5] for entry in _DATA.iterdir() if entry.name.endswith(".json"))


def document_of(name: str) -> dict[str, Any]:
    """Read what is stored of a shipped profile: coefficients, provenance, residuals."""
    with resources.as_file(_DATA / f"{name}.json") as path:
        document: dict[str, Any] = read_json(path, "the overhead profile")
    return document


def load_shipped(name: str) -> OverheadProfile:
    """Load a profile that comes with the package."""
    return profile_from_document(document_of(name), name)


def resolve(overhead: str, policy: str, profiles: dict[str, str]) -> tuple[OverheadProfile, str]:
    """Find the profile that ``--overhead`` asks for, and name it.

    Parameters
    ----------
    overhead
        ``none``; ``vllm`` or ``own``: the profile of the real code that the policy models, or of
        our own; the name of a shipped profile; or a JSON file.
    policy
        Name of the policy, for the error.
    profiles
        Names of the policy's profiles by ``vllm`` and ``own``.

    Returns
    -------
    profile, name
        No overhead, named ``none``, for a policy that names no such profile.

    Raises
    ------
    UsageError
        None of these, or a policy that names a profile that does not exist.
    """
    if overhead == "none":
        return NO_OVERHEAD, "none"
    if overhead in ("vllm", "own"):
        name = profiles.get(overhead)
        if name is None:
            return NO_OVERHEAD, "none"
        if name not in profile_names():
            raise UsageError(
                f"--overhead {overhead}: policy {policy!r} names the profile {name!r}, which does "
                f"not exist; choose 'none', a JSON file, or one of {', '.join(profile_names())}."
            )
        return load_shipped(name), name
    if overhead in profile_names():
        return load_shipped(overhead), overhead
    if Path(overhead).suffix == ".json" or Path(overhead).exists():
        return load_profile(overhead), overhead
    raise UsageError(
        f"--overhead {overhead!r} is no profile: choose none, vllm, own, a JSON file, or one of "
        f"{', '.join(profile_names())}."
    )
