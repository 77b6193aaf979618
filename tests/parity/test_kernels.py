"""The two kernels are one: random programs give the same digest, records and counts on both."""

from __future__ import annotations

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import DeadlineExceeded, Refused
from orrery.engines.virtual import kernel as kernels
from orrery.world import (
    Byzantine,
    ClockDrift,
    Crash,
    Drop,
    Duplicate,
    Partition,
    Pause,
    RandomCrashes,
    Reorder,
    Slow,
)

pytestmark = pytest.mark.skipif(
    kernels.load().NAME != "c", reason="the C kernel was not built on this machine"
)


class Chaos(Node):
    """Does a little of everything, as its random stream says."""

    steps: int = 25

    def start(self):
        self.total = 0
        self.inbox = self.queue()
        self.turn = self.lock()
        self.flag = self.event()

    @rpc
    def add(self, amount: int, sender: int) -> None:
        self.total += amount * (1 + sender)
        self.inbox.put(amount)

    @rpc
    def words(self, text: str, more: dict[str, list[float]], some: frozenset[int]) -> int:
        return len(text) + sum(map(len, more.values())) + sum(some)

    @rpc
    async def slowly(self, s: float) -> float:
        async with self.turn:
            await self.sleep(min(abs(s), 0.05))  # a liar may have sent anything
        return self.now

    @rpc
    async def maybe(self, x: int) -> int:
        if x % 3 == 0:
            raise Refused(f"{x} is a multiple of three")
        if x % 3 == 1:
            await self.sleep(0.002)
        return -x

    async def consume(self):
        while True:
            item = await self.inbox.get()
            self.emit(item=item)
            if item > 90:
                self.flag.set(item)

    async def main(self):
        consumer = self.spawn(self.consume())
        for step in range(self.steps):
            try:
                async with self.deadline(self.rng.uniform(0.001, 0.02)):
                    await self.act(self.rng.below(7), self.rng.choice(self.peers))
            except DeadlineExceeded:
                self.emit(late=step)
            except Refused as no:
                self.emit(no=str(no))
        consumer.cancel()
        self.emit(total=self.total, clock=round(self.clock(), 9))

    async def act(self, kind, peer):
        rng = self.rng
        if kind == 0:
            for _ in range(rng.below(4)):
                self.tell(rng.choice(self.peers), Chaos.add, rng.below(100))
        elif kind == 1:
            self.emit(said=await self.ask(peer, Chaos.maybe, rng.below(30)))
        elif kind == 2:
            self.emit(said=await self.ask(peer, Chaos.slowly, rng.uniform(0, 0.01)))
        elif kind == 3:
            size = await self.ask(peer, Chaos.words, "héllo", {"a": [1.0, 2.0]}, frozenset({1, 2}))
            self.emit(size=size)
        elif kind == 4:
            self.emit(first=await self.first(self.sleep(rng.uniform(0, 0.01)),
                                             self.ask(peer, Chaos.maybe, 7)))  # fmt: skip
        elif kind == 5:
            self.emit(all=await self.all(*(self.ask(p, Chaos.slowly, 0.001)
                                           for p in rng.sample(self.peers, 2))))  # fmt: skip
        else:
            self.emit(flag=await self.flag.wait())


WORLDS = {
    "lan": World.lan(5),
    "tails": World.lan(5, latency_s=0.01, latency_sigma=1.0),
    "lossy": World.lan(6, drop=0.2, jitter=0.8),
    "unordered": World.lan(5, jitter=1.0).with_(**{"network.fifo": False}),
    "narrow": World.lan(4, bandwidth_Bps=50_000.0),
    "wan": World.wan(6),
    "torus": World.torus((3, 2)),
    "rounds": World.rounds(5, round_s=0.004),
    "crash": World.lan(5).with_faults(
        Crash(node=1, at_s=0.01, until_s=0.03), Crash(node=2, at_s=0.02)
    ),
    "pause": World.lan(5).with_faults(Pause(node=(0, 1), at_s=0.01, until_s=0.04)),
    "cut": World.lan(5).with_faults(Partition(groups=((0, 1), (2, 3, 4)), at_s=0.0, until_s=0.05)),
    "mixed": World.lan(6, drop=0.05).with_faults(
        Duplicate(p=0.3, at_s=0.0), Reorder(p=0.3, spread_s=0.01, at_s=0.0),
        Drop(p=0.5, at_s=0.01, until_s=0.02), Slow(node=3, factor=5.0, at_s=0.0),
        ClockDrift(node=2, drift=0.01, at_s=0.01), RandomCrashes(count=3, down_s=0.01,
                                                                 between_s=(0.0, 0.05)),
    ),
    "liars": World.lan(6).with_faults(Byzantine(node=1, strategies=("mutate", "delay"), at_s=0.0),
                                      Byzantine(node=2, strategies=("twins",), at_s=0.0)),
}  # fmt: skip


def story(world, kernel, seed, **options):
    done = run(Chaos(), world=world, seed=seed, kernel=kernel, until_s=2.0, **options)
    seen = [(r.time_s, r.node, repr(r.values)) for r in done.records]
    return {
        "records": seen, "digest": done.digest, "messages": done.messages, "bytes": done.bytes,
        "events": done.events, "seconds": done.seconds, "ended": done.ended,
        "violations": [v.message for v in done.violations],
    }  # fmt: skip


@pytest.mark.parametrize("wire", [False, True], ids=["values", "wire"])
@pytest.mark.parametrize("name", WORLDS)
def test_both_kernels_tell_one_story(name, wire):
    for seed in range(6):
        python = story(WORLDS[name], "python", seed, wire=wire)
        c = story(WORLDS[name], "c", seed, wire=wire)
        for key, value in python.items():
            assert c[key] == value, f"{key} differs in world {name!r}, seed {seed}, wire={wire}"
        assert python["messages"] > 20, "a program that does nothing proves nothing"


def test_traces_agree_event_by_event():
    for seed in range(4):
        a = run(Chaos(), world=WORLDS["mixed"], seed=seed, kernel="python", trace=True, until_s=2.0)
        b = run(Chaos(), world=WORLDS["mixed"], seed=seed, kernel="c", trace=True, until_s=2.0)
        assert a.spans == b.spans and a.spans


def test_streams_agree_draw_by_draw():
    python, c = kernels.load("python").Stream(5, 3, "x"), kernels.load("c").Stream(5, 3, "x")
    for method, args in [
        ("word", ()), ("random", ()), ("below", (10,)), ("below", (1 << 70,)), ("small", (7,)),
        ("choice", ("abc",)), ("uniform", (2, 5)), ("expovariate", (3.0,)), ("randrange", (4, 9)),
        ("sample", (range(100), 5)), ("gauss", (0.0, 1.0)), ("getrandbits", (200,)),
        ("gammavariate", (0.5, 2.0)), ("randint", (1, 6)), ("choices", ("abcd", [1, 2, 3, 4])),
    ] * 20:  # fmt: skip
        assert getattr(python, method)(*args) == getattr(c, method)(*args), method
    assert python.count == c.count


def test_processors_that_charge_for_messages_agree():
    from orrery.engines.virtual.engine import Engine

    stories = []
    for name in ("python", "c"):
        engine = Engine({"node": Chaos()}, world=WORLDS["lossy"], seed=3, kernel=name)
        busy = {}

        def charge(host, size, receiving, engine=engine, busy=busy):
            start = max(engine.kernel.now, busy.get(host, 0))
            busy[host] = start + 20_000 + 50 * size * (1 + receiving)
            return busy[host] - engine.kernel.now

        engine.kernel.charge = charge
        done = engine.run(2.0)
        stories.append((done.digest, done.seconds, [r.time_s for r in done.records]))
    assert stories[0] == stories[1]
