"""Carry a fitted cost over to another model or GPU by what their data sheets say.

Each term moves with the resource that bounds it: arithmetic with FLOPs over peak FLOP/s, reading
with bytes over memory bandwidth, both over the GPUs that share the model. What a step takes beyond
reading its weights is a fixed time per layer: launches, norms, collectives.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.cost import StepCost
from sim.presets import BYTES_PER_VALUE, GpuFacts, ModelFacts


class Roofline:
    """Least times of a model on GPUs, ns, if it reached the peaks of the data sheet."""

    def __init__(self, model: ModelFacts, gpu: GpuFacts, tensor_parallel: int) -> None:
        ns_per_byte = 1e9 / (gpu.memory_bytes_per_s * tensor_parallel)
        ns_per_flop = 1e9 / (gpu.bf16_flops_per_s * tensor_parallel)
        # A step reads a few rows of the input embedding, and runs the output layer, of the same
        # size, once a sequence.
        embedding_params = model.vocab_size * model.hidden_size
        self.num_layers = model.num_layers
        self.weight_read_ns = (model.num_params - embedding_params) * BYTES_PER_VALUE * ns_per_byte
        self.kv_read_ns = model.kv_bytes_per_token * ns_per_byte
        self.token_ns = 2 * (model.num_params - 2 * embedding_params) * ns_per_flop
        # One product of query and key, one of score and value, 2 FLOPs a multiply-add.
        self.pair_ns = 4 * model.num_layers * model.num_heads * model.head_dim * ns_per_flop

    def share(self, cost: StepCost) -> dict[str, float]:
        """How near to the data sheet each coefficient of ``cost`` is; 1 is at the peak."""
        return {
            "min_ns": self.weight_read_ns / cost.min_ns,
            "ns_per_new_token": self.token_ns / cost.ns_per_new_token,
            "ns_per_pair": self.pair_ns / cost.ns_per_pair,
            "ns_per_context_token": self.kv_read_ns / cost.ns_per_context_token,
        }


def derive_cost(cost: StepCost, source: Roofline, target: Roofline) -> StepCost:
    """Scale ``cost``, which holds on ``source``, to ``target``."""

    def ratio(of: Callable[[Roofline], float]) -> float:
        return of(target) / of(source)

    ns_per_layer = max(cost.min_ns - source.weight_read_ns, 0.0) / source.num_layers
    by_kv_read = ratio(lambda roofline: roofline.kv_read_ns)
    return StepCost(
        min_ns=target.weight_read_ns + ns_per_layer * target.num_layers,
        ns_per_new_token=cost.ns_per_new_token * ratio(lambda roofline: roofline.token_ns),
        ns_per_pair=cost.ns_per_pair * ratio(lambda roofline: roofline.pair_ns),
        ns_per_context_token=cost.ns_per_context_token * by_kv_read,
        ns_per_sequence=cost.ns_per_sequence * ratio(lambda roofline: roofline.weight_read_ns),
        ns_per_prefill_context_token=cost.ns_per_prefill_context_token * by_kv_read,
    )
