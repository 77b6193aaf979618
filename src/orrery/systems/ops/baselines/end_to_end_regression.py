"""One regression for each model, on whole steps that were timed end to end."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import NotFitted, SpecError
from orrery.base.rand import Stream
from orrery.models.real.measure import shapes_to_try
from orrery.models.real.steptable import StepTable, fit, non_negative
from orrery.models.specs import ModelSpec
from orrery.parts import Count, Whole
from orrery.systems.ops.dooly.sweep import Sweep
from orrery.systems.ops.problems.profiling import Profiler


class EndToEndRegression(Profiler):
    """Times whole steps of a model and fits what they cost to what they are made of.

    The way of simulators that know an engine only from outside, such as Splitwise's performance
    models (Patel et al., ISCA 2024): time as a function of prompt tokens, sequences and context.
    Each model needs the device to itself, weights loaded, and nothing carries over to the next.

    Knobs: `steps_timed`, how many compositions are timed; `seed` of their draw.

    Differs from Splitwise, which interpolates linearly over few columns: curves over tokens and
    rows and lines over attention's work, all non-negative (`orrery.models.real.steptable.fit`).

    >>> EndToEndRegression().steps_timed
    160
    """

    steps_timed: Count = 160
    seed: Whole = 0

    def learn(self, model: ModelSpec, meter: Any, sweep: Sweep) -> None:
        """Time whole steps of one model."""
        rng = Stream(self.seed, model.name, "shapes")
        shapes = shapes_to_try(
            rng, count=self.steps_timed, step_tokens=sweep.step_tokens,
            max_sequences=sweep.max_sequences, max_context=sweep.max_context,
        )  # fmt: skip
        table = fit(model, shapes, meter.whole(meter.truth, shapes))
        self.__dict__.setdefault("_tables", {})[model.name] = table

    def steps(self, model: ModelSpec) -> StepTable:
        """The fitted table."""
        found = self.__dict__.get("_tables", {}).get(model.name)
        if found is None:
            raise NotFitted(f"{model.name} was not learnt; call learn(model, meter, sweep) first")
        return found

    def fit(self, inputs: Any, targets: Any) -> EndToEndRegression:
        """One line over flops and bytes for all rows, whatever their key."""
        rows, took = np.asarray(inputs, float), np.asarray(targets, float)
        if rows.ndim != 2 or rows.shape[1] != 4 or len(rows) != len(took) or not len(rows):
            fix = "give rows of (key, size, flops, bytes), and a time for each"
            raise SpecError("inputs", f"shape {rows.shape} with {took.shape} targets", fix)
        columns = np.column_stack([np.ones(len(rows)), rows[:, 2:]])
        self._weights = non_negative(columns / took[:, None], np.ones(len(rows)))
        return self

    def predict(self, inputs: Any) -> Any:
        """Seconds of rows (key, size, flops, bytes)."""
        weights = self.fitted("_weights")
        rows = np.asarray(inputs, float)
        return np.column_stack([np.ones(len(rows)), rows[:, 2:]]) @ weights


__all__ = ["EndToEndRegression"]
