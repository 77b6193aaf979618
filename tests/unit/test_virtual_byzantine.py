"""Byzantine strategies: each lies in its way, they compose, and parts can bring their own."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import msgspec
import numpy as np
import pytest

from orrery.base.codec import encode
from orrery.base.errors import FaultError, PartError
from orrery.base.rand import Stream
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, byzantine, cost, rpc
from orrery.parts.byzantine import STRATEGIES, Liar, Message, Strategy, pass_through
from orrery.parts.mutation import can_change, changed, flipped
from orrery.world import Byzantine, World
from orrery.world.faults import STRATEGIES as WORLD_STRATEGIES


def liar(**fields: Any) -> Liar:
    return Liar(me=0, size=5, rng=Stream(1, 0, "test"), now=lambda: 0.3, **fields)


# -- values


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Vote(msgspec.Struct, frozen=True):
    term: int
    name: str


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...]


VALUES = [
    True, 0, -7, 12345, 1 << 80, 0.0, 2.5, "a", "word", b"\x00", bytearray(b"ab"), Colour.RED,
    Vote(3, "x"), Point(1.0, ("t",)), (1, 2), [1, [2, 3]], {"k": 1, "l": "m"}, {1, 2, 3},
    frozenset({"a", "b"}), np.arange(4), np.zeros((2, 2)), np.float32(1.5), np.int8(127),
    np.array([True, False]), (None, 5), (b"", 1),
]  # fmt: skip


@pytest.mark.parametrize("act", [changed, flipped])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_a_changed_value_has_the_same_type_and_leaves_the_original(value: Any, act: Any) -> None:
    before = encode(value) if not isinstance(value, int) else repr(value).encode()
    for seed in range(20):
        other = act(value, Stream(seed, 0, "change"))
        assert type(other) is type(value)
        if isinstance(value, np.ndarray):
            assert other.dtype == value.dtype and other.shape == value.shape
            assert other.tobytes() != value.tobytes()
        elif isinstance(value, set | frozenset):
            assert all(type(item) is type(next(iter(value))) for item in other)
        else:
            assert repr(other) != repr(value)
    assert (encode(value) if not isinstance(value, int) else repr(value).encode()) == before


@pytest.mark.parametrize("value", [None, "", b"", (), (None,), {}, np.zeros(0), object()])
def test_where_nothing_can_change_the_value_comes_back(value: Any) -> None:
    assert not can_change(value)
    assert changed(value, Stream(0)) is value


def test_a_flip_of_an_array_is_one_bit() -> None:
    before = np.arange(8, dtype=np.float64)
    after = flipped(before, Stream(3, 0, "bit"))
    difference = np.bitwise_xor(before.view(np.uint8), after.view(np.uint8))
    assert sum(int(byte).bit_count() for byte in difference) == 1


# -- strategies alone


def test_the_registry_has_every_strategy_of_the_world() -> None:
    assert set(WORLD_STRATEGIES) <= set(STRATEGIES)
    assert all(STRATEGIES[name].name == name for name in STRATEGIES)


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(FaultError, match=r'unknown strategy .*did you mean "silence"'):
        byzantine.build(["silense"], liar())


def test_a_name_cannot_be_taken_twice() -> None:
    with pytest.raises(PartError, match=r"'silence' of .* is taken by Silence"):
        type("Mute", (Strategy,), {"name": "silence"})
    assert STRATEGIES["silence"] is byzantine.Silence


def test_a_subclass_with_a_name_is_found() -> None:
    made = type("Shouting", (Strategy,), {"name": "shout"})
    try:
        assert type(byzantine.build(["shout"], liar())[0]) is made
    finally:
        del STRATEGIES["shout"]


def test_a_silent_node_says_nothing_and_a_plain_one_everything() -> None:
    message = Message(0, 1, "hello", (1,))
    assert pass_through(byzantine.build(["silence"], liar()), message) == []
    assert pass_through([Strategy(liar())], message) == [message]
    assert pass_through([Strategy(liar())], message, receiving=True) == [message]


def test_equivocation_tells_each_half_one_story() -> None:
    strategies = byzantine.build(["equivocate"], liar())
    told = {}
    for _ in range(3):  # asked again, the story is the same
        for peer in (1, 2, 3, 4):
            (out,) = pass_through(strategies, Message(0, peer, "vote", (7, "yes")))
            assert told.setdefault(peer, out.args) == out.args
    assert told[1] == told[2] == (7, "yes")
    assert told[3] == told[4] != (7, "yes")


def test_strategies_act_in_the_declared_order() -> None:
    message = Message(0, 3, "vote", (7,))
    names = ["equivocate", "delay", "selective"]
    (out,) = pass_through(byzantine.build(names, liar(delay_s=0.5, to=(3,))), message)
    assert out.delay_s == 0.5 and out.args != (7,)
    assert pass_through(byzantine.build(names, liar(to=(1,))), message) == []
    # Replayed copies of a delayed message are delayed only when the delay comes after.
    later = byzantine.build(["replay", "delay"], liar())
    pass_through(later, message)
    assert [one.delay_s for one in pass_through(later, message)] == [0.1, 0.1]


def test_selfish_releases_in_bursts() -> None:
    at = {"now": 0.0}
    selfish = byzantine.build(["selfish"], liar(delay_s=1.0)._replace(now=lambda: at["now"]))
    releases = []
    for at["now"] in (0.1, 0.5, 0.9, 1.2):
        (out,) = pass_through(selfish, Message(0, 1, "block", (1,)))
        releases.append(round(at["now"] + out.delay_s, 9))
    assert releases == [1.0, 1.0, 1.0, 2.0]


def test_mutation_obeys_its_chance() -> None:
    rarely = byzantine.build(["mutate"], liar(p=0.25))
    lies = sum(
        pass_through(rarely, Message(0, 1, "vote", (7,)))[0].args != (7,) for _ in range(400)
    )
    assert 60 < lies < 140


# -- on nodes


class Teller(Node):
    """Everyone tells everyone its number, several times; everyone remembers what it heard."""

    def start(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.beat = 0

    @rpc
    def hear(self, number: int, sender: int) -> None:
        self.heard.append((sender, number))
        self.emit(heard=(sender, number))

    @rpc
    async def number(self) -> int:
        return 1000 + self.id

    async def main(self) -> None:
        for _ in range(4):
            await self.sleep(0.1)
            self.beat += 1
            for peer in self.peers:
                self.tell(peer, Teller.hear, 100 * self.beat)


def tell(*faults: Any, part: Any = None, seed: int = 0, kernel: str = "python", n: int = 5) -> Any:
    world = World.lan(n, jitter=0.0).with_faults(*faults)
    engine = Engine({"node": part or Teller()}, world=world, seed=seed, kernel=kernel)
    return engine.run(), engine


def heard(outcome: Any, by: int, of: int) -> list[int]:
    found = outcome.emitted("heard")
    return [number for _, node, (src, number) in found if node == by and src == of]


def lies(*strategies: str, **fields: Any) -> Any:
    return tell(Byzantine(node=2, strategies=strategies, **fields))


HONEST = [100, 200, 300, 400]


def test_an_honest_run_has_no_lies() -> None:
    outcome, engine = tell()
    assert all(heard(outcome, by, 2) == HONEST for by in (0, 1, 3, 4))
    assert engine.faults.extra()["faults_fired"] == {}


@pytest.mark.parametrize("name", WORLD_STRATEGIES)
def test_each_strategy_fires_and_only_its_node_lies(name: str) -> None:
    fields = {"to": (0,)} if name == "selective" else {}
    outcome, engine = lies(name, **fields)
    assert engine.faults.extra()["faults_fired"]["Byzantine"] > 0
    assert heard(outcome, 0, 1) == HONEST, "the others stay honest"
    assert tell(Byzantine(node=2, strategies=(name,), **fields))[0].digest == outcome.digest


def test_silence_selective_and_replay_on_nodes() -> None:
    assert heard(lies("silence")[0], 0, 2) == []
    some, _ = lies("selective", to=(0, 4))
    assert [heard(some, by, 2) for by in (0, 1, 3, 4)] == [HONEST, [], [], HONEST]
    again = heard(lies("replay")[0], 0, 2)
    assert len(again) > 4 and set(again) == set(HONEST)


def test_equivocation_and_mutation_on_nodes() -> None:
    outcome, _ = lies("equivocate")
    assert heard(outcome, 0, 2) == heard(outcome, 1, 2) == HONEST
    assert heard(outcome, 3, 2) == heard(outcome, 4, 2) != HONEST
    mutated, _ = lies("mutate")
    assert all(heard(mutated, by, 2) != HONEST for by in (0, 1, 3, 4))
    assert heard(mutated, 0, 2) != heard(mutated, 1, 2)


def test_delay_and_selfish_shift_arrivals() -> None:
    def times(outcome: Any) -> list[float]:
        found = outcome.emitted("heard")
        return [time for time, node, (src, _) in found if node == 0 and src == 2]

    plain = times(tell()[0])
    late = times(lies("delay", delay_s=0.25)[0])
    assert [a - b for a, b in zip(late, plain, strict=True)] == pytest.approx([0.25] * 4)
    bursts = times(lies("selfish", delay_s=0.25)[0])
    assert [round(time, 2) for time in bursts] == [0.25, 0.25, 0.5, 0.5]


def test_malice_begins_and_ends() -> None:
    outcome, _ = lies("silence", at_s=0.15, until_s=0.35)
    assert heard(outcome, 0, 2) == [100, 400]


@pytest.mark.parametrize("kernel", ["python", "c"])
def test_twins_are_two_nodes_behind_one_name(kernel: str) -> None:
    class Counting(Teller):
        @rpc
        def hear(self, number: int, sender: int) -> None:
            self.heard.append((sender, number))
            if self.id == 2:
                self.emit(seen=(sender, [src for src, _ in self.heard]))

        @rpc
        async def known(self) -> list[int]:
            await self.sleep(0.01)
            return sorted({src for src, _ in self.heard})

        async def main(self) -> None:
            await super().main()
            if self.id != 2:
                self.emit(known=(self.id, await self.ask(2, Counting.known)))

    if kernel == "c":
        pytest.importorskip("orrery.engines.virtual._kernel")
    fault = Byzantine(node=2, strategies=("twins",))
    outcome, _ = tell(fault, part=Counting(), kernel=kernel)
    known = dict(value for _, _, value in outcome.emitted("known"))
    assert known == {0: [0, 1], 1: [0, 1], 3: [3, 4], 4: [3, 4]}
    plain, _ = tell(part=Counting(), kernel=kernel)
    assert dict(value for _, _, value in plain.emitted("known"))[0] == [0, 1, 3, 4]


def test_a_twin_that_comes_later_starts_afresh_and_goes_again() -> None:
    outcome, _ = lies("twins", at_s=0.15, until_s=0.35)
    # The second copy begins at 100 once more, for its half only; then the first one is back.
    assert heard(outcome, 0, 2) == HONEST
    assert heard(outcome, 4, 2) == [100, 100, 400]


def test_lies_about_computations() -> None:
    @cost(flops=1.0)
    def answer() -> int:
        return 42

    class Computes(Node):
        async def main(self) -> None:
            self.emit(got=await self.compute(answer))

    outcome, _ = tell(Byzantine(node=2, strategies=("mutate",)), part=Computes())
    got = {node: value for _, node, value in outcome.emitted("got")}
    assert got.pop(2) != 42 and set(got.values()) == {42}


def test_answers_are_lied_about_but_not_to_the_driver() -> None:
    class Asks(Teller):
        async def main(self) -> None:
            if self.id == 0:
                self.emit(got=[await self.ask(peer, Asks.number) for peer in (1, 2)])

    outcome, _ = tell(Byzantine(node=2, strategies=("mutate",)), part=Asks())
    ((_, _, (honest, lied)),) = outcome.emitted("got")
    assert honest == 1001 and lied != 1002


def test_a_part_may_bring_its_own_way_to_lie() -> None:
    class Doubling(Strategy):
        def on_send(self, message: Message) -> list[Message]:
            return [message._replace(args=(2 * message.args[0],))]

        def on_receive(self, message: Message) -> list[Message]:
            return []

    class Own(Teller):
        byzantine = {"selfish": Doubling}

    outcome, _ = tell(Byzantine(node=2, strategies=("selfish",)), part=Own())
    assert heard(outcome, 0, 2) == [200, 400, 600, 800]
    assert heard(outcome, 2, 0) == []


def test_a_bad_strategy_of_a_part_is_refused_before_the_run() -> None:
    class Needs(Strategy):
        def __init__(self, liar: Liar) -> None:
            raise FaultError("Byzantine.strategies", "needs a victim", "name one in to")

    class Own(Teller):
        byzantine = {"selfish": Needs}

    with pytest.raises(FaultError, match="needs a victim"):
        tell(Byzantine(node=2, strategies=("selfish",), at_s=0.2), part=Own())


def test_twins_lie_about_computations_too() -> None:
    @cost(flops=1.0)
    def answer() -> int:
        return 42

    class Computes(Node):
        async def main(self) -> None:
            self.emit(got=await self.compute(answer))

    outcome, _ = tell(Byzantine(node=2, strategies=("twins", "mutate")), part=Computes())
    got = [value for _, node, value in outcome.emitted("got") if node == 2]
    assert len(got) == 2 and 42 not in got
