"""Memory of a device in training: weights, gradients, states of the optimiser, activations.

Activations follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (2022), term by term, so that other shapes than GPT (grouped and latent attention, gated
MLPs, experts, no dropout) come out as well; for GPT they are s b h (34 + 5 a s / h) a layer. How
many micro-batches are kept at a time is counted on the schedule.
"""

from __future__ import annotations

import msgspec

from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.training.plan import OPTIMISER_B, TrainingPlan
from orrery.models.training.schedules import held
from orrery.models.training.work import head_widths, params_of


class StageMemory(msgspec.Struct, frozen=True):
    """Bytes on each device of one stage.

    weights_B, gradients_B, optimizer_B   of the layers
    activations_B   of the layers, of all micro-batches that are kept at one time
    ends_B          weights, gradients and states of embedding and output matrix
    edges_B         activations of the ends: dropout of the embedding, last norm, logits
    working_B       what a layer needs while it is computed again, beyond what is kept
    held            how many passes through a chunk are kept at one time
    """

    stage: int
    weights_B: float
    gradients_B: float
    optimizer_B: float
    activations_B: float
    ends_B: float
    edges_B: float
    working_B: float
    held: int

    @property
    def states_B(self) -> float:
        """Weights, gradients and states of the optimiser, of the layers alone."""
        return self.weights_B + self.gradients_B + self.optimizer_B

    @property
    def total_B(self) -> float:
        """Everything."""
        return self.states_B + self.activations_B + self.ends_B + self.edges_B + self.working_B


def layer_activations(
    model: ModelSpec, plan: TrainingPlan, moe: bool = False, recompute: str | None = None
) -> float:
    """Bytes that one layer keeps of one micro-batch on a device.

    Here s b h (10 + 24 / t + 5 a s / (h t)), with t = 8:

    >>> from orrery.models.specs import spec
    >>> plan = TrainingPlan(tp=8, dropout=True, attention="unfused", sequence=2048)
    >>> round(layer_activations(spec("Megatron-22B"), plan) / (2048 * 6144), 3)
    26.333
    """
    recompute = plan.recompute if recompute is None else recompute
    tokens, width = plan.tokens(model), WEIGHT_B[model.dtype]
    kept = plan.tp if plan.sequence_parallel else 1
    row = tokens * model.hidden
    if recompute == "full":
        return row * width / kept  # the layer's input
    # Inputs of the norms, of attention and of the MLP, and a mask of each of two dropouts.
    found = row * ((model.norms + 2) * width + 2 * plan.dropout) / kept
    found += tokens * _attention_row(model, plan) * width
    found += tokens * _mlp_row(model, plan, moe) * width
    if plan.attention == "fused":
        found += tokens * model.heads / plan.tp * WEIGHT_B["fp32"]  # one sum for each query
    elif recompute == "none":
        each = width + (1 + width if plan.dropout else 0)  # softmax; mask and result of dropout
        found += tokens * plan.length(model) * model.heads / plan.tp * each
    return found


def _attention_row(model: ModelSpec, plan: TrainingPlan) -> float:
    """Elements that a token keeps for attention: queries, keys, values, the output's input."""
    query, value = head_widths(model)
    heads = model.heads / plan.tp
    if not model.kv_lora_rank:
        kv = max(1, model.kv_heads // plan.tp)
        return heads * query + kv * (query + value) + heads * value
    latent = model.kv_lora_rank + model.qk_rope_dim + model.q_lora_rank
    return latent + heads * (2 * query + value) + heads * value


def _mlp_row(model: ModelSpec, plan: TrainingPlan, moe: bool) -> float:
    """Elements that a token keeps for the MLP: what goes into the activation, and what leaves."""
    each = 3 if model.gated else 2
    if not moe:
        return each * model.intermediate / plan.tp
    routed = model.experts_active * (each * model.expert_intermediate + model.hidden) / plan.tp
    shared = each * model.shared_experts * model.expert_intermediate / plan.tp
    return routed + shared + model.experts


def stage_memory(model: ModelSpec, plan: TrainingPlan, stage: int) -> StageMemory:
    """Bytes on each device of a stage."""
    params = params_of(model, plan, stage)
    narrow, wide = WEIGHT_B[model.dtype], WEIGHT_B[plan.gradient_dtype]
    master = 4.0 if narrow < 4 else 0.0
    states = OPTIMISER_B[plan.optimizer] + master
    replicas = plan.dp * plan.cp
    shards = {"layers": replicas, "ends": replicas, "experts": max(1, expert_replicas(plan))}
    each = {
        name: states / (count if plan.sharded_optimizer else 1) for name, count in shards.items()
    }
    layers = params["layers"] + params["experts"]
    steps = plan.steps(stage)
    most, kept = held(steps), 0.0
    for moe, count in enumerate(plan.kinds(model, stage)):
        # Chunks have as many layers each, so that a pass keeps its share of the stage's.
        if count:
            kept += layer_activations(model, plan, bool(moe)) * count * most / plan.chunks
    return StageMemory(
        stage=stage, held=most,
        weights_B=layers * narrow,
        gradients_B=layers * wide,
        optimizer_B=params["layers"] * each["layers"] + params["experts"] * each["experts"],
        activations_B=kept,
        ends_B=params["ends"] * (narrow + wide + each["ends"]),
        edges_B=_edges(model, plan, stage, most),
        working_B=_working(model, plan, stage),
    )  # fmt: skip


def expert_replicas(plan: TrainingPlan) -> int:
    """How many devices hold the same share of the experts."""
    return plan.dp * plan.cp * plan.tp // max(plan.ep, plan.tp)


def _edges(model: ModelSpec, plan: TrainingPlan, stage: int, most: int) -> float:
    tokens, width = plan.tokens(model), WEIGHT_B[model.dtype]
    kept = plan.tp if plan.sequence_parallel else 1
    found = 0.0
    if stage == 0 and plan.dropout:
        found += tokens * model.hidden * most / plan.chunks / kept
    if stage == plan.pp - 1:
        # The inputs of the last norm and of the output matrix, and the logits in fp32.
        row = 2 * tokens * model.hidden * width / kept
        row += tokens * -(-model.vocab // plan.tp) * WEIGHT_B["fp32"]
        found += row * (most if plan.schedule == "gpipe" else 1)
    return found


def _working(model: ModelSpec, plan: TrainingPlan, stage: int) -> float:
    if plan.recompute == "none" or (plan.recompute == "selective" and plan.attention == "fused"):
        return 0.0
    whole = 0.0
    for moe, count in enumerate(plan.kinds(model, stage)):
        if count:
            here = bool(moe)
            more = layer_activations(model, plan, here, "none")
            whole = max(whole, more - layer_activations(model, plan, here))
    return whole


def memory_of(model: ModelSpec, plan: TrainingPlan) -> list[StageMemory]:
    """The memory of every stage; the fullest decides whether the plan fits a device."""
    model = plan.of(model)
    return [stage_memory(model, plan, stage) for stage in range(plan.pp)]


__all__ = ["StageMemory", "expert_replicas", "layer_activations", "memory_of", "stage_memory"]
