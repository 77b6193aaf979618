"""`Quantas2`: the part that runs whatever an experiment file says."""

from __future__ import annotations

from typing import Any

from orrery.parts import Node
from orrery.systems.protocols.quantas2 import known
from orrery.systems.protocols.quantas2.experiment import Experiment


class Quantas2(Node):
    """Runs one implementation from one experiment file, abstract or concrete, among liars.

    After "QUANTAS 2: An Abstract, Concrete and Byzantine Simulator" (2026). How it works: the file
    (see `load`) names an algorithm, a problem, the channels of both modes, faults, and liars with
    their strategies. It compiles to a part, a problem and a world. In virtual time the world has
    synchronous rounds; on processes the same part speaks over sockets. A strategy takes the place
    of a node's send, receive and compute steps; several on one node act in the order of the file.
    Neither the algorithm nor the strategy knows the mode. The problem `experiment_file` runs this
    part on a file: `orrery run quantas2 --engine processes`.

    Knobs: `algorithm`, to run another algorithm than the file names on the same experiment (empty:
    the file's own, with the file's knobs).

    Differs from the paper: experiments are JSON or TOML of our own format, and not C++. In the
    abstract mode a message arrives at the end of its round, and an answer takes the next one.
    Further delay, reordering and loss come from faults. Metrics are rows of time (see `rows`), with
    messages and bytes only for the whole run.

    >>> Quantas2(algorithm="chord")
    Quantas2(algorithm='chord')
    """

    algorithm: str = ""

    def chosen(self, experiment: Experiment) -> Any:
        """The part that runs in this experiment."""
        if not self.algorithm:
            return experiment.part
        return known.algorithm(self.algorithm, "Quantas2.algorithm")()
