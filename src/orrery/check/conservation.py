"""Conservation: nothing is lost, nothing happens twice, totals stay, resources are not shared."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from orrery.base.errors import SpecError
from orrery.check.violation import Violation


def exactly_once(
    requests: Iterable[Hashable],
    answered: Iterable[Hashable],
    failed: Iterable[Hashable] = (),
    *,
    still_open: Iterable[Hashable] = (),
) -> list[Violation]:
    """Every request is answered once or reported failed once, and nothing else is answered. O(n).

    Pass the identifiers in the order they occurred, repeats included. `still_open` are requests
    that were under way when the run was cut off; those may lack an ending.
    """
    asked: dict[Hashable, int] = {}
    found = []
    for request in requests:
        asked[request] = asked.get(request, 0) + 1
        if asked[request] == 2:
            found.append(
                Violation("asked_twice", f"two requests are named {request!r}", (request,))
            )
    endings: dict[Hashable, list[str]] = {}
    for how, ids in (("answered", answered), ("failed", failed)):
        for request in ids:
            endings.setdefault(request, []).append(how)
    pending = set(still_open)
    for request in asked:
        if request not in endings and request not in pending:
            text = f"{request!r} was neither answered nor reported failed"
            found.append(Violation("lost", text, (request,)))
    for request, ends in endings.items():
        if request not in asked:
            text = f"{request!r} was {ends[0]}, but nobody asked for it"
            found.append(Violation("from_nowhere", text, (request,)))
        elif len(ends) > 1:
            kind = "answered_and_failed" if len(set(ends)) > 1 else f"{ends[0]}_twice"
            text = f"{request!r} ended {len(ends)} times: {', '.join(ends[:4])}"
            found.append(Violation(kind, text, {"request": request, "endings": tuple(ends)}))
    return found


def totals_preserved(
    snapshots: Iterable[Mapping[Hashable, float]],
    *,
    total: float | None = None,
    tolerance: float = 0.0,
    floor: float | None = None,
) -> list[Violation]:
    """All snapshots of the accounts have one total. O(entries).

    `total` is the right one (else the first snapshot's); `tolerance` allows for rounding; `floor`
    is the least that one account may hold.
    """
    if not tolerance >= 0:
        raise SpecError("tolerance", f"{tolerance!r}", "give a number >= 0")
    found = []
    for n, snapshot in enumerate(snapshots):
        have = math.fsum(snapshot.values())
        if total is None:
            total = have
        # Written so that a NaN, which compares false with everything, is a violation.
        if not abs(have - total) <= tolerance:
            text = f"snapshot {n} adds up to {have!r} instead of {total!r}"
            found.append(Violation("total_changed", text, {"snapshot": n, "total": have}))
        for account, amount in snapshot.items():
            if floor is not None and not amount >= floor:
                text = f"snapshot {n}: {account!r} holds {amount!r}, less than {floor!r}"
                evidence = {"snapshot": n, "account": account, "amount": amount}
                found.append(Violation("below_floor", text, evidence))
    return found


def same_items(before: Iterable[Hashable], after: Iterable[Hashable]) -> list[Violation]:
    """The same items are there afterwards, each as often, in any order. O(n)."""
    balance: dict[Hashable, int] = {}
    for item in before:
        balance[item] = balance.get(item, 0) + 1
    for item in after:
        balance[item] = balance.get(item, 0) - 1
    found = []
    for item, count in balance.items():
        if count:
            kind, word = ("lost", "missing") if count > 0 else ("appeared", "too many")
            text = f"{item!r}: {abs(count)} {word}"
            found.append(Violation(kind, text, {"item": item, "difference": -count}))
    return found


def resources(
    events: Iterable[tuple[str, Hashable, Hashable]],
    *,
    capacity: int | Mapping[Hashable, int] = 1,
    all_returned: bool = True,
) -> list[Violation]:
    """No resource is held by more than its capacity, given back by a stranger, or never given back.

    Events are ("acquire" or "release", resource, holder) in order. O(events).
    """
    holders: dict[Hashable, list[Hashable]] = {}
    found: list[Violation] = []

    def report(kind: str, text: str, n: int, resource: Any, who: tuple[Any, ...]) -> None:
        found.append(Violation(kind, text, {"event": n, "resource": resource, "holders": who}))

    n = -1
    for n, (what, resource, holder) in enumerate(events):
        held = holders.setdefault(resource, [])
        if what == "acquire":
            room = capacity if isinstance(capacity, int) else capacity.get(resource, 1)
            held.append(holder)
            if len(held) > room:
                text = f"{resource!r} is held by {len(held)} and has room for {room}"
                report("shared", text, n, resource, tuple(held))
        elif what == "release":
            if holder in held:
                held.remove(holder)
            else:
                text = f"{holder!r} gave back {resource!r} without holding it"
                report("not_held", text, n, resource, (holder,))
        else:
            raise SpecError(f"events[{n}]", f"{what!r}", 'use "acquire" or "release"')
    if all_returned:
        for resource, held in holders.items():
            if held:
                text = f"{resource!r} was never given back by {held[0]!r}"
                report("leaked", text, n, resource, tuple(held))
    return found
