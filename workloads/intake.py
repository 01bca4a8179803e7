"""What every reader hands its rows to: checks, clocks, sessions; a workload comes out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import UsageError
from sim.mapped import Column, counted, is_sorted, pieces, stable_order
from workloads.batches import Columns, Named
from workloads.clock import Clock, rows
from workloads.content import Ints, Segments
from workloads.fields import MAX_NS, RowError, show, text_or_none, unit_name
from workloads.options import ReadOptions
from workloads.requests import Requests
from workloads.texts import TextColumn, TextNumbers, Texts
from workloads.tree import Names, Paths, PrefixTree
from workloads.workload import Workload

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SCOPE = re.compile(
    r"_(lora|loras|adapter|adapters|salt|salts|multi_?modal|images?_hash(es)?)_|^_mm_|^_extra_?keys?_$"
)
_NO_SCOPE: tuple[object, ...] = (None, "", 0, [], {})


class _ScopeNames(dict[str, bool]):
    """Whether a field goes into an engine's block hash beside the tokens, by its name."""

    def __missing__(self, name: str) -> bool:
        # By whole words, so that an exploration_rate is no LoRA and a result no salt.
        words = _WORD.findall(name.replace("LoRA", "lora").replace("LoRa", "lora"))
        spelt = f"_{'_'.join(words).lower()}_"
        found = self[name] = _SCOPE.search(spelt) is not None
        return found


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
    notes
        Sentences on what was assumed because it was asked for.
    counts
        Rows by what was odd about them, in words that follow "3 rows".
    problems
        Sentences on what cannot be used, when checking.
    identity_block_size
        Tokens per unit of identity, set by readers of formats that have a unit.
    has_prefix_info
        Whether any row said something about its prefix.
    clock
        Of the time stamps.
    has_delays_in_ms
        Whether the format gives delays before turns beside its time stamps, in ms whatever unit
        those are in.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.where = ""
        self.names = Names()
        self.said: list[str] = []
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.num_skipped = 0
        self._num_passed_over = 0
        self.first_skipped = ""
        self.has_prefix_info = False
        self.identity_block_size = 1
        self.clock = Clock(options.time_unit)
        self.has_delays_in_ms = False
        self._scope_names = _ScopeNames()
        # Ids, sessions and think times are kept from the first request on that has one.
        # By the number of an id: the line that has it; by that of a request: the number of its id.
        self._ids, self._line_of, self._id_of = TextNumbers(), Column(), Column()
        # By the number of a session: the arrival of its last turn so far.
        self._names_of_sessions, self._session_arrival = TextNumbers(), Column()
        self._sessions, self._thinks = Column(), Column()
        self._arrivals, self._prompts, self._outputs = Column(), Column(), Column()
        # Where the path of each request begins among the segments of all, and how many it has.
        self._first, self._count = Column(), Column()
        self._bases, self._ends = Column(), Column()
        # The same for paths by the ids of the rows alone, from when another is put in their place.
        self._read_first, self._read_count = Column(), Column()

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def full(self) -> bool:
        """Whether no more requests are wanted."""
        return len(self._arrivals) == self.options.num_requests

    @property
    def num_wanted(self) -> int | None:
        """Requests that are still wanted; None for all there are."""
        wanted = self.options.num_requests
        return None if wanted is None else wanted - len(self._arrivals)

    # What is wrong with a row.

    def mark(self) -> tuple[tuple[object, ...], Counter[str]]:
        """Remember what reading a row may change before all of it is checked, for `undo`."""
        return self.clock.state(), self.counts.copy()

    def undo(self, mark: tuple[tuple[object, ...], Counter[str]]) -> None:
        """Forget a row that turned out bad: it leaves no trace in what is made of the others."""
        state, self.counts = mark
        self.clock.restore(state)

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
                f"{place}: {fault}; {', '.join(fault.next_steps)}, or read what can be read with"
                " --lenient."
            )
        if self.options.mode == "check":
            self.problems.append(f"{place}: {fault}; {' or '.join(fault.next_steps)}.")
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

    def say(self, clause: str) -> None:
        """Add a clause about the source as a whole, once."""
        if clause not in self.said:
            self.said.append(clause)

    # Fields that formats have in common.

    def request_id(self, name: str, value: object) -> str | None:
        """Check that an id was not seen before; None where the row has none."""
        request_id = text_or_none(name, value)
        number = -1 if request_id is None else self._ids.find(request_id)
        if number >= 0:
            raise RowError(
                f"{name} {show(request_id)} is already that of line {self._line_of[number]}"
            )
        return request_id

    def arrival_ns(
        self, name: str, value: object, session_id: str | None = None, think_ns: int | None = None
    ) -> int:
        """Read a time stamp, or make do without where that may be."""
        if value is not None:
            return self.clock.read(name, value)
        if session_id is not None and think_ns is not None:
            number = self._names_of_sessions.find(session_id)
            if number >= 0:
                # A later turn that only says how long after the one before it comes: no earlier.
                return min(self._session_arrival[number] + think_ns, MAX_NS)
        if not self.options.timed:
            return self._arrivals[-1] if self._arrivals else 0
        raise RowError(
            f"{name} is missing, and an arrival cannot be guessed",
            "add it",
            "make arrivals with --arrival poisson and --rate",
        )

    def arrival_or_none_ns(self, name: str, value: object) -> int:
        """Read a time stamp where the format may lack it; either all rows have one or none."""
        return self.arrival_ns(name, value) if self.clock.has_stamp(name, value) else 0

    def scope(self, tree: PrefixTree, *rows: Mapping[str, object]) -> int:
        """Find the root for a row by the keys that keep equal tokens apart."""
        is_scope = self._scope_names
        keys = tuple(
            (name, json.dumps(row[name], sort_keys=True))
            for row in rows
            for name in row
            if is_scope[name] and row[name] not in _NO_SCOPE
        )
        if len(keys) > 1:
            keys = tuple(sorted(keys))
        if keys not in tree.root_of:
            tree.root_of[keys] = tree.root()
        return tree.root_of[keys]

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
        index = len(self._arrivals)
        if request_id is not None:
            _fill(self._id_of, index, -1)
            self._id_of.append(self._ids.add(request_id))
            assert isinstance(line, int)  # where rows have ids, each is a line
            self._line_of.append(line)
        if session_id is not None:
            _fill(self._sessions, index, -1)
            number = self._names_of_sessions.add(session_id)
            self._sessions.append(number)
            _fill(self._session_arrival, number + 1, 0)
            self._session_arrival[number] = arrival_ns
        if think_ns is not None:
            _fill(self._thinks, index, -1)
            self._thinks.append(think_ns)
        self._arrivals.append(arrival_ns)
        self._prompts.append(num_prompt_tokens)
        self._outputs.append(content.num_tokens - num_prompt_tokens)
        self._first.append(len(self._bases))
        self._count.append(len(content.bases))
        self._bases.extend(content.bases)
        self._ends.extend(content.ends)
        return index

    def add_many(self, found: Columns, paths: Paths, names: Named) -> Ints:
        """Take requests, all of whose fields were checked, and return their indices."""
        index = len(self._arrivals)
        self._first.extend(len(self._bases) + np.cumsum(paths.counts) - paths.counts)
        self._count.extend(paths.counts)
        self._bases.extend(paths.bases)
        self._ends.extend(paths.ends)
        self._prompts.extend(found.num_prompt_tokens)
        self._outputs.extend(found.num_output_tokens)
        self._arrivals.extend(found.arrival_ns)
        if names.request_ids is not None:
            which, numbers = _numbered(names.request_ids, self._ids)
            _fill(self._id_of, index, -1)
            self._id_of.extend(numbers)
            self._line_of.extend(names.first_line + which)
        if names.session_ids is not None:
            which, numbers = _numbered(names.session_ids, self._names_of_sessions)
            _fill(self._sessions, index, -1)
            self._sessions.extend(numbers)
            _fill(self._session_arrival, len(self._names_of_sessions), 0)
            self._session_arrival.array[numbers[which]] = found.arrival_ns[which]
        if names.think_ns is not None:
            _fill(self._thinks, index, -1)
            self._thinks.extend(names.think_ns)
        return np.arange(index, len(self._arrivals))

    def are_new(self, request_ids: Sequence[str | None] | None) -> bool:
        """Whether ids of requests differ, and none came before."""
        given = [one for one in request_ids or () if one is not None]
        return len(set(given)) == len(given) and bool((self._ids.find_many(given) < 0).all())

    def lengths(self, index: int) -> tuple[int, int]:
        """Prompt and output tokens of a request taken before."""
        return self._prompts[index], self._outputs[index]

    @property
    def sessions(self) -> Ints:
        """Of each request up to the last that has one, the number of its session; -1 for none."""
        return self._sessions.array

    @property
    def prompts(self) -> Ints:
        """Prompt tokens of each request."""
        return self._prompts.array

    @property
    def arrivals(self) -> Ints:
        """Arrival of each request, ns, as its row says."""
        return self._arrivals.array

    def set_sessions(self, numbers: Ints) -> None:
        """Say which session each request belongs to."""
        for part in pieces(len(numbers)):
            self._sessions.array[part] = numbers[part]

    def find_session(self, name: str) -> int:
        """Give the number of a session, from 0 in the order in which they came; -1 for none."""
        return self._names_of_sessions.find(name)

    def find_sessions(self, names: Sequence[str]) -> Ints:
        """Give the numbers of sessions; see `find_session`."""
        return self._names_of_sessions.find_many(names)

    def segments(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield first name and length of the segments of all requests, some at a time."""
        for part in pieces(len(self), 1 << 14):
            counts = self._count.array[part]
            before = np.cumsum(counts) - counts
            of_request = np.repeat(np.arange(len(counts)), counts)
            where = np.arange(len(of_request)) + (self._first.array[part] - before)[of_request]
            ends = self._ends.array[where]
            lengths = np.diff(ends, prepend=0)
            firsts = before[counts > 0]
            lengths[firsts] = ends[firsts]
            yield self._bases.array[where], lengths

    def path(self, index: int) -> Path:
        """Segments of the whole stream of a request taken before."""
        return Path(*self._content(index).path())

    def _content(self, index: int) -> Segments:
        first = self._first[index]
        stop = first + self._count[index]
        return Segments(self._bases.array[first:stop], self._ends.array[first:stop])

    def replace(self, index: int, content: Segments, num_prompt_tokens: int) -> None:
        """Put another content in the place of a request's."""
        first, count = self._first[index], len(content.bases)
        if count > self._count[index] or index < len(self._read_first):
            # What was there is left behind: few requests are told anew.
            first = self._first[index] = len(self._bases)
            self._bases.extend(content.bases)
            self._ends.extend(content.ends)
        else:
            self._bases.array[first : first + count] = content.bases
            self._ends.array[first : first + count] = content.ends
        self._count[index] = count
        self._prompts[index] = num_prompt_tokens
        self._outputs[index] = content.num_tokens - num_prompt_tokens

    def shared_with_prompts(self, later: Ints, earlier: Ints) -> Ints:
        """Count the tokens that prompts have in common with the streams of earlier requests.

        Shapes ``(n,)``, all of bounded size: a path goes on with the same segments up to a point.
        """
        firsts = self._first.array[later], self._first.array[earlier]
        counts = np.minimum(self._count.array[later], self._count.array[earlier])
        stops = self._prompts.array[later]
        shared = np.zeros(len(later), dtype=np.int64)
        which = np.arange(len(later))
        depth = 0
        while len(which):
            # Those whose segments so far are the same and end alike, which is where `shared` is.
            which = which[(depth < counts[which]) & (shared[which] < stops[which])]
            places = [first[which] + depth for first in firsts]
            is_same = self._bases.array[places[0]] == self._bases.array[places[1]]
            ends, other_ends = (self._ends.array[place] for place in places)
            ends = np.minimum(ends, stops[which])
            goes_on = is_same & (ends == other_ends) & (ends > shared[which])
            shared[which[is_same]] = np.minimum(ends, other_ends)[is_same]
            which = which[goes_on]
            depth += 1
        return shared

    def continue_answers(self, later: Ints, earlier: Ints) -> None:
        """Let the answers of earlier requests be what later prompts show in their place.

        Not where the later prompt is too short to hold the answer. Links are made from the last
        on, so that a stream goes by the names that the one after it has in the end; of two after
        the same one the first has the last word.

        Parameters
        ----------
        later, earlier
            Requests, shape ``(n,)``; one that is later in a link is earlier only in links behind.
        """
        if not len(earlier):
            return
        # A stream comes to be the beginning of the last one that shows it, link by link.
        first = int(min(earlier.min(), later.min()))
        shown_by = counted(len(self) - first)
        shown = shown_by.data  # single numbers are quicker to get this way
        for part in reversed(list(pieces(len(later), 1 << 16))):
            ends = self._prompts.array[earlier[part]] + self._outputs.array[earlier[part]]
            fits = (ends <= self._prompts.array[later[part]]) & (
                self._outputs.array[earlier[part]] > 0
            )
            for one, before in zip(
                (later[part][fits] - first)[::-1].tolist(),
                (earlier[part][fits] - first)[::-1].tolist(),
                strict=True,
            ):
                shown[before] = shown[one]
        if self.identity_block_size > 1:
            self._keep_as_read(len(self))
        for part in pieces(len(shown_by), 1 << 14):
            told = np.flatnonzero(shown_by[part] != np.arange(part.start, part.stop)) + part.start
            if len(told):
                self._begin_like(told + first, shown_by[told] + first)

    def _begin_like(self, some: Ints, others: Ints) -> None:
        """Let the streams of some requests be the first tokens of those of others."""
        counts = self._count.array[others]
        before = np.cumsum(counts) - counts
        of_request = np.repeat(np.arange(len(counts)), counts)
        where = np.arange(len(of_request)) + (self._first.array[others] - before)[of_request]
        bases, ends = self._bases.array[where], self._ends.array[where]
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        starts[before] = 0
        stops = (self._prompts.array[some] + self._outputs.array[some])[of_request]
        inside = starts < stops
        counts = np.bincount(of_request[inside], minlength=len(some))
        # What was there is left behind.
        self._first.array[some] = len(self._bases) + np.cumsum(counts) - counts
        self._count.array[some] = counts
        self._bases.extend(bases[inside])
        self._ends.extend(np.minimum(ends, stops)[inside])

    def _keep_as_read(self, size: int) -> None:
        """Remember the paths of the first requests, as far as that was not done yet."""
        part = slice(len(self._read_first), size)
        self._read_first.extend(self._first.array[part])
        self._read_count.extend(self._count.array[part])

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
        arrivals = self._arrivals.array
        start_ns = int(arrivals.min())
        warnings = [
            *self.said,
            *self._warnings(),
            *self.clock.warnings(arrivals, timed=self.options.timed),
        ]
        in_order = is_sorted(arrivals)
        arrivals -= start_ns
        requests = self._requests(arrivals)
        if not in_order:
            requests = requests.take(stable_order(arrivals))
        return Workload(
            name=name,
            requests=requests,
            identity_block_size=self.identity_block_size if self.has_prefix_info else 1,
            has_prefix_info=self.has_prefix_info,
            warnings=tuple(f"{self.where}: {words}." for words in warnings),
            notes=tuple(self.notes),
            num_skipped=self.num_skipped + self._num_passed_over,
            digest=digest,
        )

    def _requests(self, arrivals_ns: Ints) -> Requests:
        """Lay out what was taken, in the order of the source."""
        for column in (self._sessions, self._thinks, self._id_of):
            if len(column):
                _fill(column, len(self), -1)
        if len(self._read_first):
            self._keep_as_read(len(self))
        return Requests(
            arrivals_ns,
            self._prompts.array,
            self._outputs.array,
            self._first.array,
            self._count.array,
            self._bases.array,
            self._ends.array,
            ids=self._filled_ids() if len(self._ids) else None,
            sessions=(
                (self._sessions.array, self._names_of_sessions.texts())
                if len(self._sessions)
                else None
            ),
            think_ns=self._thinks.array if len(self._thinks) else None,
            as_read=(
                (self._read_first.array, self._read_count.array) if len(self._read_first) else None
            ),
        )

    def _filled_ids(self) -> Texts:
        """Name requests without an id after their row, from "0"."""
        given = self._ids.texts()
        if len(given) == len(self):
            return given
        filled = TextColumn()
        for part in pieces(len(self), 1 << 12):
            numbers = self._id_of.array[part].tolist()
            filled.extend(
                given[number] if number >= 0 else self._own_id(index)
                for index, number in enumerate(numbers, part.start)
            )
        return filled.texts()

    def _own_id(self, index: int) -> str:
        name = str(index)
        while self._ids.find(name) >= 0:
            name = f"row {name}"
        return name

    def _warnings(self) -> list[str]:
        said = []
        if self.num_skipped and self.options.mode == "lenient":
            said.append(f"{rows(self.num_skipped)} skipped, {self.first_skipped}")
        said += [f"{rows(count)} {odd}" for odd, count in self.counts.items()]
        unit = unit_name(self.clock.unit_ns)
        if self.has_delays_in_ms and len(self._thinks) and unit != "milliseconds":
            said.append(f"delays before turns were read as milliseconds, timestamps as {unit}")
        return said


def _numbered(texts: Sequence[str | None], numbers: TextNumbers) -> tuple[Ints, Ints]:
    """Find the rows that have a text, and the number of that of each row; -1 for none."""
    given = [text for text in texts if text is not None]
    which = np.array([index for index, text in enumerate(texts) if text is not None], np.int64)
    found = np.full(len(texts), -1, dtype=np.int64)
    found[which] = numbers.add_many(given)
    return which, found


def _fill(column: Column, size: int, value: int) -> None:
    """Let a column that began late catch up."""
    if len(column) < size:
        column.extend(np.full(size - len(column), value, dtype=np.int64))
