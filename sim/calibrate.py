"""Measures a real model on this machine and fits the cost of a step to it.

Puts together what `gpu_backend.measure` times, `sim.cost_fit` fits and `sim.presets` knows. The
result is one JSON file, which ``--cost`` takes: coefficients, how far off they are, on all points
and on points that the fit did not see, what was measured, and on what.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from gpu_backend import require_torch
from gpu_backend.shape import ModelShape, load_shape
from sim.cost import StepCost, cost_to_document
from sim.cost_fit import (
    Residuals,
    fit_step_cost,
    relative_errors,
    residuals_from,
    residuals_of,
)
from sim.errors import UsageError
from sim.identity import VERSION
from sim.presets import GpuFacts, ModelFacts, list_presets, load_preset
from sim.presets.derive import Roofline
from sim.prove import ModelChoice, make_executor

if TYPE_CHECKING:
    from gpu_backend.execution import Executor
    from gpu_backend.measure import Point

BLOCK_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_FOLDS: Final = 5
"""Fits by which a calibration is judged, each without a fifth of the points."""

_MEMORY_SHARE: Final = 0.5
_MAX_POOL_BYTES: Final = 64 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the grid goes; None for what suits the device.

    Attributes
    ----------
    max_tokens
        New tokens of a step (512 on the CPU, 8,192 on a GPU).
    max_context
        Tokens of a sequence (2,048; 32,768), never more than the model is meant for.
    max_batch
        Sequences of a decode step (32; 256).
    passes
        Times that the grid is measured.
    """

    max_tokens: int | None = None
    max_context: int | None = None
    max_batch: int | None = None
    passes: int = 5


def calibrate(
    choice: ModelChoice,
    output: Path,
    *,
    block_size: int = 16,
    limits: Limits | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure, fit, write.

    Parameters
    ----------
    choice
        Model and device.
    output
        JSON file to write. While points are measured they are kept beside it, so that an
        interrupted calibration goes on where it stopped.
    block_size
        Blocks of the grid, tokens.
    limits
        How far the grid goes.
    on_progress
        Called with what is measured, how many are done and how many there are.

    Returns
    -------
    The JSON object that was written.

    Raises
    ------
    UsageError
        torch is missing, the model or device cannot be used, or the file cannot be written.
    """
    require_torch("prefixsim calibrate")
    from gpu_backend import measure  # noqa: PLC0415 - needs torch

    report = on_progress or (lambda what, done, total: None)
    limits = limits or Limits()
    shape = load_shape(choice.name)
    executor = make_executor(choice)
    points, num_blocks = _plan(executor, shape, block_size, limits)
    machine = executor.device.describe()
    model = {
        "name": choice.name,
        "dtype": str(executor.decoder.dtype).removeprefix("torch."),
        "block_size": block_size,
        **{name: value for name, value in asdict(shape).items() if value is not None},
    }
    kept = _Partial(output, {"machine": machine, "model": model, "points": len(points)})
    done = kept.load()
    total = limits.passes * len(points)
    report("steps", len(done), total)

    def on_point(index: int, point: Point, seconds: float) -> None:
        kept.add(index, point, seconds)
        report("steps", kept.num_points, total)

    meter = measure.StepMeter(executor, block_size, num_blocks)
    times = measure.measure_all(meter, points, passes=limits.passes, done=done, on_point=on_point)
    del meter
    report("block sizes", 0, 1)
    blocks = _measure_blocks(executor, points, block_size)
    report("copies", 0, 1)
    copies = measure.copies_of(executor, [1, 16, 64, 256])
    report("peaks", 0, 1)
    peaks = measure.peaks_of(executor)
    table = pd.DataFrame([{**asdict(point), "seconds": s} for point, s in times.items()])
    document = fitted(table, machine, model, shape, peaks)
    document["blocks"] = blocks
    document["copies"] = copies
    _write(output, document)
    kept.remove()
    return document


def fitted(
    table: pd.DataFrame,
    machine: dict[str, Any],
    model: dict[str, Any],
    shape: ModelShape,
    peaks: dict[str, float],
) -> dict[str, Any]:
    """Fit a table of steps; judge the fit on points left out, the roofline and the preset."""
    left_out = _judge(table, eager=True)
    cost, residuals = fit_step_cost(table, eager=True)
    document = cost_to_document(
        cost,
        provenance=f"Measured by prefixsim {VERSION} calibrate: {model['name']} "
        f"({model['dtype']}) on {machine['name']}, {len(table)} steps.",
        residuals=asdict(residuals),
    )
    shown = table.assign(error=relative_errors(cost, table))
    return document | {
        "machine": machine,
        "model": model,
        "held_out": asdict(left_out),
        "roofline": {**peaks, "share": roofline_share(cost, shape, peaks, str(model["dtype"]))},
        "preset": preset_error(table, str(model["name"]), str(machine["name"])),
        "points": shown.to_dict("records"),
    }


def import_measurements(
    path: Path,
    output: Path,
    *,
    ns_per_context_token: float | None = None,
    ns_per_sequence: float | None = None,
) -> dict[str, Any]:
    """Fit a cost model to times that others measured, and write it.

    Parameters
    ----------
    path
        CSV with the columns ``new_tokens, cached_tokens, batch, seconds``: a step in which
        ``batch`` sequences (1 if the column is missing) compute ``new_tokens`` each after
        ``cached_tokens`` each. ``decodes`` and ``decode_cached_tokens`` may tell of sequences that
        decode in the same step.
    output
        JSON file for ``--cost``.
    ns_per_context_token, ns_per_sequence
        What the table cannot tell, see `sim.cost_fit.fit_step_cost`.

    Raises
    ------
    UsageError
        The table cannot be read or fitted, or the file cannot be written.
    """
    try:
        table = pd.read_csv(path).rename(columns={"batch": "sequences"})
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--from {path}: cannot be read as CSV ({error}); its columns are new_tokens, "
            "cached_tokens, batch, seconds."
        ) from error
    given = {"ns_per_context_token": ns_per_context_token, "ns_per_sequence": ns_per_sequence}
    try:
        # Judged on points left out, which of both forms serves better.
        fits = {eager: _judge(table, eager=eager, **given) for eager in (False, True)}
        eager = fits[True].median < fits[False].median
        cost, residuals = fit_step_cost(table, eager=eager, **given)
    except UsageError as error:
        raise UsageError(f"--from {path}: {error}") from error
    document = cost_to_document(
        cost,
        provenance=f"Fitted by prefixsim {VERSION} to {len(table)} steps of {path.name}.",
        residuals=asdict(residuals),
    ) | {"held_out": asdict(fits[eager])}
    _write(output, document)
    return document


def _judge(table: pd.DataFrame, *, eager: bool, **given: float | None) -> Residuals:
    """See how far fits are from points that they did not see; every point is left out once."""
    fold = np.random.default_rng(0).permutation(len(table)) % NUM_FOLDS
    errors = np.empty(len(table))
    for index in np.unique(fold):
        left_out = fold == index
        cost, _ = fit_step_cost(table[~left_out], eager=eager, **given)
        errors[left_out] = relative_errors(cost, table[left_out])
    return residuals_from(errors, table)


def roofline_share(
    cost: StepCost, shape: ModelShape, peaks: dict[str, float], dtype: str
) -> dict[str, float | None]:
    """Hold coefficients against the least that measured peaks allow: 1 is at the peak.

    Coefficients that are 0 have none. Above 1 the peak was not one, or another term carries the
    cost.
    """
    # The roofline counts bytes of bf16: twice the bytes are half the bandwidth.
    bytes_per_s = peaks["bytes_per_s"] * (0.5 if dtype == "float32" else 1.0)
    facts = ModelFacts(
        num_params=shape.num_params + shape.tie_embeddings * shape.vocab_size * shape.hidden_size,
        weight_bytes=2 * shape.num_params,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        kv_bytes_per_token=2 * shape.kv_values_per_token,
        source="",
    )
    least = Roofline(facts, GpuFacts(0, bytes_per_s, peaks["flops_per_s"], ""), 1)
    pairs = {
        # What a small step takes, launches and all.
        "min_ns": (least.weight_read_ns, cost.min_ns + getattr(cost, "launch_ns", 0.0)),
        "ns_per_new_token": (least.token_ns, cost.ns_per_new_token),
        "ns_per_pair": (least.pair_ns, cost.ns_per_pair),
        "ns_per_context_token": (least.kv_read_ns, cost.ns_per_context_token),
    }
    return {name: low / value if value else None for name, (low, value) in pairs.items()}


def preset_error(table: pd.DataFrame, model: str, machine: str) -> dict[str, Any] | None:
    """Compare the points with the shipped preset of this model and GPU, if there is one."""
    letters = "".join(machine.lower().split()).replace("-", "")
    for known, gpu in list_presets():
        preset = load_preset(known, gpu)
        # 'NVIDIA A100-SXM4-80GB' is a100-80g, 'NVIDIA GeForce RTX 4090' is rtx4090.
        parts = gpu.split("-")
        is_it = known == model and all(part in letters for part in parts)
        if is_it and preset.tensor_parallel == 1:
            return {"name": f"{known}/{gpu}", **asdict(residuals_of(preset.cost, table))}
    return None


def _plan(
    executor: Executor, shape: ModelShape, block_size: int, limits: Limits
) -> tuple[list[Point], int]:
    """Lay out the grid within the memory that is free; give it and the blocks of the pool."""
    from gpu_backend import measure  # noqa: PLC0415 - needs torch

    is_cuda = executor.device.is_cuda
    max_tokens = limits.max_tokens or (8192 if is_cuda else 512)
    max_context = min(limits.max_context or (32_768 if is_cuda else 2048), shape.max_positions)
    max_batch = limits.max_batch or (256 if is_cuda else 32)
    max_tokens = min(max_tokens, max_context)
    token_bytes = shape.kv_values_per_token * executor.decoder.dtype.itemsize
    room = min(_MAX_POOL_BYTES, int(_MEMORY_SHARE * executor.device.free_bytes()))
    max_kv_tokens = min(room // token_bytes, max_batch * max_context)
    if max_kv_tokens < 2 * block_size:
        raise UsageError(
            f"the {shape.num_layers} layers of the model leave room for {max_kv_tokens} tokens of "
            "KV but a step needs some; take a smaller model or free memory."
        )
    points = measure.grid(
        max_tokens=max_tokens,
        max_context=max_context,
        max_batch=max_batch,
        max_kv_tokens=max_kv_tokens,
    )
    return points, max(point.num_blocks(block_size) for point in points)


def _measure_blocks(executor: Executor, points: list[Point], block_size: int) -> dict[str, Any]:
    """Time a decode step at all block sizes; what is left beside its constant is per block."""
    from gpu_backend import measure  # noqa: PLC0415 - needs torch

    decodes = [p for p in points if p.new_tokens == 1 and p.decodes == 0 and p.sequences <= 8]
    point = max(decodes, key=lambda p: (p.num_context_tokens, p.sequences))
    sizes = [size for size in BLOCK_SIZES if size <= point.cached_tokens + 1]
    rows = measure.block_sizes_of(executor, sizes, point)
    seconds = np.array([row["seconds"] for row in rows])
    counts = np.array([row["num_blocks"] for row in rows], dtype=np.float64)
    design = np.column_stack([np.ones(len(rows)), counts / counts.max()]) / seconds[:, None]
    solution, _ = nnls(design, np.ones(len(rows)))
    return {
        "ns_per_block": float(solution[1]) / counts.max() * 1e9,
        "block_size": block_size,
        "measured": {"step": asdict(point), "sizes": rows},
    }


class _Partial:
    """Points measured so far, in a file beside the output: a line each, settings first."""

    def __init__(self, output: Path, settings: dict[str, Any]) -> None:
        self._path = output.with_name(output.name + ".partial.jsonl")
        self._head = json.dumps(settings, sort_keys=True)
        self.num_points = 0

    def load(self) -> dict[tuple[int, Point], float]:
        """Read what an interrupted run with the same settings left; start anew otherwise."""
        from gpu_backend.measure import Point  # noqa: PLC0415 - needs torch

        done: dict[tuple[int, Point], float] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        if lines[:1] == [self._head]:
            for line in lines[1:]:
                try:
                    row = json.loads(line)
                    done[row["pass"], Point(**row["point"])] = float(row["seconds"])
                except (ValueError, KeyError, TypeError):
                    break  # the line at which it was interrupted
        kept = [self._line(index, point, s) for (index, point), s in done.items()]
        self._open_for("\n".join([self._head, *kept]) + "\n")
        self.num_points = len(done)
        return done

    def add(self, index: int, point: Point, seconds: float) -> None:
        """Keep a point."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(index, point, seconds) + "\n")
        self.num_points += 1

    def remove(self) -> None:
        """Drop the file: the output holds it all."""
        self._path.unlink(missing_ok=True)

    def _line(self, index: int, point: Point, seconds: float) -> str:
        return json.dumps({"pass": index, "point": asdict(point), "seconds": seconds})

    def _open_for(self, text: str) -> None:
        try:
            self._path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"-o {self._path.parent}: cannot be written ({error.strerror}); name a file in a "
                "folder that exists and can be written."
            ) from error


def _write(output: Path, document: dict[str, Any]) -> None:
    try:
        output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"-o {output}: cannot be written ({error.strerror}); name a file in a folder that "
            "exists and can be written."
        ) from error
