"""Replays a workload through a policy and a real model together.

`prove` shows that the block tables of a policy are right: every logit computed over them equals
that of the model without a cache. `measure` shows how long the same steps take here, which is what
a cost model is held against. Both put together what else lives apart: workload, policy, engine and
the decoder of `gpu_backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from gpu_backend import require_torch
from sim import demand, experiment, inputs
from sim.config import RunConfig
from sim.errors import UsageError
from sim.recorder import Recorder
from sim.results import request_table
from sim.scheduler import Scheduler, Step
from sim.types import Batch, CostModel, Sequence, SequenceCost
from workloads import Workload

if TYPE_CHECKING:
    from gpu_backend.execution import Compared, Executor

WORKING_SET_SHARE = 50
"""Per cent of the distinct prompt tokens that ``--kv-capacity auto`` keeps: blocks get scarce."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which decoder to run, where.

    Attributes
    ----------
    name
        A preset of `gpu_backend.shape`, or a config.json.
    device, dtype
        None for the first device that is there, and for the type that it runs.
    weights
        Folder of safetensors; None for random ones.
    threads
        Of the CPU.
    seed
        Of random weights, and of the tokens that names stand for.
    """

    name: str = "tiny"
    device: str | None = None
    dtype: str | None = None
    weights: Path | None = None
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Proven:
    """What a replay over real blocks showed.

    Attributes
    ----------
    compared
        Each request that was served, in order of its end.
    num_requests, num_rejected
        Of the workload, and those that could never fit.
    tolerance
        Differences up to this one are rounding.
    num_blocks, num_evictions, num_preemptions
        Of the pool, and what happened in it; evictions are None where the policy does not count.
    """

    compared: tuple[Compared, ...]
    num_requests: int
    num_rejected: int
    tolerance: float
    num_blocks: int
    num_evictions: int | None
    num_preemptions: int

    @property
    def wrong(self) -> list[Compared]:
        """Requests whose logits differ by more than rounding, the worst first."""
        found = [one for one in self.compared if not one.difference <= self.tolerance]
        return sorted(found, key=lambda one: -one.difference)

    @property
    def agrees(self) -> bool:
        """Whether every request was served and none is wrong."""
        return not self.wrong and len(self.compared) == self.num_requests

    @property
    def largest_difference(self) -> float:
        """Over all requests, in standard deviations of the logits."""
        return max((one.difference for one in self.compared), default=0.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload executed against the clock.

    Attributes
    ----------
    requests
        As the table of a run, in measured time.
    model_s, makespan_s
        Time of all steps, and to the end of the last one with idle time between arrivals.
    wall_s
        As ``model_s`` by the wall clock, which counts what else the machine does as well.
    clock
        What the others are taken by, see `gpu_backend.device.Device.clock`.
    num_steps
        Steps executed.
    """

    requests: pd.DataFrame
    model_s: float
    makespan_s: float
    wall_s: float
    clock: str
    num_steps: int


def num_blocks_to_prove(config: RunConfig, workload: Workload) -> int:
    """Resolve the capacity; ``auto`` makes blocks scarce without turning any request away."""
    if config.kv_capacity != "auto":
        return inputs.num_blocks_of(config, workload)
    share = max(1, WORKING_SET_SHARE * workload.num_distinct_prompt_tokens // 100)
    largest = max((request.num_kv_tokens for request in workload.requests), default=1)
    # Room for the longest beside the watermark that a policy may keep.
    least = -(-largest // config.block_size) * 11 // 10 + 2
    return max(share // config.block_size, least)


def with_capacity(config: RunConfig) -> RunConfig:
    """Spell out the capacity that a proof of this configuration has, for a run to compare with."""
    num_blocks = num_blocks_to_prove(config, demand.load_workload(config))
    return replace(config, kv_capacity=f"{num_blocks}blocks")


def prove(
    config: RunConfig,
    choice: ModelChoice,
    *,
    on_start: Callable[[int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> Proven:
    """Execute the steps that ``prefixsim run`` would simulate, and compare every request.

    Raises
    ------
    UsageError
        torch is missing, or workload, policy, cost or model cannot be used.
    """
    require_torch("prefixsim prove")
    from gpu_backend.execution import TOLERANCE, Proof  # noqa: PLC0415 - needs torch

    executor = make_executor(choice)
    cost, _ = inputs.cost_of(config)
    proof = Proof(executor, _price_of(cost))
    compared: list[Compared] = []

    def on_step(start_ns: int, step: Step, scheduler: Scheduler) -> None:
        compared.extend(proof.compare(seq) for seq in step.finished)

    recorder, allocator_counts, num_blocks = _replay(
        config, executor, proof, on_step=on_step, on_start=on_start, on_done=on_done
    )
    return Proven(
        compared=tuple(compared),
        num_requests=len(recorder.requests),
        num_rejected=sum(bool(record.rejection) for record in recorder.requests),
        tolerance=TOLERANCE[executor.decoder.dtype],
        num_blocks=num_blocks,
        num_evictions=allocator_counts,
        num_preemptions=recorder.num_preemptions,
    )


def measure(
    config: RunConfig,
    choice: ModelChoice,
    *,
    on_start: Callable[[int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> Measured:
    """Execute a workload as an engine does, each step taking the time that it takes here.

    The workload is executed twice and the second time counts: the first one warms up. Time between
    arrivals is not waited for.

    Raises
    ------
    UsageError
        As for `prove`.
    """
    require_torch("prefixsim prove")
    from gpu_backend.execution import Stopwatch  # noqa: PLC0415 - needs torch

    executor = make_executor(choice)
    watch = Stopwatch(executor)
    _replay(config, executor, watch, on_start=on_start)
    watch = Stopwatch(executor)
    recorder, _, _ = _replay(config, executor, watch, on_start=on_start, on_done=on_done)
    return Measured(
        requests=request_table(recorder, "measured"),
        model_s=watch.total_s,
        makespan_s=recorder.end_ns / 1e9,
        wall_s=watch.wall_s,
        clock=executor.device.clock,
        num_steps=watch.num_steps,
    )


def simulate(config: RunConfig) -> experiment.Run:
    """Run what `measure` executes, by the cost of the configuration, in a pool of the same size."""
    return experiment.run(with_capacity(config))


def compare(measured: Measured, simulated: experiment.Run | None) -> pd.DataFrame:
    """Set what was measured beside what the simulator says of the same workload.

    Returns
    -------
    A row per figure, by its name; without a simulation, a column ``measured`` alone.
    """
    served = measured.requests[measured.requests["status"] == "finished"]
    figures = {
        "model_s": measured.model_s,
        "makespan_s": measured.makespan_s,
        "ttft_ms_mean": float(served["ttft_ms"].mean()),
        "tpot_ms_mean": float(served["tpot_ms"].mean()),
        "e2e_s_mean": float(served["e2e_s"].mean()),
    }
    table = pd.DataFrame({"measured": figures})
    if simulated is not None:
        names = {"model_s": "gpu_s"}
        values = [float(simulated.summary[names.get(name, name)]) for name in figures]
        table["simulated"] = values
        table["error"] = table["simulated"] / table["measured"] - 1
    return table


def make_executor(choice: ModelChoice) -> Executor:
    """Make the model of a choice on its device.

    Raises
    ------
    UsageError
        Unknown model, device or number type, weights that do not fit, or no memory for them.
    """
    from gpu_backend.device import Device  # noqa: PLC0415 - needs torch
    from gpu_backend.execution import Executor  # noqa: PLC0415
    from gpu_backend.load import load_decoder  # noqa: PLC0415

    device = Device(choice.device, choice.threads)
    decoder = load_decoder(
        choice.name, device, device.dtype(choice.dtype), weights=choice.weights, seed=choice.seed
    )
    return Executor(decoder, device, seed=choice.seed)


def _replay(
    config: RunConfig,
    executor: Executor,
    cost: SequenceCost,
    *,
    on_step: Callable[[int, Step, Scheduler], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> tuple[Recorder, int | None, int]:
    """Serve the workload; give its records, evictions where they are counted, and the pool."""
    workload = demand.load_workload(config)
    requests = demand.prepare_requests(config, workload, seed_is_used=True)
    if not requests:
        raise UsageError(f"workload {config.workload!r} holds no requests; give one that does.")
    if config.cascade:
        raise UsageError(
            f"--cascade {config.cascade:g}: the decoder reads a common prefix once per sequence; "
            "leave it out."
        )
    num_blocks = num_blocks_to_prove(config, workload)
    recorder = Recorder(on_done=on_done)
    engine = experiment.build_engine(config, num_blocks, recorder, cost=cost, on_step=on_step)
    executor.attach(engine.allocator)
    if on_start is not None:
        on_start(len(requests))
    engine.run(requests)
    counts = getattr(engine.allocator, "counts", None)
    return recorder, counts.evictions if counts is not None else None, num_blocks


def _price_of(cost: CostModel | SequenceCost) -> Callable[[list[tuple[Sequence, int]]], int]:
    """Ask any cost model by the sequences of a step."""
    if not isinstance(cost, CostModel):
        return cost.sequences_ns
    by_sums = cost

    def price(scheduled: list[tuple[Sequence, int]]) -> int:
        batch = Batch()
        for seq, num_new_tokens in scheduled:
            batch.add(num_new_tokens, seq.num_computed_tokens)
        return by_sums.step_ns(batch)

    return price
