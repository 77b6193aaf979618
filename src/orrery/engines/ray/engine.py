"""The Ray engine: one run of parts in a world, with nodes as actors (see the package's words)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orrery.base.codec import MAX_FRAME_B
from orrery.base.errors import FaultError, UsageError
from orrery.engines.processes.engine import ProcessEngine
from orrery.engines.processes.faults import nodes_of
from orrery.engines.processes.reports import OnLog
from orrery.engines.processes.spec import RunSpec, check_options
from orrery.engines.ray.cluster import Cluster, connect
from orrery.engines.ray.troupe import Troupe
from orrery.parts.monitor import Monitor
from orrery.parts.problem import Outcome, Problem
from orrery.world import Pause, Slow, World


class RayEngine(ProcessEngine):
    """A run in the making: build it, `run()` it, read its `Outcome`.

    nodes_per_actor   how many nodes share an actor; left out, so many that there are about 16
                      actors. A node that a fault ends or stops has an actor of its own.
    raw               leave the links and the store as fast as they are; faults are still applied.
    address           the cluster: "host:port" of its head, "auto", or "local". By default
                      RAY_ADDRESS, else the Ray that this process uses already, else one of its own.
    shared            whether actors on this machine use its files, clock and signals (they find
                      out by themselves); False treats each as if it were on another machine.
    """

    name = "ray"
    share_option = "nodes_per_actor"
    most_groups = 256  # each is a process of about 130 MB
    ready_s = 180.0

    def __init__(
        self,
        roles: Mapping[str, Any],
        *,
        world: World,
        problem: Problem | None = None,
        part: Any = None,
        seed: int = 0,
        monitors: Sequence[Monitor] = (),
        on_log: OnLog | None = None,
        nodes_per_actor: int | None = None,
        raw: bool = False,
        address: str | None = None,
        shared: bool = True,
        max_frame_B: int = MAX_FRAME_B,
    ) -> None:
        check_options("RayEngine", nodes_per_actor=nodes_per_actor, max_frame_B=max_frame_B)
        if address is not None and (not isinstance(address, str) or not address.strip()):
            raise UsageError(f"RayEngine(address={address!r}): give host:port, auto or local")
        super().__init__(
            roles, world=world, problem=problem, part=part, seed=seed, monitors=monitors,
            on_log=on_log, nodes_per_process=nodes_per_actor, raw=raw, start="spawn",
            max_frame_B=max_frame_B,
        )  # fmt: skip
        self._start = "ray"
        self._address = address
        self._shared = bool(shared)
        self._cluster: Cluster | None = None
        self._far: set[int] = set()

    def run(self, until_s: float | None = None) -> Outcome:
        """Run until the workload ends, the time is up, or all is quiet."""
        if until_s is None or (until_s >= 0 and math.isfinite(until_s)):
            # The cluster says where to listen, so it must be known before the run is described.
            self._cluster = connect(self._address)
            self._options["host"] = self._cluster.host
        return super().run(until_s)

    def _make_boss(self, spec: RunSpec) -> Troupe:
        assert self._cluster is not None
        return Troupe(
            spec, self._cluster, self.counters, self._shared, self._hear, self._left, self._is_far
        )

    def _hear(self, group: int, words: Any) -> None:
        if words[0] == "counts":
            self.counters.set_row(group, words[1])
        else:
            super()._hear(group, words)

    def _left(self, group: int, how: str) -> None:
        """An actor went, or never came, and nobody had asked for it."""
        if not self._finish.done():
            self._blame_end(group, how)

    def _is_far(self, group: int) -> None:
        """Signals do not reach an actor on another machine: say so before they are due."""
        self._far.add(group)
        for fault in self.schedule:
            if isinstance(fault, (Pause, Slow)):
                for node in nodes_of(fault):
                    if self.group_of(node) == group:
                        self.fail(FaultError(
                            f"{fault.kind}.node", f"the actor of node {node} is on another "
                            "machine, where this one can stop no process",
                            "use Crash or Hang, or a cluster on this machine"))  # fmt: skip

    def _signal(self, node: int, signum: int) -> None:
        self._boss.signal(self.group_of(node), signum)

    def _outcome(self, ended: str, seconds: float) -> Outcome:
        outcome = super()._outcome(ended, seconds)
        assert self._cluster is not None
        outcome.extra["actors"] = outcome.extra.pop("processes")
        outcome.extra["ray"] = {
            "version": self._cluster.ray.__version__, "nodes": len(self._cluster.nodes),
            "local": self._cluster.ours, "far_actors": len(self._far),
        }  # fmt: skip
        return outcome
