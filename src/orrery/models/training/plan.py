"""`TrainingPlan`: how the training of a model is spread, and what it keeps or computes again."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.taskgraph.schedules import SCHEDULES, Step
from orrery.models.training.schedules import zero_bubble
from orrery.models.weights import Degree, Layout, stage_layers
from orrery.world.spec import Spec

Count = Annotated[int, Meta(ge=1, le=1 << 30)]
# Bytes of the optimiser's own states for each parameter, besides an fp32 copy of the weight.
OPTIMISER_B = {"adam": 8.0, "adam8": 2.0, "momentum": 4.0, "sgd": 0.0}
GENERATORS = {**SCHEDULES, "zero_bubble": zero_bubble}


class TrainingPlan(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parallelism of a training run, its batches, and how memory is traded for time.

    tp, pp, dp, cp      tensor, pipeline, data and context parallel degrees; their product is the
                        number of devices
    ep                  over how many devices the experts are spread: a divisor of tp, or a
                        multiple of it that tp x cp x dp can hold
    micro_batch, global_batch   sequences of one pass of one replica, of one step of all
    sequence            tokens of a sequence; 0: the model's context
    schedule, chunks    gpipe, 1f1b, interleaved or zero_bubble; chunks of layers for each stage
    sequence_parallel   norms, dropout and residuals are split over the tensor group too
    recompute           none, selective (attention's scores; Korthikanti et al., 2022) or full
    sharded_optimizer   each replica keeps and updates its share of the optimiser's states (ZeRO-1)
    optimizer           adam, adam8, momentum or sgd, with an fp32 copy of narrow weights
    attention           fused (FlashAttention: scores never leave the chip) or unfused
    dropout             masks are made and kept
    overlap_gradients   gradients are exchanged while the backward pass still runs
    overlap_tensor      the tensor group sums the gradient of a layer's input while the gradient of
                        its weights is computed (the default of Megatron-LM)
    overlap_sends       a stage computes while its activations travel
    """

    label: ClassVar[str] = "plan"
    error: ClassVar[type[SpecError]] = SpecError
    tp: Degree = 1
    pp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    cp: Degree = 1
    micro_batch: Count = 1
    global_batch: Count = 1
    sequence: Annotated[int, Meta(ge=0, le=1 << 26)] = 0
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b"
    chunks: Annotated[int, Meta(ge=1, le=1024)] = 1
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    sharded_optimizer: bool = False
    optimizer: Literal["adam", "adam8", "momentum", "sgd"] = "adam"
    dtype: str = ""
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    attention: Literal["fused", "unfused"] = "fused"
    dropout: bool = False
    overlap_gradients: bool = True
    overlap_tensor: bool = True
    overlap_sends: bool = False

    def _check(self) -> None:
        if self.dtype and self.dtype not in WEIGHT_B:
            fix = did_you_mean(self.dtype, WEIGHT_B)
            raise self._refuse("dtype", f"unknown dtype {self.dtype!r}", fix)
        if self.global_batch % (self.micro_batch * self.dp):
            raise self._refuse(
                "global_batch",
                f"{self.global_batch} sequences do not split over {self.dp} replicas in "
                f"micro-batches of {self.micro_batch}",
                f"give a multiple of {self.micro_batch * self.dp}",
            )
        if self.chunks > 1 and self.schedule not in ("interleaved", "1f1b"):
            fix = 'give schedule = "interleaved", or 1'
            raise self._refuse("chunks", f"{self.chunks} with {self.schedule}", fix)
        if self.chunks > 1 and self.pp == 1:
            raise self._refuse("chunks", f"{self.chunks} with one stage", "give 1, or pp > 1")
        if self.chunks > 1 and self.micro_batches % self.pp:
            fix = f"give a global batch of whole rounds of {self.pp} micro-batches a replica"
            problem = f"{self.micro_batches} micro-batches do not divide into rounds of {self.pp}"
            raise self._refuse("global_batch", problem, fix)
        if self.sequence_parallel and self.tp == 1:
            raise self._refuse("sequence_parallel", "is on with tp = 1", "switch it off")
        replicas = self.dp * self.cp
        if self.ep > self.tp and (self.ep % self.tp or replicas % (self.ep // self.tp)):
            problem = f"{self.ep} does not fit tp x cp x dp = {self.tp} x {self.cp} x {self.dp}"
            fix = "give a divisor of tp, or tp times a divisor of cp x dp"
            raise self._refuse("ep", problem, fix)
        if self.ep <= self.tp and self.tp % self.ep:
            raise self._refuse("ep", f"{self.ep} with tp = {self.tp}", "give a divisor of tp")

    # -- sizes

    @property
    def devices(self) -> int:
        """How many devices the plan needs."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def micro_batches(self) -> int:
        """Passes of each replica in one step."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def layout(self) -> Layout:
        """The same as a layout of a model."""
        return Layout(
            tp=self.tp, pp=self.pp, ep=self.ep, cp=self.cp,
            sequence_parallel=self.sequence_parallel,
        )  # fmt: skip

    def length(self, model: ModelSpec) -> int:
        """Tokens of a sequence."""
        return self.sequence or model.max_context

    def tokens(self, model: ModelSpec) -> float:
        """Tokens of one micro-batch on each device of a tensor group."""
        return self.micro_batch * self.length(model) / self.cp

    # -- the model

    def of(self, model: ModelSpec) -> ModelSpec:
        """The model in the plan's dtype, when the plan suits it; else the error that says why."""
        self.layout.check_fits(model)
        parts = self.pp * self.chunks
        if parts > model.layers:
            fix = f"give pp x chunks of at most {model.layers}"
            raise self._refuse("pp", f"{self.pp} stages x {self.chunks} chunks", fix)
        if self.chunks > 1 and model.layers % parts:
            problem = f"{model.layers} layers do not split into {self.pp} x {self.chunks} parts"
            raise self._refuse("chunks", problem, f"give a divisor of {model.layers // self.pp}")
        if self.length(model) % self.cp:
            fix = f"give a divisor of {self.length(model)} tokens"
            raise self._refuse("cp", f"{self.cp} is refused", fix)
        if self.sequence_parallel and self.length(model) // self.cp % self.tp:
            problem = f"{self.length(model) // self.cp} tokens do not split over {self.tp} devices"
            raise self._refuse("sequence_parallel", problem, "give another length, or false")
        if self.attention == "unfused" and self.cp > 1:
            fix = 'give attention = "fused"'
            raise self._refuse("cp", f"{self.cp} with unfused attention", fix)
        return model.replace(dtype=self.dtype) if self.dtype else model

    def check_devices(self, have: int) -> None:
        """Refuse a plan that needs more devices than there are."""
        if self.devices > have:
            problem = f"tp x pp x dp x cp = {self.devices} devices where the world has {have}"
            raise self._refuse("dp", problem, "give a larger world, or smaller degrees")

    def layers(self, model: ModelSpec, stage: int, chunk: int = 0) -> tuple[int, int]:
        """The first layer of a chunk of a stage, and the one after its last."""
        if self.chunks == 1:
            return stage_layers(model.layers, self.pp, stage)
        size = model.layers // (self.pp * self.chunks)
        first = (chunk * self.pp + stage) * size
        return first, first + size

    def kinds(self, model: ModelSpec, stage: int, chunk: int | None = None) -> tuple[int, int]:
        """(dense layers, layers with experts) of a chunk, or of all chunks of a stage."""
        front = model.layers - model.moe_layers
        dense = total = 0
        for each in range(self.chunks) if chunk is None else (chunk,):
            first, end = self.layers(model, stage, each)
            total += end - first
            dense += max(0, min(end, front) - first)
        return dense, total - dense

    def steps(self, stage: int) -> list[Step]:
        """The passes of a stage in their order."""
        name = "interleaved" if self.chunks > 1 else self.schedule
        return GENERATORS[name](stage, self.pp, self.micro_batches, self.chunks)


__all__ = ["GENERATORS", "OPTIMISER_B", "TrainingPlan"]
