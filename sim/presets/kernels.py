"""Make a table of whole steps out of measured kernel times.

``python -m sim.presets.kernels FOLDER > tables/vllm_0.19_rtx4090_llama-3.1-8b.csv`` sums the
kernels of a step, for the steps that fit the GPU's KV cache, from the files attention.csv,
dense.csv and per_sequence.csv of a profile of LLMServingSim 2.0 (MIT licence, beside the table).
The profile is too large to ship; its sums are what the preset is fitted to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.operators import LAYER_KERNELS, NUM_LAYERS, STEP_KERNELS

MAX_CONTEXT_TOKENS: Final = 41_408
"""KV cache of the profiled engine; steps that read more never happen in it."""

# Mixed steps are 98 % of the profile. These few leave decodes and prefills their say in the fit.
MIXED_CHUNKS: Final = (64, 256, 1024)
MIXED_CACHED: Final = (0, 1024, 4096, 16384)
MIXED_DECODES: Final = (4, 16, 64)
MIXED_DECODE_CACHED: Final = (64, 256, 1024)


def steps_from_kernels(folder: Path) -> pd.DataFrame:
    """Return one row a step, with the columns that `sim.cost_fit.fit_step_cost` takes."""
    steps = pd.read_csv(folder / "attention.csv")
    dense = pd.read_csv(folder / "dense.csv")
    per_sequence = pd.read_csv(folder / "per_sequence.csv")

    chunk, cached = steps["prefill_chunk"], steps["kv_prefill"]
    decodes, decode_cached = steps["n_decode"], steps["kv_decode"]
    is_mixed = (chunk > 0) & (decodes > 0)
    is_kept = ~is_mixed | (
        chunk.isin(MIXED_CHUNKS)
        & cached.isin(MIXED_CACHED)
        & decodes.isin(MIXED_DECODES)
        & decode_cached.isin(MIXED_DECODE_CACHED)
    )
    fits = (chunk + cached + decodes * (decode_cached + 1)) <= MAX_CONTEXT_TOKENS
    fits &= chunk + decodes <= dense["tokens"].max()
    steps = steps[is_kept & fits].reset_index(drop=True)

    chunk, decodes = steps["prefill_chunk"].to_numpy(), steps["n_decode"].to_numpy()
    num_tokens = chunk + decodes
    num_sequences = (chunk > 0) + decodes
    per_layer = steps["time_us"].to_numpy() + sum(
        count * _at(dense, name, num_tokens) for name, count in LAYER_KERNELS.items()
    )
    once = sum(_at(dense, name, num_tokens) for name in STEP_KERNELS) + sum(
        _at(per_sequence, name, num_sequences) for name in per_sequence["layer"].unique()
    )
    is_decode = chunk == 0
    return pd.DataFrame(
        {
            "new_tokens": np.where(is_decode, 1, chunk),
            "cached_tokens": np.where(is_decode, steps["kv_decode"], steps["kv_prefill"]),
            "sequences": np.where(is_decode, decodes, 1),
            "decodes": np.where(is_decode, 0, decodes),
            "decode_cached_tokens": np.where(is_decode, 0, steps["kv_decode"]),
            "seconds": np.round((NUM_LAYERS * per_layer + once) * 1e-6, 7),
        }
    )


def _at(table: pd.DataFrame, name: str, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Time of a kernel at these sizes, us, interpolated between the measured ones."""
    rows = table[table["layer"] == name]
    times: NDArray[np.float64] = np.interp(sizes, rows.iloc[:, 1], rows["time_us"])
    return times


if __name__ == "__main__":
    steps_from_kernels(Path(sys.argv[1])).to_csv(sys.stdout, index=False)
