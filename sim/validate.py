"""Replays what a real engine served and compares times, running and waiting.

A folder holds what the engine did, as the benchmark of LLMServingSim 2.0 writes it:

``requests.jsonl``
    Per request ``request_id``, ``input_toks``, ``output_toks``, and ``arrival_time``,
    ``queued_ts``, ``first_token_ts``, ``last_token_ts`` in seconds.
``meta.json``
    The engine's configuration, and the name of the trace that holds the prompts.
``timeseries.csv``, optional
    ``t, running, waiting`` each second.

Beside them lie the operator tables of `sim.operators`, unless another cost is given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import policies
from sim.cost import load_cost
from sim.engine import Engine
from sim.errors import UsageError
from sim.operators import OperatorCost
from sim.recorder import Recorder
from sim.scheduler import SchedulerConfig
from sim.types import CostModel, Request, SequenceCost
from workloads.content import Interner, TokenIds

POLICY: Final = "vllm_v1_latest"
"""Whose rules later releases of vLLM's V1 follow, 0.19 among them."""

_REQUEST_FIELDS: Final = (
    "request_id", "input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts",
    "last_token_ts",
)  # fmt: skip
_STATISTICS: Final = ("mean", "median", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a real engine did.

    Attributes
    ----------
    requests
        A row per request, in order of arrival.
    num_blocks, block_size
        Of its pool; ``num_blocks`` counts the null block that V1 keeps back.
    scheduler
        Its limits.
    ahead
        Whether it scheduled asynchronously.
    prefix_caching
        Whether it was on.
    trace
        Tokens of every prompt and output.
    series
        Running and waiting over time, s since the first arrival; None if it is not there.
    """

    requests: pd.DataFrame
    num_blocks: int
    block_size: int
    scheduler: SchedulerConfig
    ahead: bool
    prefix_caching: bool
    trace: Path
    series: pd.DataFrame | None


@dataclass(frozen=True, slots=True)
class Validation:
    """Real against simulated.

    Attributes
    ----------
    times
        Rows ``figure`` (TTFT, TPOT, latency), ``statistic``, ``real``, ``simulated`` in s, and
        ``error``.
    queues
        Rows for running and waiting sequences: their means over time, and the mean gap; None where
        the folder has no ``timeseries.csv``.
    num_requests, num_preemptions, num_steps
        Of the simulation; engines record no preemptions.
    makespan_s
        First arrival to last token, real and simulated.
    """

    times: pd.DataFrame
    queues: pd.DataFrame | None
    num_requests: int
    num_preemptions: int
    num_steps: int
    makespan_s: tuple[float, float]

    def errors_of_means(self) -> dict[str, float]:
        """Relative error of each figure's mean."""
        means = self.times[self.times["statistic"] == "mean"]
        return dict(zip(means["figure"], means["error"], strict=True))


def validate(
    folder: Path, *, trace: Path | None = None, policy: str | None = None, cost: str | None = None
) -> Validation:
    """Replay the recorded run of ``folder``.

    Parameters
    ----------
    trace
        File of the prompts; None looks for the one that ``meta.json`` names.
    policy
        None takes `POLICY`, or ``none`` where prefix caching was off.
    cost
        A cost file instead of the folder's operator tables.

    Raises
    ------
    UsageError
        A file is missing or does not go with the others.
    """
    recorded = read_recorded(folder, trace)
    model: CostModel | SequenceCost
    model = OperatorCost(folder) if cost is None else load_cost(cost, recorded.block_size)
    chosen = policy or (POLICY if recorded.prefix_caching else "none")
    num_usable = recorded.num_blocks - int(getattr(policies.load(chosen), "num_reserved_blocks", 0))
    recorder = Recorder(keep_steps=True)
    engine = Engine(
        lambda clock: policies.make(
            chosen, num_blocks=num_usable, block_size=recorded.block_size, clock=clock
        ),
        recorded.scheduler,
        model,
        recorder,
        ahead=recorded.ahead,
    )
    requests = read_requests(recorded)
    engine.run(requests)
    return _compare(recorded, requests, recorder)


def read_recorded(folder: Path, trace: Path | None = None) -> Recorded:
    """Read the folder of a recorded run (see the module)."""
    path = folder / "requests.jsonl"
    rows = _json_lines(path, _REQUEST_FIELDS)
    meta_path = folder / "meta.json"
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        cache, limits = meta["kv_cache"], meta["resolved_config"]["scheduler_config"]
        scheduler = SchedulerConfig(
            max_num_seqs=int(limits["max_num_seqs"]),
            max_num_batched_tokens=int(limits["max_num_batched_tokens"]),
            long_prefill_token_threshold=int(limits.get("long_prefill_token_threshold", 0)),
            reserve_full_prompt=bool(limits.get("scheduler_reserve_full_isl", False)),
        )
        name = str(meta["dataset_path"])
        started = meta.get("started_at")
        found = (
            int(cache["num_gpu_blocks"]),
            int(cache["block_size"]),
            bool(limits.get("async_scheduling", False)),
            bool(cache["enable_prefix_caching"]),
        )
    except OSError as error:
        raise UsageError(
            f"{meta_path}: cannot be read ({error.strerror}); name its folder."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{meta_path}: {error} is missing or wrong, and tells how the engine was set up; take "
            "the file that the benchmark wrote."
        ) from error
    table = pd.DataFrame(rows).sort_values("arrival_time", kind="stable", ignore_index=True)
    return Recorded(
        requests=table,
        num_blocks=found[0],
        block_size=found[1],
        scheduler=scheduler,
        ahead=found[2],
        prefix_caching=found[3],
        trace=trace or _find_trace(folder, Path(name).name),
        series=_read_series(folder / "timeseries.csv", started, table),
    )


def read_requests(recorded: Recorded) -> tuple[Request, ...]:
    """Read the prompts and outputs of the trace, arrivals counted from the first.

    The i-th line of the trace is the i-th request that arrived.
    """
    fields = ("input_toks", "output_toks", "arrival_time_ns", "input_tok_ids", "output_tok_ids")
    rows = _json_lines(recorded.trace, fields)
    if len(rows) < len(recorded.requests):
        raise UsageError(
            f"{recorded.trace}: has {len(rows)} requests but {len(recorded.requests)} were "
            "served; give the trace of that run with --trace."
        )
    interner = Interner()
    requests = []
    for index, (row, served) in enumerate(
        zip(rows, recorded.requests.to_dict("records"), strict=False)
    ):
        sizes = (len(row["input_tok_ids"]), len(row["output_tok_ids"]))
        if sizes != (served["input_toks"], served["output_toks"]):
            raise UsageError(
                f"{recorded.trace}:{index + 1}: {sizes[0]} and {sizes[1]} tokens but request "
                f"{served['request_id']!r} had {served['input_toks']} and "
                f"{served['output_toks']}; give the trace of that run with --trace."
            )
        tokens = np.array([*row["input_tok_ids"], *row["output_tok_ids"]], dtype=np.int64)
        arrival_ns = int(row["arrival_time_ns"]) - int(rows[0]["arrival_time_ns"])
        requests.append(
            Request(str(served["request_id"]), arrival_ns, TokenIds(tokens, interner), *sizes)
        )
    return tuple(requests)


def _compare(recorded: Recorded, requests: tuple[Request, ...], recorder: Recorder) -> Validation:
    table = recorded.requests
    num_output = table["output_toks"].to_numpy(dtype=np.float64)
    queued, first, last = (
        table[name].to_numpy(dtype=np.float64)
        for name in ("queued_ts", "first_token_ts", "last_token_ts")
    )
    real = _figures(queued, first, last, num_output)
    records = {record.request.request_id: record for record in recorder.requests}
    rejected = [record for record in records.values() if record.rejection]
    if rejected:
        raise UsageError(
            f"request {rejected[0].request.request_id!r} {rejected[0].rejection}, which the real "
            "engine served: the folder's meta.json is not that of this run."
        )
    mine = [records[request.request_id] for request in requests]
    # An engine takes requests in between two steps; its clock of a request starts there.
    starts = np.array([step.start_ns for step in recorder.steps])
    arrivals = np.array([record.arrival_ns for record in mine])
    taken_in = starts[np.searchsorted(starts, arrivals)]
    simulated = _figures(
        taken_in / 1e9,
        np.array([record.first_token_ns for record in mine]) / 1e9,
        np.array([record.finished_ns for record in mine]) / 1e9,
        num_output,
    )
    rows = [
        {"figure": figure, "statistic": name, "real": one, "simulated": other,
         "error": other / one - 1}
        for figure in real
        for name, one, other in zip(
            _STATISTICS, _statistics(real[figure]), _statistics(simulated[figure]), strict=True
        )
    ]  # fmt: skip
    return Validation(
        times=pd.DataFrame(rows),
        queues=_compare_queues(recorded.series, recorder),
        num_requests=len(requests),
        num_preemptions=recorder.num_preemptions,
        num_steps=recorder.num_steps,
        makespan_s=(
            float(table["last_token_ts"].max() - table["queued_ts"].min()),
            recorder.end_ns / 1e9,
        ),
    )


def _figures(
    queued: NDArray[np.float64],
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    num_output: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    several = num_output > 1
    return {
        "TTFT": first - queued,
        "TPOT": (last - first)[several] / (num_output[several] - 1),
        "latency": last - queued,
    }


def _statistics(values: NDArray[np.float64]) -> list[float]:
    return [float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist()]


def _compare_queues(series: pd.DataFrame | None, recorder: Recorder) -> pd.DataFrame | None:
    if series is None:
        return None
    starts = np.array([step.start_ns for step in recorder.steps]) / 1e9
    at = np.maximum(np.searchsorted(starts, series["t"], side="right") - 1, 0)
    rows = []
    for name in ("running", "waiting"):
        counts = np.array(
            [getattr(step, f"num_{name}") for step in recorder.steps], dtype=np.float64
        )
        # Before the first step and after the last one nothing runs.
        over = (series["t"] < 0) | (series["t"] > recorder.end_ns / 1e9)
        mine = np.where(over, 0.0, counts[at])
        real = series[name].to_numpy(dtype=np.float64)
        rows.append(
            {
                "sequences": name,
                "real": float(real.mean()),
                "simulated": float(mine.mean()),
                "error": float(mine.mean() / real.mean() - 1) if real.any() else float("nan"),
                "mean_gap": float(np.abs(mine - real).mean()),
            }
        )
    return pd.DataFrame(rows)


def _read_series(path: Path, started: str | None, requests: pd.DataFrame) -> pd.DataFrame | None:
    """Read running and waiting each second, counted from the first arrival."""
    if not path.is_file() or started is None:
        return None
    try:
        series = pd.read_csv(path)[["t", "running", "waiting"]].astype(float)
        begin = datetime.fromisoformat(started.replace("Z", "+00:00")).timestamp()
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(
            f"{path}: t, running and waiting cannot be read ({error}); correct or remove it."
        ) from error
    series["t"] -= float(requests["arrival_time"].min()) - begin
    return series


def _find_trace(folder: Path, name: str) -> Path:
    around = folder.resolve()
    places = [around, around.parent / "traces", around.parent.parent / "traces"]
    for place in places:
        if (place / name).is_file():
            return place / name
    raise UsageError(
        f"{folder}: its trace {name!r} is not in {' or '.join(map(str, places))}; name it with "
        "--trace."
    )


def _json_lines(path: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                missing = [name for name in fields if name not in row]
                if missing:
                    raise UsageError(
                        f"{path}:{number}: {', '.join(missing)} missing; every line has "
                        f"{', '.join(fields)}."
                    )
                rows.append(row)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); 'prefixsim validate' takes the folder of "
            "a recorded run."
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}:{number}: not a JSON object ({error}); correct it.") from error
    if not rows:
        raise UsageError(f"{path}: holds no requests; take the file that the benchmark wrote.")
    return rows
