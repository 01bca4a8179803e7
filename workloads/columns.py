"""A workload as plain arrays: quick to send, and to map into memory without reading it all."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.content import Ints
from workloads.requests import Requests, as_requests
from workloads.texts import Texts, column_of
from workloads.workload import Workload

Columns = dict[str, NDArray[np.generic]]
"""Arrays by name. Nothing in them is an object, so that every machine reads them alike."""

_ABOUT = (
    "name", "identity_block_size", "has_prefix_info", "warnings", "notes", "num_skipped", "digest",
)  # fmt: skip
_NONE = -1
"""No session, no time to think."""


def to_columns(workload: Workload) -> Columns:
    """Lay out a workload whose contents are paths of segments, as all that are read or made.

    Returns
    -------
    Columns
        ``about`` is JSON in UTF-8. Of each request: ``arrival_ns``, ``num_prompt_tokens``,
        ``num_output_tokens``, ``think_ns`` (-1: unknown), ``session`` (its number, -1: none). The
        segments of all requests one behind the other in ``bases`` and ``ends``; those of request
        i end at ``segment_stops[i]``. Ids and names of sessions likewise, in UTF-8.
    """
    requests = as_requests(workload.requests)
    counts, bases, ends = requests.paths()
    numbers, sessions = requests.sessions or (np.full(len(requests), _NONE), ())
    about = json.dumps({name: getattr(workload, name) for name in _ABOUT})
    ids = _in_a_row(requests.request_ids if requests.ids is None else requests.ids)
    names = _in_a_row(sessions)
    return {
        "about": _bytes_column(about.encode()),
        "arrival_ns": requests.arrival_ns,
        "num_prompt_tokens": requests.num_prompt_tokens,
        "num_output_tokens": requests.num_output_tokens,
        "think_ns": (
            np.full(len(requests), _NONE) if requests.think_ns is None else requests.think_ns
        ),
        "session": numbers,
        "bases": bases,
        "ends": ends,
        "segment_stops": np.cumsum(counts),
        "request_ids": ids.data,
        "request_id_stops": ids.stops,
        "session_names": names.data,
        "session_name_stops": names.stops,
    }


def from_columns(columns: Columns) -> Workload:
    """Make the workload again; its contents are views of the columns, not copies."""
    about = json.loads(columns["about"].tobytes())

    def numbers(name: str) -> Ints:
        return np.asarray(columns[name], dtype=np.int64)

    stops, think_ns = numbers("segment_stops"), numbers("think_ns")
    counts = np.diff(stops, prepend=0)

    def texts(name: str, stops: str) -> Texts:
        return Texts(np.asarray(columns[name], dtype=np.uint8), numbers(stops))

    names = texts("session_names", "session_name_stops")
    requests = Requests(
        numbers("arrival_ns"),
        numbers("num_prompt_tokens"),
        numbers("num_output_tokens"),
        first_segment=stops - counts,
        num_segments=counts,
        bases=numbers("bases"),
        ends=numbers("ends"),
        ids=texts("request_ids", "request_id_stops"),
        sessions=(numbers("session"), names) if len(names) else None,
        think_ns=think_ns if (think_ns != _NONE).any() else None,
    )
    for name in ("warnings", "notes"):
        about[name] = tuple(about[name])
    return Workload(requests=requests, **about)


def _bytes_column(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _in_a_row(texts: Sequence[str]) -> Texts:
    return texts.in_a_row() if isinstance(texts, Texts) else column_of(texts).texts()
