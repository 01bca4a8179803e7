"""An allocator that is timed from outside, whatever it is."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from sim.types import Allocator, PrefixMatch, Sequence
from sim.wrapped import Wrapped

if TYPE_CHECKING:
    import pandas as pd

OPERATIONS = ("match_prefix", "allocate", "cache_blocks", "free")
"""What a scheduler asks for while it serves; the rest of the protocol only tells."""


class Timed(Wrapped):
    """Answers as the allocator within does, and notes how long each operation took.

    A time includes the garbage collector and two readings of the clock.

    Parameters
    ----------
    allocator
        The one to be timed.

    Attributes
    ----------
    calls, total_ns
        Calls of each operation, and their time together.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(allocator)
        self.calls = dict.fromkeys(OPERATIONS, 0)
        self.total_ns = dict.fromkeys(OPERATIONS, 0)

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Look up, timed."""
        start = perf_counter_ns()
        match = self._allocator.match_prefix(seq)
        self._note("match_prefix", perf_counter_ns() - start)
        return match

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate, timed; refusals too."""
        start = perf_counter_ns()
        allocated = self._allocator.allocate(seq, match, num_tokens)
        self._note("allocate", perf_counter_ns() - start)
        return allocated

    def cache_blocks(self, seq: Sequence) -> None:
        """Take note of computed tokens, timed."""
        start = perf_counter_ns()
        self._allocator.cache_blocks(seq)
        self._note("cache_blocks", perf_counter_ns() - start)

    def free(self, seq: Sequence) -> None:
        """Free, timed."""
        start = perf_counter_ns()
        self._allocator.free(seq)
        self._note("free", perf_counter_ns() - start)

    def table(self) -> pd.DataFrame:
        """Give a row per operation: ``operation``, ``calls``, ``total_ms``, ``mean_us``."""
        import pandas as pd  # noqa: PLC0415 - takes half a second

        rows = [
            (name, calls, self.total_ns[name] / 1e6, self.total_ns[name] / max(calls, 1) / 1e3)
            for name, calls in self.calls.items()
        ]
        return pd.DataFrame(rows, columns=["operation", "calls", "total_ms", "mean_us"])

    def _note(self, operation: str, elapsed_ns: int) -> None:
        self.calls[operation] += 1
        self.total_ns[operation] += elapsed_ns
