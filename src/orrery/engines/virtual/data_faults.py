"""Faults of data in virtual time: storage, memory, computed values, and lies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from orrery.engines.virtual.network_faults import NetworkFaults
from orrery.engines.virtual.tally import Chance, Effect, End, each
from orrery.engines.virtual.twins import Twin
from orrery.parts import byzantine
from orrery.parts.mutation import can_change, flipped

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

Tap = tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]
# A name in a node's dictionary that is the engine's, not the part's state.
NOT_STATE = ("compute",)


class DataFaults(NetworkFaults):
    """DiskFull, TornWrite, MisdirectedWrite, BitFlip and Byzantine.

    They stand on the network's faults, because flipped messages and lies travel there.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._taps: dict[int, list[Tap]] = {}
        self._twins: dict[int, Twin] = {}
        self._lies: dict[tuple[int, int], list[byzantine.Strategy]] = {}

    # -- storage and memory

    def _on_disk(self, effect: Effect, stack: str, p: float) -> End:
        disks = self._engine.disks
        chances = {node: Chance(effect, p, node) for node in self._nodes(effect)}
        for node, chance in chances.items():
            getattr(disks.at(node), stack).append(chance)
        return lambda: each(
            chances, lambda node: getattr(disks.at(node), stack).remove(chances[node])
        )

    def _begin_diskfull(self, effect: Effect) -> End:
        return self._on_disk(effect, "full", 1.0)

    def _begin_tornwrite(self, effect: Effect) -> End:
        return self._on_disk(effect, "torn", effect.fault.p)  # type: ignore[attr-defined]

    def _begin_misdirectedwrite(self, effect: Effect) -> End:
        return self._on_disk(effect, "misdirected", effect.fault.p)  # type: ignore[attr-defined]

    def _begin_bitflip(self, effect: Effect) -> End | None:
        fault: Any = effect.fault
        if fault.where == "message":
            return self._begin_traffic(effect)
        if fault.where == "disk" and fault.p is not None:
            return self._on_disk(effect, "flips", fault.p)
        if fault.where == "disk":
            for node in self._nodes(effect):
                if self._engine.disks.at(node).flip_once(effect.stream(node)):
                    effect.fired()
            return None
        if fault.p is None:
            each(self._nodes(effect), lambda node: self._flip_state(node, effect))
            return None
        ends = [self._flip_computed(node, effect, fault.p) for node in self._nodes(effect)]
        return lambda: each(ends, lambda end: end())

    def _flip_state(self, node: int, effect: Effect) -> None:
        """Flip one bit in one attribute of the node's state, picked by the seed."""
        state = vars(self._engine.kernel.hosts[node])
        able = [
            name
            for name, value in state.items()
            if not name.startswith("_") and name not in NOT_STATE and can_change(value)
        ]
        if able and self._engine.kernel.state[node]:
            rng = effect.stream(node)
            name = rng.choice(able)
            state[name] = flipped(state[name], rng)
            effect.fired()

    def _flip_computed(self, node: int, effect: Effect, p: float) -> End:
        chance = Chance(effect, p, node)

        def before(args: Any) -> Any:
            able = [i for i, arg in enumerate(args) if hasattr(arg, "nbytes") and can_change(arg)]
            if not able or not chance.hits():
                return args
            place = chance.rng.choice(able)
            return (*args[:place], flipped(args[place], chance.rng), *args[place + 1 :])

        return self._tap(node, (before, None))

    # -- computing under a fault

    def _tap(self, node: int, tap: Tap) -> End:
        self._taps.setdefault(node, []).append(tap)
        self._set_taps(node)

        def end() -> None:
            self._taps[node].remove(tap)
            self._set_taps(node)

        return end

    def _node_lost(self, node: int) -> None:
        self._set_taps(node)

    def _set_taps(self, node: int) -> None:
        """Put the taps of a node in front of its `compute`; again after a crash took them."""
        host: Any = self._engine.kernel.hosts[node]
        taps = self._taps.get(node)
        if not taps:
            host.__dict__.pop("compute", None)
            return
        plain = type(host).compute

        async def compute(fn: Any, *args: Any, **kwargs: Any) -> Any:
            for before, _ in taps:
                args = args if before is None else before(args)
            value = await plain(host, fn, *args, **kwargs)
            for _, after in taps:
                value = value if after is None else after(value)
            return value

        host.__dict__["compute"] = compute

    # -- malice

    def _plan_byzantine(self, effect: Effect) -> None:
        """Make the strategies before the run begins, so that a bad one is refused in time.

        The desk of a twinned node is there from the start, its second copy from `at_s` on.
        """
        names: tuple[str, ...] = effect.fault.strategies  # type: ignore[attr-defined]
        for node in self._nodes(effect):
            liar = self._liar(effect, node)
            own = getattr(type(self._engine.kernel.hosts[node]), "byzantine", None)
            self._lies[effect.place, node] = byzantine.build(names, liar, own)
            if "twins" in names and node not in self._twins:
                self._twins[node] = Twin(self._engine, node, liar.in_second_half)

    def _liar(self, effect: Effect, node: int) -> byzantine.Liar:
        fault: Any = effect.fault
        engine = self._engine
        return byzantine.Liar(
            me=node, size=engine.size, rng=effect.stream(node),
            now=lambda: engine.kernel.now / 1e9, p=fault.p, delay_s=fault.delay_s, to=fault.to,
        )  # fmt: skip

    def _begin_byzantine(self, effect: Effect) -> End:
        fault: Any = effect.fault
        ends: list[End] = []
        for node in self._nodes(effect):
            strategies = self._lies[effect.place, node]
            self._traffic.add_liar(node, effect, strategies)
            ends.append(partial(self._traffic.remove_liar, node, effect))
            if any(type(s).on_compute is not byzantine.Strategy.on_compute for s in strategies):
                ends.append(self._tap(node, (None, _computed(strategies, effect))))
            if "twins" in fault.strategies:
                effect.fired()
                self._twins[node].begin()
                ends.append(self._twins[node].end)
        return lambda: each(ends, lambda end: end())


def _computed(strategies: list[byzantine.Strategy], effect: Effect) -> Callable[[Any], Any]:
    def after(value: Any) -> Any:
        told = value
        for strategy in strategies:
            told = strategy.on_compute(told)
        if told is not value:
            effect.fired()
        return told

    return after
