"""`Dooly`: profiles many models with few measurements, and foretells their step times."""

from __future__ import annotations

from typing import Any

from orrery.base.errors import NotFitted
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.backend import DoolySteps
from orrery.systems.ops.dooly.database import Database, Report, profile
from orrery.systems.ops.dooly.operators import uses
from orrery.systems.ops.dooly.sweep import Sweep
from orrery.systems.ops.problems.profiling import Profiler


class Dooly(Profiler):
    """Measures each operator once for all models that share its configuration.

    After "Dooly: Configuration-Agnostic, Redundancy-Aware Profiling for LLM Inference Simulation"
    (2026). How it works: the real engine takes one step on small twins of a model's structure,
    whose sizes share no factor; a dispatch mode records every operator, and every dimension gets
    its origin: the configuration, the request, or data (`twins`, `record`, `taint`). Origins are
    polynomials, so one trace serves all models of a structure, at any size. With a model's numbers
    in them they become keys: operator, dimensions set by the configuration, number type, backend,
    device. What the database has is not measured again; of what it lacks only the request sizes
    are swept. Attention is measured through the engine's own cache and plan (`meter`). One
    regression for each key gives step times to the modelled replica (`backend`). Tracing costs
    O(calls x origins), a forecast O(operators) once for each batch size and O(1) after that.

    Knobs: `reuse`, whether what was measured for one model serves the next.

    Differs from the paper: it hooks vLLM, this one Orrery's engine; three co-prime runs, one of
    which only confirms, stand in for its taint in one pass; the twins are small, because labels do
    not depend on size; what the host does between kernels is a class of its own, measured once for
    all models; operators whose rows depend on data (experts) are swept over rows and used at the
    even share; weights count as not cached, so a model that fits a CPU's last cache is foretold
    too slow. In virtual time the device is a table of measured kernels, so the error there is
    that of sweeping and fitting; `bench/dooly.py` holds the whole chain against a real engine.

    >>> from orrery.models.specs import spec
    >>> from orrery.systems.ops.dooly.oracle import Oracle, TableMeter
    >>> part, meter, sweep = Dooly(), TableMeter(Oracle("H100-SXM")), Sweep(max_sequences=32)
    >>> first, second = (part.learn(spec("Llama-3.1-8B"), meter, sweep) for _ in range(2))
    >>> len(first.measured) == len(second.skipped), len(second.measured)
    (True, 0)
    """

    reuse: bool = True

    def learn(self, model: ModelSpec, meter: Any, sweep: Sweep) -> Report:
        """Measure what the database lacks of a model."""
        state = self.__dict__
        database: Database = state.setdefault("_database", Database(meter.device))
        report = profile(model, meter, database, sweep, reuse=self.reuse)
        used = uses(model, meter.device, backends=meter.backends, block_tokens=sweep.block_tokens)
        state.setdefault("_used", {})[model.name] = used
        return report

    def steps(self, model: ModelSpec) -> DoolySteps:
        """Step times of a model that was learnt."""
        used = self.__dict__.get("_used", {}).get(model.name)
        if used is None:
            raise NotFitted(f"{model.name} was not learnt; call learn(model, meter, sweep) first")
        return DoolySteps(model, self.__dict__["_database"], used)


__all__ = ["Dooly"]
