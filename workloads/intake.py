"""What every reader hands its rows to: checks, clocks, sessions; a workload comes out."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.errors import UsageError
from sim.types import Request
from workloads.content import Ints, Segments
from workloads.fields import (
    MAX_NS,
    MAX_TOKENS,
    UNITS_NS,
    RowError,
    epoch_unit,
    show,
    text,
    time_ns,
    unit_name,
)
from workloads.tree import Names, PrefixTree, cut_path, with_tail
from workloads.workload import Workload

Mode = Literal["strict", "lenient", "check"]

SCOPE_FIELDS = frozenset((
    "lora_id", "lora_name", "lora_path", "lora_request", "lora", "adapter", "adapter_id",
    "cache_salt", "extra_key", "extra_keys", "mm_hash", "mm_hashes", "multimodal_hash",
    "multi_modal_hash", "multi_modal_hashes", "image_hash", "image_hashes",
))  # fmt: skip
"""Keys that go into an engine's block hash beside the tokens: where they differ, nothing is
shared."""


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
    """

    num_requests: int | None = None
    trace_block_size: int | None = None
    mode: Mode = "strict"
    timed: bool = True
    time_unit: str | None = None
    turns: Literal["cumulative", "delta"] | None = None
    tokenizer: str | None = None

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


@dataclass(slots=True)
class Path:
    """A prompt on its way through the tree of names: segments by first name and end, tokens."""

    bases: list[int]
    ends: list[int]


class Intake:
    """Takes requests one by one, in columns, and makes a workload of them.

    Attributes
    ----------
    where
        File that the rows come from, for messages.
    names
        Of all contents.
    said
        Clauses about the source as a whole.
    counts
        Rows by what was odd about them, in words that follow "3 rows".
    problems
        Sentences on what cannot be used, when checking.
    num_continued
        Answers that a later prompt holds.
    identity_block_size
        Tokens per unit of identity, set by readers of formats that have a unit.
    has_prefix_info
        Whether any row said something about its prefix.
    common_clock
        Whether the time stamps of all rows count from the same moment.
    dated
        Whether they are dates, which cannot be in a wrong unit.
    unit_ns
        Unit of the time stamps.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.where = ""
        self.names = Names()
        self.said: list[str] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.num_skipped = 0
        self.num_continued = 0
        self._num_passed_over = 0
        self.first_skipped = ""
        self.has_prefix_info = False
        self.identity_block_size = 1
        self.common_clock = True
        self.dated = False
        self.unit_ns = UNITS_NS[options.time_unit or "ms"]
        self._roots: dict[object, int] = {}
        self._ids: list[str | None] = []
        self._line_of: dict[str, str] = {}
        self._sessions: list[str | None] = []
        self._contents: list[Segments] = []
        self._arrivals, self._thinks = array("q"), array("q")
        self._prompts, self._outputs = array("q"), array("q")
        self._session_arrival: dict[str, int] = {}
        self._fractional = False
        self._num_stamped = self._num_unstamped = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def full(self) -> bool:
        """Whether no more requests are wanted."""
        return len(self._arrivals) == self.options.num_requests

    # What is wrong with a row.

    def bad(self, line: int | str, fault: RowError) -> None:
        """Take note of a row that cannot be used.

        Raises
        ------
        UsageError
            In strict mode.
        """
        place = f"{self.where}:{line}"
        if self.options.mode == "strict":
            raise UsageError(
                f"{place}: {fault}; {fault.next_step}, or read what can be read with --lenient."
            )
        if self.options.mode == "check":
            self.problems.append(f"{place}: {fault}; {fault.next_step}.")
        if not self.num_skipped:
            self.first_skipped = f"the first in line {line}: {fault}"
        self.num_skipped += 1

    def pass_over(self, odd: str) -> None:
        """Count a row that is no request, as some formats have them."""
        self.counts[f"{odd}, passed over"] += 1
        self._num_passed_over += 1

    def forgive(self, fault: RowError, odd: str) -> None:
        """Count a fault that lenient reading can live with.

        Raises
        ------
        RowError
            In the other modes.
        """
        if self.options.mode != "lenient":
            raise fault
        self.counts[odd] += 1

    # Fields that formats have in common.

    def request_id(self, name: str, value: object) -> str | None:
        """Check that an id was not seen before; None where the row has none."""
        if value is None:
            return None
        request_id = text(name, value)
        if request_id in self._line_of:
            raise RowError(
                f"{name} {show(request_id)} is already that of line {self._line_of[request_id]}"
            )
        return request_id

    def arrival_ns(
        self, name: str, value: object, session_id: str | None = None, think_ns: int | None = None
    ) -> int:
        """Read a time stamp, or make do without where that may be."""
        if value is not None:
            result = time_ns(name, value, self.unit_ns)
            if isinstance(value, float) and not value.is_integer():
                self._fractional = True
            return result
        if session_id in self._session_arrival and think_ns is not None:
            # A later turn that only says how long after the one before it comes: no earlier.
            return min(self._session_arrival[session_id] + think_ns, MAX_NS)
        if not self.options.timed:
            return self._arrivals[-1] if self._arrivals else 0
        raise RowError(
            f"{name} is missing, and an arrival cannot be guessed",
            "add it, make arrivals with --arrival poisson and --rate",
        )

    def arrival_or_none_ns(self, name: str, value: object) -> int:
        """Read a time stamp where the format may lack it; either all rows have one or none."""
        if value is None and not self._num_stamped:
            self._num_unstamped += 1
            return 0
        if self._num_unstamped:
            raise RowError(f"{name} is given, but the rows before have none")
        result = self.arrival_ns(name, value)
        self._num_stamped += 1
        return result

    def scope(self, tree: PrefixTree, *rows: Mapping[str, object]) -> int:
        """Find the root for a row by the keys that keep equal tokens apart."""
        keys = tuple(
            (name, repr(row[name]))
            for row in rows
            for name in sorted(SCOPE_FIELDS & row.keys())
            if row.get(name) not in (None, "", [], {})
        )
        if (tree, keys) not in self._roots:
            self._roots[tree, keys] = tree.root()
        return self._roots[tree, keys]

    # Rows.

    def add(
        self,
        line: int | str,
        content: Segments,
        num_prompt_tokens: int,
        *,
        arrival_ns: int,
        request_id: str | None = None,
        session_id: str | None = None,
        think_ns: int | None = None,
    ) -> int:
        """Take a request, all of whose fields were checked, and return its index."""
        if request_id is not None:
            self._line_of[request_id] = str(line)
        self._ids.append(request_id)
        self._sessions.append(session_id)
        self._contents.append(content)
        self._arrivals.append(arrival_ns)
        self._thinks.append(-1 if think_ns is None else think_ns)
        self._prompts.append(num_prompt_tokens)
        self._outputs.append(content.num_tokens - num_prompt_tokens)
        if session_id is not None:
            self._session_arrival[session_id] = arrival_ns
        return len(self._arrivals) - 1

    def lengths(self, index: int) -> tuple[int, int]:
        """Prompt and output tokens of a request taken before."""
        return self._prompts[index], self._outputs[index]

    def last_name(self, index: int) -> int:
        """Name of the whole stream of a request taken before: what continues it follows this."""
        content = self._contents[index]
        return int(content.names(np.array([content.num_tokens - 1], dtype=np.int64))[0])

    def path(self, index: int) -> Path:
        """Segments of the whole stream of a request taken before."""
        content = self._contents[index]
        bases, lengths = content.runs(content.num_tokens)
        return Path(bases.tolist(), np.cumsum(lengths).tolist())

    def arrived_before(self, index: int, other: int) -> bool:
        """Whether a request arrives before another."""
        return self._arrivals[index] < self._arrivals[other]

    def replace(self, index: int, content: Segments, num_prompt_tokens: int) -> None:
        """Put another content in the place of a request's."""
        self._contents[index] = content
        self._prompts[index] = num_prompt_tokens
        self._outputs[index] = content.num_tokens - num_prompt_tokens

    def continue_answer(self, index: int, path: Path, num_path_tokens: int) -> bool:
        """Let the answer of an earlier request be what a later prompt shows in its place.

        Says False, and changes nothing, where the later prompt is too short to hold the answer.
        """
        num_tokens = self._prompts[index] + self._outputs[index]
        if num_path_tokens < num_tokens or not self._outputs[index]:
            return False
        bases, ends = cut_path(path.bases, path.ends, num_tokens)
        self._contents[index] = with_tail(bases, ends, num_tokens, self.names)
        self.num_continued += 1
        return True

    # The end.

    def workload(self, name: str, digest: str) -> Workload:
        """Sort, rebase and warn.

        Raises
        ------
        UsageError
            If nothing was taken.
        """
        if not self._arrivals:
            reason = f" ({self.first_skipped})" if self.num_skipped else ""
            raise UsageError(
                f"{self.where}: holds no request{reason}; give a trace in one of the known formats."
            )
        arrivals = np.array(self._arrivals, dtype=np.int64)
        start_ns = int(arrivals.min())
        warnings = [*self.said, *self._warnings(arrivals, start_ns)]
        order = np.argsort(arrivals, kind="stable").tolist()
        ids = self._filled_ids()
        requests = tuple(
            Request(
                request_id=ids[i],
                arrival_ns=self._arrivals[i] - start_ns,
                content=self._contents[i],
                num_prompt_tokens=self._prompts[i],
                num_output_tokens=self._outputs[i],
                session_id=self._sessions[i],
                think_ns=None if self._thinks[i] < 0 else self._thinks[i],
            )
            for i in order
        )
        return Workload(
            name=name,
            requests=requests,
            identity_block_size=self.identity_block_size if self.has_prefix_info else 1,
            has_prefix_info=self.has_prefix_info,
            warnings=tuple(f"{self.where}: {words}." for words in warnings),
            num_skipped=self.num_skipped + self._num_passed_over,
            digest=digest,
        )

    def _filled_ids(self) -> list[str]:
        """Name requests without an id after their row, from "0"."""
        ids = []
        for index, given in enumerate(self._ids):
            name = str(index) if given is None else given
            while given is None and name in self._line_of:
                name = f"row {name}"
            ids.append(name)
        return ids

    def _warnings(self, arrivals: Ints, start_ns: int) -> list[str]:
        said = []
        if self.num_skipped and self.options.mode == "lenient":
            said.append(f"{_rows(self.num_skipped)} skipped, {self.first_skipped}")
        said += [f"{_rows(count)} {odd}" for odd, count in self.counts.items()]
        if self.common_clock:
            if num_late := int((arrivals < np.maximum.accumulate(arrivals)).sum()):
                said.append(f"{_rows(num_late)} out of order, sorted by timestamp")
            if self._num_unstamped and self.options.timed:
                said.append(
                    "no timestamps, so that all requests arrive at once; make arrivals with"
                    " --arrival and --rate"
                )
            if start_ns and not self.dated:
                said.append(
                    f"the earliest timestamp is {start_ns / self.unit_ns:.15g}, which was taken"
                    " as 0"
                )
            said += self._doubts_about_time(arrivals, start_ns)
        return said

    def _doubts_about_time(self, arrivals: Ints, start_ns: int) -> list[str]:
        """Say where a unit of time makes no sense: nobody sends so little or so much."""
        if self.dated:
            return []
        spelt = unit_name(self.unit_ns)
        unit = epoch_unit(start_ns / self.unit_ns) if start_ns else None
        if unit is not None and UNITS_NS[unit] != self.unit_ns:
            return [
                f"timestamps were read as {spelt}, but look like {unit_name(UNITS_NS[unit])} since"
                f" 1970; if they are, give --time-unit {unit}"
            ]
        span_s = int(arrivals.max() - start_ns) / 1e9
        num_gaps = len(arrivals) - 1
        if span_s <= 0:
            return []
        rate = num_gaps / span_s
        if rate < _SLOWEST:
            return [
                f"{len(arrivals)} requests spread over {span_s:g} s, read as {spelt}, come"
                f" {span_s / num_gaps:.6g} s apart, which makes little sense; if the unit is"
                " another, give --time-unit"
            ]
        if rate > (_FASTEST_FRACTIONAL if self._fractional else _FASTEST):
            return [
                f"{len(arrivals)} requests within {span_s:g} s, read as {spelt}, are {rate:.6g} a"
                " second, which makes little sense; if the unit is another, give --time-unit"
            ]
        return []


_SLOWEST = 1 / 600
"""Requests a second of a trace below which its unit of time is doubted."""
_FASTEST, _FASTEST_FRACTIONAL = 500, 100
"""The same for too many, and for time stamps with a fraction, as seconds have."""


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"
