"""Does a latency database measured here foretell what the real engine does here?

Profiles a model on this CPU (or on CUDA with `--device cuda`), then serves three held-out loads
with the real torch replica and with the modelled one: quiet, busy and saturated. On the CPU all
times are of the processor, one thread, so that other work on the machine counts little. Prints one
JSON document: errors of TTFT and TPOT, attention alone against in the engine, what a second model
and another attention kernel cost to add, and device time saved over twelve public shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import msgspec
import numpy as np

from orrery import run
from orrery.models.specs import ModelSpec, spec
from orrery.systems.ops.baselines.profile_everything import ProfileEverything
from orrery.systems.ops.dooly import Dooly, Sweep, TorchMeter
from orrery.systems.ops.dooly.trial import (
    attention_alone,
    attention_in_engine,
    compare,
    downscaled,
    foretelling,
    load_of,
    spent_here,
)
from orrery.systems.ops.problems.profiling import TWELVE, LatencyProfiling

LOADS = {"quiet": 0.15, "busy": 0.7, "saturated": 1.6}
SWEEP = Sweep(step_tokens=256, max_sequences=24, max_context=768, contexts=3)


def small(layers: int = 6) -> ModelSpec:
    """The shape of SmolLM2-135M with fewer layers, so that a load takes seconds, not minutes."""
    whole = spec("SmolLM2-135M")
    return whole.replace(name=f"SmolLM2-{layers}-layers", layers=layers, dtype="fp32")


def whole_chain(
    model: ModelSpec, meter: TorchMeter, count: int, seed: int, rounds: int
) -> dict[str, object]:
    """Profile, foretell, serve, compare: some rounds, each from an empty database.

    A shared machine is not as fast in one minute as in the next, so the median round counts and
    all of them are shown.
    """
    from orrery.models.real import Continuous, Transformer

    real = Transformer.random(model, seed=seed, device=meter.place, dtype=meter.dtype_name)
    scheduler = Continuous(step_tokens=SWEEP.step_tokens, max_sequences=SWEEP.max_sequences)
    sleep = getattr(meter.clock, "sleep", time.sleep)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in LOADS}
    walls, busy = [], []
    for turn in range(rounds):
        began = time.perf_counter()
        steps, database, host = foretelling(model, meter, SWEEP)
        walls.append(time.perf_counter() - began)
        for number, (name, share) in enumerate(LOADS.items()):
            requests = load_of(steps, share, count=count, seed=seed + number)
            found = compare(name, real, steps, requests, scheduler, meter=meter, blocks=1200,
                            sleep=sleep)  # fmt: skip
            seen[name].append(msgspec.to_builtins(found))
            busy.append(os.getloadavg()[0])
            print(f"round {turn}, {name}: TTFT {found.ttft:.1%}, TPOT {found.tpot:.1%}",
                  file=sys.stderr, flush=True)  # fmt: skip
    middle = {
        name: {what: float(np.median([each[what] for each in rows])) for what in ("ttft", "tpot")}
        for name, rows in seen.items()
    }
    shapes = [(n, length) for n in (8, 16) for length in (384, 640)]
    apart = np.array(attention_alone(model, shapes, meter, SWEEP)) / np.array(
        attention_in_engine(real, shapes, meter, SWEEP)) - 1  # fmt: skip
    return {
        "model": model.name, "device": meter.device, "keys": len(database),
        "profiling_wall_s": walls, "profiling_device_s": meter.spent_s / rounds,
        "host_error": host.error, "load_average": float(np.mean(busy)), "median_mape": middle,
        "ttft_mape": float(np.mean([each["ttft"] for each in middle.values()])),
        "tpot_mape": float(np.mean([each["tpot"] for each in middle.values()])),
        "attention_alone_vs_engine": dict(zip(map(str, shapes), apart.round(4).tolist(),
                                              strict=True)),
        "rounds": seen,
    }  # fmt: skip


def reuse_on_cpu(device: str) -> dict[str, object]:
    """Device time of down-scaled shapes, measured one after the other and from scratch."""
    tiny = Sweep(step_tokens=64, max_sequences=8, max_context=128, contexts=2)
    models = [downscaled(spec(each)) for each in TWELVE]
    knobs = {"device": device, "repeats": 2, "cache_B": 8 << 20}
    spent = {
        name: spent_here(models, tiny, reuse=reuse, **knobs)
        for name, reuse in (("reuse", True), ("scratch", False))
    }
    return {"saved": 1 - spent["reuse"] / spent["scratch"], "seconds": spent, "published": 0.564}


def saved_on_tables() -> dict[str, float]:
    """Device time over the twelve shapes with the measured tables of an H100 as oracle."""
    problem = LatencyProfiling(models=TWELVE, tables="auto")
    ours, theirs = (run(part, problem=problem, seed=1).metrics
                    for part in (Dooly(), ProfileEverything()))  # fmt: skip
    return {"saved": 1 - ours["device_s"] / theirs["device_s"], "published": 0.564,
            "table_share": ours["table_share"], "ttft_error": ours["ttft_error"],
            "tpot_error": ours["tpot_error"]}  # fmt: skip


def main() -> None:
    """Print everything as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    clock = time.perf_counter if given.device != "cpu" else None
    meter = TorchMeter(given.device, given.dtype, clock=clock)
    made: dict[str, object] = whole_chain(
        small(given.layers), meter, given.requests, given.seed, given.rounds
    )
    made["saved_on_cpu"] = reuse_on_cpu(given.device) if given.device == "cpu" else None
    made["saved_on_tables"] = saved_on_tables()
    print(json.dumps(made))


if __name__ == "__main__":
    main()
