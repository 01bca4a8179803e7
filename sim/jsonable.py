"""Data as JSON can hold it."""

from __future__ import annotations

import math


def without_nan(data: object) -> object:
    """Replace NaN, which JSON lacks, by None, at any depth."""
    if isinstance(data, dict):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data
