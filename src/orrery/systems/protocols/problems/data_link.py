"""The problem `data_link`: items handed in at one end of a bad line come out at the other.

Node 0 sends, node 1 receives (and each further even node to the odd one after it). The line loses,
repeats and delays messages. The checker asks that what comes out is what went in, in order, nothing
missing in the middle and nothing twice; and that all of it is there when the faults are over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from orrery.base.errors import DeadlineExceeded, KnobError, PartError
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, Node, NonNegative, Outcome, Positive, Problem, rpc
from orrery.systems.protocols.common import as_violations, last_fault_end_s
from orrery.world import World


class LinkEnd(Node):
    """The port: both ends of the line.

    The receiving end reports `emit(delivered=item)`, the sending one `emit(sent=number)` for each
    time that it sends an item, with the number of the item.
    """

    @rpc
    async def offer(self, item: int) -> None:
        """Take an item to be sent; what was offered first goes first."""
        raise PartError(f"{type(self).__name__} has no offer(item); write the sending end")

    @rpc
    async def received(self) -> int:
        """How many items have come out here."""
        raise PartError(f"{type(self).__name__} has no received(); write the receiving end")


class Handed(msgspec.Struct):
    """What the workload handed in at each sending end, and when it had all come out."""

    items: dict[int, list[int]]
    done_s: float | None = None


class DataLink(Problem):
    """Hand items in at every sending end and wait until they have come out.

    Knobs: `items` for each line, handed in with up to 2 `gap_s` between them; `recover_s`, the time
    for the rest to come out after the last item and the last fault.

    >>> DataLink(items=3).items
    3
    """

    items: Count = 50
    gap_s: NonNegative = 0.002
    recover_s: Positive = 10.0

    port: ClassVar[type] = LinkEnd
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "delivered": Metric("", "higher", "share of the items that came out"),
        "items_per_s": Metric("1/s", "higher", "items that came out, until the last of them"),
        "sends_per_item": Metric("", "lower", "how often an item was sent"),
        "messages_per_item": Metric("", "lower", "all messages, acknowledgements included"),
    }

    def world(self) -> World:
        """Two machines."""
        return World.lan(2)

    async def drive(self, driver: Driver) -> Handed:
        """Hand the items in, then look from time to time whether all have come out."""
        size = len(driver.nodes)
        if size % 2:
            raise KnobError("world.groups", f"has {size} nodes", "give two ends for each line")
        rng = driver.rng
        plan = {
            node: [(2.0 * self.gap_s * rng.random(), rng.below(1 << 31)) for _ in range(self.items)]
            for node in driver.nodes[::2]
        }
        await driver.all(*(self._hand_in(driver, node, plan[node]) for node in plan))
        handed = Handed({node: [item for _, item in rows] for node, rows in plan.items()})
        until_s = max(driver.now, last_fault_end_s(driver.world)) + self.recover_s
        while driver.now < until_s:
            outs = [self._count(driver, node + 1) for node in plan]
            if all(count >= self.items for count in await driver.all(*outs)):
                handed.done_s = driver.now
                break
            await driver.sleep(min(0.05, self.recover_s / 20))
        return handed

    async def _count(self, driver: Driver, node: int) -> int:
        """How many items have come out; none where the end does not answer."""
        try:
            async with driver.deadline(self.recover_s / 4):
                count: int = await driver.ask(node, LinkEnd.received)
                return count
        except DeadlineExceeded:
            return 0

    async def _hand_in(self, driver: Driver, node: int, rows: list[tuple[float, int]]) -> None:
        for gap_s, item in rows:
            await driver.sleep(gap_s)
            driver.tell(node, LinkEnd.offer, item)

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        """The same items in the same order, and all of them."""
        handed = outcome.driven
        if not isinstance(handed, Handed):
            said = [Violation(kind="unfinished", message="the workload did not end")]
            return [] if outcome.violations or outcome.ended == "until" else said
        out = _delivered(outcome)
        found = []
        for node, items in handed.items.items():
            got = out.get(node + 1, [])
            wrong = next((i for i, item in enumerate(got) if items[i : i + 1] != [item]), None)
            if wrong is not None:
                due = items[wrong] if wrong < len(items) else "nothing"
                text = f"item {wrong} at node {node + 1} is {got[wrong]}, {due} was due"
                found.append(Violation(kind="wrong_item", message=text, node=node + 1))
            elif len(got) < len(items):
                text = f"{len(got)} of {len(items)} items came out at node {node + 1}"
                found.append(Violation(kind="not_live", message=text, node=node + 1))
        return as_violations(found, outcome.seconds)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """How much came out, how fast, and at what cost."""
        times = [time_s for time_s, _, _ in outcome.emitted("delivered")]
        total = self.items * (outcome.world.size // 2)
        return {
            "delivered": len(times) / total,
            "items_per_s": len(times) / max(times[-1] if times else 0.0, 1e-9),
            "sends_per_item": len(outcome.emitted("sent")) / total,
            "messages_per_item": outcome.messages / total,
        }

    def decisions(self, outcome: Outcome) -> dict[int, list[int]]:
        """What came out at each receiving end."""
        return dict(sorted(_delivered(outcome).items()))


def _delivered(outcome: Outcome) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for _, node, item in outcome.emitted("delivered"):
        out.setdefault(node, []).append(item)
    return out
