"""Shapes of decoders: presets by name, or a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sim.errors import UsageError


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's stretching of the rotary wavelengths to longer contexts.

    Attributes
    ----------
    factor
        By which long wavelengths are stretched.
    low_freq_factor, high_freq_factor
        Wavelengths above ``original_context / low`` are stretched, those below ``original_context
        / high`` are left, and those between are blended.
    original_context
        Tokens that the model was first trained on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides the arithmetic of a decoder-only transformer of the Llama and Qwen families.

    Attributes
    ----------
    num_kv_heads
        Heads of keys and values; each serves ``num_heads / num_kv_heads`` heads of queries.
    intermediate_size
        Width of the gated MLP (SwiGLU).
    max_positions
        Longest context that the model is meant for.
    tie_embeddings
        The output layer is the embedding.
    qkv_bias
        Projections of queries, keys and values have a bias (Qwen2).
    qk_norm
        Queries and keys are normed per head before they are rotated (Qwen3).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-6
    max_positions: int = 32_768
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def num_params(self) -> int:
        """Weights, the embedding counted once where it is tied."""
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * query + 2 * kv)
        attention += (query + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = (1 if self.tie_embeddings else 2) * self.vocab_size * self.hidden_size
        per_layer = attention + mlp + 2 * self.hidden_size
        return embeddings + self.num_layers * per_layer + self.hidden_size

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache keeps of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


PRESETS: Final[dict[str, ModelShape]] = {
    # For tests: two layers, since only from the second on a key depends on what came before.
    "tiny": ModelShape(512, 64, 128, 2, 4, 2, 16),
    # For a CPU: large enough that arithmetic outweighs the calls.
    "small": ModelShape(4096, 512, 1408, 8, 8, 2, 64),
    "llama-3-8b": ModelShape(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rope_theta=500_000.0,
        rms_norm_eps=1e-5,
        max_positions=8192,
    ),
    "qwen3-8b": ModelShape(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rope_theta=1_000_000.0,
        max_positions=40_960,
        qk_norm=True,
    ),
}

_FAMILIES: Final = ("llama", "qwen2", "qwen3")


def load_shape(name: str) -> ModelShape:
    """Look up a preset, or read a ``config.json`` (or the folder that holds one).

    Raises
    ------
    UsageError
        Neither, or a model of another family.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"model {name!r} is neither a preset ({', '.join(PRESETS)}) nor a config.json that "
            f"can be read ({error.strerror}); check its name."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"model {path}: not valid JSON ({error}); name a Hugging Face config.json."
        ) from error
    return shape_from_config(document, str(path))


def shape_from_config(document: Any, where: str) -> ModelShape:  # noqa: ANN401
    """Make the shape that a Hugging Face configuration describes; ``where`` names it in errors."""
    if not isinstance(document, dict) or document.get("model_type") not in _FAMILIES:
        kind = document.get("model_type") if isinstance(document, dict) else None
        raise UsageError(
            f"model {where}: model_type is {kind!r} but must be one of {', '.join(_FAMILIES)}; "
            "use a dense model of these families."
        )
    family = document["model_type"]
    if document.get("use_sliding_window"):
        raise UsageError(
            f"model {where}: use_sliding_window is true but sliding windows are not modelled; "
            "use a model with full attention."
        )
    num_heads = _whole(document, "num_attention_heads", where)
    hidden_size = _whole(document, "hidden_size", where)
    # Newer files gather what concerns the rotary positions in one object.
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    shape = ModelShape(
        vocab_size=_whole(document, "vocab_size", where),
        hidden_size=hidden_size,
        intermediate_size=_whole(document, "intermediate_size", where),
        num_layers=_whole(document, "num_hidden_layers", where),
        num_heads=num_heads,
        num_kv_heads=_whole(document, "num_key_value_heads", where, num_heads),
        head_dim=_whole(document, "head_dim", where, hidden_size // num_heads),
        rope_theta=float(rope.get("rope_theta") or document.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope, where),
        rms_norm_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=_whole(document, "max_position_embeddings", where, 32_768),
        tie_embeddings=bool(document.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bool(document.get("attention_bias", False)),
        qk_norm=family == "qwen3",
    )
    if shape.num_heads % shape.num_kv_heads or shape.head_dim % 2:
        raise UsageError(
            f"model {where}: {shape.num_heads} heads of {shape.head_dim} with "
            f"{shape.num_kv_heads} heads of keys and values cannot be grouped and rotated; heads "
            "must be a multiple and their size even."
        )
    return shape


def _rope_scaling(rope: dict[str, Any], where: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UsageError(
            f"model {where}: rotary positions of type {kind!r} but only 'default' and 'llama3' "
            "are modelled; use a model with one of them."
        )
    try:
        return RopeScaling(
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"model {where}: the llama3 rotary scaling lacks {error}; take the whole config.json."
        ) from error


def _whole(document: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = document.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            f"model {where}: {key} is {value!r} but must be a whole number of at least 1; "
            "correct it."
        )
    return value
