"""QUANTAS 2: one experiment file, run in abstract rounds or over sockets, with liars attached.

    from orrery import run
    from orrery.systems.protocols.quantas2 import load
    experiment = load("pbft_equivocation")            # a shipped one, or a path to .json or .toml
    run(experiment.part, **experiment.call("abstract"))
    run(experiment.part, **experiment.call("concrete"))

`experiment` holds the format, `known` the names that a file may use, `rows` the metrics that are
the same in both modes, `platform` the part that `orrery run quantas2` runs.
"""

from orrery.systems.protocols.quantas2.experiment import MODES, Experiment, load, parse, shipped
from orrery.systems.protocols.quantas2.platform import Quantas2
from orrery.systems.protocols.quantas2.rows import FIELDS, Row, rows

__all__ = [
    "FIELDS", "MODES", "Experiment", "Quantas2", "Row", "load", "parse", "rows", "shipped",
]  # fmt: skip
