"""How a HotStuff replica lies best: with two chains at once, or from an old certificate.

A liar may sign anything as itself; it cannot sign as another, so it needs votes for its lies.
"""

from __future__ import annotations

from orrery.parts.byzantine import Liar, Message, Strategy
from orrery.systems.protocols.baselines.hotstuff.messages import (
    ROOT,
    ROOT_BLOCK,
    Block,
    Certificate,
    certificate,
    is_vote,
    name_of,
    signers_of,
    vote,
)

REMEMBERED = 256


class TwoChains(Strategy):
    """As leader, grows a second chain of empty blocks; as voter, votes for both.

    The peers of the first half get each block of the true chain first, those of the second half its
    rival; the other one follows `delay_s` later, so that fellow liars can sign both. Votes for a
    rival are kept from the liar's own replica and make the certificate of the rival chain.
    """

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.rivals: dict[bytes, Block] = {}  # true block -> the one that is told beside it
        self.votes: dict[bytes, dict[int, bytes]] = {}  # rival -> signatures
        self.proven: dict[bytes, Certificate] = {}
        self.heard: dict[int, list[bytes]] = {}  # view -> blocks that were proposed to me

    def rival_of(self, block: Block) -> Block:
        """The block of the other chain for this one."""
        name = name_of(block)
        if name in self.rivals:
            return self.rivals[name]
        parent = self.rivals.get(block.parent)
        justify = self.proven.get(name_of(parent)) if parent is not None else None
        if justify is None and not block.batch:
            return block
        rival = Block(block.view, block.height, justify or block.justify, ())
        self.rivals[name] = rival
        other = name_of(rival)
        self.votes[other] = {self.liar.me: vote(self.liar.me, rival.view, other)}
        for kept in (self.rivals, self.votes, self.proven):
            while len(kept) > REMEMBERED:
                del kept[next(iter(kept))]
        return rival

    def on_send(self, message: Message) -> list[Message]:
        if message.is_reply:
            return [message]
        if message.method == "proposal":
            block, proof = message.args
            rival = self.rival_of(block)
            if rival is block:
                return [message]
            told = message._replace(args=(rival, proof))
            first, second = (message, told)
            if self.liar.in_second_half(message.dst):
                first, second = second, first
            return [first, second._replace(delay_s=second.delay_s + self.liar.delay_s)]
        if message.method == "vote":
            view, mine, _ = message.args
            others = [name for name in self.heard.get(view, []) if name != mine]
            more = [(view, name, vote(self.liar.me, view, name)) for name in others]
            return [message, *(message._replace(args=args) for args in more)]
        return [message]

    def on_receive(self, message: Message) -> list[Message]:
        if message.is_reply:
            return [message]
        if message.method == "proposal":
            block = message.args[0]
            known = self.heard.setdefault(block.view, [])
            known.append(name_of(block))
            while len(self.heard) > REMEMBERED:
                del self.heard[next(iter(self.heard))]
        elif message.method == "vote" and message.args[1] in self.votes:
            view, name, token = message.args
            if is_vote(message.src, view, name, token):
                votes = self.votes[name]
                votes[message.src] = token
                self.proven[name] = certificate(view, name, votes)
            return []
        return [message]


class StaleLeader(Strategy):
    """As leader, shows a block to one peer alone, or extends an old certificate.

    With chance `p` the first block after a failed view extends an ancestor of the block that it
    should; such a block is legal but for the lock, so only the locks of correct replicas stand
    against it. In other views a block goes, with chance `p` / 4, to one peer only, which may thus
    decide what nobody else knows to be certified. It tells nobody how far it is.
    """

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.blocks: dict[bytes, Block] = {ROOT: ROOT_BLOCK}
        self.told: tuple[Block, Block, int | None] | None = None  # true one, told one, to whom

    def note(self, block: Block) -> None:
        self.blocks[name_of(block)] = block
        while len(self.blocks) > REMEMBERED:
            del self.blocks[next(iter(self.blocks))]

    def on_receive(self, message: Message) -> list[Message]:
        if message.method == "proposal" and not message.is_reply:
            self.note(message.args[0])
        return [message]

    def on_send(self, message: Message) -> list[Message]:
        if message.method in ("status", "news"):
            return []  # they would give away what was withheld
        if message.method != "proposal" or message.is_reply:
            return [message]
        block, proof = message.args
        if self.told is None or self.told[0] != block:
            self.told = (block, *self.lie_about(block, proof is not None))
            self.note(self.told[1])
        _, told, only = self.told
        return [message._replace(args=(told, proof))] if only in (None, message.dst) else []

    def lie_about(self, block: Block, after_failure: bool) -> tuple[Block, int | None]:
        """What is told in place of a block, and to whom alone, if so."""
        rng, p = self.liar.rng, self.liar.p
        if after_failure:
            return (self.older(block) if rng.random() < p else block), None
        if rng.random() >= p / 4:
            return block, None
        peer = rng.below(self.liar.size - 1)
        return block, peer if peer < self.liar.me else peer + 1

    def older(self, block: Block) -> Block:
        """The same batch on the certificate of an ancestor, one to three blocks further back."""
        justify = block.justify
        for _ in range(1 + self.liar.rng.below(3)):
            parent = self.blocks.get(justify.block)
            if parent is None or not signers_of(parent.justify):
                break
            justify = parent.justify
        parent = self.blocks.get(justify.block)
        if parent is None:
            return block
        return Block(block.view, parent.height + 1, justify, block.batch)
