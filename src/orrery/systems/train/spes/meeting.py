"""How nodes synchronise through one of them, and go on when any of them is lost.

The hub is the member with the lowest rank; a small server beside its trainer. Each member hands in
what it has trained, the hub puts all of it together, and each gets back what it does not have. So a
member sends its trained weights once, whatever the number of nodes.

Who is silent for `ping_s` is asked where it is. A member that does not answer is dead: the hub goes
on without it, and where it is the hub itself, the next one takes its place. A hub may die when it
has handed out the result to some and not to others; those who have it give it to the rest before
anybody makes another. Members that see less than half of the others stop, so two groups never train
apart. A node that comes back asks to be let in, and gets the model at the end of a synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.parts import Count, Positive, rpc
from orrery.parts.collectives import Array
from orrery.parts.worker import RankLost
from orrery.systems.train import Trainer

AWAY, LEFT_OUT, COMING, DONE = -2, -1, 0, 1
OVER = -1  # the round of an invitation when the training has ended
WELCOME = "spes welcome"


class LeftOut(Exception):
    """The others have gone on without this node."""


class Ahead(Exception):
    """A member has the result of this round already."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


class Meeting(Trainer):
    """The part of SPES that synchronises. A subclass trains, packs and unpacks.

    Knobs: `ping_s`, after so many silent seconds a node is asked where it is, and waited for as
    long; `tries`, how often it is asked before it counts as dead.
    """

    ping_s: Positive = 5.0
    tries: Count = 3

    def start(self) -> None:
        super().start()
        self.round = 0
        self.inside = True
        # All members know `agreed`, who change at the end of a round only; in between each of
        # them has its own view of who is still there.
        self.agreed: tuple[int, ...] = tuple(range(self.size))
        self.present = self.agreed
        self.wanting: set[int] = set()
        self.welcoming: set[int] = set()
        self.served = -1
        self.under_way: list[tuple[int, Any]] = []
        self.invited: tuple[int, int, list[int], list[list[int]]] | None = None
        self.invitation = self.event()

    # -- what a subclass writes

    def put_together(self, handed_in: dict[int, Array]) -> Array:
        """The whole model from what the members trained."""
        raise self._unwritten("put_together")

    def part_for(self, rank: int, whole: Array) -> Array:
        """What a member has to get of the whole model."""
        raise self._unwritten("part_for")

    def joined_with(self, part: Array) -> Array:
        """The whole model, from what this node has and the part that it got."""
        raise self._unwritten("joined_with")

    def part_size(self, rank: int) -> int:
        """How many numbers `part_for` gives."""
        raise self._unwritten("part_size")

    def end_round(self, whole: Array, members: Sequence[int]) -> None:
        """Go on from the whole model with these members."""
        raise self._unwritten("end_round")

    def synchronised(self) -> Array:
        """The whole model as this round began."""
        raise self._unwritten("synchronised")

    def assignment(self) -> list[list[int]]:
        """A row for each node: what it trains."""
        raise self._unwritten("assignment")

    def take_state(self, whole: Array, members: Sequence[int], rows: list[list[int]]) -> None:
        """Go on as one that has been told everything."""
        raise self._unwritten("take_state")

    def _unwritten(self, name: str) -> PartError:
        return PartError(f"{type(self).__name__} has no {name}; write it, or train with SPES")

    # -- synchronising

    async def meet(self, mine: Array) -> None:
        """Hand in what was trained and go on from what comes back."""
        self.present = self.agreed
        while True:
            hub = self.present[0]
            try:
                done = await (self._serve(mine) if hub == self.rank else self._through(hub, mine))
            except Ahead as ahead:
                done = await self._fetch(ahead.rank)
            if done:
                return

    async def _serve(self, mine: Array) -> bool:
        """The hub's round: gather, put together, hand out."""
        handed_in = {self.rank: mine}
        for rank in self.present:
            if rank == self.rank:
                continue
            found = await self._heard(rank, self._tag("up", self.rank), False)
            if found is not None:
                handed_in[rank] = found
        self._more_than_half(handed_in)
        whole = self.put_together(handed_in)
        members = tuple(sorted({*handed_in, *self.wanting}))
        # Ranks are told only where they have changed, so that a plain round sends the model alone.
        news = np.array(members, whole.dtype) if members != self.agreed else whole[:0]
        self.under_way = []
        for rank in handed_in:
            if rank != self.rank:
                part = np.concatenate([self.part_for(rank, whole), news])
                arrived = self.event()
                self.under_way.append((rank, arrived))
                self.spawn(self._ship(rank, part, self._tag("down", self.rank), arrived))
        joining = [rank for rank in members if rank not in handed_in]
        self.served = self.round
        self._close(whole, members)
        for rank in joining:
            self.spawn(self._welcome(rank, self.round))
        return True

    async def _through(self, hub: int, mine: Array) -> bool:
        """A member's round; False where the hub is gone."""
        sending = self.spawn(self._ship(hub, mine, self._tag("up", hub)))
        found = await self._heard(hub, self._tag("down", hub), True)
        if found is None:
            sending.cancel()
            await self._without(hub)
            return False
        size = self.part_size(self.rank)
        members = tuple(int(rank) for rank in found[size:]) or self.agreed
        self._close(self.joined_with(found[:size]), members)
        return True

    def _close(self, whole: Array, members: tuple[int, ...]) -> None:
        self.end_round(whole, members)
        self.agreed = self.present = members
        self.wanting -= set(members)
        self.round += 1

    def _tag(self, way: str, hub: int) -> str:
        return f"spes {way} {self.round} {hub}"

    async def _ship(self, rank: int, array: Array, tag: str, arrived: Any = None) -> None:
        self.sent_B += array.nbytes
        await self.transfer(self.fellows()[rank], array, tag, self.training.scale)
        if arrived is not None:
            arrived.set()

    async def delivered(self) -> None:
        """Wait until all that live have got the last result, and ask whether they took it.

        A hub that ended before might die with a result that nobody else has; and one that was
        thought dead may wake up when the others have made another.
        """
        for rank, arrived in self.under_way:
            while not arrived.is_set():
                try:
                    async with self.deadline(self.ping_s):
                        await arrived.wait()
                except DeadlineExceeded:
                    if await self._where(rank, False) is None:
                        break
        for rank, _ in self.under_way:
            self._judge(rank, await self._where(rank, False))

    # -- who is there

    async def _heard(
        self, rank: int, tag: str, from_hub: bool, whatever: bool = False
    ) -> Array | None:
        """What a member sends; None where it is dead. With `whatever`, only death ends the wait."""
        while True:
            try:
                async with self.deadline(self.ping_s):
                    return np.asarray(await self.receive(self.fellows()[rank], tag))
            except DeadlineExceeded:
                pass
            where = await self._where(rank, from_hub)
            if where is None:
                return None
            if not whatever:
                self._judge(rank, where)

    async def _where(self, rank: int, from_hub: bool) -> int | None:
        """Where another member is; None where it is dead, or has come back and knows nothing."""
        found = await self._asked(rank, Meeting.where, self.rank, self.round, from_hub)
        return None if found == AWAY else found

    def _judge(self, rank: int, where: int | None) -> None:
        if where == LEFT_OUT:
            raise LeftOut
        if where == DONE:
            raise Ahead(rank)

    async def _without(self, hub: int) -> None:
        """The hub is dead: somebody may have the result; else see who is left."""
        others = [rank for rank in self.present if rank not in (hub, self.rank)]
        found = await self.all(*(self._where(rank, False) for rank in others))
        left = {self.rank}
        for rank, where in zip(others, found, strict=True):
            if where is not None:
                self._judge(rank, where)
                left.add(rank)
        self._more_than_half(left)
        self.present = tuple(sorted(left))

    def _more_than_half(self, ranks: Iterable[int]) -> None:
        """Two groups that cannot see each other must not both go on."""
        there = set(ranks)
        twice = 2 * len(there)
        if twice > len(self.agreed) or (twice == len(self.agreed) and self.agreed[0] in there):
            return
        lost = next(rank for rank in self.agreed if rank not in there)
        self.inside = False  # whoever waits for this node must not wait for ever
        raise RankLost(lost, self.fellows()[lost], "synchronisation", self.ping_s)

    async def _asked(self, rank: int, method: Any, *args: Any) -> Any:
        """A node's answer; None where there is none for `tries` times `ping_s`."""
        for _ in range(self.tries):
            try:
                async with self.deadline(self.ping_s):
                    return await self.ask(self.fellows()[rank], method, *args)
            except DeadlineExceeded:
                continue
            except Refused:
                await self.sleep(self.ping_s)
        return None

    @rpc
    async def where(self, asker: int, number: int, from_hub: bool) -> int:
        """Where this node is, for one that waits for it in round `number`."""
        if not self.inside:
            return AWAY
        if asker not in self.present:
            return LEFT_OUT
        # A hub that has gone on has sent its result, which may be long under way.
        sent = from_hub and self.served == number
        return DONE if self.round > number and not sent else COMING

    # -- the result from a member that has it

    async def _fetch(self, rank: int) -> bool:
        """The result of this round from a member; False where it has died meanwhile."""
        rows = await self._asked(rank, Meeting.give, self.id, self.round)
        if rows is None:
            self.present = tuple(other for other in self.present if other != rank)
            return False
        if not rows:
            raise LeftOut
        whole = await self._heard(rank, f"spes whole {self.round}", True, whatever=True)
        if whole is None:
            return False
        self.take_state(whole, rows[0], rows[1:])
        self.emit(fetched=self.round, source=rank)
        self.round += 1
        return True

    @rpc
    async def give(self, who: int, number: int) -> list[list[int]]:
        """The members and the assignment after a round, if it was the last; the model follows."""
        if self.round != number + 1:
            return []
        self.spawn(
            self.transfer(who, self.synchronised(), f"spes whole {number}", self.training.scale)
        )
        return [list(self.agreed), *self.assignment()]

    # -- coming back

    async def join(self) -> bool:
        """Ask to be let in until somebody does; False where the training is over."""
        self.inside, self.under_way = False, []
        while True:
            self.invitation = self.event()
            await self._knock()
            assert self.invited is not None
            rank, number, members, rows = self.invited
            self.agreed = self.present = tuple(members)
            self.round, self.inside = number, number != OVER
            whole = await self._heard(rank, f"{WELCOME} {number}", True, whatever=True)
            if whole is not None:
                break
            self.inside = False
        self.take_state(whole, members, rows)
        self.emit(joined=number)
        return number != OVER

    async def _knock(self) -> None:
        """Ask all others to be let in, less and less often, until one of them invites."""
        began_s, wait_s = self.now, self.ping_s
        while not self.invitation.is_set():
            for peer in self.peers:
                self.tell(peer, Meeting.wants_in, self.rank)
            try:
                async with self.deadline(wait_s):
                    await self.invitation.wait()
            except DeadlineExceeded:
                if self.now - began_s > self.patience_s:
                    peer = self.peers[0]
                    lost = self.fellows().index(peer)
                    raise RankLost(lost, peer, "coming back", self.patience_s) from None
                wait_s *= 2

    @rpc
    async def wants_in(self, rank: int) -> None:
        """A node asks to take part; if all is over, it gets what came out."""
        if not self.over.is_set():
            self.wanting.add(rank)
        elif self.inside and rank not in self.welcoming:
            self.spawn(self._welcome(rank, OVER))

    async def _welcome(self, rank: int, number: int) -> None:
        self.welcoming.add(rank)
        self.tell(self.fellows()[rank], Meeting.invite, self.rank, number, list(self.agreed),
                  self.assignment())  # fmt: skip
        await self._ship(rank, self.synchronised(), f"{WELCOME} {number}")
        self.welcoming.discard(rank)

    @rpc
    async def invite(
        self, rank: int, number: int, members: list[int], rows: list[list[int]]
    ) -> None:
        """The others take this node in, from this round on."""
        if not self.inside and not self.invitation.is_set():
            self.invited = (rank, number, members, rows)
            self.invitation.set()
