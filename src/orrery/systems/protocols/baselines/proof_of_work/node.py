"""A miner of Nakamoto's chain: mine on the longest chain, pass every new block on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, KnobError, Refused
from orrery.parts import NonNegative, Positive, rpc
from orrery.systems.protocols.baselines.proof_of_work.cheats import SelfishMiner, parasites
from orrery.systems.protocols.problems.blockchain import GENESIS, Block, ChainNode

AT_ONCE = 512  # blocks in one answer


class ProofOfWork(ChainNode):
    """Nakamoto's chain of blocks (2008): the longest chain counts, of equal ones the first seen.

    A miner with a share s of the power finds a block after a time that is exponentially distributed
    with mean interval_s / s, which is what searching for a rare hash gives. It tells all its
    neighbours of each block that is new to it, and asks for the ancestors that it lacks. A block
    costs one message for each cable and direction; its memory is O(blocks).

    Knobs: `interval_s`, the mean time between blocks of all miners; `powers`, the power of each
    miner, of which only ratios count (empty: all equal; the last one goes for all further miners);
    `announce_s`, how often a miner tells its head again, so that those who missed it learn of it;
    `patience_s` with a peer that is asked for ancestors.

    Cheats that an experiment can attach: `selfish` (Eyal and Sirer, 2014) and `parasite`,
    `parasite_1` … `parasite_6` (a double spend after so many confirmations).

    Differs from the paper: no hash is searched for, so the difficulty is fixed and exact; blocks
    carry no transactions and are sent whole, not announced first; a miner that restarts has lost
    its chain and gets it from others.

    >>> sorted(ProofOfWork.byzantine)[0]
    'parasite'
    """

    powers: tuple[float, ...] = ()
    announce_s: Positive = 0.2
    patience_s: NonNegative = 0.5

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition",
    )  # fmt: skip
    byzantine: ClassVar[dict[str, Any]] = {"selfish": SelfishMiner, **parasites()}

    def start(self) -> None:
        self.blocks: dict[int, Block] = {GENESIS.id: GENESIS}
        self.head = GENESIS
        self.orphans: dict[int, list[Block]] = {}
        self.asking: set[int] = set()
        self.resting = False
        self.near = list(self.neighbours)

    async def main(self) -> None:
        self.spawn(self.announce())
        share = self.share()
        if share <= 0:
            return
        rate = share / self.interval_s
        while True:
            await self.sleep(self.rng.expovariate(rate))
            if not self.resting:
                block = Block.on(self.head, self.id, self.rng.word() >> 11)
                self.emit(mined=(block.id, block.parent, block.height))
                self.take(block)

    def share(self) -> float:
        """My share of the power of all miners."""
        size = len(self.peers) + 1
        if not self.powers:
            return 1.0 / size
        if any(not power >= 0 for power in self.powers) or not sum(self.powers[:size]) > 0:
            raise KnobError("ProofOfWork.powers", f"{self.powers} is refused",
                            "give numbers >= 0, not all of them 0")  # fmt: skip
        last = len(self.powers) - 1
        all_powers = [self.powers[min(i, last)] for i in range(size)]
        return all_powers[self.id] / sum(all_powers)

    async def announce(self) -> None:
        while True:
            await self.sleep(self.announce_s)
            if self.head is not GENESIS:
                self.pass_on(self.head)

    def pass_on(self, block: Block) -> None:
        fields = block.fields()
        for peer in self.near:
            self.tell(peer, ProofOfWork.block, *fields)

    # -- the port

    @rpc
    async def tip(self) -> Block:
        return self.head

    @rpc
    async def rest(self) -> None:
        self.resting = True

    # -- what miners say to each other

    @rpc
    def block(
        self, name: int, parent: int, height: int, miner: int, nonce: int, sender: int
    ) -> None:
        """A block that may be new; one whose name does not fit its content is thrown away."""
        if name in self.blocks:
            return
        block = Block(name, parent, height, miner, nonce)
        if not block.is_sound():
            return
        if block.parent in self.blocks:
            self.take(block)
            return
        waiting = self.orphans.setdefault(block.parent, [])
        if block not in waiting:
            waiting.append(block)
        if block.parent not in self.asking:
            self.asking.add(block.parent)
            self.spawn(self.fetch(block.parent, sender))

    @rpc
    def ancestors(self, of: int, above: int) -> tuple[Block, ...]:
        """The block `of` and those below it, down to a height; the oldest comes first."""
        found: list[Block] = []
        block = self.blocks.get(of)
        while block is not None and block.height > max(above, 0):
            found.append(block)
            block = self.blocks.get(block.parent)
        return tuple(found[::-1][:AT_ONCE])

    # -- the chain

    def take(self, block: Block) -> None:
        """Add a block whose parent is known, and all that waited for it; the longest chain wins."""
        ready = [block]
        while ready:
            block = ready.pop()
            parent = self.blocks.get(block.parent)
            if parent is None or block.height != parent.height + 1 or block.id in self.blocks:
                continue
            self.blocks[block.id] = block
            if block.height > self.head.height:
                if block.parent != self.head.id:
                    self.emit(reorg=self.undone(block))
                self.head = block
            self.pass_on(block)
            if self.orphans:
                ready += self.orphans.pop(block.id, ())

    def undone(self, block: Block) -> int:
        """How many blocks of the chain so far are not below a new head."""
        old, new = self.head, block
        while new.height > old.height:
            new = self.blocks[new.parent]
        while old.id != new.id:
            old, new = self.blocks[old.parent], self.blocks[new.parent]
        return self.head.height - old.height

    async def fetch(self, wanted: int, peer: int) -> None:
        """Ask a peer for the ancestors of an orphan, ever further back until they connect."""
        try:
            above, step = self.head.height - 1, 8
            while wanted not in self.blocks:
                async with self.deadline(self.patience_s):
                    got: Sequence[Block] = await self.ask(
                        peer, ProofOfWork.ancestors, wanted, above
                    )
                if not got or not all(each.is_sound() for each in got):
                    return
                if got[0].parent in self.blocks:
                    for each in got:
                        self.take(each)
                    if got[-1].id == wanted or got[-1].id not in self.blocks:
                        return
                    above = got[-1].height
                elif above <= 0:
                    return
                else:
                    above, step = above - step, 2 * step
        except (DeadlineExceeded, Refused):
            return
        finally:
            self.asking.discard(wanted)
