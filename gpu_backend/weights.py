"""Weights of a decoder: random by seed, or from safetensors files on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_backend.shape import ModelShape
from sim.errors import UsageError

Fetch = Callable[[str, tuple[int, ...]], Tensor]
"""Gives the weight of this name, which must have this shape."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; projections that read the same input are one matrix, (out, in).

    ``qkv`` gives queries, keys and values one after the other, ``gate_up`` gate and up.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All of them; ``output`` is ``embedding`` where the model ties both."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    output: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory that they take; a tied embedding counts once."""
        tensors = [self.embedding, self.norm]
        tensors += [] if self.output is self.embedding else [self.output]
        for layer in self.layers:
            fields = (getattr(layer, name) for name in LayerWeights.__slots__)
            tensors += [field for field in fields if field is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def assemble(shape: ModelShape, fetch: Fetch) -> Weights:
    """Put weights together by the names that Hugging Face gives them."""
    hidden, head = shape.hidden_size, shape.head_dim
    query, kv = shape.num_heads * head, shape.num_kv_heads * head

    def layer(index: int) -> LayerWeights:
        at = f"model.layers.{index}."

        def qkv(kind: str, *tail: int) -> Tensor:
            parts = (("q", query), ("k", kv), ("v", kv))
            return torch.cat(
                [fetch(f"{at}self_attn.{p}_proj.{kind}", (size, *tail)) for p, size in parts]
            )

        def gate_up(part: str) -> Tensor:
            return fetch(f"{at}mlp.{part}_proj.weight", (shape.intermediate_size, hidden))

        return LayerWeights(
            input_norm=fetch(f"{at}input_layernorm.weight", (hidden,)),
            qkv=qkv("weight", hidden),
            qkv_bias=qkv("bias") if shape.qkv_bias else None,
            query_norm=fetch(f"{at}self_attn.q_norm.weight", (head,)) if shape.qk_norm else None,
            key_norm=fetch(f"{at}self_attn.k_norm.weight", (head,)) if shape.qk_norm else None,
            output=fetch(f"{at}self_attn.o_proj.weight", (hidden, query)),
            mlp_norm=fetch(f"{at}post_attention_layernorm.weight", (hidden,)),
            gate_up=torch.cat([gate_up("gate"), gate_up("up")]),
            down=fetch(f"{at}mlp.down_proj.weight", (hidden, shape.intermediate_size)),
        )

    embedding = fetch("model.embed_tokens.weight", (shape.vocab_size, hidden))
    return Weights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(shape.num_layers)),
        norm=fetch("model.norm.weight", (hidden,)),
        output=embedding
        if shape.tie_embeddings
        else fetch("lm_head.weight", (shape.vocab_size, hidden)),
    )


def random_weights(
    shape: ModelShape, *, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Draw weights that keep the size of what flows through, so that every token tells.

    Matrices have a variance of 1 over their inputs: attention is neither even nor all on one
    token, and a wrong block changes the logits by much more than rounding does. The numbers depend
    on the device, since each has a generator of its own.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def draw(name: str, size: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(size, device=device, dtype=dtype)
        scale = size[-1] ** -0.5 if len(size) > 1 and "embed" not in name else 1.0
        # Drawn in the final type: an 8B model in fp32 would not fit beside itself.
        drawn = torch.randn(size, generator=generator, device=device, dtype=dtype)
        return drawn.mul_(scale)

    return assemble(shape, draw)


def load_weights(
    shape: ModelShape, folder: Path, *, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Read the safetensors files of a folder, as Hugging Face lays them out.

    Raises
    ------
    UsageError
        The safetensors package or a file is missing, or a weight is missing or has another shape.
    """
    try:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where asked for
    except ImportError as error:
        raise UsageError(
            '--weights needs safetensors; install it with: pip install "prefixsim[gpu]"'
        ) from error
    file_of = _files_by_weight(folder)
    opened: dict[Path, Any] = {}

    def read(name: str, size: tuple[int, ...]) -> Tensor:
        path = file_of.get(name) or file_of.get("")
        try:
            if path is None:
                raise KeyError(name)
            if path not in opened:
                opened[path] = safe_open(path, framework="pt", device=str(device))
            tensor: Tensor = opened[path].get_tensor(name)
        except (KeyError, SafetensorError) as error:
            raise UsageError(
                f"--weights {folder}: {name} is not there ({error}); name the folder of a model "
                "that fits the model."
            ) from error
        except OSError as error:
            raise UsageError(f"--weights {path}: cannot be read ({error}); check it.") from error
        if tuple(tensor.shape) != size:
            raise UsageError(
                f"--weights {folder}: {name} is of shape {tuple(tensor.shape)} but the model has "
                f"{size}; give both of the same model."
            )
        return tensor.to(dtype)

    return assemble(shape, read)


def _files_by_weight(folder: Path) -> dict[str, Path]:
    """Map each weight to its file; one file alone holds all, under the empty name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            mapping = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): folder / str(file) for name, file in mapping.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"--weights {index}: no index of safetensors ({error}); download it again."
            ) from error
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise UsageError(
            f"--weights {folder} holds {len(files)} .safetensors files and no "
            "model.safetensors.index.json; name the folder of one model."
        )
    return {"": files[0]}
