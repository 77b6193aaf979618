"""What CCL-D keeps at a rank of an ordinary run, and the few bytes that it tells of each call.

A *slot* is what comes again and again at a rank: a tag among certain nodes. Its number stands for
it in all that is told after the first time. A record is a short list:

    before  [slot, bytes], then the key of the group where the slot has had another one before, and
            at its first use also the nodes: [first, count] or [-1, node, node, …]
    after   [slot, key or "", calls that were cut off, signs, slow ways, seconds spent here]; what
            is empty at the end is left away
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import msgspec

from orrery.parts.groups import Group, Nodes
from orrery.parts.monitor import Memory
from orrery.systems.resilience.ccl_d.probe import Probe
from orrery.systems.resilience.ccl_d.slowness import LEAST_ARRIVALS
from orrery.systems.resilience.problems.flight import Channel, Op

# Arrays of these must be alike at all ranks; of the others the sizes may differ, and say nothing.
ALIKE = frozenset({"all_reduce", "reduce", "reduce_scatter", "scan"})
# So many slots a rank remembers, so many calls of its own that are open, and so many ways, calls
# and signs it tells with one record: all memory and all records are bounded.
MOST_SLOTS, MOST_OPEN, MOST_TOLD = 64, 1024, 4
# Every so many calls the rank takes its own time, and tells what it has spent so far.
SAMPLED, TOLD = 16, 64
# A hint and what stands for it in a record.
HINTS = {"wait": 0, "send": 1}


class Slot(msgspec.Struct):
    """A tag among certain nodes, as a rank numbers them; `key` is that of its first group."""

    number: int
    key: str
    name: str


class Call(msgspec.Struct):
    """A collective under way at a rank."""

    op: Op
    group: Group
    tag: str
    slot: Slot

    @property
    def is_cut_off(self) -> bool:
        """Whether it has ended by an error, of which nobody tells."""
        return self.tag not in self.group.busy


class Alone:
    """How long an array would have taken alone: those under way together share the NIC.

    What the quickest took is no matter of sharing, as latency is none.

    >>> alone = Alone()
    >>> alone.time(0.25, 1), alone.time(1.25, 2)
    (0.25, 0.75)
    """

    def __init__(self) -> None:
        self.quickest_s = math.inf

    def time(self, took_s: float, among: int) -> float:
        """The time of an array that was one of `among`."""
        self.quickest_s = min(self.quickest_s, took_s)
        return self.quickest_s + (took_s - self.quickest_s) / among


class Tap:
    """One rank's memory of its calls: a probe, its slots and what it has told already."""

    def __init__(self, probe: Probe, way: float) -> None:
        self.probe, self.way = probe, way
        self.slots: OrderedDict[tuple[Nodes, str], Slot] = OrderedDict()
        self.open: OrderedDict[tuple[str, str], Call] = OrderedDict()
        self.told_ways: dict[int, bool] = {}
        self.alone = Alone()
        self.numbered = self.calls = 0
        self.spent_s = 0.0

    # -- what a rank tells

    def record(self, memory: Memory, group: Group, *what: Any) -> list[Any]:
        """The record of one tap; every so many of them it takes its own time."""
        self.calls += 1
        began_s = memory.clock() if self.calls % SAMPLED == 0 else None
        phase, kind, tag, data = what
        if phase == "before":
            told = self.before(group, kind, tag, data)
        else:
            told = self.after(group, tag)
        if began_s is not None:
            self.spent_s += SAMPLED * (memory.clock() - began_s)
        return told

    def before(self, group: Group, kind: str, tag: str, data: Any) -> list[Any]:
        """A collective begins."""
        nbytes = int(getattr(data, "nbytes", 0)) if kind in ALIKE else 0
        slot = self.slots.get((group.nodes, tag))
        told: list[Any] = []
        if slot is None:
            slot = self._new_slot(group, tag)
            told = [group.key, _short(group.nodes)]
        else:
            self.slots.move_to_end((group.nodes, tag))
            if group.key != slot.key:
                told = [group.key]
        op = self.probe.enqueue(slot.name, slot.name, kind, nbytes, [])
        self.open[group.key, tag] = Call(op, group, tag, slot)
        if len(self.open) > MOST_OPEN:
            self._drop(*next(iter(self.open)))
        return [slot.number, nbytes, *told]

    def after(self, group: Group, tag: str) -> list[Any]:
        """It has ended; with it goes what is odd about this rank."""
        call = self.open.pop((group.key, tag), None)
        if call is None:  # there were more calls open than are kept
            return []
        self.probe.end(call.op)
        cut = [place for place, each in self.open.items() if each.is_cut_off][:MOST_TOLD]
        gone = [self._drop(*place) for place in cut]
        key = "" if group.key == call.slot.key else group.key
        spent_s = round(self.spent_s, 6) if self.calls % TOLD < 2 and self.spent_s else 0
        told = [call.slot.number, key, gone, self._signs(), self._ways(), spent_s]
        while not told[-1] and len(told) > 1:
            told.pop()
        return told

    def _signs(self) -> list[list[Any]]:
        """Which waits or sends are unusual, at most one of each: [hint, score, slot or peer]."""
        return [
            [HINTS[sign.hint], round(sign.score, 2),
             int(sign.comm) if sign.hint == "wait" else sign.peer]
            for sign in self.probe.beat().signs if sign.hint in HINTS
        ]  # fmt: skip

    def _ways(self) -> list[list[Any]]:
        """Ways that have become slow or sound since they were told: [peer, ratio]."""
        found: list[list[Any]] = []
        for peer, way in self.probe.ways.items():
            ratio = way.ratio()
            slow = len(way.ratios) >= LEAST_ARRIVALS and ratio >= self.way
            if slow != self.told_ways.get(peer, False) and len(found) < MOST_TOLD:
                self.told_ways[peer] = slow
                found.append([peer, round(ratio, 2)])
        return found

    # -- keeping it small

    def _new_slot(self, group: Group, tag: str) -> Slot:
        name = str(self.numbered)
        slot = Slot(self.numbered, group.key, name)
        self.slots[group.nodes, tag] = slot
        self.numbered += 1
        if len(self.slots) > MOST_SLOTS:
            _, old = self.slots.popitem(last=False)
            probe = self.probe
            tables: tuple[dict[str, Any], ...] = (probe.counts, probe.seqs, probe.members)
            for table in tables:
                table.pop(old.name, None)
            for key in [key for key in self.probe.waits if key[0] == old.name]:
                if key != self.probe.first:
                    del self.probe.waits[key]
        return slot

    def _drop(self, key: str, tag: str) -> list[Any]:
        """Forget a call that was cut off; gives its slot and key."""
        call = self.open.pop((key, tag))
        forget(self.probe, call.op)
        return [call.slot.number, "" if key == call.slot.key else key]

    def arrived(self, peer: int, nbytes: int, took_s: float, among: int) -> None:
        """An array has arrived at a peer."""
        if peer not in self.probe.channels:
            self.probe.channels[peer] = Channel(peer)
        self.probe.channels[peer].shipped += 1
        self.probe.arrived(peer, nbytes, self.alone.time(took_s, among))


def forget(recorder: Any, op: Op) -> None:
    """Take an operation that was cut off from those that are open; nothing is learnt from it."""
    if op in recorder.busy:
        recorder.busy.remove(op)
        if not recorder.busy:
            recorder.idle_since_s = recorder.clock()


def _short(nodes: Nodes) -> list[int]:
    """Nodes as they are told: [first, count] where they follow each other, else -1 and all."""
    if isinstance(nodes, range):
        return [nodes[0], len(nodes)]
    return [-1, *nodes]


def nodes_told(short: list[int]) -> list[int]:
    """The nodes again.

    >>> nodes_told([3, 2]), nodes_told([-1, 5, 2])
    ([3, 4], [5, 2])
    """
    return list(short[1:]) if short[0] < 0 else list(range(short[0], short[0] + short[1]))
