"""A workload as plain arrays: quick to send, and to map into memory without reading it all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.types import Request
from workloads.content import Segments
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
    requests = workload.requests
    contents = [request.content for request in requests]
    assert all(isinstance(content, Segments) for content in contents)
    paths = [content.arrays() for content in contents if isinstance(content, Segments)]
    sessions = list(dict.fromkeys(r.session_id for r in requests if r.session_id is not None))
    number_of: dict[str | None, int] = {name: number for number, name in enumerate(sessions)}
    about = json.dumps({name: getattr(workload, name) for name in _ABOUT})
    ids, id_stops = _text_columns([request.request_id for request in requests])
    names, name_stops = _text_columns(sessions)
    no_segment = np.zeros(0, dtype=np.int64)
    return {
        "about": _bytes_column(about.encode()),
        "arrival_ns": _whole([r.arrival_ns for r in requests]),
        "num_prompt_tokens": _whole([r.num_prompt_tokens for r in requests]),
        "num_output_tokens": _whole([r.num_output_tokens for r in requests]),
        "think_ns": _whole([_NONE if r.think_ns is None else r.think_ns for r in requests]),
        "session": _whole([number_of.get(r.session_id, _NONE) for r in requests]),
        "bases": np.concatenate([no_segment, *(bases for bases, _ in paths)]),
        "ends": np.concatenate([no_segment, *(ends for _, ends in paths)]),
        "segment_stops": np.cumsum(_whole([len(bases) for bases, _ in paths])),
        "request_ids": ids,
        "request_id_stops": id_stops,
        "session_names": names,
        "session_name_stops": name_stops,
    }


def from_columns(columns: Columns) -> Workload:
    """Make the workload again; its contents are views of the columns, not copies."""
    about = json.loads(columns["about"].tobytes())
    sessions: list[str | None] = [*_texts(columns["session_names"], columns["session_name_stops"])]
    sessions.append(None)  # stands at -1
    bases = np.asarray(columns["bases"], dtype=np.int64)
    ends = np.asarray(columns["ends"], dtype=np.int64)
    requests = []
    start = 0
    for request_id, arrival_ns, num_prompt, num_output, think_ns, session, stop in zip(
        _texts(columns["request_ids"], columns["request_id_stops"]),
        columns["arrival_ns"].tolist(),
        columns["num_prompt_tokens"].tolist(),
        columns["num_output_tokens"].tolist(),
        columns["think_ns"].tolist(),
        columns["session"].tolist(),
        columns["segment_stops"].tolist(),
        strict=True,
    ):
        requests.append(
            Request(
                request_id=request_id,
                arrival_ns=arrival_ns,
                content=Segments(bases[start:stop], ends[start:stop]),
                num_prompt_tokens=num_prompt,
                num_output_tokens=num_output,
                session_id=sessions[session],
                think_ns=None if think_ns == _NONE else think_ns,
            )
        )
        start = stop
    for name in ("warnings", "notes"):
        about[name] = tuple(about[name])
    return Workload(requests=tuple(requests), **about)


def _whole(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _bytes_column(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _text_columns(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # A trace may hold lone surrogates, which UTF-8 has no room for.
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return _bytes_column(b"".join(parts)), np.cumsum(_whole([len(part) for part in parts]))


def _texts(data: NDArray[np.generic], stops: NDArray[np.generic]) -> list[str]:
    whole = data.tobytes()
    bounds = [0, *stops.tolist()]
    return [whole[start:stop].decode("utf-8", "surrogatepass") for start, stop in pairwise(bounds)]
