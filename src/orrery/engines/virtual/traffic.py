"""What faults do to messages: filters in the path of every message of a hit node.

The kernel calls one hook for messages of special nodes. The hook lets a lying sender speak first,
then the filters of the network act in the order in which their faults began, then a lying receiver.
Messages to oneself and those of the driver pass untouched, as the driver stands outside the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orrery.base.codec import size_of
from orrery.base.rand import Stream
from orrery.base.units import to_ns
from orrery.engines.virtual.net import DROP_ONE, ns_per_byte
from orrery.engines.virtual.tally import Chance, Effect
from orrery.parts import byzantine
from orrery.parts.mutation import can_change, flipped
from orrery.world import BitFlip, Clog, Corrupt, Drop, Duplicate, NicFlap, Reorder, Slow

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

# (extra delay in ns, destination, arguments or answer)
Copy = tuple[int, int, Any]


class Filter:
    """What one fault does to the copies of one message."""

    def __init__(self, engine: Engine, effect: Effect) -> None:
        self.engine = engine
        self.effect = effect
        self.nodes = frozenset(engine.world.targets(effect.fault))
        self._chances: dict[int, Chance] = {}

    def hits(self, src: int) -> bool:
        """The fault's chance `p`, drawn from the sender's stream of this fault."""
        return self._chance(src).hits()

    def _chance(self, src: int) -> Chance:
        chance = self._chances.get(src)
        if chance is None:
            fault: Any = self.effect.fault
            chance = self._chances[src] = Chance(self.effect, fault.p, src)
        return chance

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        return copies


class Dropping(Filter):
    """Loses messages. Also serves `Corrupt`: a frame whose checksum fails is thrown away."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        return [copy for copy in copies if not self.hits(src)]


class Duplicating(Filter):
    """Sends messages twice; the second copy draws its own latency."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        return [one for copy in copies for one in ([copy, copy] if self.hits(src) else [copy])]


class Reordering(Filter):
    """Holds messages back, so that later ones may overtake them."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        fault = self.effect.fault
        assert isinstance(fault, Reorder)
        out = []
        for extra_ns, to, args in copies:
            if self.hits(src):
                extra_ns += 1 + to_ns(self._chance(src).rng.uniform(0.0, fault.spread_s))
            out.append((extra_ns, to, args))
        return out


class Clogging(Filter):
    """Adds a delay, and the time that the lost part of the bandwidth costs."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        fault = self.effect.fault
        assert isinstance(fault, Clog)
        self.effect.fired()
        slower = ns_per_byte(self.engine.world.network.bandwidth_Bps) * (1.0 / fault.fraction - 1.0)
        delay_ns = to_ns(fault.delay_s)
        throw = self.engine.kernel_module.Throw
        out = []
        for extra_ns, to, args in copies:
            more_ns = delay_ns
            if slower:
                body_B = 0 if type(args) is throw else size_of(args)
                more_ns += int(slower * (self.engine.kernel.header + body_B))
            out.append((extra_ns + more_ns, to, args))
        return out


class Lagging(Filter):
    """A slow node: what it sends takes `factor` times the latency of its way."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        fault = self.effect.fault
        assert isinstance(fault, Slow)
        if src not in self.nodes:
            return copies
        self.effect.fired()
        network = self.engine.world.network
        if network.model == "rounds":
            latency_s = network.round_s
        else:
            latency_s = self.engine.wiring.latency(src, dst)
        late_ns = to_ns(latency_s * (fault.factor - 1.0))
        return [(extra_ns + late_ns, to, args) for extra_ns, to, args in copies]


class Flapping(Filter):
    """A NIC that is down at the beginning of each period: messages are lost meanwhile."""

    def down(self) -> bool:
        return self.edge()[0]

    def edge(self) -> tuple[bool, int]:
        """(whether the NIC is down now, when that changes)."""
        fault = self.effect.fault
        assert isinstance(fault, NicFlap)
        period_ns = max(to_ns(fault.period_s), 2)
        down_ns = min(max(int(period_ns * fault.down_fraction), 1), period_ns - 1)
        now = self.engine.kernel.now
        begun_ns = now - (now - to_ns(fault.at_s)) % period_ns
        down = now - begun_ns < down_ns
        return down, begun_ns + (down_ns if down else period_ns)

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        if not self.down():
            return copies
        self.effect.fired()
        return []


class OneWay(Filter):
    """A one-way partition: messages pass from a higher side to a lower one, or inside one."""

    def __init__(self, engine: Engine, effect: Effect, side: npt.NDArray[np.int32]) -> None:
        super().__init__(engine, effect)
        self._side = side

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        if self._side[src] >= self._side[dst]:
            return copies
        self.effect.fired()
        return []


class Flipping(Filter):
    """Flips a bit of what a node receives, below any checksum."""

    def apply(self, src: int, dst: int, copies: list[Copy]) -> list[Copy]:
        fault = self.effect.fault
        assert isinstance(fault, BitFlip)
        if dst not in self.nodes:
            return copies
        out = []
        for extra_ns, to, args in copies:
            if can_change(args) and self._now(fault, src):
                args = flipped(args, self.effect.stream(f"{src} bit {self.effect.count}"))
            out.append((extra_ns, to, args))
        return out

    def _now(self, fault: BitFlip, src: int) -> bool:
        if fault.p is not None:
            return self.hits(src)
        if self.effect.count:  # without a chance, one message is hit and no more
            return False
        self.effect.fired()
        return True


FILTERS: dict[type, type[Filter]] = {
    Drop: Dropping, Corrupt: Dropping, Duplicate: Duplicating, Reorder: Reordering, Clog: Clogging,
    Slow: Lagging, NicFlap: Flapping, BitFlip: Flipping,
}  # fmt: skip


class Traffic:
    """The filters and liars of one run, and which nodes' messages they see."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._everywhere: list[Filter] = []
        self._of_node: dict[int, list[Filter]] = {}
        self._of_link: dict[tuple[int, int], list[Filter]] = {}
        self._liars: dict[int, list[tuple[Effect, list[byzantine.Strategy]]]] = {}
        self._special: dict[int, int] = {}
        self._drops: list[float] = []
        self._sigma = engine.world.network.latency_sigma
        self._tails = Stream(engine.seed, "messages", "tail")
        self._cuts: list[npt.NDArray[np.int32]] = []

    def install(self) -> None:
        self._engine.kernel.hook = self.hook
        if self._sigma:
            self._watch(range(self._engine.size), 1)

    def _tail_ns(self, src: int, dst: int) -> int:
        """By how much the latency of the next message differs from the usual one."""
        if not self._sigma:
            return 0
        factor = self._tails.lognormvariate(0.0, self._sigma)
        return to_ns(self._engine.wiring.latency(src, dst) * abs(factor - 1)) * (
            1 if factor > 1 else -1
        )

    # -- what is on

    def _watch(self, nodes: Any, by: int) -> None:
        """Count who needs the hook: a node stays special until its last fault has ended."""
        special = self._engine.kernel.special
        for node in nodes:
            count = self._special.get(node, 0) + by
            self._special[node] = count
            special[node] = 1 if count else 0

    def add(self, one: Filter, nodes: tuple[int, ...] | None, link: Any = None) -> None:
        for filters in self._places(nodes, link):
            filters.append(one)
        self._watch(range(self._engine.size) if nodes is None else nodes, 1)

    def remove(self, one: Filter, nodes: tuple[int, ...] | None, link: Any = None) -> None:
        for filters in self._places(nodes, link):
            filters.remove(one)
        self._watch(range(self._engine.size) if nodes is None else nodes, -1)

    def _places(self, nodes: tuple[int, ...] | None, link: Any) -> list[list[Filter]]:
        if link is not None:
            ways = ((link[0], link[1]), (link[1], link[0]))
            return [self._of_link.setdefault(way, []) for way in ways]
        if nodes is None:
            return [self._everywhere]
        return [self._of_node.setdefault(node, []) for node in nodes]

    def add_liar(self, node: int, effect: Effect, strategies: list[byzantine.Strategy]) -> None:
        self._liars.setdefault(node, []).append((effect, strategies))
        self._watch((node,), 1)

    def remove_liar(self, node: int, effect: Effect) -> None:
        self._liars[node] = [pair for pair in self._liars[node] if pair[0] is not effect]
        if not self._liars[node]:
            del self._liars[node]
        self._watch((node,), -1)

    # -- what the kernel does by itself, so that it costs no hook

    def drop_everywhere(self, p: float, begins: bool) -> None:
        """Lose messages between all nodes; chances multiply with those of the network."""
        if begins:
            self._drops.append(p)
        else:
            self._drops.remove(p)
        passes = 1.0 - self._engine.world.network.drop
        for each in self._drops:
            passes *= 1.0 - each
        self._engine.kernel.drop32 = int((1.0 - passes) * DROP_ONE)

    def cut(self, side: npt.NDArray[np.int32], begins: bool) -> None:
        """Divide the nodes; with several cuts, only nodes on one side of all of them can talk."""
        if begins:
            self._cuts.append(side)
        else:
            self._cuts = [each for each in self._cuts if each is not side]
        kernel, size = self._engine.kernel, self._engine.size
        number = np.zeros(size, dtype=np.int64)
        for each in self._cuts:
            # Renumbered after each cut, so that many cuts at once cannot overflow.
            joint = number * (int(each.max()) + 1) + each
            number = np.unique(joint, return_inverse=True)[1].reshape(size)
        kernel.side[:size] = number.tolist()
        kernel.cut = bool(self._cuts)

    # -- the hook

    def hook(self, src: int, dst: int, slot: Any, args: Any, is_reply: bool) -> list[Copy] | None:
        size = self._engine.size
        if src == dst or src >= size or dst >= size:
            return None
        copies: list[Copy] = [(self._tail_ns(src, dst), dst, args)]
        if src in self._liars:
            copies = self._lie(src, src, slot, copies, is_reply, False)
        for one in self._filters(src, dst):
            if not copies:
                return copies
            copies = one.apply(src, dst, copies)
        if dst in self._liars:
            copies = self._lie(dst, src, slot, copies, is_reply, True)
        return copies

    def _filters(self, src: int, dst: int) -> list[Filter]:
        found = [
            *self._everywhere, *self._of_node.get(src, ()), *self._of_node.get(dst, ()),
            *self._of_link.get((src, dst), ()),
        ]  # fmt: skip
        if len(found) < 2:
            return found
        # A fault of both ends acts once; the schedule's order is the order of action.
        return sorted(dict.fromkeys(found), key=lambda one: one.effect.place)

    def _lie(
        self, liar: int, src: int, slot: Any, copies: list[Copy], is_reply: bool, receiving: bool
    ) -> list[Copy]:
        throw = self._engine.kernel_module.Throw
        for effect, strategies in self._liars[liar]:
            out: list[Copy] = []
            for extra_ns, to, args in copies:
                if type(args) is throw:  # a refusal carries no value to lie about
                    out.append((extra_ns, to, args))
                    continue
                message = byzantine.Message(src, to, slot.name, args, is_reply)
                made = byzantine.pass_through(strategies, message, receiving)
                if len(made) != 1 or made[0] is not message:
                    effect.fired()
                out += [(extra_ns + to_ns(each.delay_s), each.dst, each.args) for each in made]
            copies = out
        return copies
