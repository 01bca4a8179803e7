"""How to read a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.errors import UsageError
from workloads.fields import MAX_TOKENS, UNITS_NS

Mode = Literal["strict", "lenient", "check"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a trace.

    Attributes
    ----------
    num_requests
        Read only the first so many; the rest of the source is not even looked at.
    trace_block_size
        Tokens that an id of the trace stands for; None for the format's own.
    mode
        ``strict``: refuse at the first row that cannot be used. ``lenient``: skip and count it,
        and let a length win over ids that do not fit it. ``check``: collect every problem.
    timed
        Whether a row must say when it arrives. If not, rows without a time arrive with the row
        before them.
    time_unit
        Unit of the time stamps, a key of ``UNITS_NS``; None for the format's own.
    turns
        Whether a row of a later turn holds the whole prompt (``cumulative``) or only what is new
        (``delta``); None to tell from the rows.
    tokenizer
        Of texts; see `workloads.tokenizer`.
    partial_blocks, system_prompt
        ``shared``, and tokens that all prompts begin with: sharing that ids hide, see
        `workloads.within_blocks.FinerNames`. Plainly read, hit rates are a lower bound.
    """

    num_requests: int | None = None
    trace_block_size: int | None = None
    mode: Mode = "strict"
    timed: bool = True
    time_unit: str | None = None
    turns: Literal["cumulative", "delta"] | None = None
    tokenizer: str | None = None
    partial_blocks: Literal["own", "shared"] = "own"
    system_prompt: int = 0

    @property
    def shares_within_blocks(self) -> bool:
        """Whether sharing is assumed that the ids of a trace hide."""
        return self.partial_blocks == "shared" or self.system_prompt > 0

    def __post_init__(self) -> None:
        if self.trace_block_size is not None and not 1 <= self.trace_block_size <= MAX_TOKENS:
            raise UsageError(
                f"--trace-block-size is {self.trace_block_size}, but a block has from 1 to"
                f" {MAX_TOKENS} tokens; give the number of tokens that an id of the trace stands"
                " for."
            )
        if self.num_requests is not None and self.num_requests < 1:
            raise UsageError(
                f"--num-requests is {self.num_requests}, but at least 1 request is needed; leave"
                " it out to read all."
            )
        if self.time_unit is not None and self.time_unit not in UNITS_NS:
            raise UsageError(
                f"--time-unit is {self.time_unit!r}, but must be one of {', '.join(UNITS_NS)}."
            )
