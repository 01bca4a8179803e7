"""Models and GPUs that come with the simulator: facts, and step costs fitted or derived.

Each file of ``data/`` holds one pair; ``python -m sim.presets.build`` rebuilds them all from
``facts.json`` and ``tables/``, and states in each where it comes from and how far off it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from sim.cost import StepCost, cost_from_document, read_json
from sim.errors import UsageError

BYTES_PER_VALUE: Final = 2
"""Weights and KV are bf16."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Shape of a model, from its public configuration.

    ``weight_bytes`` and ``kv_bytes_per_token`` are in bf16 and over all GPUs together.
    """

    num_params: int
    weight_bytes: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    kv_bytes_per_token: int
    source: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Data sheet of one GPU: bytes, bytes/s, and dense bf16 FLOP/s at their peak."""

    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A model on GPUs: facts and the cost of a step.

    Attributes
    ----------
    model_name, gpu_name
        As `load_preset` takes them.
    model, gpu
        Facts with their source.
    tensor_parallel
        GPUs that share the model.
    cost
        Time of a step.
    provenance
        What the coefficients were fitted to, or derived from and how.
    residuals
        Against the table that they were fitted to (see `sim.cost_fit.Residuals`); None if derived.
    roofline_share
        Coefficient to the least that data sheets allow over it: 1 is at the peak.
    checks
        For a derived preset: what a derivation like it gave where there is a table to compare with.
    """

    model_name: str
    gpu_name: str
    model: ModelFacts
    gpu: GpuFacts
    tensor_parallel: int
    cost: StepCost
    provenance: str
    residuals: dict[str, Any] | None
    roofline_share: dict[str, float]
    checks: list[dict[str, Any]]

    def kv_capacity_tokens(self, utilization: float = 0.9) -> int:
        """Tokens whose KV fits beside the weights.

        Parameters
        ----------
        utilization
            Share of the memory that the engine may use, above 0 and at most 1.

        Raises
        ------
        UsageError
            The share is out of range, or leaves no room for a token.

        Notes
        -----
        An engine also keeps memory for activations and graphs and so reports less: vLLM 0.19 had
        41,408 tokens on an RTX 4090 where this gives 50,850, which is 1.2 GB; on 80 GB as many
        bytes are 2 % of the tokens.
        """
        if not 0 < utilization <= 1:
            raise UsageError(
                f"utilization: {utilization!r} must be above 0 and at most 1; "
                "pass a share of the GPU's memory such as 0.9."
            )
        memory = self.gpu.memory_bytes * self.tensor_parallel * utilization
        num_tokens = math.floor(
            (memory - self.model.weight_bytes) / self.model.kv_bytes_per_token,
        )
        if num_tokens < 1:
            raise UsageError(
                f"utilization: {utilization!r} of {self.tensor_parallel} x {self.gpu_name} is "
                f"{memory / 1e9:.1f} GB but must exceed the {self.model.weight_bytes / 1e9:.1f} GB "
                f"of weights of {self.model_name}; pass a larger share or choose a larger GPU."
            )
        return num_tokens


def list_presets() -> list[tuple[str, str]]:
    """Return the pairs (model, gpu) that `load_preset` knows, sorted."""
    names = (entry.name for entry in _data().iterdir())
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted((model, gpu) for model, _, gpu in (stem.partition("_") for stem in stems))


def load_preset(model: str, gpu: str) -> Preset:
    """Return the preset of a model on a GPU.

    Raises
    ------
    UsageError
        There is none of that name.
    """
    pairs = list_presets()
    models = sorted({known for known, _ in pairs})
    if model not in models:
        raise UsageError(
            f"--model {model!r} must be a preset that exists; choose from {', '.join(models)}."
        )
    gpus = [known for name, known in pairs if name == model]
    if gpu not in gpus:
        raise UsageError(
            f"--gpu {gpu!r} must be one that has a preset for {model}; "
            f"choose from {', '.join(gpus)}."
        )
    with resources.as_file(_data() / f"{model}_{gpu}.json") as path:
        return preset_from_document(read_json(path), model, gpu)


def preset_from_document(document: dict[str, Any], model: str, gpu: str) -> Preset:
    """Make the preset that a JSON object of ``data/`` stands for."""
    cost = cost_from_document(document["cost"], f"preset {model} on {gpu}")
    assert isinstance(cost, StepCost)
    return Preset(
        model_name=model,
        gpu_name=gpu,
        model=ModelFacts(**document["model"]),
        gpu=GpuFacts(**document["gpu"]),
        tensor_parallel=document["tensor_parallel"],
        cost=cost,
        provenance=document["cost"]["provenance"],
        residuals=document["cost"]["residuals"],
        roofline_share=document["roofline_share"],
        checks=document["checks"],
    )


def _data() -> Traversable:
    return resources.files("sim.presets") / "data"
