"""An allocator that is timed from outside, whatever it is."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sim.types import Allocator, BlockUsage, PrefixMatch, Sequence

if TYPE_CHECKING:
    import pandas as pd

OPERATIONS = ("match_prefix", "allocate", "cache_blocks", "free")
"""What a scheduler asks for while it serves; the rest of the protocol only tells."""


class Timed:
    """Answers as the allocator within does, and notes how long each operation took.

    Attributes that the protocol does not name, such as ``counts`` or ``snapshot``, are those of
    the allocator within. A time includes the garbage collector and two readings of the clock.

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
        self._allocator = allocator
        self.num_blocks = allocator.num_blocks
        self.block_size = allocator.block_size
        self.calls = dict.fromkeys(OPERATIONS, 0)
        self.total_ns = dict.fromkeys(OPERATIONS, 0)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the allocator has
        # A copy or an unpickled object has no allocator yet, and must not look for it for ever.
        if name == "_allocator":
            raise AttributeError(name)
        return getattr(self._allocator, name)

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

    def usage(self) -> BlockUsage:
        """Count blocks by state."""
        return self._allocator.usage()

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        return self._allocator.block_table(seq)

    def max_request_blocks(self) -> int:
        """Blocks that a request alone in the engine may come to hold."""
        return self._allocator.max_request_blocks()

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
