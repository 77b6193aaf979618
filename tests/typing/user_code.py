"""What a user writes, for mypy: a wrong inference here is an error of `mypy --strict`.

Never imported and never run; `tests/unit/test_notebook.py` has mypy read it.
"""

from __future__ import annotations

from typing import assert_type

from orrery import Comparison, Node, Run, World, compare, rpc, run
from orrery.lab import Verdict, check
from orrery.lab.claims import Verdicts
from orrery.systems.protocols import Broadcast, PushGossip
from orrery.world import Crash


class Greeter(Node):
    """A part of the user's own."""

    fanout: int = 2

    def start(self) -> None:
        self.heard = 0

    @rpc
    async def hello(self, name: str) -> int:
        self.heard += len(name)
        return self.heard

    async def main(self) -> None:
        await self.sleep(0.1)


world = World.lan(5, drop=0.1).with_faults(Crash(node=3, at_s=0.1, until_s=0.3))
assert_type(world, World)
assert_type(world.hash, str)

made = run(Greeter(), world=world, seed=7)
assert_type(made, Run)
assert_type(made.metrics, dict[str, float])
assert_type(made.world, World)
assert_type(made.ok, bool)
assert_type([each.kind for each in made.violations], list[str])

found = compare(Broadcast(values=3), [PushGossip()], world="lan:5", seeds=2)
assert_type(found, Comparison)
assert_type([row.system for row in found.rows], list[str])
assert_type(found.interval("push-gossip", "coverage").mean, float)

verdicts = check("push-gossip")
assert_type(verdicts, Verdicts)
assert_type(verdicts[0], Verdict)
assert_type(verdicts[0].measured, float | None)
