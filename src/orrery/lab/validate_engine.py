"""The real engine beside the modelled one, on the machine at hand.

Single steps of the engine are measured, and every operator of the model alone; each gives a table
of step times. Then held-out loads (quiet, busy, saturated) are served by the real engine, and by
the modelled replica with either table. No figure of a load goes into a table.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import UsageError, did_you_mean
from orrery.models.ports import Scheduler
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.models.specs import ModelSpec, spec

# The share of the engine's capacity that each load asks for; more than one share is too much for
# any engine, also for one that does prompts and decodes in the same step.
LOADS = {"quiet": 0.2, "busy": 0.7, "saturated": 2.0}
TABLES = ("steps", "operators")
# What a forecast must reach: the mean error over requests.
TTFT_BAR, TPOT_BAR = 0.10, 0.12


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may do in one step, and the lengths of the loads' requests.

    `shapes` is how many compositions of steps are measured.
    """

    step_tokens: int = 256
    max_sequences: int = 24
    max_context: int = 768
    block_tokens: int = 16
    prompt: int = 96
    answer: int = 24
    shapes: int = 160

    @property
    def blocks(self) -> int:
        """Enough for every place of the batch at its longest."""
        return self.max_sequences * self.max_context // self.block_tokens


SMALL = Limits()
LARGE = Limits(
    step_tokens=2048, max_sequences=64, max_context=8192, prompt=1536, answer=128, shapes=480
)  # fmt: skip


def errors(told: Sequence[Any], real: Sequence[Any]) -> dict[str, float]:
    """How far a forecast of requests is off: mean error of each, and error of the means."""
    by_id = {each.id: each for each in told}
    pairs = [(by_id[each.id], each) for each in real]
    found: dict[str, float] = {}
    for name in ("ttft", "tpot"):
        both = [(getattr(a, f"{name}_s"), getattr(b, f"{name}_s")) for a, b in pairs
                if name == "ttft" or b.output_tokens > 1]  # fmt: skip
        a, b = np.array(both).T
        found[f"{name}_mape"] = float(np.mean(np.abs(a / b - 1)))
        found[f"{name}_mean_err"] = float(a.mean() / b.mean() - 1)
    return found


class Bench:
    """A model on a device with its clock, ready to be measured and to serve."""

    def __init__(self, model: ModelSpec, real: Any, meter: Any, limits: Limits, seed: int) -> None:
        self.model, self.real, self.meter, self.limits, self.seed = model, real, meter, limits, seed
        self.clock = meter.clock
        # On a GPU the host spins, as serving engines do: one that slept is slow for a while.
        self.sleep: Callable[[float], None] = getattr(meter.clock, "sleep", _spin)
        self._replica: Any = None

    def scheduler(self) -> Scheduler:
        from orrery.models.real import Continuous

        limits = self.limits
        return Continuous(step_tokens=limits.step_tokens, max_sequences=limits.max_sequences)

    @property
    def replica(self) -> Any:
        """The real engine, one for everything: what it recorded belongs to its cache."""
        if self._replica is None:
            from orrery.models.real import RealReplica

            limits = self.limits
            self._replica = RealReplica(
                self.real, self.scheduler(), blocks=limits.blocks,
                block_tokens=limits.block_tokens, caching=False, clock=self.clock,
            )  # fmt: skip
            if self._replica.graphs is not None:
                self._replica.graphs.prepare()
        return self._replica

    def profiler(self) -> Any:
        """What measures single steps of this engine."""
        from orrery.models.real import Profiler

        limits = self.limits
        return Profiler(
            self.replica, step_tokens=limits.step_tokens, max_sequences=limits.max_sequences,
            max_context=limits.max_context, count=limits.shapes, seed=self.seed,
        )  # fmt: skip

    def operators(self) -> Any:
        """Step times of this engine from operators that were measured alone."""
        from orrery.systems.ops.dooly import Sweep, foretelling

        limits = self.limits
        sweep = Sweep(
            step_tokens=limits.step_tokens, max_sequences=limits.max_sequences,
            max_context=limits.max_context, block_tokens=limits.block_tokens, contexts=3,
        )  # fmt: skip
        steps, _, _ = foretelling(self.model, self.meter, sweep)
        graphs = self.replica.graphs
        if graphs is None:
            return steps
        from orrery.lab.replayed_meter import PaddedSteps

        return PaddedSteps(steps, graphs.pads)

    def load(self, steps: Any, share: float, count: int, number: int) -> list[Request]:
        """Requests that ask for a share of what the engine can do with its batch full."""
        from orrery.systems.ops.dooly.trial import load_of

        limits = self.limits
        return load_of(
            steps, share, count=count, seed=self.seed + number, prompt=limits.prompt,
            answer=limits.answer, together=limits.max_sequences,
        )  # fmt: skip

    def served(self, requests: Sequence[Request]) -> Any:
        """What the real engine made of a load."""
        from orrery.models.real import serve_all
        from orrery.models.real.jobs import jobs_of

        jobs = jobs_of(requests, self.real.spec.vocab, block_tokens=self.limits.block_tokens)
        return serve_all(self.replica, jobs, sleep=self.sleep)

    def foretold(self, steps: Any, requests: Sequence[Request]) -> list[Any]:
        """What the modelled engine makes of it."""
        limits = self.limits
        replica = Replica(
            steps, self.scheduler(), blocks=limits.blocks, block_tokens=limits.block_tokens,
            ahead=False, caching=False,
        )  # fmt: skip
        return drain(replica, requests)


def _spin(seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """The garbage collector waits: its pauses are neither the engine's nor the model's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def open_bench(
    model: str, layers: int, device: str, dtype: str, limits: Limits, seed: int
) -> Bench:
    """A model on the machine at hand: SmolLM2 with its weights, all others with random ones."""
    import torch

    from orrery.models.real import Transformer
    from orrery.models.real.backend import pick_device
    from orrery.models.real.graphs import can_record
    from orrery.systems.ops.dooly import TorchMeter

    place = pick_device(device)
    shape = spec(model)
    if layers:
        shape = shape.replace(name=f"{shape.name}-{layers}-layers", layers=layers)
    if place == "cpu":
        torch.set_num_threads(1)  # the processor clock follows one thread
    clock = time.perf_counter if place != "cpu" else None
    real = Transformer.random(shape, seed=seed, device=place, dtype=dtype)
    if can_record(real):
        from orrery.lab.replayed_meter import ReplayedMeter

        return Bench(shape, real, ReplayedMeter(place, dtype, clock=clock), limits, seed)
    return Bench(shape, real, TorchMeter(place, dtype, clock=clock), limits, seed)


def validate_engine(
    model: str = "SmolLM2-135M", *, layers: int = 0, device: str = "auto", dtype: str = "fp32",
    requests: int = 32, tables: Sequence[str] = TABLES, limits: Limits = SMALL, seed: int = 1,
    on_load: Callable[[str], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure, foretell, serve, compare; one row for each load and table."""
    for kind in tables:
        if kind not in TABLES:
            raise UsageError(f"tables={kind!r}; {did_you_mean(kind, TABLES)}")
    if requests < 2:
        raise UsageError(f"requests={requests}: give at least 2")
    bench = open_bench(model, layers, device, dtype, limits, seed)
    with _no_collector():
        return _compared(bench, tables, requests, on_load)


def _compared(
    bench: Bench, tables: Sequence[str], requests: int, on_load: Callable[[str], None] | None
) -> dict[str, Any]:
    made, rows = {}, []
    # A machine that is shared is faster now, slower then: steps are measured before and after each
    # load. A GPU is ours alone, and three rounds beforehand do.
    shared = bench.real.device == "cpu"
    profiler = bench.profiler() if "steps" in tables else None
    if profiler is not None:
        profiler.measure(1 if shared else 3)
        made["steps"] = profiler.table()
    if "operators" in tables:
        made["operators"] = bench.operators()
    first = next(iter(made.values()))
    for number, (name, share) in enumerate(LOADS.items()):
        asked = bench.load(first, share, requests, number)
        got = bench.served(asked)
        if profiler is not None and shared:
            profiler.measure()
            made["steps"] = profiler.table(last=2)
        for kind, steps in made.items():
            rows.append(_row(bench, name, kind, steps, asked, got))
            if on_load is not None:
                on_load(f"{name}, from {kind}: TTFT {rows[-1]['ttft_mape']:.1%}, "
                        f"TPOT {rows[-1]['tpot_mape']:.1%}")  # fmt: skip
    return {
        "model": bench.model.name, "device": bench.meter.device, "dtype": bench.meter.dtype_name,
        "recorded_steps": bench.replica.graphs is not None,
        "load_average": os.getloadavg()[0], "rows": rows,
    }  # fmt: skip


def _row(
    bench: Bench, load: str, kind: str, steps: Any, asked: Sequence[Request], got: Any
) -> dict[str, Any]:
    """A load beside its forecast: errors of requests and of steps, and how the engine fared."""
    told = bench.foretold(steps, asked)
    apart = [steps.seconds(s.prefill, s.decodes, s.decode_kv) / s.seconds - 1 for s in got.steps]
    return {
        "load": load, "table": kind, "requests": len(asked), **errors(told, got.served),
        "step_mape": float(np.mean(np.abs(apart))), "step_bias": float(np.mean(apart)),
        "real_ttft_s": got.mean("ttft_s"), "real_tpot_s": got.mean("tpot_s"),
        "real_seconds": got.seconds,
        "real_step_s": float(np.mean([s.seconds for s in got.steps])),
        "most_waiting": max(s.queue for s in got.steps),
    }  # fmt: skip


__all__ = ["LARGE", "LOADS", "SMALL", "TPOT_BAR", "TTFT_BAR", "Limits", "validate_engine"]
