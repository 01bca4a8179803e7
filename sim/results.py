"""Tables of a run: requests, steps, and the summary row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.columns import Table, columns_of
from sim.recorder import UNKNOWN, Recorded

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.int64]


def make_frame(table: Table, data: dict[str, Any] | list[dict[str, Any]]) -> pd.DataFrame:
    """Build a frame with exactly the columns and dtypes that `COLUMNS` names."""
    import pandas as pd  # noqa: PLC0415 - takes half a second, and a summary needs no frame

    columns = columns_of(table)
    frame = pd.DataFrame(data, columns=[column.name for column in columns])
    return frame.astype({column.name: column.dtype for column in columns})


def request_table(recorder: Recorded, run_id: str) -> pd.DataFrame:
    """Lay out one row per request, in order of arrival."""
    return make_frame("requests", {"run_id": run_id, **request_data(recorder)})


def request_data(recorder: Recorded) -> dict[str, Any]:
    """Compute the columns of the request table, all but the run's id."""
    columns = recorder.request_columns()
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


def step_table(recorder: Recorded, run_id: str) -> pd.DataFrame:
    """Lay out one row per step, empty where steps were not kept."""
    columns = recorder.step_columns()
    start, duration = columns.pop("start_ns"), columns.pop("duration_ns")
    return make_frame(
        "steps",
        {
            "run_id": [run_id] * len(start),
            "start_s": start / 1e9,
            "duration_ms": duration / 1e6,
            **columns,
        },
    )


def summarize(
    recorder: Recorded, requests: Mapping[str, Any], block_size: int, *, has_prefix_info: bool
) -> dict[str, Any]:
    """Measure a run by the field's usual numbers; rejected requests count for none of them.

    Without prefix information in the workload every hit rate is not available, which is not zero.

    Parameters
    ----------
    requests
        Columns of the request table, as arrays (see `request_data`) or as a frame.
    """
    is_finished = np.asarray(requests["status"], dtype=object) == "finished"
    num_finished = int(is_finished.sum())

    def finished(name: str) -> NDArray[Any]:
        column: NDArray[Any] = np.asarray(requests[name])[is_finished]
        return column

    prompt = finished("num_prompt_tokens")
    cached = finished("num_cached_tokens")
    host, ssd = finished("num_host_tokens"), finished("num_ssd_tokens")
    output = int(finished("num_output_tokens").sum())
    makespan_s = recorder.end_ns / 1e9
    half = num_finished // 2
    row: dict[str, Any] = {
        "num_requests": len(is_finished),
        "num_finished": num_finished,
        "num_rejected": len(is_finished) - num_finished,
        "num_preemptions": recorder.num_preemptions,
        "num_steps": recorder.num_steps,
        "num_prompt_tokens": int(prompt.sum()),
        "num_output_tokens": output,
        "num_cached_tokens": int(cached.sum()),
        "hit_rate": _ratio(cached.sum(), prompt.sum()),
        "device_hit_rate": _ratio((cached - host - ssd).sum(), prompt.sum()),
        "host_hit_rate": _ratio(host.sum(), prompt.sum()),
        "ssd_hit_rate": _ratio(ssd.sum(), prompt.sum()),
        # Of a prompt that is hit whole, a policy may compute one token: its block is hit still.
        "block_hit_rate": _ratio((-(-cached // block_size)).sum(), (prompt // block_size).sum()),
        "mean_request_hit_rate": _ratio((cached / prompt).sum(), num_finished),
        "share_requests_hit": _ratio((cached > 0).sum(), num_finished),
        "last_half_hit_rate": _ratio(cached[half:].sum(), prompt[half:].sum()),
        "num_block_queries": recorder.num_block_queries,
        "num_block_hits": recorder.num_block_hits,
        "lookup_hit_rate": _ratio(recorder.num_block_hits, recorder.num_block_queries),
        "num_host_tokens": int(host.sum()),
        "num_ssd_tokens": int(ssd.sum()),
        "num_recomputed_tokens": int(finished("num_recomputed_tokens").sum()),
        "makespan_s": makespan_s,
        "gpu_s": recorder.gpu_ns / 1e9,
        "load_s": recorder.load_ns / 1e9,
        "overhead_s": recorder.overhead_ns / 1e9,
        "overhead_share": _ratio(recorder.overhead_ns, recorder.gpu_ns + recorder.overhead_ns),
        "request_throughput": _ratio(num_finished, makespan_s),
        "output_throughput": _ratio(output, makespan_s),
        "total_throughput": _ratio(output + prompt.sum(), makespan_s),
        "queue_ms_mean": _distribution("queue_ms", finished("queue_ms"))["queue_ms_mean"],
        **_distribution("ttft_ms", finished("ttft_ms")),
        **_distribution("tpot_ms", finished("tpot_ms")),
        **_distribution("e2e_s", finished("e2e_s")),
    }
    if not has_prefix_info:
        row.update({name: float("nan") for name in row if name.endswith("hit_rate")})
    return row


def _seconds(times_ns: Times) -> NDArray[np.float64]:
    return np.where(times_ns == UNKNOWN, np.nan, times_ns / 1e9)


def _elapsed(since_ns: Times, until_ns: Times) -> NDArray[np.float64]:
    known = (since_ns != UNKNOWN) & (until_ns != UNKNOWN)
    return np.where(known, until_ns - since_ns, np.nan)


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")


def _distribution(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    known = values[~np.isnan(values)]
    quantiles = np.quantile(known, (0.5, 0.9, 0.99)) if len(known) else [float("nan")] * 3
    return {
        f"{name}_mean": _ratio(known.sum(), len(known)),
        f"{name}_p50": float(quantiles[0]),
        f"{name}_p90": float(quantiles[1]),
        f"{name}_p99": float(quantiles[2]),
    }
