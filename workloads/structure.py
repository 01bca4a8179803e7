"""What is shared with whom, how long after, and what the tree of prefixes looks like."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.types import Request
from workloads.content import Ints, path, prefix_names
from workloads.requests import Requests
from workloads.runs import distinct
from workloads.segment_rows import branching, names_at

_WORTH_COMPILED_CODE = 50_000
"""Requests from which on loading compiled code saves more time than it takes."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Per request, in order of arrival; arrays of shape ``(n,)``.

    Attributes
    ----------
    shared
        Leading prompt tokens that an earlier request had, in its prompt or its answer.
    common
        Those of them that an earlier request of another session had, such as a system prompt.
    is_repeat
        Whether an earlier prompt began with all of this one.
    gap_ns
        Time since the longest shared prefix was last part of a request; -1 where nothing is shared.
    gap_tokens
        Prompt tokens that came in between, an upper bound of what a cache has to hold to keep it.
    """

    shared: Ints
    common: Ints
    is_repeat: np.ndarray[tuple[int], np.dtype[np.bool_]]
    gap_ns: Ints
    gap_tokens: Ints


@dataclass(slots=True)
class _Use:
    """What was seen of a segment: most tokens, by two different sessions; when last."""

    owner: object
    num_tokens: int
    other: object = None
    num_other_tokens: int = 0
    num_in_prompts: int = 0
    # Uses that nothing later covers: tokens of the segment, fewer the later, and when.
    latest: list[tuple[int, int, int]] = field(default_factory=list)

    def use(self, num_tokens: int, now_ns: int, num_before: int) -> None:
        """Note that its first ``num_tokens`` are in a request."""
        while self.latest and self.latest[-1][0] <= num_tokens:
            self.latest.pop()
        self.latest.append((num_tokens, now_ns, num_before))

    def last_use(self, num_tokens: int) -> tuple[int, int]:
        """Tell when the first ``num_tokens`` were last in a request."""
        return next(use[1:] for use in reversed(self.latest) if use[0] >= num_tokens)

    def note(self, owner: object, num_tokens: int) -> None:
        """Keep the two sessions that had most of it."""
        if owner == self.owner:
            self.num_tokens = max(self.num_tokens, num_tokens)
        elif num_tokens > self.num_tokens:
            self.other, self.num_other_tokens = self.owner, self.num_tokens
            self.owner, self.num_tokens = owner, num_tokens
        elif num_tokens > self.num_other_tokens:
            self.other, self.num_other_tokens = owner, num_tokens

    def num_by_others(self, owner: object) -> int:
        """Count the tokens that a session other than ``owner`` had."""
        return self.num_other_tokens if owner == self.owner else self.num_tokens


def sharing(requests: Sequence[Request]) -> Sharing:
    """Find what each prompt shares with earlier requests, each done before the next begins.

    Requests without a session are each a session of their own.
    """
    if isinstance(requests, Requests) and len(requests) >= _WORTH_COMPILED_CODE:
        from workloads.compiled_sharing import find_sharing  # noqa: PLC0415 - slow to import

        return Sharing(*find_sharing(requests))
    count = len(requests)
    shared, common = np.zeros(count, np.int64), np.zeros(count, np.int64)
    is_repeat = np.zeros(count, np.bool_)
    gap_ns, gap_tokens = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    uses: dict[int, _Use] = {}
    num_before = 0
    for index, request in enumerate(requests):
        num_prompt_tokens = request.num_prompt_tokens
        owner: object = request.session_id if request.session_id is not None else index
        bases, ends = path(request.content, request.num_kv_tokens)
        num_in_prompt = bisect_left(ends, num_prompt_tokens) + 1
        num_had = bisect_left(bases[:num_in_prompt], True, key=lambda base: base not in uses)
        if num_had:
            last = uses[bases[num_had - 1]]
            start = ends[num_had - 2] if num_had > 1 else 0
            had = start + min(ends[num_had - 1] - start, last.num_tokens)
            shared[index] = min(had, num_prompt_tokens)
            last_ns, last_tokens = last.last_use(int(shared[index]) - start)
            gap_ns[index] = request.arrival_ns - last_ns
            gap_tokens[index] = num_before - last_tokens
            had = _had_by_others(bases[:num_had], ends, uses, owner)
            common[index] = min(had, num_prompt_tokens)
        is_repeat[index] = _is_repeat(bases, ends, num_prompt_tokens, uses)
        num_before += num_prompt_tokens
        start = 0
        for base, end in zip(bases, ends, strict=True):
            length = end - start
            use = uses.get(base)
            if use is None:
                use = uses[base] = _Use(owner, length)
            else:
                use.note(owner, length)
            use.num_in_prompts = max(use.num_in_prompts, min(length, num_prompt_tokens - start))
            use.use(length, request.arrival_ns, num_before)
            start = end
    return Sharing(shared, common, is_repeat, gap_ns, gap_tokens)


def _had_by_others(bases: list[int], ends: list[int], uses: dict[int, _Use], owner: object) -> int:
    # Others who had a segment had those before it.
    count = bisect_left(bases, True, key=lambda base: not uses[base].num_by_others(owner))
    if not count:
        return 0
    start = ends[count - 2] if count > 1 else 0
    return start + min(ends[count - 1] - start, uses[bases[count - 1]].num_by_others(owner))


def _is_repeat(
    bases: list[int], ends: list[int], num_prompt_tokens: int, uses: dict[int, _Use]
) -> bool:
    last = bisect_left(ends, num_prompt_tokens)
    start = ends[last - 1] if last else 0
    use = uses.get(bases[last])
    return use is not None and use.num_in_prompts >= num_prompt_tokens - start


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Branching points of the tree of prompts: prefixes that go on in more than one way.

    Attributes
    ----------
    fan_out
        Ways on from each, shape ``(number of branching points,)``.
    depth
        Branching points on the way of each prompt, shape ``(n,)``.
    """

    fan_out: Ints
    depth: Ints


def tree_shape(requests: Sequence[Request]) -> TreeShape:
    """Find the branching points of the prompts' tree."""
    if isinstance(requests, Requests) and len(requests):
        return TreeShape(*branching(requests))
    root = -1
    ways: dict[int, int] = {}  # by the name of a prefix, segments that begin after it
    longest: dict[int, int] = {}
    for request in requests:
        name, start = root, 0
        for base, end in zip(*path(request.content, request.num_prompt_tokens), strict=True):
            if base not in longest:  # a segment begins after one prefix only
                ways[name] = ways.get(name, 0) + 1
            longest[base] = max(end - start, longest.get(base, 0))
            name, start = base + end - start - 1, end
    # A prefix that is left inside a segment also goes on in that segment, if any prompt does.
    bases = sorted(longest)
    fan_out = {}
    for name, count in ways.items():
        position = bisect_left(bases, name + 1) - 1
        inside = bases[position] if position >= 0 and name != root else None
        goes_on = inside is not None and name < inside + longest[inside] - 1
        if count + goes_on > 1:
            fan_out[name] = count + goes_on
    points = sorted(name for name in fan_out if name != root)
    depth = np.zeros(len(requests), np.int64)
    for index, request in enumerate(requests):
        start, num_points = 0, int(root in fan_out)
        for base, end in zip(*path(request.content, request.num_prompt_tokens), strict=True):
            # Branching points inside what the path has of the segment, its own end included.
            num_points += bisect_left(points, base + end - start) - bisect_left(points, base)
            start = end
        depth[index] = num_points
    return TreeShape(np.array(list(fan_out.values()), np.int64), depth)


def popularity(requests: Sequence[Request], num_tokens: int) -> Ints:
    """Count prompts by their first ``num_tokens`` tokens, most popular first; shorter ones not."""
    if isinstance(requests, Requests) and len(requests):
        counts = distinct(names_at(requests, num_tokens - 1))[1]
        counts.sort()
        return counts[::-1]
    position = np.array([num_tokens - 1], np.int64)
    firsts = Counter(
        int(prefix_names(request.content, position)[0])
        for request in requests
        if request.num_prompt_tokens >= num_tokens
    )
    return np.array(sorted(firsts.values(), reverse=True), np.int64)
