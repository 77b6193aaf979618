"""Faults on real processes: each one fires, has its effect, and the effect is absent without it."""

import os
from itertools import pairwise

import numpy as np
import pytest

from orrery.base.errors import DeadlineExceeded, DiskError
from orrery.engines.processes import ProcessEngine
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, Problem, rpc
from orrery.world import (
    BitFlip,
    Byzantine,
    ClockDrift,
    ClockJump,
    ClockSkew,
    Clog,
    Corrupt,
    Crash,
    DiskFull,
    DomainLoss,
    Drop,
    Duplicate,
    Group,
    Hang,
    MisdirectedWrite,
    NicFlap,
    Partition,
    Pause,
    PowerCap,
    PriceJump,
    RandomCrashes,
    Reorder,
    Slow,
    SpotReclaim,
    Straggler,
    TornWrite,
    World,
)


class Diary(Node):
    """Writes numbers to disk, synced, and reads them back when it starts again."""

    def start(self):
        self.volatile = 0

    @rpc
    async def note(self, value: int) -> int:
        self.volatile += 1
        await self.disk.append("diary", value.to_bytes(4, "little"))
        await self.disk.fsync("diary")
        return value

    @rpc
    async def recall(self) -> list[int]:
        if not self.disk.exists("diary"):
            return []
        data = await self.disk.read("diary")
        return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]

    async def main(self):
        self.emit(again=self.incarnation, pid=os.getpid(), pick=self.rng.below(1 << 30))


class Diarist(Problem):
    """Notes numbers until node 0 has crashed and come back, then asks what is left."""

    async def drive(self, driver):
        acknowledged, number = [], 0
        while driver.now < 0.5:
            number += 1
            try:
                async with driver.deadline(0.05):
                    acknowledged.append(await driver.ask(0, Diary.note, number))
            except DeadlineExceeded:
                continue
        async with driver.deadline(5.0):
            return acknowledged, await driver.ask(0, Diary.recall)


def test_sigkill_and_restart_keep_what_was_synced():
    world = World.lan(2).with_faults(Crash(node=0, at_s=0.1, until_s=0.25))
    problem = Diarist()
    for engine in (Engine, ProcessEngine):
        outcome = engine({"node": Diary()}, world=world, problem=problem, seed=5).run(10)
        acknowledged, recalled = outcome.driven
        assert set(acknowledged) <= set(recalled)
        assert acknowledged
        assert [v for _, n, v in outcome.emitted("again") if n == 0] == [0, 1]
        picks = [v for _, n, v in outcome.emitted("pick") if n == 0]
        assert len(set(picks)) == 2  # fresh numbers after the restart, the same in both engines
        if engine is Engine:
            virtual_picks = picks
    assert picks == virtual_picks
    assert len({v for _, n, v in outcome.emitted("pid") if n == 0}) == 2  # really another process
    assert outcome.extra["restarts"] == 1
    assert outcome.extra["incarnations"] == {0: 1}
    assert outcome.extra["faults_fired"] == {"Crash": 1}
    assert outcome.alive == [True, True]


class Ticker(Node):
    """Emits a tick every 10 ms, and answers pings."""

    def start(self):
        self.pings = []

    @rpc
    def ping(self, number: int) -> int:
        self.pings.append(number)
        return number

    @rpc
    def heard(self) -> list[int]:
        return self.pings

    @rpc
    def ticked(self) -> int:
        return self.ticks

    async def main(self):
        self.ticks = 0
        for number in range(40):
            await self.sleep(0.01)
            self.ticks += 1
            self.emit(tick=number, clock=self.clock())
            if self.id == 0:
                self.tell(1, Ticker.ping, number)


def ticks(*faults, n=2, until_s=None, seed=2, **options):
    world = World.lan(n, latency_s=0.0001).with_faults(*faults)
    return ProcessEngine({"node": Ticker()}, world=world, seed=seed, **options).run(until_s)


def gap(outcome, node):
    times = [t for t, n, _ in outcome.emitted("tick") if n == node]
    return max(b - a for a, b in pairwise(times))


def test_pause_stops_the_process_and_forgets_nothing():
    outcome = ticks(Pause(node=1, at_s=0.1, until_s=0.3))
    assert gap(outcome, 1) > 0.1
    assert [v for _, n, v in outcome.emitted("tick") if n == 1] == list(range(40))
    assert outcome.extra["faults_fired"] == {"Pause": 1}


def test_hang_holds_the_code_but_takes_messages():
    class Asker(Problem):
        async def drive(self, driver):
            await driver.sleep(0.15)
            late = False
            try:
                async with driver.deadline(0.05):
                    await driver.ask(1, Ticker.ping, 99)
            except DeadlineExceeded:
                late = True
            while await driver.ask(1, Ticker.ticked) < 40:
                await driver.sleep(0.02)
            return late, await driver.ask(1, Ticker.heard)

    world = World.lan(2).with_faults(Hang(node=1, at_s=0.1, until_s=0.3))
    outcome = ProcessEngine({"node": Ticker()}, world=world, problem=Asker()).run(5)
    late, heard = outcome.driven
    assert late and 99 in heard  # it was taken in, and handled afterwards
    assert gap(outcome, 1) > 0.1


def test_slow_gives_the_process_a_part_of_the_time():
    took = {n: v for _, n, v in crunch(Slow(node=1, factor=10.0), times=20).emitted("took")}
    assert took[1] > 1.5 * took[0]


class Talk(Problem):
    """Waits for the tickers to end, and asks what node 1 heard."""

    async def drive(self, driver):
        while await driver.ask(0, Ticker.ticked) < 40:
            await driver.sleep(0.02)
        await driver.sleep(0.15)
        return await driver.ask(1, Ticker.heard)


def heard(*faults, **options):
    world = World.lan(2, latency_s=0.0001).with_faults(*faults)
    engine = ProcessEngine({"node": Ticker()}, world=world, problem=Talk(), seed=3, **options)
    outcome = engine.run(5)
    fired = sum(outcome.extra["faults_fired"].values())
    assert bool(fired) == bool(faults), outcome.extra
    assert outcome.extra["faults_never_fired"] == []
    return outcome.driven, outcome


def test_without_faults_all_is_heard_once_and_in_order():
    numbers, _ = heard()
    assert numbers == list(range(40))


def test_traffic_faults_at_the_sender():
    numbers, outcome = heard(Partition(node=0, at_s=0.1, until_s=0.3))
    for time_s, _, number in (each for each in outcome.emitted("tick") if each[1] == 0):
        if min(abs(time_s - 0.1), abs(time_s - 0.3)) > 0.005:  # told just after it was emitted
            assert (number in numbers) == (not 0.1 <= time_s < 0.3)
    assert outcome.extra["shimmed"] == 40 - len(numbers) > 0
    numbers, _ = heard(Partition(groups=((0,), (1,)), one_way=True))
    assert numbers == []
    world = World.lan(2).with_faults(Partition(groups=((1,), (0,)), one_way=True))
    outcome = ProcessEngine({"node": Ticker()}, world=world, problem=Talk()).run(5)
    assert outcome.driven == list(range(40))  # the open direction
    assert outcome.extra["faults_never_fired"] == ["Partition at 0 s"]
    numbers, _ = heard(Drop(p=0.5, link=(0, 1)))
    assert 5 < len(numbers) < 35


def test_duplicate_reorder_corrupt_and_flap():
    numbers, _ = heard(Duplicate(p=1.0, node=0))
    assert numbers == sorted([*range(40), *range(40)])
    numbers, _ = heard(Reorder(p=0.5, spread_s=0.05))
    assert sorted(numbers) == list(range(40)) != numbers
    numbers, outcome = heard(Corrupt(p=1.0, node=0, until_s=0.2))
    assert outcome.extra["corrupt"] == 40 - len(numbers) > 0  # dropped by the checksum
    assert outcome.violations == []
    numbers, _ = heard(NicFlap(node=1, period_s=0.1, down_fraction=0.5))
    assert 0 < len(numbers) < 40


def test_clog_is_late_and_a_flipped_bit_reaches_the_part():
    numbers, _ = heard(Clog(link=(0, 1), delay_s=10.0))
    assert numbers == []
    numbers, outcome = heard(BitFlip(node=0, p=1.0, where="message"))
    assert outcome.extra["corrupt"] == 0  # the checksum fits: the part itself must notice
    assert numbers != list(range(40))


def test_clock_faults_bend_the_clock_and_not_the_time():
    outcome = ticks(
        ClockSkew(node=0, at_s=0.1, until_s=0.2, skew_s=5.0),
        ClockDrift(node=1, at_s=0.1, drift=1.0),
        ClockJump(node=0, at_s=0.3, jump_s=-7.0),
    )
    for time_s, node, reading in outcome.emitted("clock"):
        off = reading - time_s
        if node == 0:
            want = 5.0 if 0.1 <= time_s < 0.2 else -7.0 if time_s >= 0.3 else 0.0
            near_edge = min(abs(time_s - edge) for edge in (0.1, 0.2, 0.3)) < 0.01
            assert near_edge or abs(off - want) < 0.02
        else:
            assert abs(off - max(0.0, time_s - 0.1)) < 0.02
    assert set(outcome.extra["faults_fired"]) == {"ClockSkew", "ClockDrift", "ClockJump"}


class Writer(Node):
    """Writes, misreads, fills the disk."""

    async def main(self):
        try:
            await self.disk.write("file", b"a" * 10_000)
            if self.id == 0:
                await self.disk.append("file", b"b" * 10_000)
            self.emit(data=await self.disk.read("file"), names=self.disk.names())
        except DiskError as error:
            self.emit(error=str(error))
        if self.incarnation:
            self.emit(size_again=len(await self.disk.read("old")))
        elif not self.disk.exists("file"):
            return
        else:
            await self.disk.write("old", b"x" * 50_000)


def written(*faults, until_s=None):
    world = World.lan(2).with_faults(*faults)
    return ProcessEngine({"node": Writer()}, world=world, seed=4).run(until_s)


def test_disk_faults():
    plain = {n: v for _, n, v in written().emitted("data")}
    assert plain == {0: b"a" * 10_000 + b"b" * 10_000, 1: b"a" * 10_000}
    full = written(DiskFull(node=0))
    assert "full" in next(v for _, n, v in full.emitted("error") if n == 0)
    assert [n for _, n, _ in full.emitted("data")] == [1]
    flipped = {n: v for _, n, v in written(BitFlip(node=1, p=1.0)).emitted("data")}
    changed = [i for i in range(10_000) if flipped[1][i] != ord("a")]
    assert len(changed) == 1 and flipped[0] == plain[0]
    once = {n: v for _, n, v in written(BitFlip(node=1)).emitted("data")}
    assert once[1] != plain[1]
    lost = {n: v for _, n, v in written(MisdirectedWrite(node=0, p=1.0)).emitted("data")}
    assert lost[0] != plain[0] and lost[1] == plain[1]


def test_a_torn_write_is_cut_at_a_page_before_the_restart():
    outcome = written(TornWrite(node=0, p=1.0), Crash(node=0, at_s=0.4, until_s=0.5))
    (size,) = [v for _, n, v in outcome.emitted("size_again") if n == 0]
    assert size < 50_000 and size % 4096 == 0
    kept = written(Crash(node=0, at_s=0.4, until_s=0.5))
    assert [v for _, n, v in kept.emitted("size_again") if n == 0] == [50_000]


class Cruncher(Node):
    times: int = 1

    async def main(self):
        began = self.now
        data = np.ones(1000)
        for _ in range(self.times):
            total = await self.compute(busy, data)
        self.emit(took=self.now - began, total=total)

    def on_notice(self, left_s):
        self.emit(noticed=left_s)


def busy(data):
    total = 0.0
    for _ in range(2000):
        total = float(data.sum())
    return total


def crunch(*faults, until_s=None, times=1):
    world = World.lan(2).with_faults(*faults)
    return ProcessEngine({"node": Cruncher(times=times)}, world=world, seed=4).run(until_s)


def test_compute_faults():
    outcome = crunch(Straggler(node=1, factor=20.0))
    took = {n: v for _, n, v in outcome.emitted("took")}
    assert took[1] > 3 * took[0]
    machine = World.lan(2).machine_of(0)
    watts = machine.idle_W + (machine.active_W - machine.idle_W) / 20
    took = {n: v for _, n, v in crunch(PowerCap(node=0, watts=watts)).emitted("took")}
    assert took[0] > 3 * took[1]
    totals = {n: v for _, n, v in crunch(BitFlip(node=1, where="memory")).emitted("total")}
    assert totals[0] == 1000.0 != totals[1]
    lies = crunch(Byzantine(node=1, strategies=("mutate",)))
    totals = {n: v for _, n, v in lies.emitted("total")}
    assert totals[0] == 1000.0 != totals[1]


def test_spot_reclaim_warns_then_kills():
    outcome = crunch(SpotReclaim(node=1, at_s=0.3, notice_s=0.2))
    assert [n for _, n, _ in outcome.emitted("noticed")] == [1]
    assert outcome.alive == [True, False]


def test_domain_loss_takes_a_whole_group_and_prices_jump():
    groups = (Group(name="web", count=2), Group(name="db", count=1))
    world = World(groups=groups, faults=(DomainLoss(domain="web", at_s=0.1),))
    parts = {"web": Ticker(), "db": Ticker()}
    outcome = ProcessEngine(parts, world=world).run()
    assert outcome.alive == [False, False, True]
    plain, dear = crunch(until_s=0.2), crunch(PriceJump(factor=50.0), until_s=0.2)
    assert dear.money >= plain.money
    assert dear.extra["faults_fired"]["PriceJump"] == 1


class Voter(Node):
    """Tells all others a number; a lying one tells half of them another."""

    def start(self):
        self.told = {}

    @rpc
    def vote(self, value: int, sender: int) -> None:
        self.told[sender] = value

    async def main(self):
        await self.sleep(0.05)
        for peer in self.peers:
            self.tell(peer, Voter.vote, 1000 + self.id)
        await self.sleep(0.7)
        self.emit(told=self.told)


@pytest.mark.parametrize("strategy", ["equivocate", "silence", "selective"])
def test_a_liar_lies_as_it_does_in_virtual_time(strategy):
    to = (1,) if strategy == "selective" else ()
    world = World.lan(5).with_faults(Byzantine(node=2, strategies=(strategy,), to=to))
    told = []
    for engine in (Engine, ProcessEngine):
        outcome = engine({"node": Voter()}, world=world, seed=6).run(5.0)
        told.append({n: dict(sorted(v.items())) for _, n, v in outcome.emitted("told")})
    assert told[0] == told[1]
    assert {n: v.get(2) for n, v in told[1].items() if n != 2} != dict.fromkeys((0, 1, 3, 4), 1002)
    assert told[1][0][1] == 1001  # the honest are heard as they are


class Chatty(Node):
    """Emits as fast as it can, so that a kill falls between two emits."""

    async def main(self):
        number = 0
        while self.id == 0 and self.incarnation == 0:
            number += 1
            self.emit(number=number)
            (self.arena("said", 8))[:8] = number.to_bytes(8, "little")
            await self.sleep(0.0)


class Listens(Problem):
    async def drive(self, driver):
        await driver.sleep(0.4)
        return int.from_bytes(driver.arena("said", 8)[:8], "little")


def test_what_was_emitted_before_a_sigkill_is_not_lost():
    world = World.lan(2).with_faults(Crash(node=0, at_s=0.1))
    outcome = ProcessEngine({"node": Chatty()}, world=world, problem=Listens()).run(5)
    numbers = [v for _, _, v in outcome.emitted("number")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= outcome.driven > 0  # the arena outlives its writer


def test_random_crashes_are_the_same_faults_in_both_engines():
    crashes = RandomCrashes(count=3, between_s=(0.05, 0.4), down_s=0.05, at_most=2)
    world = World.lan(4).with_faults(crashes)
    again = []
    for engine in (Engine, ProcessEngine):
        outcome = engine({"node": Diary()}, world=world, seed=9).run(1.0)
        again.append(sorted((n, v) for _, n, v in outcome.emitted("again")))
    assert again[0] == again[1] and len(again[0]) > 4


def test_overlapping_crashes_count():
    outcome = ticks(Crash(node=1, at_s=0.05, until_s=0.3), Crash(node=1, at_s=0.1, until_s=0.15))
    again = [t for t, n, v in outcome.emitted("tick") if n == 1 and v == 0 and t > 0.05]
    assert all(t > 0.3 for t in again)
    assert outcome.extra["restarts"] == 1
