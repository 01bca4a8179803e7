"""Times of single kernels, measured by others, as the cost of a step.

A folder of tables, as the profiler of LLMServingSim 2.0 writes them:

``attention.csv``
    ``prefill_chunk, kv_prefill, n_decode, kv_decode, time_us``: one layer's attention in a step
    that computes a chunk after so many cached tokens, decodes so many sequences of such a context,
    or both.
``dense.csv``
    ``layer, tokens, time_us``: kernels whose time follows the tokens of a step.
``per_sequence.csv``
    ``layer, sequences, time_us``: those that run once a sequence, such as the output layer.
``meta.json``, optional
    The engine's configuration; ``cudagraph_capture_sizes`` are the sizes that steps are padded to,
    ``num_layers`` or the name in ``model`` say how many layers there are.

Between measured sizes times are interpolated linearly, since kernels take time in proportion to
their work; beyond the last one they go on as they grew between the last two.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.types import Sequence

NUM_LAYERS: Final = 32
"""Of Llama-3-8B, where a folder names no model."""

_LAYERS_OF: Final = {
    "llama-3-8b": 32,
    "llama-3.1-8b": 32,
    "llama-3.1-70b": 80,
    "llama-3.2-1b": 16,
    "llama-3.2-3b": 28,
    "llama-3.3-70b": 80,
    "qwen3-0.6b": 28,
    "qwen3-1.7b": 28,
    "qwen3-4b": 36,
    "qwen3-8b": 36,
    "qwen3-14b": 40,
    "qwen3-32b": 64,
}
"""Layers by the last part of a model's name, from their public configurations."""

LAYER_KERNELS: Final = {
    # Two of the norms and one of each other kernel per layer.
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
STEP_KERNELS: Final = {"embedding": 1, "final_layernorm": 1}

_FILES: Final = {
    "attention.csv": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "dense.csv": ("layer", "tokens", "time_us"),
    "per_sequence.csv": ("layer", "sequences", "time_us"),
}


class OperatorCost:
    """Prices a step by the sum of its kernels.

    A step with several chunks runs them in one kernel: the longest is looked up together with the
    decodes, each other one adds what it takes beyond the least that any attention takes.

    Parameters
    ----------
    folder
        Holds the tables.
    num_layers
        Layers of the model; None for what the folder says.

    Raises
    ------
    UsageError
        A table is missing or cannot be used.
    """

    def __init__(self, folder: Path, num_layers: int | None = None) -> None:
        tables = {name: _read(folder / name, columns) for name, columns in _FILES.items()}
        sizes, layers = _configuration(folder / "meta.json")
        self.num_layers = num_layers or layers
        self._padded = sizes
        self._dense = _Curve.total(
            tables["dense.csv"],
            "tokens",
            {k: n * self.num_layers for k, n in LAYER_KERNELS.items()} | STEP_KERNELS,
            folder / "dense.csv",
        )
        per_sequence = tables["per_sequence.csv"]
        self._per_sequence = _Curve.total(
            per_sequence,
            "sequences",
            dict.fromkeys(per_sequence["layer"].unique(), 1),
            folder / "per_sequence.csv",
        )
        self._attention = _Attention(tables["attention.csv"], folder / "attention.csv")

    def sequences_ns(self, scheduled: list[tuple[Sequence, int]]) -> int:
        """Time of the step, ns; see `sim.types.SequenceCost`."""
        return self.step_ns_of((new, seq.num_computed_tokens) for seq, new in scheduled)

    def step_ns_of(self, parts: Iterable[tuple[int, int]]) -> int:
        """Time of a step of sequences that compute (new tokens, after so many), ns."""
        chunks, contexts = [], []
        for new, computed in parts:
            if new > 1:
                chunks.append((new, computed))
            else:
                contexts.append(computed + 1)
        num_tokens = sum(new for new, _ in chunks) + len(contexts)
        num_padded = self._pad(num_tokens)
        us = (
            self._dense.at(num_padded)
            + self._per_sequence.at(len(chunks) + len(contexts))
            + self.num_layers * self._attention.us(chunks, contexts)
        )
        return max(1, round(us * 1e3))

    def _pad(self, num_tokens: int) -> int:
        """Round up to the sizes that graphs were captured for; larger steps run as they are."""
        place = bisect_left(self._padded, num_tokens)
        return self._padded[place] if place < len(self._padded) else num_tokens


class _Curve:
    """Time over one size, us, linear between the points and beyond the last two."""

    def __init__(self, sizes: NDArray[np.float64], times: NDArray[np.float64]) -> None:
        self._sizes: list[float] = sizes.tolist()
        self._times: list[float] = times.tolist()

    @classmethod
    def total(cls, table: pd.DataFrame, size: str, counts: dict[str, int], path: Path) -> _Curve:
        """Sum kernels, each so many times."""
        missing = [name for name in counts if name not in set(table["layer"])]
        if missing:
            raise UsageError(
                f"--cost {path}: no times of {', '.join(missing)}; measure them as well."
            )
        sizes = np.unique(table[size].to_numpy(dtype=np.float64))
        times = np.zeros(len(sizes))
        for name, count in counts.items():
            rows = table[table["layer"] == name].sort_values(size)
            times += count * np.interp(sizes, rows[size], rows["time_us"])
        return cls(sizes, times)

    def at(self, size: float) -> float:
        """Time at ``size``; that of the smallest below it."""
        low, share = _place(self._sizes, size)
        if len(self._sizes) == 1:
            return self._times[0]
        return self._times[low] + share * (self._times[low + 1] - self._times[low])


class _Attention:
    """One layer's attention over four sizes."""

    def __init__(self, table: pd.DataFrame, path: Path) -> None:
        prefills = table[(table["prefill_chunk"] > 0) & (table["n_decode"] == 0)]
        decodes = table[(table["prefill_chunk"] == 0) & (table["n_decode"] > 0)]
        mixed = table[(table["prefill_chunk"] > 0) & (table["n_decode"] > 0)]
        if prefills.empty or decodes.empty or mixed.empty:
            raise UsageError(
                f"--cost {path}: prefills, decodes and steps with both are needed, but it has "
                f"{len(prefills)}, {len(decodes)} and {len(mixed)}; measure what is missing."
            )
        self._prefill = _Grid.of(prefills, ["prefill_chunk", "kv_prefill"])
        self._decode = _Grid.of(decodes, ["n_decode", "kv_decode"])
        self._mixed = _Grid.of(
            mixed, ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"], others=self._prefill
        )
        self._least_us = float(table["time_us"].min())

    def us(self, chunks: list[tuple[int, int]], contexts: list[int]) -> float:
        """Time of one layer, us."""
        decode = (len(contexts), sum(contexts) / len(contexts)) if contexts else None
        if not chunks:
            assert decode is not None
            return self._decode.at(decode)
        longest, *others = sorted(chunks, reverse=True)
        us = self._prefill.at(longest) if decode is None else self._mixed.at((*longest, *decode))
        return us + sum(max(0.0, self._prefill.at(one) - self._least_us) for one in others)


class _Grid:
    """Times over a full grid of sizes, linear in each of them."""

    def __init__(self, axes: list[list[float]], times: NDArray[np.float64]) -> None:
        self._axes = axes
        self._times = times

    @classmethod
    def of(cls, table: pd.DataFrame, names: list[str], others: _Grid | None = None) -> _Grid:
        """Lay a table out as a grid; gaps are filled along the first size.

        A step that was too large to be measured takes what the next smaller chunk took, and what
        the larger chunk takes more by itself (``others``: the times of chunks alone).
        """
        axes = [sorted({float(value) for value in table[name]}) for name in names]
        times = np.full([len(axis) for axis in axes], np.nan)
        places = [
            np.searchsorted(axis, table[name]) for axis, name in zip(axes, names, strict=True)
        ]
        times[tuple(places)] = table["time_us"]
        for index in np.argwhere(np.isnan(times)):
            first, *rest = index.tolist()
            if first == 0:
                continue
            grown = 0.0
            if others is not None:
                now, before = ((axes[0][i], axes[1][rest[0]]) for i in (first, first - 1))
                grown = others.at(now) - others.at(before)
            times[first, *rest] = times[first - 1, *rest] + grown
        return cls(axes, times)

    def at(self, sizes: tuple[float, ...]) -> float:
        """Time at these sizes."""
        places = [_place(axis, size) for axis, size in zip(self._axes, sizes, strict=True)]
        us = 0.0
        for corner in product((0, 1), repeat=len(places)):
            weight, index = 1.0, []
            for side, (low, share), axis in zip(corner, places, self._axes, strict=True):
                weight *= share if side else 1.0 - share
                index.append(min(low + side, len(axis) - 1))
            if weight:
                us += weight * float(self._times[tuple(index)])
        return us


def _place(axis: list[float], size: float) -> tuple[int, float]:
    """Find the interval of ``axis`` and where in it: below the first 0, beyond the last over 1."""
    if len(axis) == 1 or size <= axis[0]:
        return 0, 0.0
    low = min(bisect_right(axis, size) - 1, len(axis) - 2)
    return low, (size - axis[low]) / (axis[low + 1] - axis[low])


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--cost {path}: cannot be read ({error}); a folder of operator tables holds "
            f"{', '.join(_FILES)}."
        ) from error
    missing = [name for name in columns if name not in table]
    if missing or table.empty:
        raise UsageError(
            f"--cost {path}: has {len(table)} rows and lacks {', '.join(missing) or 'rows'}; its "
            f"columns are {', '.join(columns)}."
        )
    for name in columns:
        if name == "layer":
            continue
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
        least = 0.0
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
        if wrong.size:
            row = int(wrong[0])
            raise UsageError(
                f"--cost {path}:{row + 2}: {name} is {table[name].iloc[row]} but must be a "
                "number of at least 0; correct it."
            )
        table[name] = values
    return table


def _configuration(path: Path) -> tuple[list[int], int]:
    """Read the sizes of captured graphs and the number of layers, where they are told."""
    if not path.is_file():
        return [], NUM_LAYERS
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        compiled = document.get("resolved_config", {}).get("compilation_config", {})
        sizes = sorted(int(size) for size in compiled.get("cudagraph_capture_sizes") or [])
        return sizes, int(document.get("num_layers") or _layers_of(document.get("model"), path))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--cost {path}: cannot be used ({error}); correct it, or leave it out."
        ) from error


def _layers_of(model: object, path: Path) -> int:
    """Look up the layers of a model by its name; one that is not known must not be guessed."""
    if model is None:
        return NUM_LAYERS
    name = str(model).rpartition("/")[2].lower().removesuffix("-instruct")
    if name not in _LAYERS_OF:
        raise UsageError(
            f"--cost {path}: the layers of model {model!r} are not known; add num_layers to it."
        )
    return _LAYERS_OF[name]
