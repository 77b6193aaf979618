"""The problem `blockchain`: miners extend one chain of blocks, and some of them may cheat.

Miners find blocks at random, in proportion to their power. The checker asks that every chain
consists of blocks that were mined, that the chain grows, and that when all is calm the correct
miners share all but the newest blocks. What cheats gain is measured: their share of the chain
(selfish mining), and how often they undo blocks that were deep enough to be trusted (a parasite
chain). The closed forms that these are held against stand here as well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from orrery.base.errors import DeadlineExceeded, PartError, SpecError
from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    rpc,
)
from orrery.systems.protocols.common import as_violations, last_fault_end_s
from orrery.systems.protocols.problems.total_order import correct_nodes
from orrery.world import World

ANSWER_S = 2.0  # how long a miner may take to name its head

# -- closed forms


def rosenfeld(share: float, depth: int) -> float:
    """The chance that an attacker undoes a payment that has `depth` confirmations.

    M. Rosenfeld, "Analysis of hashrate-based double spending", 2014, section 4: the attacker has
    one block before the payment is made, and must have the longer chain in the end.

    >>> round(rosenfeld(0.1, 6), 7), rosenfeld(0.5, 3)
    (0.0005914, 1.0)
    """
    _check_share("share", share)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise SpecError("depth", f"{depth!r} is refused", "give a whole number >= 0")
    q, p = share, 1.0 - share
    if q >= p:
        return 1.0
    lost = sum(
        math.comb(m + depth - 1, m) * (p**depth * q**m - p**m * q**depth)
        for m in range(depth + 1)
        if depth
    )
    return 1.0 - lost


def eyal_sirer(share: float, gamma: float = 0.0) -> float:
    """The share of blocks that selfish mining earns (I. Eyal, E. G. Sirer, 2014, equation 8).

    `gamma` is the part of the honest power that mines on the selfish branch of a tie.

    >>> abs(eyal_sirer(1 / 3) - 1 / 3) < 1e-12
    True
    """
    _check_share("share", share)
    _check_share("gamma", gamma)
    a = share
    if a >= 0.5:
        return 1.0
    above = a * (1 - a) ** 2 * (4 * a + gamma * (1 - 2 * a)) - a**3
    return above / (1 - a * (1 + (2 - a) * a))


def _check_share(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 <= value <= 1):
        raise SpecError(name, f"{value!r} is refused", "give a share from 0 to 1")


# -- the port


class Block(msgspec.Struct, frozen=True, array_like=True):
    """One block: its name is a hash of all the rest, so that it cannot be altered."""

    id: int
    parent: int
    height: int
    miner: int
    nonce: int

    @classmethod
    def on(cls, parent: Block, miner: int, nonce: int) -> Block:
        """A new block on top of another."""
        height = parent.height + 1
        return cls(_name(parent.id, height, miner, nonce), parent.id, height, miner, nonce)

    def fields(self) -> tuple[int, int, int, int, int]:
        """All of it as numbers: the arguments of a message."""
        return self.id, self.parent, self.height, self.miner, self.nonce

    def is_sound(self) -> bool:
        """Whether the name fits the content."""
        return self.id == _name(self.parent, self.height, self.miner, self.nonce)


def _name(parent: int, height: int, miner: int, nonce: int) -> int:
    text = b"%d %d %d %d" % (parent, height, miner, nonce)
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


GENESIS = Block(0, -1, 0, -1, 0)


class ChainNode(Node):
    """The port: one miner. `interval_s` is the mean time between blocks of all miners together.

    It reports `emit(mined=(id, parent, height))` for each block that it finds, and
    `emit(reorg=depth)` when it leaves a branch and so undoes that many blocks.
    """

    interval_s: Positive = 0.05

    @rpc
    async def tip(self) -> Block:
        """The newest block of the chain that this miner believes in."""
        raise PartError(f"{type(self).__name__} has no tip(); give the head of the chain")

    @rpc
    async def rest(self) -> None:
        """Stop mining; keep on passing blocks."""
        raise PartError(f"{type(self).__name__} has no rest(); stop the mining")


class Mining(msgspec.Struct):
    """What the workload leaves for the checker."""

    begun: list[int]  # heights of the miners when all was calm
    tips: dict[int, Block]


class Blockchain(Problem):
    """Let the miners mine, then let the network settle and look at their chains.

    Knobs: `blocks`, how long they mine, in mean intervals; `calm`, how long after the last fault
    at least, in intervals; `depth`, how many blocks make one trusted; `settle`, the time from the
    end of mining to the comparison, in intervals.

    >>> Blockchain(depth=1).depth
    1
    """

    blocks: Count = 100
    calm: Count = 30
    depth: Count = 6
    settle: NonNegative = 20.0

    port: ClassVar[type] = ChainNode
    metrics: ClassVar[Mapping[str, Metric]] = {
        "growth": Metric("", "higher", "blocks that the chain gained in a mean interval"),
        "stale_rate": Metric("", "lower", "mined blocks that are not in the chain"),
        "deepest_reorg": Metric("", "lower", "most blocks that a correct miner undid at once"),
        "cheats_revenue": Metric("", "lower", "share of the chain that lying miners mined"),
        "parasite_attempts": Metric("", "", "secret branches that ended, well or badly"),
        "parasite_success": Metric("", "lower", "share of them that undid `depth` or more blocks"),
        "messages_per_block": Metric("", "lower", "all messages for each mined block"),
    }

    def world(self) -> World:
        """Eight machines on one switch."""
        return World.lan(8)

    async def drive(self, driver: Driver) -> Mining:
        """Wait while they mine; note the heights when the faults are over."""
        interval_s = driver.part.interval_s
        end_s = driver.now + self.blocks * interval_s
        calm_s = last_fault_end_s(driver.world)
        begun: list[int] = []
        if calm_s > 0:
            await driver.sleep(max(0.0, calm_s - driver.now))
            begun = [tip.height for tip in (await self._tips(driver)).values()]
            end_s = max(end_s, driver.now + self.calm * interval_s)
        await driver.sleep(max(0.0, end_s - driver.now))
        for node in self._up(driver):
            driver.tell(node, ChainNode.rest)
        await driver.sleep(self.settle * interval_s)
        return Mining(begun, await self._tips(driver))

    def _up(self, driver: Driver) -> list[int]:
        return [node for node in driver.nodes if driver.alive(node)]

    async def _tips(self, driver: Driver) -> dict[int, Block]:
        """The heads of the miners that answer; one that falls meanwhile does not."""

        async def ask(node: int) -> Block | None:
            try:
                async with driver.deadline(max(ANSWER_S, driver.part.interval_s)):
                    tip: Block = await driver.ask(node, ChainNode.tip)
                    return tip
            except DeadlineExceeded:
                return None

        nodes = self._up(driver)
        tips = await driver.all(*(ask(node) for node in nodes))
        return {node: tip for node, tip in zip(nodes, tips, strict=True) if tip is not None}

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        """Chains of mined blocks, a common prefix, and growth."""
        mining = outcome.driven
        if not isinstance(mining, Mining):
            said = [Violation(kind="unfinished", message="the workload did not end")]
            return [] if outcome.violations or outcome.ended == "until" else said
        parents = _parents(outcome)
        correct = set(correct_nodes(outcome))
        chains, found = {}, []
        for node, tip in mining.tips.items():
            if node not in correct:
                continue
            chain = _chain(tip.id, parents)
            if chain is None or len(chain) != tip.height:
                text = f"the chain of miner {node} holds a block that nobody mined there"
                found.append(Violation(kind="bad_chain", message=text, node=node, evidence=tip))
            else:
                chains[node] = chain
        found += self._split(chains)
        begun = max(mining.begun, default=0)
        if chains and max(len(chain) for chain in chains.values()) <= begun:
            text = f"no block was added above {begun} once all faults were over"
            found.append(Violation(kind="not_growing", message=text))
        return as_violations(found, outcome.seconds)

    def _split(self, chains: Mapping[int, list[int]]) -> list[Violation]:
        if not chains:
            return []
        longest = max(chains, key=lambda node: len(chains[node]))
        found = []
        for node, chain in chains.items():
            trusted = max(0, min(len(chain), len(chains[longest])) - self.depth)
            lag = len(chains[longest]) - len(chain)
            if chain[:trusted] != chains[longest][:trusted] or lag > self.depth:
                text = f"miners {node} and {longest} differ in more than {self.depth} blocks"
                found.append(Violation(kind="split", message=text, node=node))
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """How fast the chain grew, what was wasted, and what cheats gained."""
        correct = correct_nodes(outcome)
        mined = [(node, block[0]) for _, node, block in outcome.emitted("mined")]
        miner_of = {block: node for node, block in mined}
        mining = outcome.driven
        tips = mining.tips if isinstance(mining, Mining) else {}
        tip = max((tips[n] for n in correct if n in tips), key=lambda t: t.height, default=GENESIS)
        chain = _chain(tip.id, _parents(outcome)) or []
        trusty = set(correct)
        cheated = sum(miner_of[block] not in trusty for block in chain)
        tried, won = self._parasites(outcome, trusty)
        reorgs = [depth for _, node, depth in outcome.emitted("reorg") if node in trusty]
        intervals = max(outcome.seconds / outcome.part.interval_s - self.settle, 1e-9)
        return {
            "growth": len(chain) / intervals,
            "stale_rate": 1.0 - len(chain) / len(mined) if mined else 0.0,
            "deepest_reorg": float(max(reorgs, default=0)),
            "cheats_revenue": cheated / len(chain) if chain else 0.0,
            "parasite_attempts": float(tried),
            "parasite_success": won / tried if tried else 0.0,
            "messages_per_block": outcome.messages / max(len(mined), 1),
        }

    def _parasites(self, outcome: Outcome, correct: set[int]) -> tuple[int, int]:
        """(secret branches that ended, those that undid `depth` blocks at the first correct miner).

        A branch begins with a block of the cheat and goes on while its next block stands on the
        last one; it ends when it undoes blocks, or when the cheat begins elsewhere.
        """
        if len(correct) == outcome.world.size or not correct:
            return 0, 0
        watcher = min(correct)
        tried = won = 0
        last: int | None = None
        for _, node, values in outcome.records:
            if "mined" in values and node not in correct:
                block, parent, _ = values["mined"]
                tried += last is not None and parent != last
                last = block
            elif "reorg" in values and node == watcher and values["reorg"] >= self.depth:
                tried, won = tried + (last is not None), won + (last is not None)
                last = None
        return tried, won


def _parents(outcome: Outcome) -> dict[int, int]:
    return {block[0]: block[1] for _, _, block in outcome.emitted("mined")}


def _chain(tip: int, parents: Mapping[int, int]) -> list[int] | None:
    """The blocks from the first to `tip`; None where one of them was never mined."""
    chain: list[int] = []
    while tip != GENESIS.id:
        if tip not in parents or len(chain) > len(parents):
            return None
        chain.append(tip)
        tip = parents[tip]
    chain.reverse()
    return chain
