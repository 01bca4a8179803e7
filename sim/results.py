"""Tables of a run: requests, steps, and the summary row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.columns import Table, columns_of
from sim.mapped import pieces, zeros
from sim.recorder import UNKNOWN, Recorded

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.int64]

AT_ONCE = 1 << 16
"""Rows of a table that are laid out at a time."""

_SUMMED = (
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_host_tokens",
    "num_ssd_tokens",
    "num_recomputed_tokens",
)
_TIMES = ("queue_ms", "ttft_ms", "tpot_ms", "e2e_s")


def make_frame(table: Table, data: dict[str, Any] | list[dict[str, Any]]) -> pd.DataFrame:
    """Build a frame with exactly the columns and dtypes that `COLUMNS` names."""
    import pandas as pd  # noqa: PLC0415 - takes half a second, and a summary needs no frame

    columns = columns_of(table)
    frame = pd.DataFrame(data, columns=[column.name for column in columns])
    return frame.astype({column.name: column.dtype for column in columns})


def request_table(recorder: Recorded, run_id: str, part: slice = slice(None)) -> pd.DataFrame:
    """Lay out one row per request, in order of arrival; of some requests only, if asked to."""
    return make_frame("requests", {"run_id": run_id, **request_data(recorder, part)})


def request_data(recorder: Recorded, part: slice) -> dict[str, Any]:
    """Compute the columns of the request table, all but the run's id, for some requests."""
    columns = recorder.request_columns(part)
    arrival, first_token = columns.arrival_ns, columns.first_token_ns
    num_output_tokens = columns.num_output_tokens
    later_tokens = np.where(num_output_tokens > 1, num_output_tokens - 1, np.nan)
    return {
        "request_id": columns.request_id,
        "status": ["rejected" if reason else "finished" for reason in columns.rejection],
        "rejection": columns.rejection,
        "num_prompt_tokens": columns.num_prompt_tokens,
        "num_output_tokens": num_output_tokens,
        "num_cached_tokens": columns.num_cached_tokens,
        "num_host_tokens": columns.num_host_tokens,
        "num_ssd_tokens": columns.num_ssd_tokens,
        "num_recomputed_tokens": columns.num_recomputed_tokens,
        "load_ms": columns.load_ns / 1e6,
        "num_preemptions": columns.num_preemptions,
        "arrival_s": arrival / 1e9,
        "admitted_s": _seconds(columns.admitted_ns),
        "first_token_s": _seconds(first_token),
        "finished_s": _seconds(columns.finished_ns),
        "queue_ms": _elapsed(arrival, columns.admitted_ns) / 1e6,
        "ttft_ms": _elapsed(arrival, first_token) / 1e6,
        "tpot_ms": _elapsed(first_token, columns.finished_ns) / later_tokens / 1e6,
        "e2e_s": _elapsed(arrival, columns.finished_ns) / 1e9,
    }


def step_table(recorder: Recorded, run_id: str, part: slice = slice(None)) -> pd.DataFrame:
    """Lay out one row per step, empty where steps were not kept; of some steps, if asked to."""
    data = step_data(recorder, part)
    return make_frame("steps", {"run_id": [run_id] * len(data["start_s"]), **data})


def step_data(recorder: Recorded, part: slice) -> dict[str, Any]:
    """Compute the columns of the table of steps, all but the run's id, for some steps."""
    columns = recorder.step_columns(part)
    start, duration = columns.pop("start_ns"), columns.pop("duration_ns")
    return {"start_s": start / 1e9, "duration_ms": duration / 1e6, **columns}


def summarize(recorder: Recorded, block_size: int, *, has_prefix_info: bool) -> dict[str, Any]:
    """Measure a run by the field's usual numbers; rejected requests count for none of them.

    Without prefix information in the workload every hit rate is not available, which is not zero.
    """
    sums: Counter[str] = Counter()
    times = {name: _Times(recorder.num_requests) for name in _TIMES}
    for part in pieces(recorder.num_requests, AT_ONCE):
        finished = _finished(request_data(recorder, part))
        sums.update(_sums_of(finished, block_size))
        for name, values in times.items():
            values.add(finished[name])
    num_finished, output = int(sums["num_finished"]), int(sums["num_output_tokens"])
    prompt, cached = sums["num_prompt_tokens"], sums["num_cached_tokens"]
    host, ssd = sums["num_host_tokens"], sums["num_ssd_tokens"]
    makespan_s = recorder.end_ns / 1e9
    row: dict[str, Any] = {
        "num_requests": recorder.num_requests,
        "num_finished": num_finished,
        "num_rejected": recorder.num_requests - num_finished,
        "num_preemptions": recorder.num_preemptions,
        "num_steps": recorder.num_steps,
        "num_prompt_tokens": int(prompt),
        "num_output_tokens": output,
        "num_cached_tokens": int(cached),
        "hit_rate": _ratio(cached, prompt),
        "device_hit_rate": _ratio(cached - host - ssd, prompt),
        "host_hit_rate": _ratio(host, prompt),
        "ssd_hit_rate": _ratio(ssd, prompt),
        # Of a prompt that is hit whole, a policy may compute one token: its block is hit still.
        "block_hit_rate": _ratio(sums["num_hit_blocks"], sums["num_prompt_blocks"]),
        "mean_request_hit_rate": _ratio(sums["hit_rates"], num_finished),
        "share_requests_hit": _ratio(sums["num_hit_requests"], num_finished),
        "last_half_hit_rate": _hit_rate_from(num_finished // 2, recorder),
        "num_block_queries": recorder.num_block_queries,
        "num_block_hits": recorder.num_block_hits,
        "lookup_hit_rate": _ratio(recorder.num_block_hits, recorder.num_block_queries),
        "num_host_tokens": int(host),
        "num_ssd_tokens": int(ssd),
        "num_recomputed_tokens": int(sums["num_recomputed_tokens"]),
        "makespan_s": makespan_s,
        "gpu_s": recorder.gpu_ns / 1e9,
        "load_s": recorder.load_ns / 1e9,
        "overhead_s": recorder.overhead_ns / 1e9,
        "overhead_share": _ratio(recorder.overhead_ns, recorder.gpu_ns + recorder.overhead_ns),
        "request_throughput": _ratio(num_finished, makespan_s),
        "output_throughput": _ratio(output, makespan_s),
        "total_throughput": _ratio(output + prompt, makespan_s),
        "queue_ms_mean": times["queue_ms"].mean,
        **times["ttft_ms"].distribution("ttft_ms"),
        **times["tpot_ms"].distribution("tpot_ms"),
        **times["e2e_s"].distribution("e2e_s"),
    }
    if not has_prefix_info:
        row.update({name: float("nan") for name in row if name.endswith("hit_rate")})
    return row


def _finished(rows: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Keep the numbers of those that were not rejected."""
    is_finished = np.array([status == "finished" for status in rows["status"]], dtype=bool)
    return {
        name: column[is_finished] for name, column in rows.items() if isinstance(column, np.ndarray)
    }


def _sums_of(finished: Mapping[str, NDArray[Any]], block_size: int) -> dict[str, Any]:
    prompt, cached = finished["num_prompt_tokens"], finished["num_cached_tokens"]
    return {
        "num_finished": len(prompt),
        **{name: finished[name].sum() for name in _SUMMED},
        "num_hit_blocks": (-(-cached // block_size)).sum(),
        "num_prompt_blocks": (prompt // block_size).sum(),
        "hit_rates": (cached / prompt).sum(),
        "num_hit_requests": (cached > 0).sum(),
    }


def _hit_rate_from(first: int, recorder: Recorded) -> float:
    """Compute the hit rate of the finished requests from one on."""
    num_before = prompt = cached = 0
    for part in pieces(recorder.num_requests, AT_ONCE):
        columns = recorder.request_columns(part)
        is_finished = columns.is_served
        counted = slice(max(0, first - num_before), None)
        prompt += int(columns.num_prompt_tokens[is_finished][counted].sum())
        cached += int(columns.num_cached_tokens[is_finished][counted].sum())
        num_before += int(is_finished.sum())
    return _ratio(cached, prompt)


class _Times:
    """Times of requests, of which some are not known (NaN).

    Parameters
    ----------
    room
        Times that there are at most.
    """

    def __init__(self, room: int) -> None:
        self._values = zeros(room, np.float64)
        self._size = 0
        self._sum = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Take the times that are known."""
        known = values[~np.isnan(values)]
        self._values[self._size : self._size + len(known)] = known
        self._size += len(known)
        self._sum += float(known.sum())

    @property
    def mean(self) -> float:
        return _ratio(self._sum, self._size)

    def distribution(self, name: str) -> dict[str, float]:
        """Give mean, median and upper quantiles; the values lose their order."""
        quantiles = [float("nan")] * 3
        if self._size:
            values = self._values[: self._size]
            quantiles = np.quantile(values, (0.5, 0.9, 0.99), overwrite_input=True).tolist()
        return {
            f"{name}_mean": self.mean,
            f"{name}_p50": quantiles[0],
            f"{name}_p90": quantiles[1],
            f"{name}_p99": quantiles[2],
        }


def _seconds(times_ns: Times) -> NDArray[np.float64]:
    return np.where(times_ns == UNKNOWN, np.nan, times_ns / 1e9)


def _elapsed(since_ns: Times, until_ns: Times) -> NDArray[np.float64]:
    known = (since_ns != UNKNOWN) & (until_ns != UNKNOWN)
    return np.where(known, until_ns - since_ns, np.nan)


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
