"""A workload as plain arrays: quick to send, and to map into memory without reading it all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
_NEEDED = (
    "arrival_ns", "num_prompt_tokens", "num_output_tokens", "first_segment", "num_segments",
    "bases", "ends",
)  # fmt: skip
_OPTIONAL = ("numbers", "think_ns")


def to_columns(workload: Workload) -> Columns:
    """Lay out a workload whose contents are paths of segments, as all that are read or made.

    Returns
    -------
    Columns
        ``about`` is JSON in UTF-8. The rest are attributes of `Requests` by their names, as far as
        it has them; of texts the bytes in UTF-8, one behind the other, and where each ends, as in
        ``ids`` and ``ids_stops``, ``session_names`` and ``session_names_stops``.
    """
    requests = as_requests(workload.requests)
    about = json.dumps({name: getattr(workload, name) for name in _ABOUT})
    columns: Columns = {"about": np.frombuffer(about.encode(), dtype=np.uint8)}
    for name in (*_NEEDED, *_OPTIONAL):
        column = getattr(requests, name)
        if column is not None:
            columns[name] = column
    if requests.ids is not None:
        columns |= _of_texts("ids", requests.ids)
    if requests.sessions is not None:
        columns["sessions"] = requests.sessions[0]
        columns |= _of_texts("session_names", requests.sessions[1])
    return columns


def from_columns(columns: Columns) -> Workload:
    """Make the workload again; its contents are views of the columns, not copies."""
    about = json.loads(columns["about"].tobytes())

    def numbers(name: str) -> Ints:
        return np.asarray(columns[name], dtype=np.int64)

    def texts(name: str) -> Texts:
        return Texts(np.asarray(columns[name], dtype=np.uint8), numbers(f"{name}_stops"))

    there: dict[str, Any] = {
        name: numbers(name) for name in (*_NEEDED, *_OPTIONAL) if name in columns
    }
    requests = Requests(
        **there,
        ids=texts("ids") if "ids" in columns else None,
        sessions=((numbers("sessions"), texts("session_names")) if "sessions" in columns else None),
    )
    for name in ("warnings", "notes"):
        about[name] = tuple(about[name])
    return Workload(requests=requests, **about)


def _of_texts(name: str, texts: Sequence[str]) -> Columns:
    in_a_row = texts.in_a_row() if isinstance(texts, Texts) else column_of(texts).texts()
    return {name: in_a_row.data, f"{name}_stops": in_a_row.stops}
