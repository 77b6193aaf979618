"""The problem `latency_profiling`: what must be measured to foretell how models are served?

The port is `Profiler`. It gets a device that can be measured, and one model after the other; every
measurement costs device time. Then it foretells step times, and a modelled engine serves a load
once with the true times and once with the foretold ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError, PartError, SpecError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models.real.measure import shapes_to_try
from orrery.models.real.schedule import Continuous
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.models.specs import ModelSpec, spec
from orrery.models.tables import find_tables
from orrery.parts import (
    Count,
    Driver,
    Estimator,
    Fraction,
    Metric,
    NonNegative,
    Outcome,
    Problem,
)
from orrery.systems.ops.dooly.curves import Curve
from orrery.systems.ops.dooly.operators import STATE, uses
from orrery.systems.ops.dooly.oracle import Oracle, OracleSteps, TableMeter
from orrery.systems.ops.dooly.sweep import Sweep
from orrery.world import World

# Public shapes of five families, in the order of their release.
TWELVE = (
    "Llama-2-7B", "Llama-2-13B", "Mistral-7B-v0.1", "Mixtral-8x7B", "DeepSeek-V2-Lite",
    "Mistral-7B-v0.3", "Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-7B", "Qwen2.5-32B",
    "Llama-3.2-3B", "Qwen3-8B",
)  # fmt: skip


ERRORS = ("step_error", "ttft_error", "tpot_error", "request_error")

# One of each kind: grouped heads, the same heads in another model, experts, latent attention.
FOUR = ("Llama-3.1-8B", "Mistral-7B-v0.3", "Mixtral-8x7B", "DeepSeek-V2-Lite")


class Profiler(Estimator):
    """The port: `learn(model, meter, sweep)` measures, `steps(model)` gives the foretold times.

    As an estimator it learns rows (key, request size, flops, bytes) and their seconds: one curve
    for each key, which never falls with the request size. A key that was never seen is refused.
    """

    monotone: ClassVar[dict[int, int]] = {1: 1}

    def learn(self, model: ModelSpec, meter: Any, sweep: Sweep) -> Any:
        """Measure what is needed of a model; what was measured and what was there already."""
        raise PartError(f"{type(self).__name__} has no learn(model, meter, sweep); write it")

    def steps(self, model: ModelSpec) -> Any:
        """Foretold step times of a model that was learnt."""
        raise PartError(f"{type(self).__name__} has no steps(model); write it")

    def fit(self, inputs: Any, targets: Any) -> Profiler:
        """One curve for each key."""
        rows, took = np.asarray(inputs, float), np.asarray(targets, float)
        if rows.ndim != 2 or rows.shape[1] != 4 or len(rows) != len(took) or not len(rows):
            fix = "give rows of (key, size, flops, bytes), and a time for each"
            raise SpecError("inputs", f"shape {rows.shape} with {took.shape} targets", fix)
        curves: dict[int, Curve] = {}
        for key in np.unique(rows[:, 0]).tolist():
            mine = rows[:, 0] == key
            sizes, place = np.unique(rows[mine, 1], return_inverse=True)
            times = [float(np.median(took[mine][place == n])) for n in range(len(sizes))]
            curves[int(key)] = Curve(sizes.tolist(), times)
        self._curves = curves
        return self

    def predict(self, inputs: Any) -> Any:
        """Seconds of each row, from the curve of its own key."""
        curves: dict[int, Curve] = self.fitted("_curves")
        made = []
        for key, size, *_ in np.asarray(inputs, float).tolist():
            if int(key) not in curves:
                raise SpecError("key", f"{int(key)} was not measured", "fit with rows of it")
            made.append(curves[int(key)](size))
        return np.array(made)


class LatencyProfiling(Problem):
    """Measure a device for several models, then foretell how it serves them.

    models          names of the catalogue, learnt in this order
    device          an accelerator of the catalogue
    tables          "auto": measured tables under $ORRERY_DATA or of aiconfigurator-core where
                    they have the device; empty: its roofline alone
    noise           the spread of one timing, as a share of it
    attention       the name of the attention kernel
    requests        of the load that is served with each model
    load            the share of the engine's capacity that it asks for
    step_tokens, max_sequences, max_context   the limits of the engine
    """

    models: tuple[str, ...] = FOUR
    device: str = "H100-SXM"
    tables: str = ""
    noise: NonNegative = 0.03
    attention: str = "paged"
    requests: Count = 24
    load: Fraction = 0.6
    step_tokens: Count = 2048
    max_sequences: Count = 128
    max_context: Count = 8192

    trial: ClassVar[Mapping[str, Any]] = {"models": ("Llama-3.1-8B", "Mixtral-8x7B")}
    port: ClassVar[type] = Profiler
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "device_s": Metric("s", "lower", "device time spent on measuring"),
        "measurements": Metric("", "lower", "points that were measured"),
        "skipped": Metric("", "higher", "points that were there already"),
        "data_keys": Metric("", "", "keys with a dimension that depends on data"),
        "step_error": Metric("", "lower", "mean error of held-out steps, as a share"),
        "ttft_error": Metric("", "lower", "error of a model's mean time to first token"),
        "tpot_error": Metric("", "lower", "error of a model's mean time of an output token"),
        "request_error": Metric("", "lower", "error of one request's time to first token, mean"),
        "table_share": Metric("", "", "of the device time, the share that measured tables tell"),
    }

    def world(self) -> World:
        from orrery.world import worlds

        return worlds.get("h100_pod:1")

    def accept(self, part: Any) -> None:
        super().accept(part)
        if not self.models:
            raise KnobError("LatencyProfiling.models", "is empty", "name at least one model")
        if self.tables not in ("", "auto"):
            raise KnobError("LatencyProfiling.tables", f"{self.tables!r}", 'give "auto" or ""')
        for name in self.models:
            spec(name)  # an unknown one is named before anything runs

    def sweep(self) -> Sweep:
        """The limits of the engine, as a sweep."""
        return Sweep(step_tokens=self.step_tokens, max_sequences=self.max_sequences,
                     max_context=self.max_context)  # fmt: skip

    def oracle(self) -> Oracle:
        """The device."""
        return Oracle(self.device, find_tables(self.device) if self.tables else None)

    # -- the run

    async def drive(self, driver: Driver) -> Any:
        oracle = self.oracle()
        seed = driver.rng.below(1 << 30)
        meter = TableMeter(oracle, attention=self.attention, noise=self.noise, seed=seed)
        part, sweep, made = driver.part.with_knobs(), self.sweep(), []
        for name in self.models:
            model = spec(name)
            truth = OracleSteps(model, oracle, uses(
                model, self.device, backends=meter.backends))  # fmt: skip
            meter.truth = truth
            report = part.learn(model, meter, sweep)
            made.append((model, truth, report))
        rows = [self._judge(part, *each, Stream(seed, each[0].name, "load")) for each in made]
        return {
            "device_s": meter.spent_s, "table_s": meter.table_s, "measurements": meter.count,
            "rows": rows,
        }  # fmt: skip

    def _judge(
        self, part: Profiler, model: ModelSpec, truth: Any, report: Any, rng: Stream
    ) -> dict[str, Any]:
        foretold = part.steps(model)
        limits = {"step_tokens": self.step_tokens, "max_sequences": self.max_sequences}
        shapes = shapes_to_try(rng, count=120, max_context=self.max_context // 2, **limits)[60:]
        errors = [_apart(foretold.seconds(*s), truth.seconds(*s)) for s in shapes]
        counts = {"skipped": len(getattr(report, "skipped", ())),
                  "data_keys": len(getattr(report, "data", ()))}  # fmt: skip
        if not np.isfinite(errors).all() or min(foretold.seconds(*s) for s in shapes) <= 0:
            # An engine cannot run on times that are none.
            return {"model": model.name, **dict.fromkeys(ERRORS, math.nan), **counts}
        requests = self.load_of(truth, rng)
        served = [self._serve(steps, requests, limits) for steps in (foretold, truth)]
        pairs = list(zip(*served, strict=True))
        return {
            "model": model.name, "step_error": float(np.mean(errors)),
            "ttft_error": _apart(*(np.mean([each.ttft_s for each in one]) for one in served)),
            "tpot_error": _apart(*(np.mean([each.tpot_s for each in one]) for one in served)),
            "request_error": float(np.mean([_apart(a.ttft_s, b.ttft_s) for a, b in pairs])),
            **counts,
        }  # fmt: skip

    def load_of(self, truth: Any, rng: Stream) -> list[Request]:
        """Requests at the asked share of what a batch of sixteen could take."""
        lengths = [
            (max(16, min(self.max_context // 2, round(rng.lognormvariate(6.2, 0.8)))),
             max(4, min(512, round(rng.lognormvariate(4.0, 0.7)))))
            for _ in range(self.requests)
        ]  # fmt: skip
        prompt, answer = (float(np.mean([each[n] for each in lengths])) for n in (0, 1))
        busy_s = truth.seconds([(max(1, round(prompt)), 0)], 0, 0)
        busy_s += answer * truth.seconds((), 16, round(16 * (prompt + answer / 2))) / 16
        now_s, found = 0.0, []
        for number, (tokens, output) in enumerate(lengths):
            found.append(Request(number, now_s, tokens, output))
            now_s += rng.expovariate(max(self.load, 1e-3) / busy_s)
        return found

    def _serve(self, steps: Any, requests: Sequence[Request], limits: dict[str, int]) -> list[Any]:
        blocks = self.max_sequences * self.max_context // 16
        replica = Replica(steps, Continuous(**limits), blocks=blocks, ahead=False, caching=False)
        return sorted(drain(replica, requests), key=lambda each: each.id)

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        driven = outcome.driven
        if driven is None:
            return [Violation(kind="unfinished", message="the models were not learnt")]
        found = []
        for row in driven["rows"]:
            for name in ERRORS:
                if not math.isfinite(row[name]):
                    message = f"{row['model']}: {name} is {row[name]}"
                    found.append(Violation(kind="no_forecast", message=message))
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        driven = outcome.driven
        if driven is None:
            return {}
        rows = driven["rows"]
        means = {name: float(np.mean([row[name] for row in rows]))
                 for name in ERRORS}  # fmt: skip
        return means | {
            "device_s": driven["device_s"], "measurements": float(driven["measurements"]),
            "skipped": float(sum(row["skipped"] for row in rows)),
            "data_keys": float(sum(row["data_keys"] for row in rows)),
            "table_share": driven["table_s"] / driven["device_s"] if driven["device_s"] else 0.0,
        }  # fmt: skip

    def decisions(self, outcome: Outcome) -> Any:
        """How much was measured for each model."""
        driven = outcome.driven or {"rows": [], "measurements": 0}
        return [driven["measurements"], [row["skipped"] for row in driven["rows"]]]

    # -- for the laws of estimators

    def samples(self, rng: Stream) -> tuple[Any, Any]:
        """Rows (key, size, flops, bytes) of a few operators, and their seconds on the device."""
        oracle, rows, times = Oracle(self.device), [], []
        keys = [use.key for use in uses(spec("Llama-3.2-3B"), self.device)
                if use.key.kind != STATE][:8]  # fmt: skip
        sizes = self.sweep().sizes(256)
        order = [(n, size) for n in range(len(keys)) for size in sizes]
        rng.shuffle(order)
        for n, size in order:
            seconds = oracle.seconds(keys[n], (size,))
            rows.append((n, size, seconds * 1e12, seconds * 1e10))
            times.append(seconds * math.exp(self.noise * rng.gauss()))
        return np.array(rows, float), np.array(times)


def _apart(told: float, true: float) -> float:
    return abs(float(told) / float(true) - 1.0)
