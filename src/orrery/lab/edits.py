"""The edits of a playground: what one does to nodes and links by hand, as faults of a schedule.

Each action that begins something has one that ends it: crash and restart, cut and heal. An edit is
an action at a virtual time; `compiled` turns the edits of a branch into faults of the world's own
schedule language, so what was clicked can be run, saved and read like any other world.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from orrery.base.errors import UsageError, did_you_mean
from orrery.base.units import show
from orrery.world import Clog, Crash, Drop, Fault, Partition, Pause, Slow

# What begins a state of nodes or of a link, and what ends it.
ENDS = {
    "restart": "crash", "resume": "pause", "quicken": "slow", "rejoin": "isolate",
    "heal": "cut", "hasten": "lag", "merge": "split",
}  # fmt: skip
BEGINS = tuple(ENDS.values())
ACTIONS = (*BEGINS, *ENDS)
ON_LINKS = ("cut", "heal", "lag", "hasten")
MOST_TARGETS = 20_000
DEFAULT_FACTOR = 10.0
DEFAULT_DELAY_S = 0.05

_DOES = {
    "crash": ("crashes", "crash"), "restart": ("starts again", "start again"),
    "pause": ("stands still", "stand still"), "resume": ("goes on", "go on"),
    "slow": ("is slow", "are slow"), "quicken": ("is quick again", "are quick again"),
    "isolate": ("is cut off", "are cut off"), "rejoin": ("is joined again", "are joined again"),
    "split": ("are parted from the rest", "are parted from the rest"),
    "merge": ("are joined to the rest", "are joined to the rest"),
}  # fmt: skip
_LINKS = {"cut": "is cut", "heal": "is whole again", "lag": "is late", "hasten": "is quick again"}


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action at a time: on some nodes, or on the link between two (both ways)."""

    at_s: float
    action: str
    nodes: tuple[int, ...]
    value: float | None = None

    def words(self) -> str:
        """What it does, in plain words.

        >>> Edit(at_s=0.5, action="crash", nodes=(3,)).words()
        'node 3 crashes'
        """
        if self.action in ON_LINKS:
            told = f"the link {self.nodes[0]} – {self.nodes[1]} {_LINKS[self.action]}"
            return f"{told} by {show(self.value, 's')}" if self.action == "lag" else told
        one, many = _DOES[self.action]
        told = f"{who(self.nodes)} {one if len(self.nodes) == 1 else many}"
        return f"{told}, {self.value:g} times" if self.action == "slow" else told


def who(nodes: Sequence[int]) -> str:
    """How some nodes are called: by number where they are few."""
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    if len(nodes) > 5:
        return f"{len(nodes)} nodes"
    return f"nodes {', '.join(str(n) for n in nodes[:-1])} and {nodes[-1]}"


def checked(at_s: Any, action: Any, nodes: Any, value: Any, size: int) -> Edit:
    """An edit whose every field was looked at; what is wrong is named with the fix."""
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= 1e9:
        raise UsageError(f"at_s={at_s!r}: give a number of seconds, 0 to 1e9")
    if not isinstance(action, str) or action not in ACTIONS:
        raise UsageError(f"action {str(action)[:40]!r} is unknown; "
                         f"{did_you_mean(str(action)[:40], ACTIONS)}")  # fmt: skip
    if not isinstance(nodes, list | tuple) or not 1 <= len(nodes) <= MOST_TARGETS:
        raise UsageError(f"nodes: give a list of 1 to {MOST_TARGETS:,} node numbers")
    for node in nodes:
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < size:
            shown = str(node)[:20]
            raise UsageError(f"nodes: there is no node {shown}; this world has 0 to {size - 1}")
    if len(set(nodes)) != len(nodes):
        raise UsageError("nodes: one is named twice; name each once")
    if action in ON_LINKS:
        if len(nodes) != 2:
            raise UsageError(f"{action} takes the two ends of a link, not {len(nodes)} nodes")
        nodes = sorted(nodes)
    if action == "split" and len(nodes) == size:
        raise UsageError("split: all nodes together are parted from nobody; name fewer")
    return Edit(
        at_s=round(float(at_s), 9), action=action, nodes=tuple(nodes),
        value=_value(action, value),
    )  # fmt: skip


def _value(action: str, value: Any) -> float | None:
    if action not in ("slow", "lag"):
        if value is not None:
            raise UsageError(f"{action} takes no value; leave it out")
        return None
    if value is None:
        return DEFAULT_FACTOR if action == "slow" else DEFAULT_DELAY_S
    least, most = (1.0, 1e6) if action == "slow" else (1e-9, 1e4)
    wrong = isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value)
    if wrong or not least <= value <= most:
        what = "a factor" if action == "slow" else "a delay in seconds"
        raise UsageError(f"value={str(value)[:20]}: give {what}, {least:g} to {most:g}")
    return float(value)


class _Open(NamedTuple):
    place: int  # of its fault in the list
    edit: Edit


def compiled(edits: Sequence[Edit]) -> tuple[Fault, ...]:
    """The faults that edits, in order of time, amount to; an edit without effect is refused.

    >>> crash = Edit(at_s=0.5, action="crash", nodes=(3,))
    >>> compiled([crash, Edit(at_s=0.9, action="restart", nodes=(3,))])
    (Crash(at_s=0.5, until_s=0.9, node=3, domain=None),)
    """
    faults: list[Fault] = []
    on: dict[tuple[str, Any], _Open] = {}
    for edit in edits:
        for key in _keys(edit):
            if edit.action in BEGINS:
                _begin(edit, key, faults, on)
            else:
                _end(edit, key, faults, on)
    return tuple(faults)


def _keys(edit: Edit) -> list[tuple[str, Any]]:
    """What an edit acts on: each of its nodes alone, or one link, or one parting."""
    kind = ENDS.get(edit.action, edit.action)
    if kind in ("cut", "lag"):
        return [(kind, edit.nodes)]
    if kind == "split":
        return [(kind, tuple(sorted(edit.nodes)))]
    return [(kind, node) for node in edit.nodes]


def _begin(
    edit: Edit, key: tuple[str, Any], faults: list[Fault], on: dict[tuple[str, Any], _Open]
) -> None:
    if key in on:
        since = on[key].edit
        what = f"{edit.words()} at {show(edit.at_s, 's')}, yet that is so since"
        raise UsageError(f"{what} {show(since.at_s, 's')}; take one of the two edits out, or fork")
    on[key] = _Open(len(faults), edit)
    faults.append(_fault(edit, key[1]))


def _end(
    edit: Edit, key: tuple[str, Any], faults: list[Fault], on: dict[tuple[str, Any], _Open]
) -> None:
    begun = on.pop(key, None)
    when = show(edit.at_s, "s")
    if begun is None:
        was = key[0]
        raise UsageError(f"{edit.words()} at {when}, but no {was} of yours is on then; the world's "
                         "own faults end by themselves")  # fmt: skip
    if edit.at_s <= begun.edit.at_s:
        raise UsageError(f"{edit.words()} at {when}, the moment in which it began; go on a little")
    faults[begun.place] = faults[begun.place].replace(until_s=edit.at_s)


def _fault(edit: Edit, target: Any) -> Fault:
    if edit.action == "crash":
        return Crash(node=target, at_s=edit.at_s)
    if edit.action == "pause":
        return Pause(node=target, at_s=edit.at_s)
    if edit.action == "slow":
        return Slow(node=target, at_s=edit.at_s, factor=edit.value or DEFAULT_FACTOR)
    if edit.action == "isolate":
        return Partition(node=target, at_s=edit.at_s)
    if edit.action == "split":
        return Partition(groups=(target,), at_s=edit.at_s)
    if edit.action == "cut":
        return Drop(p=1.0, link=target, at_s=edit.at_s)
    return Clog(link=target, delay_s=edit.value or DEFAULT_DELAY_S, at_s=edit.at_s)


def standing(edits: Sequence[Edit], at_s: float) -> list[tuple[str, tuple[int, ...]]]:
    """What the edits keep in force at a time: (what began it, on which nodes)."""
    on: dict[tuple[str, Any], tuple[int, ...]] = {}
    for edit in edits:
        if edit.at_s > at_s:
            break
        for key in _keys(edit):
            if edit.action in BEGINS:
                on[key] = edit.nodes if isinstance(key[1], tuple) else (key[1],)
            else:
                on.pop(key, None)
    return [(kind, nodes) for (kind, _), nodes in on.items()]
