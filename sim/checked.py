"""An allocator whose answers are checked: for policies that we did not write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.errors import UsageError
from sim.types import Allocator, BlockUsage, OperationCounts, PrefixMatch, Sequence
from sim.wrapped import Wrapped

_MAX = 2**63
"""Tables hold whole numbers below this."""


class Checked(Wrapped):
    """Answers as the allocator within does, once the answer is one that a scheduler can use.

    Parameters
    ----------
    allocator
        The one to be checked.
    name
        What its user calls it.

    Raises
    ------
    UsageError
        A method raises, or answers what `sim.types.Allocator` does not allow; the sentence names
        policy and method.
    """

    def __init__(self, allocator: Allocator, name: str) -> None:
        self._name = name
        self._whole("num_blocks", lambda: allocator.num_blocks)
        self._whole("block_size", lambda: allocator.block_size)
        super().__init__(allocator)
        if not isinstance(getattr(allocator, "counts", OperationCounts()), OperationCounts):
            raise self._error("counts", "is not a sim.types.OperationCounts")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the allocator has
        found = super().__getattr__(name)
        if not callable(found):
            return found
        return lambda *args: self._ask(name, lambda: found(*args))

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Look up; what is hit must leave a token to compute."""
        match = self._ask("match_prefix", lambda: self._allocator.match_prefix(seq))
        if not isinstance(match, PrefixMatch):
            raise self._error("match_prefix", f"returned {match!r}, not a sim.types.PrefixMatch")
        numbers = (match.num_tokens, match.num_hit_blocks, match.num_queried_blocks)
        if not all(type(number) is int and 0 <= number < _MAX for number in numbers[1:]) or (
            type(match.num_tokens) is not int
        ):
            raise self._error("match_prefix", f"returned {match!r}, whose numbers are none")
        if not 0 <= match.num_tokens < seq.num_tokens:
            raise self._error(
                "match_prefix",
                f"says that {match.num_tokens} of the {seq.num_tokens} tokens of request "
                f"{seq.request_id!r} are hit, but the last one is always computed",
            )
        return match

    def allocate(self, seq: Sequence, match: PrefixMatch, num_tokens: int) -> bool:
        """Allocate."""
        done = self._ask("allocate", lambda: self._allocator.allocate(seq, match, num_tokens))
        if not isinstance(done, bool):
            raise self._error("allocate", f"returned {done!r}, not True or False")
        return done

    def cache_blocks(self, seq: Sequence) -> None:
        """Take note of computed tokens."""
        self._ask("cache_blocks", lambda: self._allocator.cache_blocks(seq))

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks."""
        self._ask("free", lambda: self._allocator.free(seq))

    def usage(self) -> BlockUsage:
        """Count blocks by state; used and free ones are all."""
        usage = self._ask("usage", self._allocator.usage)
        if not isinstance(usage, BlockUsage):
            raise self._error("usage", f"returned {usage!r}, not a sim.types.BlockUsage")
        if usage.used + usage.free != self.num_blocks:
            raise self._error(
                "usage",
                f"counts {usage.used} used and {usage.free} free blocks of {self.num_blocks}",
            )
        return usage

    def block_table(self, seq: Sequence) -> list[int]:
        """Block ids of ``seq``, in order."""
        table = self._ask("block_table", lambda: self._allocator.block_table(seq))
        if not isinstance(table, list):
            raise self._error("block_table", f"returned {table!r}, not a list of block ids")
        return table

    def max_request_blocks(self) -> int:
        """Blocks that a request alone may come to hold."""
        return self._whole("max_request_blocks", self._allocator.max_request_blocks, minimum=0)

    def _whole(self, name: str, call: Callable[[], Any], *, minimum: int = 1) -> int:
        value = self._ask(name, call)
        if type(value) is not int or not minimum <= value < _MAX:
            raise self._error(name, f"gives {value!r}, not a whole number of at least {minimum}")
        return value

    def _ask(self, method: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return call()
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            frame = error.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame else ""
            shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise self._error(method, f"raised {shown}{where}") from error

    def _error(self, method: str, what: str) -> UsageError:
        return UsageError(
            f"--policy {self._name!r}: {method} {what}; mend the policy (its rules are in "
            "sim.types.Allocator)."
        )
