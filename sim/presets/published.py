"""The published times of steps that presets were fitted to; they come with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from sim.cost_fit import relative_errors
from sim.errors import UsageError
from sim.presets import load_preset


def fitted_pairs() -> list[tuple[str, str]]:
    """List the pairs (model, gpu) whose preset was fitted to a table."""
    return [(entry["model"], entry["gpu"]) for entry in _fitted()]


def published_steps(model: str, gpu: str) -> pd.DataFrame:
    """Return the steps that a preset was fitted to, beside what the preset says of them.

    Returns
    -------
    A row per step: ``sequences`` compute ``new_tokens`` each after ``cached_tokens`` each while
    ``decodes`` more decode; ``seconds`` as published, ``model_seconds`` by the preset.

    Raises
    ------
    UsageError
        The preset is derived, and from no table of its own.
    """
    for entry in _fitted():
        if (entry["model"], entry["gpu"]) == (model, gpu):
            points = table_points(entry["table"], entry["rows"])
            for name, value in {"sequences": 1, "decodes": 0, "decode_cached_tokens": 0}.items():
                if name not in points:
                    points[name] = value
            errors = relative_errors(load_preset(model, gpu).cost, points)
            return points.assign(model_seconds=points["seconds"] * (1 + errors))
    known = ", ".join("/".join(pair) for pair in fitted_pairs())
    raise UsageError(f"{model}/{gpu} has no published table; choose from {known}.")


def errors() -> pd.DataFrame:
    """Sum up how far each fitted preset is from its table: steps, median and worst error."""
    rows = {}
    for model, gpu in fitted_pairs():
        steps = published_steps(model, gpu)
        size = (steps["model_seconds"] / steps["seconds"] - 1).abs()
        rows[f"{model}/{gpu}"] = {
            "steps": len(steps),
            "median": float(size.median()),
            "worst": float(size.max()),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def prefills(pairs: list[tuple[str, str]], prompt_tokens: int) -> pd.DataFrame:
    """Return published prefills of one prompt, by the share of it that is cached.

    Returns
    -------
    A row per pair and share: ``preset``, ``cached_share``, ``published_ms``, ``preset_ms``,
    ``error``.
    """
    rows = []
    for model, gpu in pairs:
        steps = published_steps(model, gpu)
        alone = (steps["sequences"] == 1) & (steps["decodes"] == 0) & (steps["new_tokens"] > 1)
        whole = steps["new_tokens"] + steps["cached_tokens"] == prompt_tokens
        kept = steps[alone & whole].sort_values("cached_tokens")
        rows.append(
            pd.DataFrame(
                {
                    "preset": f"{model}/{gpu}",
                    "cached_share": kept["cached_tokens"] / prompt_tokens,
                    "published_ms": 1e3 * kept["seconds"],
                    "preset_ms": 1e3 * kept["model_seconds"],
                    "error": kept["model_seconds"] / kept["seconds"] - 1,
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def table_points(table: str, rows: dict[str, Any]) -> pd.DataFrame:
    """Return the steps of a table whose columns have the values of ``rows``."""
    with resources.as_file(resources.files("sim.presets") / "tables" / table) as path:
        points = pd.read_csv(path)
    is_kept = np.ones(len(points), dtype=bool)
    for column, value in rows.items():
        is_kept &= (points[column] == value).to_numpy()
    return points[is_kept].reset_index(drop=True)


def _fitted() -> list[dict[str, Any]]:
    text = (resources.files("sim.presets") / "facts.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["fitted"]
    return entries
