"""Reader of Mooncake traces: JSON lines whose hash ids name prefixes block by block.

Format: kvcache-ai/Mooncake, FAST25-release/traces, as newer tools extend it. Fields: ``timestamp``
(ms), ``input_length`` and ``output_length`` (tokens), ``hash_ids`` (one per ``trace_block_size``
tokens of the prompt, the last possibly partial), and optionally ``request_id``, ``session_id`` and
``delay`` (ms between the end of the turn before and this one). Other fields are ignored.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from sim.errors import UsageError
from sim.types import Content, Request
from workloads.content import UniformSegments
from workloads.fields import MAX_NS, MAX_TOKENS, RowError, num_tokens, show, text, time_ns
from workloads.lines import read_rows
from workloads.within_blocks import FinerNames, content_of
from workloads.workload import Workload

_ROOT = -1


@dataclass(slots=True)
class _Row:
    line: int
    request_id: str
    session_id: str | None
    arrival_ns: int
    think_ns: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    segments: list[int]


@dataclass(slots=True)
class _Reader:
    """What has to be remembered from row to row."""

    trace_block_size: int
    lenient: bool
    timed: bool
    segment_of: dict[tuple[int, int | str], int] = field(default_factory=dict)
    line_of: dict[str, int] = field(default_factory=dict)
    last_arrival_ns: int = 0
    session_arrival_ns: dict[str, int] = field(default_factory=dict)
    unit_ns: int = 10**6
    num_rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def read(self, line: int, value: object) -> _Row:
        """Check a row and intern its ids; changes nothing that lasts before all is checked."""
        index = self.num_rows
        self.num_rows += 1
        if isinstance(value, RowError):
            raise value
        if not isinstance(value, dict):
            raise RowError(f"{show(value)} is not a JSON object with the fields of a request")
        if index == 0 and "parent_chat_id" in value:
            self.unit_ns = 10**9

        request_id = text("request_id", _get(value, "request_id", str(index)))
        if request_id in self.line_of:
            raise RowError(
                f"request_id {show(request_id)} is already that of line {self.line_of[request_id]}"
            )
        session_id = value.get("session_id")
        if session_id is not None:
            session_id = text("session_id", session_id)
        delay = value.get("delay")
        think_ns = None if delay is None else time_ns("delay", delay, 10**6)
        arrival_ns = self._arrival_ns(value, session_id, think_ns)
        num_prompt_tokens = num_tokens("input_length", _need(value, "input_length"), 1)
        num_output_tokens = num_tokens("output_length", _get(value, "output_length", 1), 0)
        hash_ids = self._hash_ids(value, num_prompt_tokens)

        self.counts["no output_length"] += value.get("output_length") is None
        self.line_of[request_id] = line
        self.last_arrival_ns = arrival_ns
        if session_id is not None:
            self.session_arrival_ns[session_id] = arrival_ns
        return _Row(
            line,
            request_id,
            session_id,
            arrival_ns,
            think_ns,
            num_prompt_tokens,
            num_output_tokens,
            self._intern(hash_ids),
        )

    def _arrival_ns(
        self, value: dict[str, object], session_id: str | None, think_ns: int | None
    ) -> int:
        if value.get("timestamp") is not None:
            return time_ns("timestamp", value["timestamp"], self.unit_ns)
        if session_id in self.session_arrival_ns and think_ns is not None:
            # A later turn that only says how long after the one before it comes: no earlier.
            return min(self.session_arrival_ns[session_id] + think_ns, MAX_NS)
        if not self.timed:
            return self.last_arrival_ns
        raise RowError(
            "timestamp is missing, and an arrival cannot be guessed",
            "add it, make arrivals with --arrival poisson and --rate",
        )

    def _hash_ids(self, value: dict[str, object], num_prompt_tokens: int) -> list[int | str]:
        hash_ids = value.get("hash_ids")
        if hash_ids is None:
            self.counts["no hash_ids"] += 1
            return []
        if not isinstance(hash_ids, list):
            raise RowError(f"hash_ids is {show(hash_ids)}, which is not a list of ids")
        for hash_id in hash_ids:
            if type(hash_id) is int and hash_id >= 0:  # `type`, since True is an int too
                continue
            if type(hash_id) is not str:
                raise RowError(
                    f"hash_ids holds {show(hash_id)}, which is neither text nor a whole number"
                    " of at least 0"
                )
        num_blocks = -(-num_prompt_tokens // self.trace_block_size)
        if len(hash_ids) != num_blocks:
            if not self.lenient:
                raise RowError(
                    f"hash_ids has {len(hash_ids)} ids, but input_length {num_prompt_tokens} needs"
                    f" {num_blocks} at a trace block size of {self.trace_block_size} tokens",
                    "give the trace's own size with --trace-block-size, correct the line",
                )
            self.counts["wrong number of ids"] += 1
        return hash_ids[:num_blocks]

    def _intern(self, hash_ids: list[int | str]) -> list[int]:
        segments = []
        segment_of = self.segment_of
        segment = _ROOT
        for hash_id in hash_ids:
            segment = segment_of.setdefault((segment, hash_id), len(segment_of))
            segments.append(segment)
        return segments


def read_mooncake(
    path: str | PathLike[str],
    *,
    num_requests: int | None = None,
    trace_block_size: int = 512,
    lenient: bool = False,
    timed: bool = True,
    partial_blocks: str = "own",
    system_prompt: int = 0,
) -> Workload:
    """Read a Mooncake trace.

    The prefix rule is exact: an id is told apart by the whole prefix before it, so ids need not be
    chained hashes, and may be of any width or text. The prompt is the ids' tokens cut to
    ``input_length``; generated tokens are each request's own. Arrivals are counted from the
    earliest. Rows with ``parent_chat_id`` are Bailian's, whose timestamps are seconds.

    Parameters
    ----------
    path
        JSON lines or one JSON array, plain or in gzip.
    num_requests
        Read only the first so many rows; the rest of the file is not even looked at.
    trace_block_size
        Tokens that an id of the trace stands for.
    lenient
        Skip and count rows that cannot be used, and let ``input_length`` win where the number of
        ids does not fit it: ids too many are dropped, tokens without an id are the request's own.
        Otherwise both are errors.
    timed
        Whether a row must say when it arrives. If not, rows without a timestamp arrive
        with the row before them.
    partial_blocks, system_prompt
        ``shared``, and tokens that all prompts begin with: sharing that ids hide, see
        `workloads.within_blocks.FinerNames`. Plainly read, hit rates are a lower bound.

    Returns
    -------
    Workload
        A row without ``output_length`` generates 1 token, one without ``hash_ids`` shares
        nothing; both are counted in ``warnings``. Request ids default to the number of the row,
        from "0".

    Raises
    ------
    UsageError
        If the file or a row cannot be used.
    """
    path = Path(path)
    if not 1 <= trace_block_size <= MAX_TOKENS:
        raise UsageError(
            f"--trace-block-size is {trace_block_size}, but a block has from 1 to {MAX_TOKENS}"
            " tokens; give the number of tokens that an id of the trace stands for."
        )
    if num_requests is not None and num_requests < 1:
        raise UsageError(
            f"--num-requests is {num_requests}, but at least 1 request is needed; leave it out to"
            " read all."
        )
    reader = _Reader(trace_block_size, lenient, timed)
    rows: list[_Row] = []
    skipped: list[tuple[int, RowError]] = []
    said: list[str] = []
    with closing(read_rows(path, said)) as lines:
        for line, value in lines:
            try:
                rows.append(reader.read(line, value))
            except RowError as bad:
                if not lenient:
                    raise UsageError(
                        f"{path}:{line}: {bad}; {bad.next_step}, or read what can be read with"
                        " --lenient."
                    ) from None
                skipped.append((line, bad))
            if len(rows) == num_requests:
                break
    if not rows:
        where, reason = (f":{skipped[0][0]}", f" ({skipped[0][1]})") if skipped else ("", "")
        raise UsageError(
            f"{path}{where}: holds no request{reason}; give a trace of one JSON object per line."
        )
    notes: tuple[str, ...] = ()
    if partial_blocks == "shared" or system_prompt:
        finer = FinerNames(
            trace_block_size, len(reader.segment_of), partial_blocks == "shared", system_prompt
        )
        requests = _requests_sharing_within_blocks(rows, finer)
        notes = (f"{path}: assumed, not read: {finer.says()}.",)
    else:
        requests = _requests(rows, len(reader.segment_of), trace_block_size)
    return Workload(
        name=path.name.split(".")[0] or path.name,
        requests=requests,
        identity_block_size=1 if notes else trace_block_size,
        has_prefix_info=any(row.segments for row in rows),
        warnings=tuple(f"{path}: {words}." for words in said + _warnings(reader, rows, skipped)),
        notes=notes,
        num_skipped=len(skipped),
    )


def _requests_sharing_within_blocks(rows: list[_Row], finer: FinerNames) -> tuple[Request, ...]:
    start_ns = min(row.arrival_ns for row in rows)
    tail_base = finer.num_names
    requests = []
    for row in sorted(rows, key=lambda row: row.arrival_ns):
        runs = finer.add(row.segments, row.num_prompt_tokens)
        num_all_tokens = row.num_prompt_tokens + row.num_output_tokens
        num_tail_tokens = num_all_tokens - sum(length for _, length in runs)
        content = content_of(runs, tail_base, num_tail_tokens)
        requests.append(_request(row, start_ns, content))
        tail_base += num_tail_tokens
    return tuple(requests)


def _requests(rows: list[_Row], num_segments: int, trace_block_size: int) -> tuple[Request, ...]:
    start_ns = min(row.arrival_ns for row in rows)
    bases = np.array([s for row in rows for s in row.segments], dtype=np.int64) * trace_block_size
    # Each request's own tokens are named from here on, after all those that have an id.
    tail_base = num_segments * trace_block_size
    requests = []
    first = 0
    for row in rows:
        last = first + len(row.segments)
        num_all_tokens = row.num_prompt_tokens + row.num_output_tokens
        num_head_tokens = min(len(row.segments) * trace_block_size, row.num_prompt_tokens)
        content = UniformSegments(
            bases[first:last], trace_block_size, num_head_tokens, tail_base, num_all_tokens
        )
        requests.append(_request(row, start_ns, content))
        tail_base += num_all_tokens - num_head_tokens
        first = last
    requests.sort(key=lambda request: request.arrival_ns)
    return tuple(requests)


def _request(row: _Row, start_ns: int, content: Content) -> Request:
    return Request(
        request_id=row.request_id,
        arrival_ns=row.arrival_ns - start_ns,
        content=content,
        num_prompt_tokens=row.num_prompt_tokens,
        num_output_tokens=row.num_output_tokens,
        session_id=row.session_id,
        think_ns=row.think_ns,
    )


def _warnings(reader: _Reader, rows: list[_Row], skipped: list[tuple[int, RowError]]) -> list[str]:
    said = []
    counts = reader.counts
    if reader.unit_ns == 10**9:
        said.append("rows have parent_chat_id, as in Bailian traces, so timestamps are seconds")
    if skipped:
        line, bad = skipped[0]
        said.append(f"{_rows(len(skipped))} skipped, the first in line {line}: {bad}")
    if counts["wrong number of ids"]:
        said.append(
            f"{_rows(counts['wrong number of ids'])} with a number of hash_ids that does not fit"
            " input_length, which was followed"
        )
    if counts["no output_length"]:
        said.append(f"{_rows(counts['no output_length'])} without output_length, taken as 1 token")
    if counts["no hash_ids"]:
        said.append(f"{_rows(counts['no hash_ids'])} without hash_ids, taken to share no prefix")
    if num_ids := _ids_after_several_prefixes(reader):
        said.append(
            f"ids that follow more than one prefix: {num_ids}; each is a different block after each"
        )
    arrivals = np.array([row.arrival_ns for row in rows], dtype=np.int64)
    if num_late := int((arrivals < np.maximum.accumulate(arrivals)).sum()):
        said.append(f"{_rows(num_late)} out of order, sorted by timestamp")
    if start_ns := int(arrivals.min()):
        said.append(
            f"the earliest timestamp is {start_ns / reader.unit_ns:.15g}, which was taken as 0"
        )
    return said


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _ids_after_several_prefixes(reader: _Reader) -> int:
    times = Counter(hash_id for _, hash_id in reader.segment_of)
    return sum(count > 1 for count in times.values()) if len(times) < len(reader.segment_of) else 0


def _get(value: dict[str, object], name: str, default: object) -> object:
    """Read an optional field; null counts as left out."""
    found = value.get(name)
    return default if found is None else found


def _need(value: dict[str, object], name: str) -> object:
    found = value.get(name)
    if found is None:
        raise RowError(f"{name} is missing")
    return found
