"""What cache management costs: CPU time per unit of its work, ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sim.cost import MAX_COEFFICIENT, read_json
from sim.errors import UsageError
from sim.types import CacheWork


@dataclass(frozen=True, slots=True)
class OverheadProfile:
    """CPU time of a block manager as a sum over the work that it does; every value in ns.

    Attributes
    ----------
    ns_per_request
        An admission: what does not depend on its length.
    ns_per_hashed_token
        A prompt token that is hashed.
    ns_per_block_hit
        A block found cached and taken.
    ns_per_new_block
        A block taken for tokens of a prompt, and registered if it is full.
    ns_per_new_token
        A token of those blocks.
    ns_per_evicted_block
        A new block that has to be evicted first: what that adds.
    ns_per_scanned_entry
        An entry of a free table that is looked at to find the victim.
    ns_per_refusal, ns_per_refused_hit
        An admission that finds no room, and looks its prefix up again in the next step: in any
        case, and per block that it would hit.
    ns_per_append
        A running request is given room: a decoded token, or the next chunk of a prompt.
    ns_per_append_block
        A block that a decoded token takes.
    ns_per_table_block
        A block in the block table of a request that is given room, whether or not it changes.
    ns_per_request_freed, ns_per_block_freed, ns_per_token_freed, ns_per_hit_block_freed
        A request ends: in any case, per block that it had taken, per token in those, and per block
        that it had hit.
    """

    ns_per_request: float = 0.0
    ns_per_hashed_token: float = 0.0
    ns_per_block_hit: float = 0.0
    ns_per_new_block: float = 0.0
    ns_per_new_token: float = 0.0
    ns_per_evicted_block: float = 0.0
    ns_per_scanned_entry: float = 0.0
    ns_per_refusal: float = 0.0
    ns_per_refused_hit: float = 0.0
    ns_per_append: float = 0.0
    ns_per_append_block: float = 0.0
    ns_per_table_block: float = 0.0
    ns_per_request_freed: float = 0.0
    ns_per_block_freed: float = 0.0
    ns_per_token_freed: float = 0.0
    ns_per_hit_block_freed: float = 0.0

    def work_ns(self, work: CacheWork) -> int:
        """Time that ``work`` takes, ns; rounded, at least 0."""
        return round(
            self.ns_per_request * work.num_requests
            + self.ns_per_hashed_token * work.num_hashed_tokens
            + self.ns_per_block_hit * work.num_block_hits
            + self.ns_per_new_block * work.num_new_blocks
            + self.ns_per_new_token * work.num_new_tokens
            + self.ns_per_evicted_block * work.num_evicted_blocks
            + self.ns_per_scanned_entry * work.num_scanned_entries
            + self.ns_per_refusal * work.num_refusals
            + self.ns_per_refused_hit * work.num_refused_hits
            + self.ns_per_append * work.num_appends
            + self.ns_per_append_block * work.num_append_blocks
            + self.ns_per_table_block * work.num_table_blocks
            + self.ns_per_request_freed * work.num_requests_freed
            + self.ns_per_block_freed * work.num_blocks_freed
            + self.ns_per_token_freed * work.num_tokens_freed
            + self.ns_per_hit_block_freed * work.num_hit_blocks_freed
        )


NO_OVERHEAD = OverheadProfile()


def profile_to_document(
    profile: OverheadProfile, provenance: str, residuals: Mapping[str, Any]
) -> dict[str, Any]:
    """Lay a profile out as it is stored."""
    return {
        "coefficients": asdict(profile),
        "provenance": provenance,
        "residuals": dict(residuals),
    }


def profile_from_document(document: object, name: str) -> OverheadProfile:
    """Read a stored profile.

    Raises
    ------
    UsageError
        Not an overhead profile, an unknown or missing coefficient, or a value that is no
        number of at least 0.
    """
    known = [field.name for field in fields(OverheadProfile)]
    values = document.get("coefficients") if isinstance(document, dict) else None
    if not isinstance(values, dict):
        raise UsageError(
            f"{name} is no overhead profile: it lacks 'coefficients'; make one with 'prefixsim "
            "overhead --fit'."
        )
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"{name}: {key!r} is no coefficient; known are {', '.join(known)}.")
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= value < MAX_COEFFICIENT:
            raise UsageError(
                f"{name}: {key} is {value!r} but must be a number of ns, at least 0 and below "
                f"{MAX_COEFFICIENT:g}."
            )
    missing = [key for key in known if key not in values]
    if missing:
        raise UsageError(f"{name}: {', '.join(missing)} is missing; give every coefficient.")
    return OverheadProfile(**{key: float(value) for key, value in values.items()})


def load_profile(path: str) -> OverheadProfile:
    """Read a profile from a JSON file."""
    return profile_from_document(read_json(path, "the overhead profile"), path)
