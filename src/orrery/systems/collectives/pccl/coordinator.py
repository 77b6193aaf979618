"""The coordinator: who is in the group, in which order, what committed, which state is right.

It moves no data. Everything a peer asks may be asked again, since answers can be lost: whoever asks
the same thing twice gets the same answer. What waits for others is an event, set when the last of
them has spoken or when the group breaks.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from orrery.base.errors import Refused
from orrery.parts import Node, Positive, Whole, rpc
from orrery.systems.collectives.pccl.order import ring_order

# Decisions that are kept for peers whose answer was lost.
MOST_KEPT = 512
COMMIT, ABORT, NOBODY_KNOWS = 1, 0, -1
# Groups are numbered anew in each life of the coordinator; a life has this many numbers.
LIFE_BITS = 20


class Topology(msgspec.Struct, frozen=True):
    """A group: its number, its members in ring order, and whom each member is to time."""

    epoch: int
    ring: tuple[int, ...]
    unknown: tuple[tuple[int, int], ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What became of an attempt, and whether the group should renew itself before the next."""

    verdict: int
    renew: bool = False


class Told(msgspec.Struct, frozen=True):
    """The state that is right: its revision and hash, and who can give it; all_same: nothing to do.

    `epoch` -1 means that the group broke and there is no answer.
    """

    epoch: int
    revision: int = 0
    digest: str = ""
    holder: int = -1
    all_same: bool = True


BROKEN = Told(epoch=-1)


class Member(Node):
    """What the coordinator says to a peer of its own accord."""

    @rpc
    async def aborted(self, epoch: int) -> None:
        """A group is over: what is undecided in it has failed."""


class Coordinator(Node):
    """Keeps the membership, counts the votes, and says which state is the group's.

    A peer that is silent for `silence_s` is out. The group changes only when all present members
    ask for it. Knobs: `silence_s`; `timeout_s`, of which a third may pass between the first vote of
    an attempt and the last; `first_size`, how many peers make the first group (0: all of the world,
    or those who came within half of `timeout_s`); `optimise`: order the ring by measured times.
    """

    silence_s: Positive = 2.0
    timeout_s: Positive = 10.0
    first_size: Whole = 0
    optimise: bool = True

    def start(self) -> None:
        # A restarted coordinator must not number groups as its former life did.
        self.epoch = self.incarnation << LIFE_BITS
        self.ring: tuple[int, ...] = ()
        self.members: dict[int, int] = {}  # node -> its life
        self.settled: set[int] = set()  # members that are known to have had the group's state
        self.expected = 0  # the revision of that state, by the operations that committed since
        self.broken = True
        self.waiting: dict[int, int] = {}
        self.heard_s: dict[int, float] = {}
        self.lives: dict[int, int] = {}
        self.formed = self.event()
        self.attempts: dict[tuple[int, str, int], dict[int, bool]] = {}
        self.opened_s: dict[tuple[int, str, int], float] = {}
        self.decided: dict[tuple[int, str, int], Decision] = {}
        self.gates: dict[Any, Any] = {}
        self.offers: dict[tuple[int, int], dict[int, tuple[int, str]]] = {}
        self.told: dict[tuple[int, int], Told] = {}
        self.synced_by: dict[tuple[int, int], set[int]] = {}
        self.costs: dict[tuple[int, int], float] = {}
        self.timed: dict[int, set[int]] = {}
        self.final: dict[int, Topology] = {}
        self.began_s = self.now

    async def main(self) -> None:
        """Look for peers that fell silent and attempts that nobody ends."""
        every_s = self.silence_s / 4
        last_s = self.now
        while True:
            await self.sleep(every_s)
            if self.now - last_s > 3 * every_s:
                # It was this node that stood still: nobody could have been heard meanwhile.
                self.heard_s = dict.fromkeys(self.heard_s, self.now)
            last_s = self.now
            for node in [*self.members, *self.waiting]:
                if self.now - self.heard_s.get(node, 0.0) > self.silence_s:
                    self._drop(node)
            for key, opened_s in list(self.opened_s.items()):
                if self.now - opened_s > self.timeout_s / 3:
                    self._break(f"{key}: some have not voted")
            self._form()

    def _hear(self, node: int, life: int) -> bool:
        """Note a sign of life; false for one of a life that is over."""
        known = self.lives.get(node, -1)
        if life < known:
            return False
        if life > known:
            self.lives[node] = life
            if node in self.members:  # its former life died unnoticed
                self._drop(node)
            self.waiting.pop(node, None)
        self.heard_s[node] = self.now
        return True

    # -- membership

    @rpc
    async def beat(self, life: int, sender: int) -> int:
        """A peer lives, and so does the coordinator; the answer is the last group that ended."""
        self._hear(sender, life)
        return self.epoch if self.broken else self.epoch - 1

    @rpc
    async def update(self, life: int, epoch: int, sender: int) -> Topology:
        """A peer wants a new group: a newcomer, or a member that lets newcomers in.

        The answer comes when all present members have asked.
        """
        if not self._hear(sender, life):
            raise Refused(f"life {life} of node {sender} is over")
        if self.epoch > epoch and self.members.get(sender) == life and not self.broken:
            return Topology(self.epoch, self.ring, self._unknown())  # the answer was lost
        self.waiting[sender] = life
        formed = self.formed
        self._form()
        await formed.wait()
        if self.members.get(sender) != life:
            raise Refused(f"node {sender} fell silent before the group was formed; join again")
        return Topology(self.epoch, self.ring, self._unknown())

    @rpc
    async def leave(self, life: int, sender: int) -> None:
        """A peer goes, of its own will."""
        if self.members.get(sender) == life or self.waiting.get(sender) == life:
            self._drop(sender)
            self._form()

    def _drop(self, node: int) -> None:
        self.waiting.pop(node, None)
        self.settled.discard(node)
        if self.members.pop(node, None) is not None:
            self._break(f"node {node} is gone")

    def _break(self, why: str) -> None:
        """End the group: whatever is undecided aborts, and everybody learns it."""
        if self.broken:
            return
        self.broken = True
        self.emit(broke=self.epoch, why=why)
        for key in [key for key in self.attempts if key not in self.decided]:
            self._decide(key, Decision(ABORT, True))
        for gate in self.gates.values():
            gate.set()
        for node in self.ring:
            if node in self.members:
                self.tell(node, Member.aborted, self.epoch)

    def _form(self) -> None:
        """Make a new group when every member there is has asked for one."""
        if not self.waiting or any(node not in self.waiting for node in self.members):
            return
        if self.ring == () and not self._enough():
            return
        self.members = dict(sorted(self.waiting.items()))
        self.waiting = {}
        self.epoch += 1
        self.broken = False
        self.ring = self._order()
        for table in (self.attempts, self.opened_s, self.gates, self.offers, self.told,
                      self.synced_by, self.timed, self.final):  # fmt: skip
            table.clear()
        formed, self.formed = self.formed, self.event()
        formed.set()

    def _enough(self) -> bool:
        wanted = self.first_size or len(self.world.members("peer"))
        late = self.now - self.began_s > self.timeout_s / 2
        return len(self.waiting) >= wanted or late

    # -- the order of the ring

    def _order(self) -> tuple[int, ...]:
        nodes = tuple(self.members)
        if not self.optimise or len(nodes) < 4:  # the rings of three are all alike but for the way
            return nodes
        known = [c for (a, b), c in self.costs.items() if a in self.members and b in self.members]
        if not known:
            return nodes
        usual = sorted(known)[len(known) // 2]
        cost = [[self.costs.get((a, b), usual) if a != b else 0.0 for b in nodes] for a in nodes]
        return tuple(nodes[i] for i in ring_order(cost))

    def _unknown(self) -> tuple[tuple[int, int], ...]:
        if not self.optimise or len(self.members) < 4:
            return ()
        nodes = tuple(self.members)
        return tuple((a, b) for a in nodes for b in nodes if a != b and (a, b) not in self.costs)

    @rpc
    async def measured(
        self, life: int, epoch: int, costs: dict[int, float], sender: int
    ) -> tuple[int, ...]:
        """What a member measured to others; the answer is the order that all use, or nothing."""
        self._hear(sender, life)
        if epoch != self.epoch or self.broken:
            return ()
        for node, cost_s in costs.items():
            if cost_s > 0 and math.isfinite(cost_s):
                self.costs[sender, node] = cost_s
        there = self.timed.setdefault(epoch, set())
        there.add(sender)
        gate = self._gate(("measured", epoch))
        if there >= set(self.members) and epoch not in self.final:
            self.ring = self._order()
            self.final[epoch] = Topology(epoch, self.ring)
            gate.set()
        await gate.wait()
        known = self.final.get(epoch)
        return known.ring if known is not None else ()

    # -- operations

    @rpc
    async def vote(
        self, life: int, epoch: int, tag: str, number: int, success: bool, sender: int
    ) -> Decision:
        """How an attempt ended at a member; the answer is how it ends for all."""
        self._hear(sender, life)
        key = (epoch, tag, number)
        if key in self.decided:
            return self.decided[key]
        if epoch >> LIFE_BITS != self.incarnation:
            return Decision(NOBODY_KNOWS, True)  # a former life may have told some that it commits
        if epoch != self.epoch or self.broken or self.members.get(sender) != life:
            # A group that is over has decided all that it ever will.
            return Decision(ABORT, True)
        votes = self.attempts.setdefault(key, {})
        self.opened_s.setdefault(key, self.now)
        votes[sender] = success
        gate = self._gate(key)
        if not success:
            self._break(f"{key}: node {sender} failed")
        elif set(votes) >= set(self.ring):
            self.conclude(key)
        await gate.wait()
        return self.decided[key]

    def conclude(self, key: tuple[int, str, int]) -> None:
        """All members have succeeded: the attempt commits."""
        self.expected += key[1] == ""
        self._decide(key, Decision(COMMIT, bool(self.waiting)))

    def _decide(self, key: tuple[int, str, int], decision: Decision) -> None:
        self.decided[key] = decision
        if len(self.decided) > MOST_KEPT:
            del self.decided[next(iter(self.decided))]
        self.opened_s.pop(key, None)
        self.attempts.pop(key, None)
        self._gate(key).set()
        del self.gates[key]

    def _gate(self, key: Any) -> Any:
        gate = self.gates.get(key)
        if gate is None:
            gate = self.gates[key] = self.event()
        return gate

    # -- the shared state

    @rpc
    async def offer(
        self, life: int, epoch: int, number: int, revision: int, digest: str, sender: int
    ) -> Told:
        """The state that a member has; the answer is the one that all must have.

        Newcomers do not decide: those count who had the group's state before, and where there are
        none, the newest revision. Of several contents the one that most hold wins.
        """
        self._hear(sender, life)
        if epoch != self.epoch or self.broken or sender not in self.members:
            return BROKEN
        key = (epoch, number)
        offers = self.offers.setdefault(key, {})
        offers[sender] = (revision, digest)
        gate = self._gate(("offer", key))
        if set(offers) >= set(self.ring) and key not in self.told:
            self._judge_offers(key, offers)
            gate.set()
        await gate.wait()
        told = self.told.get(key)
        if told is None:
            return BROKEN
        if revision > told.revision:
            raise Refused(
                f"node {sender} claims revision {revision}, but the group is at {told.revision}; "
                "start from a fresh state and join again"
            )
        return BROKEN if self.broken else told

    def _judge_offers(self, key: tuple[int, int], offers: dict[int, tuple[int, str]]) -> None:
        known = [node for node in self.ring if node in self.settled]
        electors = known or list(self.ring)
        counts = Counter(offers[node][0] for node in electors)
        if known:  # between equals, the one nearer to what was committed
            expected = min(counts, key=lambda r: (-counts[r], abs(r - self.expected), r))
        else:
            expected = max(counts)
        held = Counter(offers[node][1] for node in electors if offers[node][0] == expected)
        most = max(held.values())
        best = [n for n in electors if offers[n][0] == expected and held[offers[n][1]] == most]
        holder = best[0]
        right = (expected, offers[holder][1])
        same = all(offer == right for offer in offers.values())
        self.told[key] = Told(key[0], expected, right[1], holder, same)
        self.expected = expected
        self.settled |= {node for node, offer in offers.items() if offer == right}
        before = (key[0], key[1] - 2)  # a member is at most one round behind
        for table in (self.offers, self.told, self.synced_by):
            table.pop(before, None)
        self.gates.pop(("offer", before), None)
        self.gates.pop(("synced", before), None)
        for node, (revision, _) in offers.items():
            if revision > expected:
                self._drop(node)

    @rpc
    async def synced(self, life: int, epoch: int, number: int, success: bool, sender: int) -> bool:
        """A member has the right state, or could not get it; the answer: whether all have it."""
        self._hear(sender, life)
        if epoch != self.epoch or self.broken:
            return False
        if not success:
            self._break(f"node {sender} could not get the state")
            return False
        key = (epoch, number)
        there = self.synced_by.setdefault(key, set())
        there.add(sender)
        gate = self._gate(("synced", key))
        if there >= set(self.ring):
            self.settled |= there
            gate.set()
        await gate.wait()
        return not self.broken and there >= set(self.ring)


__all__ = [
    "ABORT", "COMMIT", "NOBODY_KNOWS", "Coordinator", "Decision", "Member", "Told", "Topology",
]  # fmt: skip
