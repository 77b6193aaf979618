"""The problem `decentralised_optimum`: the nodes of a graph minimise a sum of their functions.

The port is `Minimiser`. Every node has one term of the sum, smooth and strongly convex, and may
speak to its neighbours alone. A referee outside knows the optimum; it looks at all nodes from time
to time and ends the run when every one of them is near enough. What counts is what that took:
gradients, messages, time. When nodes die, what is left to be found is the optimum of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, Node, Outcome, Positive, Problem, Whole
from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import GraphName, graph_of
from orrery.systems.train.problems.minimiser import Minimiser, Setting
from orrery.systems.train.problems.ridge import Condition, Ridge
from orrery.world import World

FAR = 1e9  # a distance beyond which a run has diverged
SLACK = 1e-9  # what the sum of the balances may be, for each unit that they are long
PLATEAU = 20  # looks over which a method with a bias must stand still to be at its end


class DecentralisedOptimum(Problem):
    """Find the minimum of a sum whose terms the nodes of a graph hold, one each.

    The sum is a ridge regression of unequal shares (`Ridge`), all of them with L = 1 and mu = 1 /
    `condition`. The optimum has length one, all nodes begin at 0, and the distance is that of the
    node which is farthest off.

    Knobs: `graph`, which has a node for each of the world's; `condition`; `numbers` to find;
    `rows` of each node; `unequal`, how far the nodes' own truths are apart; `target`, the distance
    to reach; `gradient_s`, seconds that a gradient takes on a machine of the world; `most`
    gradients of a node (on average), after which the run is given up; `look_every` gradient times
    the referee looks; `weigh_every` looks the invariant is checked on the way (0: only at the end);
    `data_seed`.

    >>> DecentralisedOptimum(graph="star").setting(World.lan(3)).graph
    'star'
    """

    graph: GraphName = "ring"
    condition: Condition = 4.0
    numbers: Count = 8
    rows: Count = 16
    unequal: Positive = 1.0
    target: Positive = 1e-3
    gradient_s: Positive = 0.02
    most: Count = 50_000
    look_every: Positive = 5.0
    weigh_every: Whole = 0
    data_seed: Whole = 0

    port: ClassVar[type] = Minimiser
    metrics: ClassVar[Mapping[str, Metric]] = {
        "gradients": Metric("", "lower", "gradients of a node until all are within the target"),
        "messages": Metric("", "lower", "messages that a node sent until then"),
        "time_s": Metric("s", "lower", "until then"),
        "distance": Metric("", "lower", "of the farthest node from the optimum, at the end"),
        "sum_error": Metric("", "lower", "length of what must add up to zero over the nodes"),
        "waits_on": Metric("", "lower", "the most peers that a node ever waited for at once"),
        "grads_per_s": Metric("1/s", "higher", "gradients of a node in a second"),
    }

    def world(self) -> World:
        return World.lan(6)

    def function(self) -> Ridge:
        """The function whose shares the nodes hold."""
        return Ridge(
            numbers=self.numbers, rows=self.rows, condition=self.condition, unequal=self.unequal,
            data_seed=self.data_seed,
        )  # fmt: skip

    def setting(self, world: World) -> Setting:
        """What the nodes of this world are given."""
        graph_of(self.graph, world.size)
        self.function().shares(world.size)
        flops = self.gradient_s * world.machine_of(0).cpu_flops
        return Setting(
            function=self.function(), graph=self.graph, gradient_s=self.gradient_s, flops=flops
        )

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        return {"node": part.with_knobs(given=self.setting(world))}

    # -- the referee

    async def drive(self, driver: Driver) -> str:
        """Look until all are near enough, or it is clear that they will not be."""
        calm_s, looks, seen = _last_fault_end_s(driver.world), 0, list[float]()
        while True:
            await driver.sleep(self.look_every * self.gradient_s)
            looks += 1
            distance, gradients = await self._look(driver)
            seen.append(distance)
            if distance <= self.target and driver.now >= calm_s:
                ended = "reached"
            elif not distance < FAR:
                ended = "diverged"
            elif not driver.part.exact and _stands_still(seen):
                ended = "stands still"
            elif gradients >= self.most or driver.now >= 4 * self.most * self.gradient_s:
                ended = "given up"
            else:
                if self.weigh_every and looks % self.weigh_every == 0:
                    await self._weigh(driver)
                continue
            if ended != "diverged":
                await self._weigh(driver)
            driver.emit(ended=ended)
            return ended

    async def _ask_all(
        self, driver: Driver, method: Any, *args: Any, wait_s: float = 0.0
    ) -> dict[int, Any]:
        """What each live node answers; one that dies meanwhile is left out."""
        wait_s = wait_s or max(1.0, 20 * self.gradient_s)

        async def one(node: int) -> Any:
            while driver.alive(node):
                try:
                    async with driver.deadline(wait_s):
                        return await driver.ask(node, method, *args)
                except DeadlineExceeded:
                    continue
                except Refused:
                    return None
            return None

        found = await driver.all(*(one(node) for node in driver.nodes))
        return {node: value for node, value in enumerate(found) if value is not None}

    async def _look(self, driver: Driver) -> tuple[float, float]:
        told = await self._ask_all(driver, Minimiser.look)
        if not told:
            return math.inf, 0.0
        optimum = self.function().shares(len(driver.nodes)).optimum(told)
        with np.errstate(all="ignore"):
            points = np.stack([value[0] for value in told.values()])
            far = float(np.sqrt(((points - optimum) ** 2).sum(axis=1)).max())
        far = far if math.isfinite(far) else math.inf
        _, gradients, sent, widest = zip(*told.values(), strict=True)
        driver.emit(
            distance=far, gradients=float(np.mean(gradients)), messages=float(np.mean(sent)),
            waits_on=max(widest), live=len(told),
        )  # fmt: skip
        return far, float(np.mean(gradients))

    async def _weigh(self, driver: Driver) -> None:
        """Have the balances of all nodes at one common mark, and add them up."""
        marks = await self._ask_all(driver, Minimiser.hold)
        if marks:
            mark = (max if driver.part.timed else min)(marks.values())
            found = await self._ask_all(driver, Minimiser.weigh, mark)
            await self._ask_all(driver, Minimiser.go_on)
            driver.emit(**_added_up(found))

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        ends = outcome.emitted("ended")
        if outcome.ended != "driven" or not ends:
            return []
        found, ended = [], ends[-1][2]
        far = curve(outcome)[-1][1]
        if ended != "reached" and (outcome.part.exact or ended != "stands still"):
            found.append(Violation(
                kind="not_converged", time_s=outcome.seconds, evidence=far,
                message=f"the farthest node is {far:.3g} from the optimum and not within "
                f"{self.target:g}: {ended}"))  # fmt: skip
        sums = [r for r in outcome.records if "sum_error" in r.values]
        # Under faults a sum may be off for a while; at the end it has to be right.
        faulty = bool(outcome.world.faults)
        for record in sums[-1:] if faulty else sums:
            error, size = record.values["sum_error"], record.values["sum_size"]
            if not error <= SLACK * max(size, 1.0):
                found.append(Violation(
                    kind="sum_not_zero", time_s=record.time_s, evidence=error,
                    message=f"what must add up to zero over the nodes is {error:.3g} long",
                ))  # fmt: skip
                break
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        looks = curve(outcome)
        if not looks:
            return {"time_s": outcome.seconds}
        at_s, _, gradients, messages = crossing(looks, self.target)
        sums = [value for _, _, value in outcome.emitted("sum_error")]
        last = looks[-1]
        found = {
            "gradients": gradients, "messages": messages, "time_s": at_s, "distance": last[1],
            "waits_on": float(max(value for _, _, value in outcome.emitted("waits_on"))),
            "grads_per_s": last[2] / last[0] if last[0] > 0 else 0.0,
        }  # fmt: skip
        if sums:
            found["sum_error"] = float(max(sums))
        return found


def _added_up(balances: Mapping[int, Array]) -> dict[str, float]:
    """The length of the sum, and that of the longest summand to judge it by."""
    stacked = np.stack(list(balances.values()))
    return {
        "sum_error": float(np.linalg.norm(stacked.sum(axis=0))),
        "sum_size": float(np.linalg.norm(stacked, axis=1).max()),
    }


def curve(outcome: Any) -> list[tuple[float, float, float, float]]:
    """(time, distance, gradients, messages) of each look, in a run or its outcome."""
    return [
        (r.time_s, r.values["distance"], r.values["gradients"], r.values["messages"])
        for r in outcome.records
        if "distance" in r.values
    ]


def crossing(
    looks: list[tuple[float, float, float, float]], target: float
) -> tuple[float, float, float, float]:
    """Where a curve last came below the target: between two looks, by the logarithm of distance.

    One that never did gives its last look.
    """
    above = [i for i, look in enumerate(looks) if not look[1] <= target]
    first = above[-1] + 1 if above else 0
    if first >= len(looks) or first == 0:
        return looks[min(first, len(looks) - 1)]
    before, after = looks[first - 1], looks[first]
    if not math.isfinite(before[1]) or after[1] <= 0:
        return after
    part = math.log(before[1] / target) / math.log(before[1] / after[1])
    values = [a + part * (b - a) for a, b in zip(before, after, strict=True)]
    return tuple(values)  # type: ignore[return-value]


def _stands_still(seen: list[float]) -> bool:
    if len(seen) <= PLATEAU:
        return False
    recent = seen[-PLATEAU:]
    return max(recent) - min(recent) <= 1e-6 * max(recent)


def _last_fault_end_s(world: World) -> float:
    """When the last fault has ended; one for ever counts from its beginning."""
    ends = [0.0]
    for fault in world.faults:
        between_s: Any = getattr(fault, "between_s", None)
        if between_s is not None:  # a generator draws inside this span, whatever the seed
            ends.append(between_s[1] + max(getattr(fault, "down_s", (0.0,))))
        else:
            ends.append(fault.at_s if fault.until_s is None else fault.until_s)
    return max(ends)


__all__ = ["DecentralisedOptimum", "crossing", "curve"]
