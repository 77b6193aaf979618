"""How one replica of a model runs: its stages, their devices and layers, its role, its batch.

A strategy names accelerators, not offers of a market, so that what was found for it holds at any
price. The step time of a pipeline is that of its steady state: as many batches as stages are on
the way, each with its share of the work, and the slowest stage sets the pace.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from orrery.base.errors import SpecError
from orrery.models.specs import ModelSpec, spec
from orrery.models.steps import Prefill, Spread, steps_for
from orrery.models.weights import Layout
from orrery.world.hardware import accelerator

Role = Literal["mixed", "prefill", "decode"]
ROLES: tuple[Role, ...] = ("mixed", "prefill", "decode")

# Between stages and from prefill to decode: one 100 Gb/s card of a cloud machine, with the round
# through the host. Our assumption; clouds sell the same machines with 50 to 400 Gb/s.
NETWORK_Bps = 12.5e9
NETWORK_LATENCY_S = 30e-6
# Of a device's memory that weights and cache may fill; 0.9 is vLLM's default.
MEMORY_SHARE = 0.9
# A stage without the output matrix is a model with a vocabulary of next to nothing.
NO_VOCAB = 128


class Stage(msgspec.Struct, frozen=True, order=True):
    """So many layers on `tp` devices of one kind."""

    gpu: str
    tp: int
    layers: int


class Strategy(msgspec.Struct, frozen=True, order=True):
    """How one replica runs.

    model      by its name in the catalogue of models
    stages     the pipeline, first stage first; one stage is no pipeline
    role       mixed: whole requests; prefill: up to the first token; decode: from there on
    max_seqs   requests in a batch at most
    """

    model: str
    stages: tuple[Stage, ...]
    role: Role = "mixed"
    max_seqs: int = 256

    @property
    def text(self) -> str:
        """A name that says it all.

        >>> Strategy("Llama-3.1-8B", (Stage("L4", 2, 32),)).text
        'Llama-3.1-8B mixed 256: 2xL4/32'
        """
        path = " > ".join(f"{each.tp}x{each.gpu}/{each.layers}" for each in self.stages)
        return f"{self.model} {self.role} {self.max_seqs}: {path}"

    @property
    def devices(self) -> dict[str, int]:
        """How many devices of each kind it takes."""
        found: dict[str, int] = {}
        for stage in self.stages:
            found[stage.gpu] = found.get(stage.gpu, 0) + stage.tp
        return found


# -- memory


def stage_model(model: ModelSpec, layers: int, *, first: bool, last: bool) -> ModelSpec:
    """The part of a model that one stage keeps, as a model of its own."""
    if first and last:
        return model
    if model.first_dense:
        raise SpecError("model", f"{model.name} has {model.first_dense} dense layers before its "
                        "experts and is not cut into stages", "take one stage")  # fmt: skip
    windows = round(layers * model.window_layers / model.layers)
    return model.replace(
        layers=layers, vocab=model.vocab if first or last else NO_VOCAB, tied=True,
        window=model.window if windows else 0, window_layers=windows,
    )  # fmt: skip


def stage_models(strategy: Strategy) -> list[ModelSpec]:
    """What each stage keeps in memory."""
    whole, end = spec(strategy.model), len(strategy.stages) - 1
    return [
        stage_model(whole, stage.layers, first=at == 0, last=at == end)
        for at, stage in enumerate(strategy.stages)
    ]


@functools.cache
def kv_tokens(strategy: Strategy) -> int:
    """Tokens of context that fit beside the weights: what the fullest stage leaves."""
    return min(
        part.kv_tokens_that_fit(
            accelerator(stage.gpu).memory_B, Layout(tp=stage.tp), share=MEMORY_SHARE
        )
        for part, stage in zip(stage_models(strategy), strategy.stages, strict=True)
    )


# -- time


class PipelineSteps:
    """Step times of a replica with one or several stages; see `orrery.models.steps.Steps`."""

    spread = False

    def __init__(self, strategy: Strategy, tables: str | None = None) -> None:
        self.model = spec(strategy.model)
        self.tp = strategy.stages[0].tp
        end = len(strategy.stages) - 1
        self.stages = [
            _stage_steps(strategy.model, stage.gpu, stage.tp, stage.layers, at == end, end == 0,
                         tables)
            for at, stage in enumerate(strategy.stages)
        ]  # fmt: skip
        self.count = len(self.stages)
        self._send_s = 2.0 * self.model.hidden / NETWORK_Bps  # bf16 activations of a token

    @property
    def extrapolated(self) -> int:
        """Steps that used a time from outside a measured grid."""
        return sum(each.extrapolated for each in self.stages)

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Spread = None
    ) -> float:
        """One step of the whole batch."""
        n = self.count
        if n == 1:
            return float(self.stages[0].seconds(prefill, decodes, decode_kv))
        cut = [(-(-new // n), past) for new, past in prefill]
        some, kv = _share(decodes, decode_kv, n)
        tokens = some + sum(new for new, _ in cut)
        slowest = max(each.seconds(cut, some, kv) for each in self.stages)
        return n * (slowest + NETWORK_LATENCY_S + tokens * self._send_s)

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Spread = None) -> float:
        """So many pure decode steps in a row."""
        n = self.count
        if n == 1:
            return float(self.stages[0].decode_run(decodes, decode_kv, steps))
        some, kv = _share(decodes, decode_kv, n)
        slowest = max(each.decode_run(some, kv, steps) for each in self.stages)
        return n * (slowest + steps * (NETWORK_LATENCY_S + some * self._send_s))

    def joules(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        """Energy of all devices in one step: each stage does all of the batch once."""
        return sum(each.joules(prefill, decodes, decode_kv) for each in self.stages)


class DecodeSteps(PipelineSteps):
    """The same for a replica whose prompts were computed elsewhere: their KV only has to come."""

    # A batch that only takes in new requests still goes once through the scheduler.
    TAKE_IN_S = 1e-4

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Spread = None
    ) -> float:
        """One step; prompts cost nothing here."""
        return self.decode_run(decodes, decode_kv, 1) if decodes else self.TAKE_IN_S


def _share(decodes: int, decode_kv: int, n: int) -> tuple[int, int]:
    """The part of a batch that one of n batches under way has, rounded up."""
    return -(-decodes // n), -(-decode_kv // n)


@functools.lru_cache(maxsize=4096)
def _stage_steps(
    model: str, gpu: str, tp: int, layers: int, last: bool, alone: bool, tables: str | None
) -> Any:
    whole = spec(model)
    part = whole if alone else stage_model(whole, layers, first=False, last=last)
    return steps_for(part, gpu, tp, tables=tables)


def balanced(model: str, gpus: Sequence[tuple[str, int]]) -> tuple[Stage, ...] | None:
    """The stages of a pipeline, with layers in proportion to the devices' speed.

    The whole model's step on each stage tells its speed; layers that do not fit the memory of one
    stage move to the next. None where no split fits.
    """
    whole = spec(model)
    paces = [_pace(model, gpu, tp) for gpu, tp in gpus]
    ideal = [whole.layers * pace / sum(paces) for pace in paces]
    layers = [max(1, round(each)) for each in ideal]
    layers[-1] += whole.layers - sum(layers)
    room = [_most_layers(model, gpu, tp, at, len(gpus)) for at, (gpu, tp) in enumerate(gpus)]
    for at in range(len(gpus)):
        over = layers[at] - room[at]
        for other in sorted(range(len(gpus)), key=lambda i: layers[i] - room[i]):
            if over > 0 and other != at:
                moved = min(over, max(room[other] - layers[other], 0))
                layers[at] -= moved
                layers[other] += moved
                over -= moved
    if any(not 1 <= n <= most for n, most in zip(layers, room, strict=True)):
        return None
    return tuple(Stage(gpu, tp, n) for (gpu, tp), n in zip(gpus, layers, strict=True))


@functools.cache
def _pace(model: str, gpu: str, tp: int) -> float:
    """Steps a second of the whole model with a usual batch."""
    return 1.0 / float(steps_for(model, gpu, tp).seconds([(256, 0)], 32, 32 * 1024))


@functools.cache
def _most_layers(name: str, gpu: str, tp: int, at: int, count: int) -> int:
    """Layers whose weights fill at most two thirds of a stage's share; the rest is cache."""
    model, free_B = spec(name), accelerator(gpu).memory_B * MEMORY_SHARE * 2 / 3
    low, high = 0, model.layers
    while low < high:
        middle = (low + high + 1) // 2
        part = stage_model(model, middle, first=at == 0, last=at == count - 1)
        if part.weight_bytes(Layout(tp=tp)) <= free_B:
            low = middle
        else:
            high = middle - 1
    return low


__all__ = [
    "MEMORY_SHARE", "NETWORK_LATENCY_S", "ROLES", "DecodeSteps", "NETWORK_Bps", "PipelineSteps",
    "Role", "Stage", "Strategy", "balanced", "kv_tokens", "stage_models",
]  # fmt: skip
