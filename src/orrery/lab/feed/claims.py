"""The claims of the systems that a feed names: testable or not, judged or not, and at odds or not.

Two claims contradict each other when both cannot be so as they stand:

- *each better than the other*: for one problem and one metric, one paper says that A beats B and
  another that B beats A, or several papers together say so in a circle;
- *figures apart*: two claims about the same two systems in the same setting whose published ranges
  do not meet;
- *both the best*: two systems are each said to beat the state of the art, or the strongest rival,
  at one problem by one metric. Papers of different years may both have been right.

A rival counts when the claim names its id, or when the words of `against` hold the name of a
system. What a text merely suggests is not compared, and claims about different metrics never meet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from orrery.lab.claims import Claim
    from orrery.lab.discover import Entry

BEST = re.compile(
    r"\b(state[- ]of[- ]the[- ]art|strongest|best|cutting-edge|all (?:other|known))\b",
    re.IGNORECASE,
)
# What a claim's comparison rests on besides the two systems, the problem and the metric.
SETTING = ("setting", "world", "world_set", "problem_knobs", "ours", "rival_knobs", "engine")


class Odds(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that another one contradicts."""

    system: str
    n: int
    why: str


class Status(msgspec.Struct, kw_only=True):
    """One claim as a reader of a feed wants to know it."""

    system: str
    n: int
    metric: str
    says: str
    against: str
    testable: bool
    state: str
    verdict: str | None = None
    reason: str = ""
    contradicts: list[Odds] = []


def statuses(entries: Iterable[Entry]) -> dict[str, list[Status]]:
    """Every claim of some systems by system, each with what contradicts it among them."""
    listed = {entry.id: entry for entry in entries}
    found = {
        id: [_status(entry, n, claim) for n, claim in enumerate(entry.stem.claims)]
        for id, entry in listed.items()
    }
    for one, other, why in contradictions(list(listed.values())):
        _put(found, one, other, why)
        _put(found, other, one, why)
    return found


def _put(
    found: Mapping[str, list[Status]], one: tuple[str, int], other: tuple[str, int], why: str
) -> None:
    odds = Odds(system=other[0], n=other[1], why=why)
    mine = found[one[0]][one[1]].contradicts
    if odds not in mine:
        mine.append(odds)


def _status(entry: Entry, n: int, claim: Claim) -> Status:
    verdict = entry.claims[n].get("verdict") if n < len(entry.claims) else None
    if not claim.testable:
        state = "cannot be tested"
    elif verdict:
        state = "judged"
    else:
        state = "to be judged" if entry.built else "waits for its system"
    return Status(
        system=entry.id, n=n, metric=claim.metric, says=claim.says, against=claim.against,
        testable=claim.testable, state=state, verdict=verdict, reason=claim.untestable,
    )  # fmt: skip


# -- contradictions

Place = tuple[str, int]
Range = tuple[float, float]
Edge = tuple[str, str, Place]  # winner, loser, the claim that says so


def contradictions(entries: Sequence[Entry]) -> list[tuple[Place, Place, str]]:
    """Pairs of claims (by system and number) that cannot both be so, and why."""
    found: list[tuple[Place, Place, str]] = []
    boards: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    figures: dict[tuple[str, ...], list[tuple[Place, Range]]] = defaultdict(list)
    names = _names(entries)
    for entry in entries:
        for n, claim in enumerate(entry.stem.claims):
            place = (entry.id, n)
            for rival in _rivals(entry, claim, names):
                board = (claim.problem or entry.problem, claim.measure or claim.metric)
                if claims_gain(claim):
                    boards[board].append((entry.id, rival, place))
                figure = claim.figure()
                if claim.form == "ratio" and figure is not None:
                    key = (entry.id, rival, *board, _setting(claim))
                    figures[key].append((place, figure))
    for (_, metric), edges in sorted(boards.items()):
        found += _circles(edges, metric)
    found += _both_best(entries)
    for (system, rival, _, metric, _), each in sorted(figures.items()):
        for i, (one, (lo, hi)) in enumerate(each):
            for other, (low, high) in each[i + 1 :]:
                if hi < low or high < lo:
                    why = f"{system} against {rival} by {metric}: the figures do not meet"
                    found.append((one, other, why))
    return found


def _both_best(entries: Sequence[Entry]) -> list[tuple[Place, Place, str]]:
    """Claims of different systems to be the best at one problem by one metric."""
    crowns: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for entry in entries:
        for n, claim in enumerate(entry.stem.claims):
            problem = claim.problem or entry.problem
            if problem and claims_gain(claim) and BEST.search(claim.against):
                crowns[(problem, claim.measure or claim.metric)].append((entry.id, n))
    return [
        (one, other, f"both are said to be the best by {metric}")
        for (_, metric), places in sorted(crowns.items())
        for i, one in enumerate(places) for other in places[i + 1 :] if one[0] != other[0]
    ]  # fmt: skip


def claims_gain(claim: Claim) -> bool:
    """Whether a claim says that its system is better than the rival, and not merely as good."""
    from orrery.lab.verdicts import claimed_gain

    if claim.form == "direction":
        return True
    gain = claimed_gain(claim) if claim.form == "ratio" else None
    return gain is not None and gain > 1


def _setting(claim: Claim) -> str:
    data = msgspec.to_builtins(claim)
    return repr([data.get(name) for name in SETTING])


def _names(entries: Iterable[Entry]) -> list[tuple[re.Pattern[str], str]]:
    """Patterns of the systems' names as they are written; case counts, since FOLD is no fold."""
    found = []
    for entry in entries:
        name = entry.name.partition("(")[0].strip()
        if len(name) >= 3 and not name.islower():
            found.append((re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), entry.id))
    return found


def _rivals(entry: Entry, claim: Claim, names: Sequence[tuple[re.Pattern[str], str]]) -> list[str]:
    """The ids of those that a claim compares its system with."""
    if claim.rival or not claim.against:
        return [claim.rival] if claim.rival and claim.rival != entry.id else []
    if " " not in claim.against and claim.against == claim.against.lower():
        return [claim.against] if claim.against != entry.id else []
    found = (id for pattern, id in names if pattern.search(claim.against))
    return [id for id in dict.fromkeys(found) if id != entry.id]


def _circles(edges: Sequence[Edge], metric: str) -> list[tuple[Place, Place, str]]:
    """Claims that lie on a circle of "better than"; the first of a circle is laid beside each."""
    beats: dict[str, set[str]] = defaultdict(set)
    for winner, loser, _ in edges:
        beats[winner].add(loser)
    found = []
    for i, (winner, loser, place) in enumerate(edges):
        for other_winner, other_loser, other in edges[i + 1 :]:
            if (other_winner, other_loser) == (loser, winner):
                why = f"each is said to beat the other by {metric}"
            elif _reaches(beats, loser, other_winner) and _reaches(beats, other_loser, winner):
                why = f"they close a circle of systems that beat one another by {metric}"
            else:
                continue
            if place != other:
                found.append((place, other, why))
    return found


def _reaches(beats: Mapping[str, set[str]], start: str, goal: str) -> bool:
    """Whether a chain of wins leads from one system to another (or they are the same)."""
    seen, todo = {start}, [start]
    while todo:
        here = todo.pop()
        if here == goal:
            return True
        for each in sorted(beats.get(here, ())):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return False
