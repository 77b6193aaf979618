"""How miners cheat: strategies that withhold blocks, without a line changed in the miner.

A strategy sees the blocks that its miner sends and receives. The miner passes on each block that is
new to it, so whatever a cheat decides to publish goes out with the next message to each peer, which
is in the same instant.
"""

from __future__ import annotations

from typing import ClassVar

from orrery.parts.byzantine import Liar, Message, Strategy
from orrery.systems.protocols.problems.blockchain import Block

METHOD = "block"


class Withholder(Strategy):
    """Keeps the blocks of its miner to itself until `publish` is called."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.known: set[int] = set()  # own blocks that were noticed
        self.secret: list[Block] = []
        self.hidden: set[int] = set()  # the names of the secret blocks
        self.public = 0  # the height of the longest public chain
        self.outbox: dict[int, list[Block]] = {}

    @property
    def top(self) -> int:
        """The height of the own secret chain; 0 when there is none."""
        return self.secret[-1].height if self.secret else 0

    def publish(self, blocks: list[Block]) -> None:
        """Let blocks out to every peer, with the next message to it."""
        for peer in range(self.liar.size):
            if peer != self.liar.me:
                self.outbox.setdefault(peer, []).extend(blocks)
        self.public = max(self.public, blocks[-1].height if blocks else 0)
        out = {block.id for block in blocks}
        self.secret = [block for block in self.secret if block.id not in out]
        self.hidden -= out

    def give_in(self) -> None:
        """Let the secret branch be."""
        self.secret = []
        self.hidden = set()

    def on_send(self, message: Message) -> list[Message]:
        if message.method != METHOD or message.is_reply:
            return [message]
        name, _, _, miner, _ = message.args
        if miner == self.liar.me and name not in self.known:
            self.known.add(name)
            self.hidden.add(name)
            self.secret.append(Block(*message.args))
            self.found(self.secret[-1])
        due = self.outbox.pop(message.dst, ())
        out = [message._replace(args=each.fields()) for each in due]
        again = any(each.id == name for each in due)
        return out if name in self.hidden or again else [*out, message]

    def found(self, block: Block) -> None:
        """The own miner has found a block."""


class SelfishMiner(Withholder):
    """Selfish mining (Eyal and Sirer, 2014, algorithm 1)."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.racing = False  # two branches of equal length are public, one of them mine

    def found(self, block: Block) -> None:
        if self.racing:
            self.racing = False
            self.publish(list(self.secret))

    def on_receive(self, message: Message) -> list[Message]:
        if message.method != METHOD or message.is_reply:
            return [message]
        name, _, height, _, _ = message.args
        if height <= self.public or name in self.known:
            return [message]
        self.racing = False
        self.public = height
        lead = self.top - self.public
        if not self.secret:
            pass
        elif lead < 0:
            self.give_in()  # the others won; the miner goes over to them by itself
        elif lead == 1:
            self.publish(list(self.secret))
        else:
            self.publish([each for each in self.secret if each.height <= self.public])
            self.racing = lead == 0
        return [message]


class Parasite(Withholder):
    """A secret branch that is published when it undoes `depth` blocks (a double spend).

    An attack begins with a secret block on the public head; then the payment is made. The branch is
    published as soon as the payment has `depth` confirmations and the branch is the longer one. It
    is given up when it is `give_up` blocks behind. Meanwhile the miner hears nothing of the others'
    blocks, so that it keeps on mining on its own branch. Where a block of the others crosses the
    published branch on the way, the race goes on in the open.
    """

    depth: ClassVar[int] = 6
    give_up: ClassVar[int] = 60

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.attacking = False
        self.shown = False  # the branch is published, and nobody has built on it yet
        self.base = 0  # the height of the public head when the attack began
        self.length = 0  # the height of my branch
        self.heard: list[Message] = []

    def found(self, block: Block) -> None:
        if self.shown and self.public < self.length:
            self.attacking = False  # nobody answered: it has won, and this is a new beginning
        if not self.attacking:
            self.attacking, self.shown = True, False
            self.base = self.public = block.height - 1
        self.length = block.height
        self.try_to_win()

    def try_to_win(self) -> bool:
        won = self.public - self.base >= self.depth and self.length > self.public
        if won:
            contested = self.public
            self.publish(list(self.secret))
            self.public, self.shown = contested, True
        return won

    def on_receive(self, message: Message) -> list[Message]:
        if message.method != METHOD or message.is_reply:
            return [message]
        name, parent, height, _, _ = message.args
        if name in self.known or not self.attacking:
            return [message]
        self.heard.append(message)
        if self.shown and parent in self.known:
            self.attacking = self.shown = False  # the others build on my branch
        else:
            self.public = max(self.public, height)
            if not self.shown and self.try_to_win():
                return self.tell_all()  # passing these on carries the branch out
            if self.public - self.length < self.give_up:
                return []
            self.give_in()
            self.attacking = self.shown = False
        return self.tell_all()

    def tell_all(self) -> list[Message]:
        """All that the miner was not told."""
        told, self.heard = self.heard, []
        return told


def parasites() -> dict[str, type[Parasite]]:
    """`parasite` waits for 6 confirmations, `parasite_1` to `parasite_6` for so many."""
    made: dict[str, type[Parasite]] = {"parasite": Parasite}
    for depth in range(1, 7):
        body = {"depth": depth, "__module__": __name__, "__doc__": Parasite.__doc__}
        made[f"parasite_{depth}"] = type(f"Parasite{depth}", (Parasite,), body)
    return made
