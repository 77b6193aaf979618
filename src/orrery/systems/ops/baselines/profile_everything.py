"""Profile every operator of every model from scratch, as profile-based simulators do."""

from __future__ import annotations

from typing import Any

from orrery.base.errors import NotFitted
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.backend import DoolySteps
from orrery.systems.ops.dooly.database import Database, Report, profile
from orrery.systems.ops.dooly.operators import uses
from orrery.systems.ops.dooly.sweep import Sweep
from orrery.systems.ops.problems.profiling import Profiler


class ProfileEverything(Profiler):
    """Sweeps each operator of each model anew; only layers of one model share measurements.

    After Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference" (MLSys
    2024): a model is declared, all its operators are profiled over tokens and batches on the
    target device, and regressions on that profile give step times. A profile belongs to a model.

    Knobs: none.

    Differs from Vidur: the operators are those that the tracer finds, where Vidur has a list by
    hand, and the regression is a monotone curve for each operator where Vidur has random forests;
    so it differs from its rival here in nothing but what is measured again.

    >>> ProfileEverything().knobs()
    {}
    """

    def learn(self, model: ModelSpec, meter: Any, sweep: Sweep) -> Report:
        """Measure all of a model."""
        database = Database(meter.device)
        report = profile(model, meter, database, sweep)
        used = uses(model, meter.device, backends=meter.backends, block_tokens=sweep.block_tokens)
        self.__dict__.setdefault("_profiles", {})[model.name] = (database, used)
        return report

    def steps(self, model: ModelSpec) -> DoolySteps:
        """Step times from the model's own profile."""
        found = self.__dict__.get("_profiles", {}).get(model.name)
        if found is None:
            raise NotFitted(f"{model.name} was not learnt; call learn(model, meter, sweep) first")
        return DoolySteps(model, *found)


__all__ = ["ProfileEverything"]
