"""The processes engine: the same parts, problems and verdicts as in virtual time."""

import sys

import numpy as np
import pytest

from orrery import run
from orrery.base.errors import DeadlineExceeded, FaultError, PartError, PlatformLacks, UsageError
from orrery.engines.processes import ProcessEngine
from orrery.engines.virtual.engine import Engine
from orrery.parts import Monitor, Node, Problem, Refused, Violation, rpc
from orrery.parts.worker import Worker
from orrery.world import Byzantine, World


class Gossip(Node):
    """Push gossip of the ids of all nodes."""

    fanout: int = 2

    def start(self):
        self.seen = {self.id}

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        self.seen |= values

    @rpc
    def known(self) -> frozenset[int]:
        return frozenset(self.seen)

    async def main(self):
        self.emit(first=tuple(self.rng.sample(self.peers, 3)), role=self.role)
        while True:
            await self.sleep(0.01)
            for peer in self.rng.sample(self.peers, self.fanout):
                self.tell(peer, Gossip.learn, frozenset(self.seen))


class Everyone(Problem):
    """All nodes learn of all nodes."""

    async def drive(self, driver):
        for _ in range(200):
            await driver.sleep(0.02)
            known = await driver.all(*(driver.ask(n, Gossip.known) for n in driver.nodes))
            if all(len(ids) == len(driver.nodes) for ids in known):
                return sorted(known[0])
        return sorted(min(known, key=len))

    def check(self, outcome):
        if outcome.driven == list(range(outcome.world.size)):
            return []
        return [Violation(kind="not_all", message=f"only {outcome.driven}")]


ENGINES = (Engine, ProcessEngine)


def play(engine, part, problem, world, until_s=20.0, **options):
    options.setdefault("seed", 3)
    return engine({"node": part}, world=world, problem=problem, **options).run(until_s)


def test_gossip_has_the_same_verdict_and_the_same_random_choices():
    outcomes = [play(e, Gossip(), Everyone(), World.lan(5, drop=0.2)) for e in ENGINES]
    for outcome in outcomes:
        assert outcome.ended == "driven"
        assert Everyone().check(outcome) == []
    real = outcomes[1]
    assert real.engine == "processes" and real.digest == ""
    picks = [sorted((n, v) for _, n, v in o.emitted("first")) for o in outcomes]
    assert picks[0] == picks[1]  # the same streams, and tuples stay tuples
    assert real.extra["shimmed"] > 0  # the world's loss is played by the shim
    assert real.messages > 0 and real.bytes > 64 * real.messages
    assert real.alive == [True] * 5 and real.seconds > 0
    assert real.extra["malformed"] == real.extra["refused"] == real.extra["corrupt"] == 0


def test_it_also_runs_on_the_plain_event_loop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it were not installed
    outcome = play(ProcessEngine, Gossip(), Everyone(), World.lan(4))
    assert Everyone().check(outcome) == []
    arrays = ProcessEngine({"node": Bulky()}, world=World.lan(2)).run(10)
    assert [v for _, _, v in arrays.emitted("equal")] == [True] * 4


def test_several_nodes_share_a_process():
    outcome = play(ProcessEngine, Gossip(), Everyone(), World.lan(6), nodes_per_process=3)
    assert Everyone().check(outcome) == []
    assert outcome.extra["processes"] == 2
    assert len({pids[0] for pids in outcome.extra["pids"].values()}) == 2


class Server(Node):
    """Answers, refuses, sleeps; exercises every waiting primitive."""

    def start(self):
        self.log_lines = []
        self.gate = self.event()
        self.calls = 0

    @rpc
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rpc
    async def slow(self, s: float) -> str:
        await self.sleep(s)
        return "done"

    @rpc
    async def bounded(self, s: float) -> str:
        try:
            async with self.deadline(0.02):
                await self.sleep(s)
        except DeadlineExceeded:
            return "late"
        return "in time"

    @rpc
    def no(self, why: str) -> int:
        raise Refused(why)

    @rpc
    async def wait_gate(self) -> int:
        return await self.gate.wait()

    @rpc
    def open_gate(self, value: int) -> None:
        self.gate.set(value)

    @rpc
    async def square(self, x: np.ndarray) -> np.ndarray:
        return await self.compute(np.square, x)

    @rpc
    def who(self, sender: int) -> int:
        return sender


class Questions(Problem):
    """Asks a server everything and returns the answers."""

    async def drive(self, d):
        found = {}
        found["add"] = await d.ask(0, Server.add, 2, b=5)
        found["default"] = await d.ask(1, Server.add, 2)
        try:
            await d.ask(0, Server.no, "not today")
        except Refused as no:
            found["refused"] = str(no)
        try:
            async with d.deadline(0.02):
                await d.ask(0, Server.slow, 5.0)
        except DeadlineExceeded:
            found["deadline"] = True
        found["bounded"] = await d.all(*(d.ask(0, Server.bounded, s) for s in (0.0, 1.0)))
        gate = d.spawn(d.ask(0, Server.wait_gate))
        await d.sleep(0.01)
        d.tell(0, Server.open_gate, 7)
        found["gate"] = await gate
        place, value = await d.first(d.ask(0, Server.slow, 2.0), d.ask(1, Server.slow, 0.01))
        found["first"] = (place, value)
        found["square"] = (await d.ask(1, Server.square, np.arange(4.0))).tolist()
        found["sender"] = await d.ask(1, Server.who)
        queue, lock, order = d.queue(), d.lock(), []

        async def worker(name):
            async with lock:
                order.append(name)
                await d.sleep(0.001)
            queue.put(name)

        for name in "abc":
            d.spawn(worker(name))
        found["queue"] = [await queue.get() for _ in range(3)]
        found["order"] = order
        return found


def test_every_waiting_primitive_answers_alike():
    world = World.lan(2)
    virtual, real = (play(e, Server(), Questions(), world).driven for e in ENGINES)
    assert real == virtual
    assert real["refused"] == "not today" and real["first"] == (1, "done")
    assert real["bounded"] == ["in time", "late"] and real["sender"] == 2


class Breaks(Node):
    async def main(self):
        await self.sleep(0.02)
        if self.id == 1:
            raise ValueError("the part is broken")


class AwaitsAsyncio(Node):
    async def main(self):
        import asyncio

        await asyncio.sleep(0.01)


class DiesHard(Node):
    async def main(self):
        import os
        import sys

        await self.sleep(0.02)
        if self.id == 0:
            print("last words of the node", file=sys.stderr)
            os._exit(9)


def test_an_unhandled_error_names_node_time_and_place():
    with pytest.raises(PartError, match=r"node 1 failed at .* ValueError: the part is broken") as e:
        play(ProcessEngine, Breaks(), None, World.lan(3), 5.0)
    assert "in main" in str(e.value)


def test_awaiting_asyncio_is_a_named_error():
    with pytest.raises(PartError, match="not of this engine"):
        play(ProcessEngine, AwaitsAsyncio(), None, World.lan(1), 5.0)


def test_a_process_that_ends_by_itself_is_an_error_with_its_last_words():
    with pytest.raises(PartError, match="code 9, which no fault asked for") as e:
        play(ProcessEngine, DiesHard(), None, World.lan(2), 5.0)
    assert "last words of the node" in str(e.value)


class BrokenWorkload(Problem):
    async def drive(self, driver):
        await driver.sleep(0.01)
        raise KeyError("workload")


def test_a_broken_workload_blames_the_driver():
    with pytest.raises(PartError, match=r"the driver failed at .* KeyError"):
        play(ProcessEngine, Server(), BrokenWorkload(), World.lan(1), 5.0)


class AsksTheDeaf(Node):
    @rpc
    async def never(self) -> int:
        return await self.event().wait()

    async def main(self):
        if self.id == 0:
            await self.ask(1, AsksTheDeaf.never)


def test_quiet_is_noticed_and_an_open_ask_is_a_violation():
    for engine in ENGINES:
        outcome = engine({"node": AsksTheDeaf()}, world=World.lan(2), seed=1).run()
        assert outcome.ended == "quiet"
        assert [v.kind for v in outcome.violations] == ["unanswered_ask"]
        assert outcome.violations[0].node == 0


def test_a_workload_that_waits_for_nothing_is_stuck():
    outcome = play(ProcessEngine, Server(), Problem(), World.lan(1), None)
    assert outcome.ended == "quiet"
    assert [v.kind for v in outcome.violations] == ["stuck"]


class Mistyped(Node):
    @rpc
    def take(self, value: int) -> None:
        self.emit(took=value)

    async def main(self):
        if self.id == 0:
            self.tell(1, Mistyped.take, "not a number")
            self.tell(1, Mistyped.take, 5)


def test_a_message_that_does_not_fit_is_a_violation_and_breaks_nothing():
    outcome = ProcessEngine({"node": Mistyped()}, world=World.lan(2)).run()
    assert [v.kind for v in outcome.violations] == ["malformed_message"]
    assert "Mistyped.take" in outcome.violations[0].message
    assert [v for _, _, v in outcome.emitted("took")] == [5]


class Bulky(Node):
    """Passes an array round, in parts of all shapes."""

    @rpc
    def ping(self) -> bool:
        return True

    async def main(self):
        shapes = [(300_000,), (0,), (3, 5), ()]
        if self.id == 0:
            for i, shape in enumerate(shapes):
                data = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape) + i
                await self.transfer(1, data, tag="x")
            self.emit(sent=len(shapes))
        elif self.id == 1:
            for i, shape in enumerate(shapes):
                got = await self.receive(0, tag="x")
                want = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape) + i
                assert got.dtype == want.dtype
                self.emit(equal=bool(np.array_equal(got, want)), shape=got.shape)


@pytest.mark.parametrize("per_process", [1, 2])
def test_arrays_arrive_whole(per_process):
    outcome = ProcessEngine(
        {"node": Bulky()}, world=World.lan(2), nodes_per_process=per_process
    ).run(10)
    assert [v for _, _, v in outcome.emitted("sent")] == [4]
    assert [v for _, _, v in outcome.emitted("equal")] == [True] * 4
    assert [v for _, _, v in outcome.emitted("shape")] == [(300_000,), (0,), (3, 5), ()]
    assert outcome.extra["transfer_bytes"] == 8 * (300_000 + 15 + 1)


class Counting(Node):
    """All nodes add to one number: in the store by conditional put, in an arena under its lock."""

    times: int = 5

    async def main(self):
        done = 0
        while done < self.times:
            now = await self.store.get("count")
            data, tag = now if now is not None else (b"0", None)
            made = await self.store.put_if("count", str(int(data) + 1).encode(), tag)
            done += made is not None
        arena = self.arena("count", 8)
        for _ in range(200):
            with arena.locked():
                value = int.from_bytes(arena[:8], "little")
                arena[:8] = (value + 1).to_bytes(8, "little")
        self.emit(done=done)


class CountDriver(Problem):
    async def drive(self, driver):
        while True:
            await driver.sleep(0.02)
            found = await driver.store.get("count")
            arena = driver.arena("count", 8)
            if found == (b"15", found[1] if found else "") and arena[:8] == (600).to_bytes(
                8, "little"
            ):
                return await driver.store.list("co")


def test_store_and_arena_lose_no_update():
    engine = ProcessEngine(
        {"node": Counting()}, world=World.lan(3), problem=CountDriver(), raw=True, seed=1
    )
    outcome = engine.run(10)
    assert outcome.driven == ["count"]
    assert outcome.money > 0


class Listening(Monitor):
    def start(self):
        self.heard = []

    def on_emit(self, time_s, node, values):
        self.heard.append((node, values))


def test_monitors_and_logs_are_fed():
    class Talker(Node):  # a local class: children are forked, so it needs no import path
        async def main(self):
            self.log("hello", self.id)
            self.emit(value=self.id * 10, clock_ok=abs(self.clock() - self.now) < 0.5)

    monitor, logs = Listening(), []
    engine = ProcessEngine(
        {"node": Talker()}, world=World.lan(3), monitors=[monitor],
        on_log=lambda *words: logs.append(words[1:]),
    )  # fmt: skip
    assert engine.run().ended == "quiet"
    assert sorted(v["value"] for _, v in monitor.heard) == [0, 10, 20]
    assert all(v["clock_ok"] for _, v in monitor.heard)
    assert sorted(logs) == [(0, "hello 0"), (1, "hello 1"), (2, "hello 2")]


def test_what_cannot_be_real_is_refused_before_anything_starts():
    with pytest.raises(PlatformLacks, match="chosen"):
        ProcessEngine({"node": Server()}, world=World.chosen(2))
    twins = World.lan(4).with_faults(Byzantine(node=1, strategies=("twins",)))
    with pytest.raises(FaultError, match="twins"):
        ProcessEngine({"node": Server()}, world=twins)
    for bad in ({"nodes_per_process": 0}, {"max_frame_B": -1}):
        with pytest.raises(PartError, match="whole number"):
            ProcessEngine({"node": Server()}, world=World.lan(2), **bad)
    with pytest.raises(UsageError, match='did you mean "fork"'):
        ProcessEngine({"node": Server()}, world=World.lan(2), start="forks")
    with pytest.raises(UsageError, match="until_s"):
        ProcessEngine({"node": Server()}, world=World.lan(2)).run(float("nan"))


class Averager(Worker):
    """Each rank brings its own numbers; all leave with the mean and the sum."""

    async def main(self):
        mine = np.arange(5000.0) * (self.rank + 1)
        mean = await self.mean(mine)
        total = await self.sum(np.array([self.rank]))
        self.emit(mean=mean[:3].tolist(), last=float(mean[-1]), total=int(total[0]))


class Taps(Monitor):
    def start(self):
        self.seen = []

    def before_collective(self, time_s, node, kind, tag, data):
        self.seen.append(("before", node, kind))

    def after_collective(self, time_s, node, kind, tag, data):
        self.seen.append(("after", node, kind))


def test_collectives_give_the_same_and_monitors_see_them():
    found = []
    for engine in ENGINES:
        taps = Taps()
        outcome = engine({"node": Averager()}, world=World.lan(3), monitors=[taps], seed=1).run(20)
        found.append(sorted((r.node, repr(r.values)) for r in outcome.records))
        assert len(found[-1]) == 3
        found.append(sorted(taps.seen))
    assert found[2:] == found[:2]
    assert len(found[1]) == 12


class Alone(Problem):
    """A problem that hosts nobody: the driver does all."""

    def host(self, part, world):
        return {}

    async def drive(self, driver):
        await driver.sleep(0.01)
        return list(driver.nodes), driver.id, driver.part


def test_a_problem_may_act_alone():
    for engine in ENGINES:
        outcome = engine({}, world=World.lan(3), problem=Alone(), part="thing").run(5)
        assert outcome.driven == ([0, 1, 2], 3, "thing")
        assert outcome.alive == [True] * 3


class Verbose(Node):
    """Emits more at once than a pipe holds."""

    async def main(self):
        for i in range(3):
            self.emit(blob=b"x" * 400_000, i=i)
        self.emit(last=self.id)


def test_large_emits_arrive_whole_and_in_order():
    done = run(Verbose(), world=World.lan(2), engine="processes", until_s=1.0)
    for node in (0, 1):
        mine = [r.values for r in done.records if r.node == node]
        assert [v.get("i", "last") for v in mine] == [0, 1, 2, "last"]
        assert all(len(v["blob"]) == 400_000 for v in mine[:3])
