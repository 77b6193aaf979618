"""The problem `owner_lookup`: `lookup`, where each overlay says by which rule a key has its owner.

Chord gives a key to the first node at or after it, Kademlia to the nearest by XOR, Pastry to the
nearest by number. The workload, the metrics and the verdict are those of `lookup`; only the scan of
all live nodes that says who is right asks the part for its rule.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused, did_you_mean
from orrery.base.violation import Violation
from orrery.check import overlay as checks
from orrery.parts import Driver, Outcome
from orrery.systems.protocols.common import as_violations
from orrery.systems.protocols.problems.lookup import Lookup, Overlay, place_of, ring_of


class RuledOverlay(Overlay):
    """An overlay that names its rule of ownership: "successor", "xor" or "nearest"."""

    owner_rule: ClassVar[str] = "successor"


class _Scan:
    """A scan of all live places for the owner of a key: brute force, but on arrays."""

    def __init__(self, rule: str, bits: int) -> None:
        self.rule = rule
        self.size = 1 << bits
        self.seen: Sequence[int] | None = None
        self.places: Any = None

    def __call__(self, key: int, live: Sequence[int]) -> int:
        if self.seen is not live:
            self.seen, self.places = live, np.array(live, dtype=np.int64)
        places = self.places
        if self.rule == "xor":
            away = places ^ np.int64(key)
        elif self.rule == "successor":
            away = (places - np.int64(key)) % np.int64(self.size)
        else:  # the shorter way round the ring counts; of two equals, the lower place
            gap = (places - np.int64(key)) % np.int64(self.size)
            away = np.minimum(gap, np.int64(self.size) - gap)
        # The first of equals is the lowest place, as long as the places are in order.
        return int(places[int(np.argmin(away))])


RULES = ("successor", "xor", "nearest")


def rule_of(part: Any) -> Callable[[int, Sequence[int]], int]:
    """How the owner of a key is found among all live places (in order), for this part."""
    name = getattr(part, "owner_rule", "successor")
    if name not in RULES:
        fix = did_you_mean(name, RULES)
        raise PartError(f"{type(part).__name__}.owner_rule = {name!r} is unknown; {fix}")
    return _Scan(name, part.bits)


@functools.lru_cache(maxsize=8)
def _scan(name: str, bits: int) -> _Scan:
    return _Scan(name, bits)


def _rule(part: Any) -> Callable[[int, Sequence[int]], int]:
    """The rule of a part, kept from one question to the next with its array of all places."""
    return _scan(getattr(part, "owner_rule", "successor"), part.bits)


class OwnerLookup(Lookup):
    """Ask random nodes for random keys; compare with a scan of all nodes by the overlay's own rule.

    Knobs: those of `Lookup`. Any `Overlay` fits; one without `owner_rule` has Chord's.

    >>> OwnerLookup(lookups=10).knobs()["lookups"]
    10
    """

    def accept(self, part: Any) -> None:
        super().accept(part)
        rule_of(part)

    async def _ask(
        self, driver: Driver, at_s: float, key: int, origin: float, away: dict[int, None],
        judged: bool,
    ) -> None:  # fmt: skip
        await driver.sleep(max(0.0, at_s - driver.now))
        size = len(driver.nodes)
        first = int(origin * size)
        turn = ((first + i) % size for i in range(size))
        node = next((n for n in turn if n not in away and driver.alive(n)), None)
        if node is None:
            return
        began_s = driver.now
        owner, hops = None, 0
        try:
            async with driver.deadline(self.deadline_s):
                owner, hops = await driver.ask(node, Overlay.lookup, key)
        except (DeadlineExceeded, Refused):
            pass
        right = _right(driver, _rule(driver.part), key, away)
        driver.emit(key=key, asked=node, owner=owner, hops=hops, took_s=driver.now - began_s,
                    right=right, judged=judged)  # fmt: skip

    def check(self, outcome: Outcome) -> list[Violation]:
        if outcome.ended != "driven":
            return []
        bits, part = outcome.part.bits, outcome.part
        live = [node for node, up in enumerate(outcome.alive) if up]
        if not live:
            return []
        answers = [
            (place_of(one["asked"], bits), one["key"],
             None if one["owner"] is None else place_of(one["owner"], bits))
            for one in (record.values for record in outcome.records)
            if one.get("judged")
        ]  # fmt: skip
        places = {place_of(node, bits) for node in live}
        if getattr(part, "owner_rule", "successor") == "successor":
            return super().check(outcome)
        return as_violations(checks.lookups(answers, places, rule_of(part)), outcome.seconds)


def _right(
    driver: Driver, rule: Callable[[int, Sequence[int]], int], key: int, away: dict[int, None]
) -> int | None:
    """The owner of a key among those that are there now."""
    places, nodes = ring_of(len(driver.nodes), driver.part.bits)
    best = nodes[bisect_left(places, rule(key, places))]
    if best not in away and driver.alive(best):  # the owner of all is the owner of some
        return best
    there = [
        place
        for place, node in zip(places, nodes, strict=True)
        if node not in away and driver.alive(node)
    ]
    return nodes[bisect_left(places, rule(key, there))] if there else None
