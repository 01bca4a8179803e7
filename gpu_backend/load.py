"""Puts a decoder on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from gpu_backend.device import Device
from gpu_backend.model import Decoder
from gpu_backend.shape import load_shape
from gpu_backend.weights import load_weights, random_weights
from sim.errors import UsageError


def load_decoder(
    name: str, device: Device, dtype: torch.dtype, *, weights: Path | None = None, seed: int = 0
) -> Decoder:
    """Make the model ``name`` (a preset or a config.json) with weights of a folder or random ones.

    Raises
    ------
    UsageError
        No such model, weights that are not its own, or too little memory on the device.
    """
    shape = load_shape(name)
    num_bytes, free = shape.num_params * dtype.itemsize, device.free_bytes()
    if num_bytes > 0.9 * free:
        raise UsageError(
            f"model {name!r} takes {num_bytes / 1e9:.1f} GB of weights but {free / 1e9:.1f} GB "
            "are free on the device; take a smaller model or another device."
        )
    with torch.inference_mode():
        made = (
            random_weights(shape, seed=seed, device=device.torch, dtype=dtype)
            if weights is None
            else load_weights(shape, weights, device=device.torch, dtype=dtype)
        )
    return Decoder(shape, made)
