"""The problem `experiment_file`: whatever an experiment file of QUANTAS 2 asks.

It hosts the algorithm that the file names and hands everything else to the file's own problem, so
that every experiment can be run, compared and checked by one name; the metrics are the same for all
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from orrery.base.violation import Violation
from orrery.parts import Driver, Metric, Node, Outcome, Problem
from orrery.systems.protocols.quantas2.experiment import Experiment, load
from orrery.systems.protocols.quantas2.platform import Quantas2
from orrery.systems.protocols.quantas2.rows import rows
from orrery.world import World


class ExperimentFile(Problem):
    """Run an experiment file and judge it by the problem that it names.

    Knobs: `file`, a path to a .json or .toml file, or the name of a shipped experiment; `mode`,
    whether the world of the problem is the file's `abstract` or `concrete` one.

    >>> ExperimentFile(file="chord_ring").world().size
    16
    """

    file: str = "pbft_single_client"
    mode: Literal["abstract", "concrete"] = "abstract"

    port: ClassVar[type] = Quantas2
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "committed": Metric("", "higher", "items: requests, operations, blocks, deliveries"),
        "lookups": Metric("", "higher", "lookups that ended"),
        "mean_hops": Metric("", "lower", "of those lookups"),
        "fork_depth": Metric("", "lower", "most blocks that were undone at once"),
        "leaders": Metric("", "lower", "terms or views that began after the first"),
        "messages": Metric("", "lower", "all messages"),
        "bytes": Metric("B", "lower", "all bytes"),
    }

    def experiment(self) -> Experiment:
        """The file, read and checked."""
        return load(self.file)

    def world(self) -> World:
        """The world of the file, in the mode that is asked for."""
        return self.experiment().world(self.mode)

    def accept(self, part: Any) -> None:
        """Refuse what is no `Quantas2`, and an algorithm that does not fit the file's problem."""
        super().accept(part)
        experiment = self.experiment()
        experiment.problem.accept(part.chosen(experiment))

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        """The algorithm, where the file's problem wants it."""
        experiment = self.experiment()
        return experiment.problem.host(part.chosen(experiment), world)

    async def drive(self, driver: Driver) -> Any:
        """The workload of the file's problem."""
        experiment = self.experiment()
        seat: Any = _Seat(driver, driver.part.chosen(experiment))
        return await experiment.problem.drive(seat)

    def check(self, outcome: Outcome) -> list[Violation]:
        """What the file's problem finds."""
        experiment = self.experiment()
        return experiment.problem.check(self._inner(outcome, experiment))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """The last row of the run, which sums it up."""
        whole = rows(outcome, max(outcome.seconds, 1e-9))[-1]
        return {name: float(getattr(whole, name)) for name in self.metrics}

    def decisions(self, outcome: Outcome) -> Any:
        """What the file's problem says was decided, where it is unique there."""
        experiment = self.experiment()
        if not experiment.problem.unique_outcome:
            return None
        return experiment.problem.decisions(self._inner(outcome, experiment))

    def _inner(self, outcome: Outcome, experiment: Experiment) -> Outcome:
        return msgspec.structs.replace(outcome, part=outcome.part.chosen(experiment))


class _Seat:
    """The driver as the file's problem sees it: with the algorithm as the part under test."""

    def __init__(self, driver: Driver, part: Any) -> None:
        self._driver = driver
        self.part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)
