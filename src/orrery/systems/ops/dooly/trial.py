"""The whole chain on trial: a database measured here foretells what the real engine does here.

The same requests are served by the real torch replica, on its clock, and by the modelled replica
with step times from the database. Nothing of the real load is used for the forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.rand import Stream
from orrery.models.ports import Scheduler
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.backend import DoolySteps
from orrery.systems.ops.dooly.database import Database, profile
from orrery.systems.ops.dooly.host import Host, measure_host
from orrery.systems.ops.dooly.meter import TorchMeter
from orrery.systems.ops.dooly.operators import STATE, Key, uses
from orrery.systems.ops.dooly.sweep import Sweep, batch


class Errors(msgspec.Struct, frozen=True):
    """How far a forecast of one load is off, as shares.

    ttft, tpot              mean over requests of the error of each
    ttft_mean, tpot_mean    error of the means
    steps                   mean error of the steps that the real engine took
    busy                    the share of the time in which the real engine computed
    """

    name: str
    requests: int
    ttft: float
    tpot: float
    ttft_mean: float
    tpot_mean: float
    steps: float
    busy: float
    real_ttft_s: float
    real_tpot_s: float
    extrapolated: int


def foretelling(
    model: ModelSpec, meter: TorchMeter, sweep: Sweep, *, host: Host | None = None,
    database: Database | None = None,
) -> tuple[DoolySteps, Database, Host]:  # fmt: skip
    """Profile a model here, and the step times that follow."""
    database = database or Database(meter.device)
    profile(model, meter, database, sweep, dtype=meter.dtype_name)
    host = host or measure_host(meter, sweep)
    used = uses(
        model, meter.device, dtype=meter.dtype_name, backends=meter.backends,
        block_tokens=sweep.block_tokens,
    )  # fmt: skip
    steps = DoolySteps(
        model, database, used, host=host.weights, block_tokens=sweep.block_tokens
    )  # fmt: skip
    return steps, database, host


def load_of(
    steps: Any, share: float, *, count: int, seed: int, prompt: int = 96, answer: int = 24,
    together: int = 8,
) -> list[Request]:  # fmt: skip
    """Requests that ask for a share of what the engine can do with `together` decodes at once."""
    rng = Stream(seed, "dooly", "load")
    lengths = [
        (max(8, min(4 * prompt, round(prompt * rng.lognormvariate(-0.2, 0.6)))),
         max(4, min(4 * answer, round(answer * rng.lognormvariate(-0.1, 0.5)))))
        for _ in range(count)
    ]  # fmt: skip
    new, made = (float(np.mean([each[n] for each in lengths])) for n in (0, 1))
    busy_s = steps.seconds([(max(1, round(new)), 0)], 0, 0)
    reach = round(together * (new + made / 2))
    busy_s += made * steps.seconds((), together, reach) / together
    now_s, found = 0.0, []
    for number, (tokens, output) in enumerate(lengths):
        found.append(Request(number, now_s, tokens, output))
        now_s += rng.expovariate(share / busy_s)
    return found


def compare(
    name: str, real: Any, steps: DoolySteps, requests: Sequence[Request], scheduler: Scheduler, *,
    meter: TorchMeter, blocks: int, block_tokens: int = 16, sleep: Any = None,
) -> Errors:  # fmt: skip
    """Serve the requests with the real engine and with the modelled one; how far they are apart."""
    from orrery.models.real.engine import RealReplica
    from orrery.models.real.jobs import jobs_of
    from orrery.models.real.measure import serve_all

    def again() -> Scheduler:
        return type(scheduler)(**scheduler.changed_knobs())

    before = steps.extrapolated
    engine = Replica(
        steps, again(), blocks=blocks, block_tokens=block_tokens, ahead=False, caching=False
    )  # fmt: skip
    told = {each.id: each for each in drain(engine, requests)}
    replica = RealReplica(
        real, again(), blocks=blocks, block_tokens=block_tokens, caching=False, clock=meter.clock
    )  # fmt: skip
    jobs = jobs_of(requests, real.spec.vocab, block_tokens=block_tokens)
    got = serve_all(replica, jobs, sleep=sleep or meter.clock.sleep)  # type: ignore[attr-defined]
    pairs = [(told[each.id], each) for each in got.served]
    long = [(a, b) for a, b in pairs if b.output_tokens > 1]
    extrapolated = steps.extrapolated - before
    apart = [
        abs(steps.seconds(s.prefill, s.decodes, s.decode_kv) / s.seconds - 1) for s in got.steps
    ]
    return Errors(
        name=name, requests=len(pairs),
        ttft=float(np.mean([abs(a.ttft_s / b.ttft_s - 1) for a, b in pairs])),
        tpot=float(np.mean([abs(a.tpot_s / b.tpot_s - 1) for a, b in long])),
        ttft_mean=_means(pairs, "ttft_s"), tpot_mean=_means(long, "tpot_s"),
        steps=float(np.mean(apart)), busy=replica.busy_s / got.seconds,
        real_ttft_s=got.mean("ttft_s"), real_tpot_s=got.mean("tpot_s"), extrapolated=extrapolated,
    )  # fmt: skip


def _means(pairs: Sequence[tuple[Any, Any]], name: str) -> float:
    told, real = (float(np.mean([getattr(pair[n], name) for pair in pairs])) for n in (0, 1))
    return told / real - 1.0


# -- attention alone and in the engine


def attention_key(model: ModelSpec, meter: TorchMeter, sweep: Sweep) -> Key:
    """The key of a model's attention on the meter's device."""
    used = uses(
        model, meter.device, dtype=meter.dtype_name, backends=meter.backends,
        block_tokens=sweep.block_tokens,
    )  # fmt: skip
    return next(u.key for u in used if u.key.kind == STATE and u.key.op.endswith("attend"))


def attention_in_engine(
    real: Any, shapes: Sequence[tuple[int, int]], meter: TorchMeter, sweep: Sweep, *,
    repeats: int = 3,
) -> list[float]:  # fmt: skip
    """Seconds of one layer's attention inside running steps of (decodes, context) each."""
    from orrery.models.real.attend import Plan
    from orrery.models.real.engine import RealReplica
    from orrery.models.real.measure import plant
    from orrery.models.real.schedule import Continuous

    limits = {"step_tokens": sweep.step_tokens, "max_sequences": sweep.max_sequences}
    blocks = 4 + max(n * (-(-length // sweep.block_tokens) + 2) for n, length in shapes)
    replica = RealReplica(
        real, Continuous(**limits), blocks=blocks, block_tokens=sweep.block_tokens, caching=False,
        clock=meter.clock,
    )  # fmt: skip
    took: list[float] = []
    whole, clock = Plan.attend, meter.clock

    def timed(self: Plan, *args: Any) -> Any:
        began = clock()
        made = whole(self, *args)
        meter._wait()
        took.append(clock() - began)
        return made

    found = []
    Plan.attend = timed  # type: ignore[method-assign]
    try:
        for n, length in shapes:
            for number in range(n):
                plant(replica, number, length - 1, 1, decoding=True)
            replica.step()
            took.clear()
            for _ in range(repeats):
                replica.step()
            found.append(float(np.median(took)))
            for seq in list(replica.running):
                replica.cancel(seq.request.id)
            replica._read_inbox(clock())
    finally:
        Plan.attend = whole  # type: ignore[method-assign]
    return found


def attention_alone(
    model: ModelSpec, shapes: Sequence[tuple[int, int]], meter: TorchMeter, sweep: Sweep
) -> list[float]:
    """Seconds of the same attention in isolation, through the engine's cache and plan."""
    key = attention_key(model, meter, sweep)
    was, meter.even = meter.even, True
    try:
        return meter.measure(key, [batch((), n, n * length) for n, length in shapes])
    finally:
        meter.even = was


# -- device time saved here


def downscaled(model: ModelSpec, by: int = 16) -> ModelSpec:
    """The same structure with widths divided; heads and their sharing stay."""
    sizes = {name: getattr(model, name) // by for name in ("hidden", "intermediate", "vocab")}
    sizes |= {"layers": 2, "max_context": 4096}
    if model.experts:
        sizes |= {"expert_intermediate": max(8, model.expert_intermediate // by),
                  "first_dense": min(model.first_dense, 1)}  # fmt: skip
    if model.window_layers:
        sizes["window_layers"] = 2
    return model.replace(dtype="fp32", **sizes)


def spent_here(models: Sequence[ModelSpec], sweep: Sweep, *, reuse: bool, **knobs: Any) -> float:
    """Device seconds of measuring models one after the other; without reuse, each from scratch."""
    meter = TorchMeter(**knobs)
    database = Database(meter.device)
    for model in models:
        book = database if reuse else Database(meter.device)
        profile(model, meter, book, sweep, dtype=meter.dtype_name)
    return meter.spent_s


__all__ = [
    "Errors", "attention_alone", "attention_in_engine", "attention_key", "compare", "downscaled",
    "foretelling", "load_of", "spent_here",
]  # fmt: skip
