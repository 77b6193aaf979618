"""Who takes part in a synchronisation: small words between workers, losses, and the way back in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Count, rpc
from orrery.parts.collectives import Array
from orrery.parts.worker import RankLost
from orrery.systems.train import Trainer

WELCOME = "edit welcome"
STATE = "edit state"
OVER = -1  # the round of an invitation to those who come when the training has ended


class LeftOut(Exception):
    """The others have gone on without this worker."""


class Membership(Trainer):
    """The part of EDiT that knows who is there. A subclass trains.

    The members of a synchronisation meet first: each tells all others a few numbers, and so they
    learn how many steps were taken and who wants in. Who is silent for `patience_s` is asked; those
    who answer meet again without the others, if they are more than half. A worker that comes back
    asks to be let in; at the end of the next synchronisation the first member sends it the
    synchronised weights, and it takes part from then on.
    """

    tries: Count = 5

    def start(self) -> None:
        super().start()
        self.insiders: tuple[int, ...] = ()
        self.round = 0
        self.count = 0  # local steps of this replica so far, by the schedule
        self.total = 0  # steps of all replicas that a synchronisation has counted
        self.inside = True
        self.wanting: set[int] = set()
        self.met: dict[int, tuple[Array, tuple[int, ...]]] = {}
        self.joining: tuple[int, ...] = ()
        self.invited: Any = None
        self.invitation = self.event()

    def synchronised(self) -> Array:
        """What a worker needs to go on: slow weights, then the outer momentum."""
        raise RankLost(self.rank, self.id, "synchronised", self.patience_s)

    def take_over(self, state: Array) -> None:
        """Go on from what `synchronised` gave at another worker."""

    # -- small words

    async def exchange(self, ranks: Sequence[int], key: str, numbers: Sequence[float]) -> Array:
        """A row of numbers from each of these ranks, in their order.

        They are no part of the model, so they do not grow with `scale` as collectives do.
        """
        mine, tag = np.asarray(numbers, np.float64), f"edit {key}"
        sent = [
            self.spawn(self.transfer(self.fellows()[rank], mine, tag))
            for rank in ranks if rank != self.rank
        ]  # fmt: skip
        rows = []
        for rank in ranks:
            if rank == self.rank:
                rows.append(mine)
                continue
            node = self.fellows()[rank]
            try:
                async with self.deadline(self.patience_s):
                    rows.append(np.asarray(await self.receive(node, tag)))
            except DeadlineExceeded:
                for task in sent:
                    task.cancel()
                raise RankLost(rank, node, key, self.patience_s) from None
        return np.stack(rows)

    # -- meeting

    async def meet(self, steps: int) -> Array:
        """Agree on who synchronises now; gives the steps of each member."""
        for attempt in range(self.tries):
            key = f"{self.round} meeting {attempt}"
            row = [float(steps), *(float(rank in self.wanting) for rank in range(self.size))]
            try:
                rows = await self.exchange(self.insiders, key, row)
                return self._met(rows, self.insiders)
            except RankLost as error:
                lost = error
            found = await self._meeting_from_another()
            if found is not None:
                return self._met(*found)
            self.insiders = await self.present(lost)
        raise lost

    def _met(self, rows: Array, members: tuple[int, ...]) -> Array:
        self.insiders = members
        self.met = {self.round: (rows, members)}
        joining = {rank for rank in range(self.size) if rows[:, 1 + rank].any()}
        self.joining = tuple(sorted(joining - set(members)))
        self.wanting -= joining
        self.emit(meeting=self.round, members=len(members))
        return np.asarray(rows[:, 0])

    async def _meeting_from_another(self) -> tuple[Array, tuple[int, ...]] | None:
        """What another member has heard at this meeting; None where nobody has heard all."""
        for rank in self.insiders:
            if rank == self.rank:
                continue
            try:
                async with self.deadline(self.patience_s):
                    answer = await self.ask(self.fellows()[rank], Membership.tell_meeting,
                                            self.round)  # fmt: skip
            except (DeadlineExceeded, Refused):
                continue
            if answer:
                rows = np.array(answer, np.float64)
                members = tuple(int(rank) for rank in rows[:, 0])
                if self.rank not in members:
                    raise LeftOut
                return rows[:, 1:], members
        return None

    @rpc
    async def tell_meeting(self, number: int) -> list[list[float]]:
        """What the members said at a meeting, each row with its rank first; [] if not known."""
        if number < self.round or number in self.met:
            # Who asks for a meeting that is long past sees that it was not there.
            rows, members = self.met[max(self.met)]
            return [[float(rank), *row] for rank, row in zip(members, rows.tolist(), strict=True)]
        return []

    async def present(self, lost: RankLost) -> tuple[int, ...]:
        """The members that answer; where they are not more than half, the loss stands."""
        found = await self.answering(self.insiders, Membership.takes_part)
        # Two halves that cannot see each other must not both go on.
        if 2 * len(found) <= len(self.insiders):
            raise lost
        return found

    @rpc
    async def takes_part(self) -> bool:
        """Whether this worker trains with the others."""
        return self.inside and not self.over.is_set()

    # -- a layer that another has got

    @rpc
    async def give_layer(self, who: int, number: int, layer: str) -> bool:
        """Whether this layer is synchronised here; it then follows as a transfer."""
        found = self.layer_of(number, layer)
        if found is None:
            return False
        self.spawn(self.transfer(who, found, f"{STATE} {number} {layer}", self.training.scale))
        return True

    def layer_of(self, number: int, layer: str) -> Array | None:
        """The synchronised state of a layer after a round; None before."""
        return None

    async def layer_from_another(self, number: int, layer: str) -> Array | None:
        """The synchronised state of a layer at another member; None where nobody has it."""
        for rank in self.insiders:
            peer = self.fellows()[rank]
            if rank == self.rank:
                continue
            try:
                async with self.deadline(self.patience_s):
                    if await self.ask(peer, Membership.give_layer, self.id, number, layer):
                        return np.array(await self.receive(peer, f"{STATE} {number} {layer}"))
            except (DeadlineExceeded, Refused):
                continue
        return None

    # -- coming back

    def welcome_joiners(self, over: bool) -> None:
        """Let in those who asked: the first member sends them the synchronised state."""
        first = self.rank == self.insiders[0]
        joining, self.joining = self.joining, ()
        if not over:  # else they get what came out, and there is nothing to take part in
            self.insiders = tuple(sorted({*self.insiders, *joining}))
        if first:
            for rank in joining:
                self.spawn(self._welcome(rank, OVER if over else self.round))

    async def _welcome(self, rank: int, number: int) -> None:
        node, state = self.fellows()[rank], self.synchronised().copy()
        self.tell(node, Membership.invite, self.id, number, self.count, self.total,
                  list(self.insiders))  # fmt: skip
        await self.transfer(node, state, WELCOME, self.training.scale)

    @rpc
    async def wants_in(self, rank: int) -> None:
        """A worker asks to take part again; if all is over, it gets what came out."""
        if not self.over.is_set():
            self.wanting.add(rank)
        elif self.inside and self.rank == self.insiders[0]:
            self.spawn(self._welcome(rank, OVER))

    @rpc
    async def invite(
        self, who: int, number: int, count: int, total: int, members: list[int]
    ) -> None:
        """The others take this worker in, from this round and step on."""
        self.invited = (who, number, count, total, tuple(members))
        self.invitation.set()

    async def join(self) -> None:
        """Ask to be let in until somebody does; then go on from the synchronised weights."""
        self.inside = False
        while not self.invitation.is_set():
            for peer in self.peers:
                self.tell(peer, Membership.wants_in, self.rank)
            try:
                async with self.deadline(self.patience_s):
                    await self.invitation.wait()
            except DeadlineExceeded:
                continue
        who, self.round, self.count, self.total, self.insiders = self.invited
        self.invitation, self.joining = self.event(), ()
        self.take_over(np.array(await self.receive(who, WELCOME)))
        self.inside = self.round != OVER
        self.emit(joined=self.round)
