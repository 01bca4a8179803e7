"""Fit a `StepCost` to measured or published times of steps.

The model is linear in its coefficients once the ratio ``min_ns / ns_per_new_token`` (the number of
tokens at which a step turns compute-bound) is fixed: a search over that one number with
non-negative least squares inside finds them all. Errors are relative, so that a step of 5 ms counts
as much as one of 3 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from sim.cost import EagerStepCost, StepCost
from sim.errors import UsageError
from sim.types import Batch

REQUIRED_COLUMNS: Final = ("new_tokens", "cached_tokens", "seconds")
OPTIONAL_COLUMNS: Final = {"sequences": 1, "decodes": 0, "decode_cached_tokens": 0}
"""Columns that a table may leave out, with the value that they then have."""

KNEE_RANGE: Final = (1.0, 65_536.0)
"""Tokens between which the turn from memory-bound to compute-bound is looked for."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far a cost model is from the points that it was compared with.

    Attributes
    ----------
    num_points
        Points compared.
    median, p90, worst
        Of the size of the relative error, ``|model / measured - 1|``.
    worst_at
        The point of the worst: column to value, with ``model_seconds`` added.
    """

    num_points: int
    median: float
    p90: float
    worst: float
    worst_at: dict[str, float]


def fit_step_cost(
    points: pd.DataFrame,
    *,
    ns_per_context_token: float | None = None,
    ns_per_sequence: float | None = None,
    eager: bool = False,
) -> tuple[StepCost, Residuals]:
    """Fit a `StepCost` by relative non-negative least squares.

    Parameters
    ----------
    points
        One row a step. ``sequences`` (1 where the column is left out) sequences compute
        ``new_tokens`` each after ``cached_tokens`` each; ``decodes`` (0) more compute one token
        each after ``decode_cached_tokens``; the step takes ``seconds``.
    ns_per_context_token
        Cost of reading a token's KV in a decode step, ns, from a data sheet. A table of prefills
        cannot tell it; left out, the table must hold decode steps.
    ns_per_sequence
        Cost of a sequence, ns, likewise; left out, steps must differ in their sequences.
    eager
        Fit a time that comes on top of every step too, see `sim.cost.EagerStepCost`.

    Returns
    -------
    The model, and its `Residuals` over ``points``.

    Raises
    ------
    UsageError
        A column is missing, a value is out of range, or the table cannot tell the coefficients.

    Notes
    -----
    ``min_ns`` is told by steps of few tokens: without one below about 300 tokens it is an
    extrapolation.
    """
    points = _checked(points)
    steps = _steps(points)
    is_decode = steps["new"] == steps["sequences"]
    if ns_per_context_token is None and not is_decode.any():
        raise UsageError(
            f"cost table: all {len(points)} steps hold prefills but decode steps are needed to "
            "tell ns_per_context_token; add some or pass it from the GPU's data sheet."
        )
    if ns_per_sequence is None and len(np.unique(steps["sequences"])) < 2:
        raise UsageError(
            f"cost table: all {len(points)} steps have {int(steps['sequences'][0])} sequence(s) "
            "but different numbers are needed to tell ns_per_sequence; add some or pass it."
        )

    fixed = np.zeros(len(points))
    columns = {
        "ns_per_pair": steps["pairs"],
        "ns_per_prefill_context_token": np.where(is_decode, 0.0, steps["context"]),
    }
    if eager:
        columns["launch_ns"] = np.ones(len(points))
    given: dict[str, float] = {}
    for name, value, count in (
        ("ns_per_context_token", ns_per_context_token, steps["context"]),
        ("ns_per_sequence", ns_per_sequence, steps["sequences"]),
    ):
        if value is None:
            columns[name] = count
        else:
            given[name] = value
            fixed += value * count
    if len(points) < len(columns) + 2:
        raise UsageError(
            f"cost table: {len(points)} steps but at least {len(columns) + 2} are needed to tell "
            "as many coefficients; add steps."
        )

    ns = points["seconds"].to_numpy() * 1e9
    knee, solution = _search(steps["new"], list(columns.values()), ns, 1.0 - fixed / ns)
    cost = (EagerStepCost if eager else StepCost)(
        min_ns=float(solution[0] * knee),
        ns_per_new_token=float(solution[0]),
        **given,
        **{name: float(value) for name, value in zip(columns, solution[1:], strict=True)},
    )
    return cost, residuals_of(cost, points)


def residuals_of(cost: StepCost, points: pd.DataFrame) -> Residuals:
    """Compare ``cost`` with a table of steps (see `fit_step_cost`)."""
    return residuals_from(relative_errors(cost, points), points)


def residuals_from(errors: NDArray[np.float64], points: pd.DataFrame) -> Residuals:
    """Sum up the relative errors of the rows of a table of steps."""
    size = np.abs(errors)
    worst = int(np.argmax(size))
    worst_at = {str(name): float(value) for name, value in _checked(points).iloc[worst].items()}
    worst_at["model_seconds"] = worst_at["seconds"] * float(1.0 + errors[worst])
    return Residuals(
        num_points=len(points),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size[worst]),
        worst_at=worst_at,
    )


def relative_errors(cost: StepCost, points: pd.DataFrame) -> NDArray[np.float64]:
    """``model / measured - 1`` for every row, as the simulator would price that step."""
    rows = _checked(points).to_dict("records")
    return np.array(
        [cost.step_ns(batch_of(row)) / (row["seconds"] * 1e9) - 1.0 for row in rows],
        dtype=np.float64,
    )


def batch_of(row: dict[Any, Any]) -> Batch:
    """Make the `Batch` that a row of a table of steps describes."""
    row = {**OPTIONAL_COLUMNS, **row}
    batch = Batch()
    for _ in range(int(row["sequences"])):
        batch.add(int(row["new_tokens"]), int(row["cached_tokens"]))
    for _ in range(int(row["decodes"])):
        batch.add(1, int(row["decode_cached_tokens"]))
    return batch


def _checked(points: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that count, as float64, if every value is possible."""
    missing = [name for name in REQUIRED_COLUMNS if name not in points]
    if missing or points.empty:
        raise UsageError(
            f"cost table: it has {len(points)} rows and the columns "
            f"{', '.join(map(str, points.columns))} but must have rows and "
            f"{', '.join(REQUIRED_COLUMNS)}; add what is missing."
        )
    checked: dict[str, NDArray[np.float64]] = {}
    for name in (*REQUIRED_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in points)):
        values = pd.to_numeric(points[name], errors="coerce").to_numpy(dtype=np.float64)
        if name == "seconds":
            possible, rule = values > 0, "above 0"
        else:
            least = 1 if name in ("new_tokens", "sequences") else 0
            possible = (values >= least) & (values == np.floor(values))
            rule = f"a whole number of at least {least}"
        wrong = np.flatnonzero(~(possible & np.isfinite(values)))
        if wrong.size:
            row = int(wrong[0])
            raise UsageError(
                f"cost table: {name} in row {row + 1} is {points[name].iloc[row]} but must be "
                f"{rule}; correct or remove that row."
            )
        checked[name] = values
    return pd.DataFrame(checked)


def _steps(points: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Count what each step of a checked table computes."""
    batches = [batch_of(row) for row in points.to_dict("records")]
    return {
        "new": np.array([batch.num_new_tokens for batch in batches], dtype=np.float64),
        "pairs": np.array([batch.num_attended_pairs for batch in batches], dtype=np.float64),
        "context": np.array([batch.num_context_tokens for batch in batches], dtype=np.float64),
        "sequences": np.array([batch.num_sequences for batch in batches], dtype=np.float64),
    }


def _search(
    new: NDArray[np.float64],
    columns: list[NDArray[np.float64]],
    ns: NDArray[np.float64],
    target: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """Find the knee (tokens) and the coefficients; a grid, refined twice around its best point."""

    def solve(knee: float) -> tuple[float, NDArray[np.float64]]:
        design = np.column_stack([np.hypot(knee, new), *columns]) / ns[:, np.newaxis]
        # Columns of like size keep the solver's tolerances meaningful.
        scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
        solution, norm = nnls(design / scale, target)
        return float(norm), np.asarray(solution / scale, dtype=np.float64)

    low, high = KNEE_RANGE
    best_knee = low
    for num_points in (121, 31, 31):
        grid = np.geomspace(low, high, num_points)
        norms = [solve(float(knee))[0] for knee in grid]
        index = int(np.argmin(norms))
        best_knee = float(grid[index])
        low = float(grid[max(index - 1, 0)])
        high = float(grid[min(index + 1, num_points - 1)])
    return best_knee, solve(best_knee)[1]
