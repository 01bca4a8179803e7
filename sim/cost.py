"""What a step of the model costs: two forms of cost model, and the file that keeps one.

`StepCost` is the form that a GPU's steps follow; `sim.cost_fit` fits it and `sim.presets` holds it
fitted for common pairs of model and GPU. `LinearCost` is exact integer arithmetic, for runs that
were recorded with it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from sim.errors import UsageError
from sim.types import Batch, CostModel


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of a step in terms of what the GPU does in it.

    ``hypot(min_ns, ns_per_new_token * new) + ns_per_pair * pairs + ns_per_context_token * context
    + ns_per_sequence * sequences``, and ``ns_per_prefill_context_token * context`` more in a step
    in which some sequence computes more than one token.

    Attributes
    ----------
    min_ns
        A step with few tokens takes as long as reading the weights (ns). The root of the sum of
        squares goes from this to the next term without a kink: layers pass from memory-bound to
        compute-bound at different numbers of tokens. It halves the error of ``max``.
    ns_per_new_token
        Matrix products of a computed token, where they are compute-bound.
    ns_per_pair
        Attention arithmetic of one (query, key) pair.
    ns_per_context_token
        Reading one token's KV once, at nearly full memory bandwidth, as decode kernels do.
    ns_per_sequence
        Output layer and sampling of one sequence.
    ns_per_prefill_context_token
        What a key costs beyond that where queries come in chunks: kernels for chunks do not split
        a sequence's keys over the GPU, and decodes that share their step suffer with them.

    Notes
    -----
    Every coefficient is at least 0, so a step never gets cheaper by one more token, cached token
    or sequence. `Batch` needs no count of decodes: a step has a chunk of several tokens exactly if
    it computes more tokens than it has sequences.
    """

    min_ns: float
    ns_per_new_token: float
    ns_per_pair: float = 0.0
    ns_per_context_token: float = 0.0
    ns_per_sequence: float = 0.0
    ns_per_prefill_context_token: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(getattr(self, field.name), field.name, "step cost")

    def step_ns(self, batch: Batch) -> int:
        """Time of the step, ns, rounded half up; at least 1."""
        num_new_tokens = batch.num_new_tokens
        num_sequences = batch.num_sequences
        per_context_token = self.ns_per_context_token
        if num_new_tokens > num_sequences:
            per_context_token += self.ns_per_prefill_context_token
        compute_ns = self.ns_per_new_token * num_new_tokens
        # A root and products round alike everywhere, which hypot() of libraries does not.
        ns = (
            math.sqrt(self.min_ns * self.min_ns + compute_ns * compute_ns)
            + self.ns_per_pair * batch.num_attended_pairs
            + per_context_token * batch.num_context_tokens
            + self.ns_per_sequence * num_sequences
        )
        return int(ns + 0.5) or 1


@dataclass(frozen=True, slots=True)
class EagerStepCost(StepCost):
    """A `StepCost` and a time that every step takes on top.

    An eager framework calls a kernel at a time, and on a CPU the first few tokens of a step are not
    hidden behind the reading of the weights as they are on a GPU: times of small steps add up.

    Attributes
    ----------
    launch_ns
        What comes on top of each step.
    """

    launch_ns: float = 0.0

    def step_ns(self, batch: Batch) -> int:
        """Time of the step, ns; at least 1."""
        return StepCost.step_ns(self, batch) + round(self.launch_ns)


@dataclass(frozen=True, slots=True)
class LinearCost:
    """``step_base_ns + step_per_token_ns * new tokens + step_per_seq_ns * sequences``, exactly.

    Attributes
    ----------
    step_base_ns, step_per_token_ns, step_per_seq_ns
        Integers, ns.
    """

    step_base_ns: int
    step_per_token_ns: int = 0
    step_per_seq_ns: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _check_number(value, field.name, "linear cost")
            if not isinstance(value, int):
                raise UsageError(
                    f"linear cost: {field.name} is {value!r} but must be a whole number of ns; "
                    "round it or use the form 'step'."
                )

    def step_ns(self, batch: Batch) -> int:
        """Time of the step, ns; at least 1."""
        return (
            self.step_base_ns
            + self.step_per_token_ns * batch.num_new_tokens
            + self.step_per_seq_ns * batch.num_sequences
        ) or 1


MAX_COEFFICIENT: Final = 1e15
"""No coefficient is as large, ns: eleven days."""

CALIBRATION: Final = (
    "machine", "model", "held_out", "blocks", "copies", "roofline", "preset", "points",
)  # fmt: skip
"""What a calibration keeps in its file beside the model: how it came about."""

FORMS: Final[dict[str, type[StepCost] | type[LinearCost]]] = {
    "step": StepCost,
    "linear": LinearCost,
    "eager": EagerStepCost,
}
"""Cost models by the name that files give their form."""


def load_cost(path: str | Path, block_size: int | None = None) -> CostModel:
    """Read a cost model that `save_cost` or a calibration wrote.

    Parameters
    ----------
    path
        JSON file.
    block_size
        Blocks that the engine will have, tokens. Where the calibration measured what reading
        smaller or larger blocks costs, the model is that of this size.

    Raises
    ------
    UsageError
        The file is missing, is no JSON object, or names no form or coefficients that exist.
    """
    document = read_json(path)
    cost = cost_from_document(document, str(path))
    blocks = document.get("blocks")
    if blocks is None or block_size is None or not isinstance(cost, StepCost):
        return cost
    blocks = _check_keys(blocks, f"{path}: blocks", ("ns_per_block", "block_size"), ("measured",))
    _check_number(blocks["ns_per_block"], "ns_per_block", f"{path}: blocks")
    if not isinstance(blocks["block_size"], int) or blocks["block_size"] < 1:
        raise UsageError(
            f"{path}: blocks: block_size is {blocks['block_size']!r} but must be a whole number of "
            "at least 1; calibrate again."
        )
    return at_block_size(cost, block_size, blocks["block_size"], blocks["ns_per_block"])


def at_block_size(
    cost: StepCost, block_size: int, measured_at: int, ns_per_block: float
) -> StepCost:
    """Move a cost from the block size that it was measured at to another one.

    A token that is read costs its share of a block: ``ns_per_block / block_size``.
    """
    change = ns_per_block * (1 / block_size - 1 / measured_at)
    return replace(cost, ns_per_context_token=max(0.0, cost.ns_per_context_token + change))


def save_cost(
    path: str | Path,
    cost: StepCost | LinearCost,
    *,
    provenance: str = "",
    residuals: dict[str, Any] | None = None,
) -> None:
    """Write a cost model as JSON.

    Parameters
    ----------
    provenance
        Where the coefficients come from: what was measured, on what, when.
    residuals
        How far the model is from those measurements (see `sim.cost_fit.Residuals`).

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    document = cost_to_document(cost, provenance=provenance, residuals=residuals)
    try:
        Path(path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write the cost model ({error.strerror}); "
            "name a file in a folder that exists and can be written."
        ) from error


def cost_to_document(
    cost: StepCost | LinearCost,
    *,
    provenance: str = "",
    residuals: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the JSON object that stands for ``cost``."""
    form = next(name for name, kind in FORMS.items() if type(cost) is kind)
    return {
        "form": form,
        "coefficients": asdict(cost),
        "provenance": provenance,
        "residuals": residuals,
    }


def cost_from_document(document: Any, where: str) -> StepCost | LinearCost:  # noqa: ANN401
    """Make the cost model that a JSON object stands for; ``where`` names it in errors."""
    document = _check_keys(
        document,
        where,
        required=("form", "coefficients"),
        optional=("provenance", "residuals", *CALIBRATION),
    )
    form = document["form"]
    kind = FORMS.get(form) if isinstance(form, str) else None
    if kind is None:
        raise UsageError(
            f"{where}: form is {form!r} but must be one of {', '.join(FORMS)}; correct it."
        )
    # All are asked for, also those with a default: a file that lost a line must not go unnoticed.
    names = tuple(field.name for field in fields(kind))
    coefficients = _check_keys(document["coefficients"], f"{where}: coefficients", required=names)
    try:
        return kind(**coefficients)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def read_json(path: str | Path, what: str = "the cost model") -> Any:  # noqa: ANN401
    """Parse a JSON file, with errors that name it."""
    if Path(path).exists() and not Path(path).is_file():
        raise UsageError(f"{path}: {what} is read more than once; save it to a JSON file.")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read {what} ({error.strerror}); name a JSON file that exists."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not valid JSON ({error}); correct it or write it again."
        ) from error


_JSON_KINDS = {
    list: "an array",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _check_keys(
    value: Any,  # noqa: ANN401
    where: str,
    required: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return ``value`` if it is an object with the keys that it should have."""
    if not isinstance(value, dict):
        raise UsageError(
            f"{where}: is {_JSON_KINDS[type(value)]} but must be a JSON object with the keys "
            f"{', '.join(required)}; correct it."
        )
    missing = [key for key in required if key not in value]
    if missing:
        raise UsageError(
            f"{where}: {', '.join(missing)} missing, and must be given; "
            f"write all of {', '.join(required)}."
        )
    known = required + optional
    unknown = [key for key in value if key not in known]
    if unknown:
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}; keep to {', '.join(known)} and remove the rest."
        )
    return value


def _check_number(value: object, name: str, where: str) -> None:
    """Refuse what is no number, negative, not finite, or so large that a step would overflow."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < MAX_COEFFICIENT:  # type: ignore[operator]
        raise UsageError(
            f"{where}: {name} is {value!r} but must be a number of ns, at least 0 and below "
            f"{MAX_COEFFICIENT:g}; correct it."
        )
