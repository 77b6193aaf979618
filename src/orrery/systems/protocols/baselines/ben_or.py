"""Ben-Or's randomised binary consensus: reports, votes, and a coin where nobody is sure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from orrery.base.errors import KnobError, Refused
from orrery.parts import Positive, rpc
from orrery.parts.byzantine import Message, Strategy
from orrery.systems.protocols.baselines.journal import Journal
from orrery.systems.protocols.problems.binary_consensus import BinaryNode

UNSURE = 2  # a vote for neither
REPORT, VOTE, BOTH = 1, 2, 3
AHEAD = 64  # rounds beyond one's own that are kept; what lies further is asked for later
STRANGE = 1024  # instances that are kept although nobody has given an input yet

Place = tuple[int, int]  # a round and a step


def vote_of(reports: Collection[int], n: int, f: int, byzantine: bool) -> int:
    """What to vote after these reports: a value that more than half hold, else UNSURE.

    More than half of all nodes; with liars more than (n + f) / 2, so that of any two such sets a
    correct node is in both.
    """
    needed = n + f if byzantine else n
    for value in (0, 1):
        if 2 * sum(each == value for each in reports) > needed:
            return value
    return UNSURE


def outcome_of(votes: Collection[int], n: int, f: int, byzantine: bool) -> tuple[int, bool]:
    """What these votes lead to: the value to go on with (UNSURE: toss), and whether it is final.

    >>> outcome_of([1, 1, 1, UNSURE], 5, 2, False), outcome_of([1, UNSURE, UNSURE], 5, 2, False)
    ((1, True), (1, False))
    """
    zeros, ones = (sum(each == value for each in votes) for value in (0, 1))
    value, count = (1, ones) if ones > zeros else (0, zeros)
    if byzantine:
        return (value if count > f else UNSURE), 2 * count > n + f
    return (value if count else UNSURE), count > f


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a node has on disk before it says it."""

    instance: int
    round: int
    step: int
    value: int


class Instance:
    """One agreement, as a node sees it."""

    __slots__ = ("boxes", "decided", "done", "last", "moved", "round", "said", "step")

    def __init__(self, done: Any) -> None:
        self.round, self.step = 0, REPORT  # round 0: no input yet
        self.boxes: dict[Place, dict[int, int]] = {}
        self.said: dict[Place, int] = {}
        self.decided: int | None = None
        self.last = 0  # the round in which it decided
        self.moved = True  # since the node last looked
        self.done = done

    @property
    def place(self) -> Place:
        return self.round, self.step

    def mine(self, place: Place) -> int | None:
        """What this node says at a place: after its decision it would say nothing else."""
        if self.decided is not None and place[0] > self.last:
            return self.decided
        return self.said.get(place)


class TwoFaced(Strategy):
    """Tells half of the peers the opposite of what it tells the others; it is always sure."""

    def on_send(self, message: Message) -> list[Message]:
        if message.is_reply or message.method != "hear":
            return [message]
        instance, number, step, value, again = message.args
        said = value if value != UNSURE else (instance + number) % 2
        if self.liar.in_second_half(message.dst):
            said = 1 - said
        return [message._replace(args=(instance, number, step, said, again))]


class BenOr(BinaryNode):
    """Randomised binary consensus without any bound on delays (Ben-Or, PODC 1983).

    A round has two steps, and each waits for n - f messages. First all report their values; a node
    that sees one value in more than half of all reports votes for it, else for neither. Then a node
    that sees enough votes for a value goes on with it, and decides it when there are so many that
    all others must see enough, too; a node that sees too few tosses a coin. With unanimous inputs
    all decide in the first round. Otherwise each round ends well with at least the chance that all
    coins agree, so the expected number of rounds is finite, but exponential in n when f is near
    its limit. A round costs 2 n (n - 1) messages.

    Knobs: `faults`, "crash" (up to f < n / 2 nodes stop: "more than half" is n / 2, one vote is
    enough, more than f decide) or "byzantine" (up to f < n / 5 lie: "more than half" is
    (n + f) / 2, f + 1 votes are enough, more than (n + f) / 2 decide); `tolerated`, that f (-1: as
    many as the version bears); `durable`, whether a node has on disk what it says before it says it
    (if not, one that restarts is as good as a liar); `resend_s`, after which a node that waits in
    vain says its message again, and gets those that it lacks.

    **Differs from the paper**: many instances run side by side; a node that has decided says its
    value for the next round at once, in one message for both steps, instead of going on for ever,
    and for later rounds when it is asked; messages are sent again, so links may lose them.

    >>> BenOr(faults="crash").bears(7), BenOr().bears(7)
    (3, 1)
    """

    faults: Literal["crash", "byzantine"] = "byzantine"
    tolerated: Annotated[int, msgspec.Meta(ge=-1)] = -1
    durable: bool = True
    resend_s: Positive = 0.1

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition", "byzantine",
    )  # fmt: skip
    byzantine: ClassVar[dict[str, Any]] = {"equivocate": TwoFaced}

    def bears(self, n: int) -> int:
        """How many of n nodes may fail; a larger `tolerated` is refused."""
        most = (n - 1) // (2 if self.faults == "crash" else 5)
        if self.tolerated > most:
            raise KnobError(
                f"{type(self).__name__}.tolerated",
                f"{self.tolerated} {self.faults} faults among {n} nodes",
                f"give at most {most}",
            )
        return most if self.tolerated < 0 else self.tolerated

    def start(self) -> None:
        self.n = len(self.peers) + 1
        self.f = self.bears(self.n)
        self.journal = Journal(self, "ben_or", Said)
        self.ready = not self.durable or self.journal.is_new()
        self.open: dict[int, Instance] = {}

    async def main(self) -> None:
        if not self.ready:
            self.resume(await self.journal.load())
        if self.durable:
            self.spawn(self.journal.keep())
        while True:
            await self.sleep(self.resend_s)
            for instance, state in self.open.items():
                if state.round and state.decided is None and not state.moved:
                    self.say_again(instance, state)
                state.moved = False

    # -- what clients call

    @rpc
    async def propose(self, instance: int, value: int) -> int:
        if not self.ready:
            raise Refused(f"node {self.id} is reading its disk")
        if value not in (0, 1):
            raise Refused(f"{value} is no input; give 0 or 1")
        state = self.instance(instance)
        if state.round == 0:
            state.round = 1
            self.say(instance, state, value)
        if state.decided is None:
            await state.done.wait()
        assert state.decided is not None
        return state.decided

    def instance(self, instance: int) -> Instance:
        state = self.open.get(instance)
        if state is None:
            state = self.open[instance] = Instance(self.event())
        return state

    # -- saying

    def say(self, instance: int, state: Instance, value: int) -> None:
        """Say a value at the place where I am, once it is on disk."""
        number, step = state.place
        state.said[number, step] = value
        state.moved = True
        if self.durable:
            record = Said(instance, number, step, value)
            self.journal.note(record, lambda: self.send(instance, number, step, value))
        else:
            self.send(instance, number, step, value)

    def send(self, instance: int, number: int, step: int, value: int) -> None:
        for peer in self.peers:
            self.tell(peer, BenOr.hear, instance, number, step, value, False)
        self.hear(instance, number, step, value, False, self.id)

    def say_again(self, instance: int, state: Instance) -> None:
        """To those of whom I have heard nothing here, who will answer with what they said."""
        value = state.mine(state.place)
        heard = state.boxes.get(state.place, {})
        if value is None or self.id not in heard:
            return  # it is still on its way to the disk
        for peer in self.peers:
            if peer not in heard:
                self.tell(peer, BenOr.hear, instance, *state.place, value, True)

    # -- hearing

    @rpc
    def hear(
        self, instance: int, number: int, step: int, value: int, again: bool, sender: int
    ) -> None:
        """What a node says in a round; `again` asks for what I said there."""
        if not self.ready or instance < 0 or value not in (0, 1, UNSURE):
            return
        if instance not in self.open and len(self.open) >= STRANGE + sum(
            state.round > 0 for state in self.open.values()
        ):
            return
        state = self.instance(instance)
        if step not in (REPORT, VOTE, BOTH) or not 1 <= number <= state.round + AHEAD:
            return
        if again and step != BOTH:
            mine = state.mine((number, step))
            if mine is not None and sender != self.id:
                self.tell(sender, BenOr.hear, instance, number, step, mine, False)
        if state.decided is not None:
            return
        for place in ((number, REPORT), (number, VOTE)) if step == BOTH else ((number, step),):
            if place >= state.place and (value != UNSURE or place[1] == VOTE):
                state.boxes.setdefault(place, {}).setdefault(sender, value)
        self.advance(instance, state)

    def advance(self, instance: int, state: Instance) -> None:
        """Take the next step when n - f nodes, myself among them, have spoken."""
        heard = state.boxes.get(state.place, {})
        if state.decided is not None or self.id not in heard or len(heard) < self.n - self.f:
            return
        del state.boxes[state.place]
        values = list(heard.values())
        is_byzantine = self.faults == "byzantine"
        if state.step == REPORT:
            state.step = VOTE
            self.say(instance, state, vote_of(values, self.n, self.f, is_byzantine))
            return
        value, final = outcome_of(values, self.n, self.f, is_byzantine)
        if final:
            self.decide(instance, state, value, state.round)
            return
        state.round, state.step = state.round + 1, REPORT
        self.say(instance, state, self.coin() if value == UNSURE else value)

    def coin(self) -> int:
        """0 or 1, each with chance one half, from this node's own stream."""
        return self.rng.below(2)

    def decide(self, instance: int, state: Instance, value: int, number: int) -> None:
        """All others will hold this value at the end of the round, and need one more from me."""
        state.decided, state.last = value, number
        state.boxes.clear()
        self.emit(instance=instance, decided=value, round=number)
        state.done.set()
        if self.durable:
            record = Said(instance, number + 1, BOTH, value)
            self.journal.note(record, lambda: self.send(instance, number + 1, BOTH, value))
        else:
            self.send(instance, number + 1, BOTH, value)

    def resume(self, records: list[Said]) -> None:
        """Take up every instance at the last thing that was said; what was heard is asked for."""
        self.ready = True
        for record in records:
            state = self.instance(record.instance)
            if record.step == BOTH:
                state.decided, state.last = record.value, record.round - 1
                state.done.set()
                self.emit(instance=record.instance, decided=record.value, round=state.last)
                continue
            state.round, state.step = record.round, record.step
            state.said[state.place] = record.value
        for state in self.open.values():
            if state.round and state.decided is None:
                state.boxes[state.place] = {self.id: state.said[state.place]}
