"""What the problems of this room share: clients, who was down when, when all faults are over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts.problem import Driver, Outcome
from orrery.world import Crash, SpotReclaim, World


async def try_ask(
    driver: Driver, node: int, limit_s: float, method: Callable[..., Any], *args: Any
) -> Any:
    """One question of a client with a limit; None when the node said nothing in time, or no."""
    try:
        async with driver.deadline(limit_s):
            return await driver.ask(node, method, *args)
    except (DeadlineExceeded, Refused):
        return None


async def client_session(
    driver: Driver, plan: Stream, ops: int, keys: int, think_s: float,
    do: Callable[[float, str], Awaitable[None]],
) -> None:  # fmt: skip
    """One client: `ops` operations one after another, each after a pause of `think_s` on average.

    `do` gets a number from 0 to 1, which picks the kind of operation, and a key. The plan's stream
    serves nothing else, so that it is the same in every engine.
    """
    for _ in range(ops):
        pick = plan.random()
        key = f"k{plan.below(keys)}"
        await driver.sleep(plan.random() * 2.0 * think_s)
        await do(pick, key)


def last_fault_end_s(world: World) -> float:
    """When the last fault has ended; a fault for ever counts from its beginning."""
    ends = [0.0]
    for fault in world.faults:
        between_s: Any = getattr(fault, "between_s", None)
        if between_s is not None:  # a generator draws inside this span, whatever the seed
            down_s: Any = fault.down_s  # type: ignore[attr-defined]
            ends.append(between_s[1] + max(down_s))
        else:
            ends.append(fault.at_s if fault.until_s is None else fault.until_s)
    return max(ends)


def downtimes(outcome: Outcome) -> dict[int, list[tuple[float, float | None]]]:
    """The spans in which each crashed node was down, merged; None is the end of "for ever".

    They come from the fault schedule, so the answer is the same for every engine.
    """
    spans: dict[int, list[tuple[float, float | None]]] = {}
    for fault in outcome.world.schedule(outcome.seed):
        if not isinstance(fault, Crash | SpotReclaim) or fault.at_s > outcome.seconds:
            continue
        nodes: Any = fault.node if isinstance(fault.node, tuple) else (fault.node,)
        until_s = fault.until_s
        if until_s is not None and until_s > outcome.seconds:
            until_s = None
        for node in nodes:
            _merge(spans.setdefault(node, []), fault.at_s, until_s)
    return spans


def _merge(spans: list[tuple[float, float | None]], at_s: float, until_s: float | None) -> None:
    """Add a span that begins no earlier than those before it."""
    if spans and (spans[-1][1] is None or at_s <= spans[-1][1]):
        first, end = spans[-1]
        end = None if end is None or until_s is None else max(end, until_s)
        spans[-1] = (first, end)
    else:
        spans.append((at_s, until_s))


def restarts(outcome: Outcome) -> dict[int, list[float]]:
    """When each node began a new life after a crash."""
    return {
        node: [end for _, end in spans if end is not None]
        for node, spans in downtimes(outcome).items()
    }


def as_violations(found: Iterable[Violation], time_s: float) -> list[Violation]:
    """A checker's findings, dated with the end of the run that they judge."""
    return [msgspec.structs.replace(each, time_s=time_s) for each in found]


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
