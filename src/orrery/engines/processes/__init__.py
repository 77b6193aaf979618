"""The processes engine: the same parts and worlds on real processes and sockets."""

from orrery.engines.processes.engine import ProcessEngine

__all__ = ["ProcessEngine"]
