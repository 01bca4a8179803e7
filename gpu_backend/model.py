"""The decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

What a token attends to is not decided here: `Decoder.hidden_states` hands queries, keys and values
of each layer to an ``attend`` of the caller's, which may keep them in blocks
(`gpu_backend.paged`) or look at nothing but the tokens of the call (`causal_attend`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation names it
from torch import Tensor

from gpu_backend.shape import ModelShape
from gpu_backend.weights import Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, query, key, value)``: query (tokens, heads, head_dim), key and value (tokens,
kv_heads, head_dim), all of this call's tokens; the result is like the query."""


class Decoder:
    """A decoder-only transformer as Llama and Qwen have it.

    Parameters
    ----------
    shape
        Sizes.
    weights
        On one device, in one type; both are the model's.
    """

    def __init__(self, shape: ModelShape, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._frequencies = rotary_frequencies(shape).to(self.device)

    def hidden_states(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the layers over tokens of any sequences, one after the other.

        Parameters
        ----------
        token_ids, positions
            int64, shape ``(tokens,)``; the position is that in the token's own sequence.
        attend
            See `Attend`.

        Returns
        -------
        Normed states, shape ``(tokens, hidden_size)``; `logits` makes logits of them.
        """
        shape, weights = self.shape, self.weights
        num_tokens = len(token_ids)
        widths = [heads * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads)]
        widths.append(widths[1])
        turn = self._rotation(positions)
        states = F.embedding(token_ids, weights.embedding)
        for index, layer in enumerate(weights.layers):
            normed = self._norm(states, layer.input_norm)
            projected = F.linear(normed, layer.qkv, layer.qkv_bias)
            query, key, value = (
                part.view(num_tokens, -1, shape.head_dim)
                for part in torch.split(projected, widths, dim=-1)
            )
            if layer.query_norm is not None and layer.key_norm is not None:
                query = self._norm(query, layer.query_norm)
                key = self._norm(key, layer.key_norm)
            attended = attend(index, rotate(query, turn), rotate(key, turn), value)
            states = states + F.linear(attended.reshape(num_tokens, -1), layer.output)
            normed = self._norm(states, layer.mlp_norm)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            states = states + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(states, weights.norm)

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the next token, fp32, shape ``(tokens, vocab_size)``."""
        return F.linear(states, self.weights.output).float()

    def plain_states(self, token_ids: Tensor) -> Tensor:
        """Run one whole sequence with no cache: what every cached run must agree with."""
        positions = torch.arange(len(token_ids), device=self.device)
        return self.hidden_states(token_ids, positions, causal_attend)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(states, (weight.shape[0],), weight, self.shape.rms_norm_eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position's angles, shape ``(tokens, 1, head_dim)``."""
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rotary_frequencies(shape: ModelShape) -> Tensor:
    """Radians per position of each pair of dimensions, fp32, shape ``(head_dim / 2,)``."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = shape.rope_theta**-exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    # How often a wave turns within the context that the model was first trained on.
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rotate(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn dimension i against dimension i + head_dim / 2, as Llama's weights expect."""
    cosine, sine = turn
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def causal_attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend among the tokens of one sequence, each to itself and those before it."""
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)
