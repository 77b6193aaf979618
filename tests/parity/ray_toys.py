"""Parts for the tests of Ray, in a module of their own so that workers can import them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from orrery.engines.ray.cluster import connect, shutdown
from orrery.engines.ray.watcher import members
from orrery.parts import Metric, Node, Outcome, Problem, rpc


class Toll(Problem):
    """Asks each node for its due; the sum is what counts."""

    load: float = 1.0
    metrics: ClassVar[Mapping[str, Metric]] = {"cost": Metric("s", "lower", "the sum of all dues")}

    async def drive(self, driver: Any) -> float:
        dues = [await driver.ask(node, type(driver.part).due, self.load) for node in driver.nodes]
        return float(sum(dues))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        return {"cost": outcome.driven}


class Gate(Node):
    """Takes a fixed sum and a share of the load; `busy_s` of real time pass meanwhile."""

    fixed: float = 5.0
    busy_s: float = 0.0

    @rpc
    async def due(self, load: float) -> float:
        time.sleep(self.busy_s)
        await self.sleep(0.001)
        return self.fixed + 0.1 * load + self.rng.random()


class Fragile(Gate):
    """Kills its own process as long as there are fewer than `deaths` marks in the folder."""

    marks: str = ""
    deaths: int = 1

    @rpc
    async def due(self, load: float) -> float:
        folder = Path(self.marks)
        made = len(list(folder.iterdir()))
        if made < self.deaths:
            (folder / f"{made}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.fixed


class Breaks(Node):
    """Raises on node 1 after a moment."""

    async def main(self) -> None:
        print("last words of the node", file=sys.stderr)
        await self.sleep(0.02)
        if self.id == 1:
            raise ValueError("the part is broken")


class DiesHard(Node):
    """Ends its own process."""

    async def main(self) -> None:
        print("last words of the node", file=sys.stderr)
        await self.sleep(0.02)
        os._exit(9)


def wait_until_gone(name: str, most_s: float) -> list[int]:
    """What is still there of a local Ray after a while."""
    give_up_s = time.monotonic() + most_s
    while (left := members(name)) and time.monotonic() < give_up_s:
        time.sleep(0.1)
    return left


def far_folders() -> list[str]:
    """Folders of runs whose actors were, or were thought to be, on another machine."""
    found = [*Path("/tmp").glob("orrery-run-*"), *Path("/tmp").glob("orrery-arena-*")]
    return sorted(str(path) for path in found)


def begin() -> str:
    """Start (or find) the local Ray of this process; gives its name."""
    assert connect().ours
    (folder,) = Path("/tmp").glob(f"orrery-ray-{os.getuid()}-{os.getpid()}-*")
    assert len(members(folder.name)) > 4
    return folder.name


def end(name: str) -> None:
    """End it, and see that nothing stays behind."""
    shutdown()
    assert wait_until_gone(name, 2.0) == [] and not Path("/tmp", name).exists()
    assert not [word for word in os.environ if word.startswith(("RAY_AUTH", "ORRERY_RAY"))]
