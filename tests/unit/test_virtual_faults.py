"""How faults act: overlaps, edges, streams of their own, and flows under faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, rpc
from orrery.world import (
    BitFlip,
    ClockDrift,
    ClockJump,
    ClockSkew,
    Clog,
    Crash,
    Drop,
    Duplicate,
    Hang,
    NicFlap,
    Partition,
    Pause,
    RandomCrashes,
    Reorder,
    Slow,
    SpotReclaim,
    World,
)


def _kernels() -> list[str]:
    try:
        from orrery.engines.virtual import _kernel  # noqa: F401
    except ImportError:
        return ["python"]
    return ["python", "c"]


@pytest.fixture(params=_kernels())
def kernel(request: Any) -> str:
    return str(request.param)


class Beat(Node):
    """Tells everyone the number of its beat, every tenth of a second."""

    beats: int = 10

    def start(self) -> None:
        self.beat = 0

    @rpc
    def hear(self, beat: int, sender: int) -> None:
        self.emit(heard=(sender, beat))

    async def main(self) -> None:
        self.emit(started=self.incarnation)
        for _ in range(self.beats):
            for peer in self.peers:
                self.tell(peer, Beat.hear, self.beat)
            self.beat += 1
            await self.sleep(0.1)


def beat(
    *faults: Any, n: int = 3, seed: int = 0, kernel: str = "python", part: Any = None, **net: Any
) -> Any:
    world = World.lan(n, **{"jitter": 0.0, **net}).with_faults(*faults)
    engine = Engine({"node": part or Beat()}, world=world, seed=seed, kernel=kernel)
    outcome = engine.run()
    outcome.extra.update(engine.faults.extra())
    return outcome


def heard(outcome: Any, by: int, of: int) -> list[int]:
    found = outcome.emitted("heard")
    return [number for _, node, (src, number) in found if node == by and src == of]


ALL = list(range(10))


def test_without_faults_everything_is_heard(kernel: str) -> None:
    outcome = beat(kernel=kernel)
    assert all(heard(outcome, by, of) == ALL for by in range(3) for of in range(3) if by != of)


def test_overlapping_crashes_end_with_the_last(kernel: str) -> None:
    first, second = (
        Crash(node=1, at_s=0.15, until_s=0.45),
        Crash(node=1, at_s=0.25, until_s=0.75),
    )
    outcome = beat(first, second, kernel=kernel)
    assert [(round(t, 2), n) for t, n, i in outcome.emitted("started") if i] == [(0.75, 1)]
    assert heard(outcome, 0, 1)[:2] == [0, 1]
    assert heard(outcome, 1, 0) == [0, 1, 8, 9]
    assert outcome.extra["faults_fired"]["Crash"] == 1, "the second found it down already"
    assert outcome.extra["faults_never_fired"] == ["Crash at 0.25 s"]


def test_a_crash_for_ever_is_not_ended_by_another(kernel: str) -> None:
    outcome = beat(Crash(node=1, at_s=0.1), Crash(node=1, at_s=0.2, until_s=0.3), kernel=kernel)
    assert outcome.alive == [True, False, True]
    assert [i for _, n, i in outcome.emitted("started") if n == 1] == [0]


def test_a_node_crashed_at_zero_never_speaks(kernel: str) -> None:
    outcome = beat(Crash(node=1, until_s=0.55), kernel=kernel)
    assert [i for _, n, i in outcome.emitted("started") if n == 1] == [1]
    assert heard(outcome, 1, 0) == [6, 7, 8, 9]


@pytest.mark.parametrize("kind", [Pause, Hang])
def test_overlapping_pauses_end_with_the_last_and_lose_nothing(kernel: str, kind: Any) -> None:
    faults = kind(node=1, at_s=0.15, until_s=0.45), kind(node=1, at_s=0.25, until_s=0.75)
    outcome = beat(*faults, kernel=kernel)
    assert heard(outcome, 1, 0) == ALL
    times = [time for time, node, (src, _) in outcome.emitted("heard") if node == 1 and src == 0]
    assert not any(0.15 < time < 0.75 for time in times)
    assert sum(abs(time - 0.75) < 1e-6 for time in times) == 6


def test_a_crash_in_a_pause_restarts_paused(kernel: str) -> None:
    outcome = beat(
        Pause(node=1, at_s=0.15, until_s=0.75), Crash(node=1, at_s=0.25, until_s=0.45),
        kernel=kernel,
    )  # fmt: skip
    started = [(round(t, 2), i) for t, n, i in outcome.emitted("started") if n == 1]
    assert started == [(0.0, 0), (0.75, 1)]


def test_partitions_stack_and_unwind_in_any_order(kernel: str) -> None:
    # First {0} | {1, 2}, then also {0, 1} | {2}, then only the second one, then none.
    outcome = beat(
        Partition(node=0, at_s=0.15, until_s=0.55), Partition(node=2, at_s=0.35, until_s=0.75),
        kernel=kernel,
    )  # fmt: skip
    assert heard(outcome, 0, 1) == [0, 1, 6, 7, 8, 9]
    assert heard(outcome, 2, 1) == [0, 1, 2, 3, 8, 9]
    assert heard(outcome, 0, 2) == [0, 1, 8, 9]


def test_groups_and_one_way_partitions(kernel: str) -> None:
    groups = Partition(groups=((0, 1), (2,)), at_s=0.05)
    outcome = beat(groups, n=4, kernel=kernel)
    assert heard(outcome, 0, 1) == ALL
    assert heard(outcome, 2, 0) == heard(outcome, 3, 2) == heard(outcome, 0, 3) == [0]
    one_way = beat(Partition(node=0, one_way=True, at_s=0.05, until_s=0.55), kernel=kernel)
    assert heard(one_way, 0, 1) == ALL, "from the rest to the cut-off node: yes"
    assert heard(one_way, 1, 0) == [0, 6, 7, 8, 9], "from it to the rest: no"


def test_a_fault_from_zero_meets_the_first_message(kernel: str) -> None:
    assert heard(beat(Partition(node=0), kernel=kernel), 1, 0) == []
    assert heard(beat(Drop(p=1.0), kernel=kernel), 1, 0) == []
    assert heard(beat(Drop(link=(0, 1), p=1.0), kernel=kernel), 1, 0) == []


def test_drops_on_links_nodes_and_everywhere(kernel: str) -> None:
    link = beat(Drop(link=(0, 1), p=1.0, at_s=0.15, until_s=0.35), kernel=kernel)
    assert heard(link, 1, 0) == heard(link, 0, 1) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert heard(link, 2, 0) == heard(link, 0, 2) == ALL
    node = beat(Drop(node=0, p=1.0, at_s=0.15), kernel=kernel)
    assert heard(node, 1, 0) == heard(node, 0, 1) == [0, 1]
    assert heard(node, 1, 2) == ALL
    both = beat(
        Drop(p=1.0, at_s=0.15, until_s=0.35), Drop(p=1.0, at_s=0.25, until_s=0.55), kernel=kernel
    )
    assert heard(both, 1, 0) == [0, 1, 6, 7, 8, 9]


def test_half_of_the_messages_are_lost_on_average() -> None:
    part = Beat(beats=400)
    for fault in (Drop(p=0.5), Drop(node=0, p=0.5), Drop(link=(0, 1), p=0.5)):
        assert 150 < len(heard(beat(fault, n=2, part=part), 1, 0)) < 250
    stacked = beat(Drop(p=0.5), Drop(p=0.5), n=2, part=part)
    assert 60 < len(heard(stacked, 1, 0)) < 140


def test_duplicates_by_fault_and_by_network(kernel: str) -> None:
    assert heard(beat(Duplicate(node=0, p=1.0), kernel=kernel), 1, 0) == sorted(ALL + ALL)
    everywhere = beat(kernel=kernel, duplicate=1.0)
    assert heard(everywhere, 2, 1) == sorted(ALL + ALL)


def test_a_fault_on_both_ends_acts_once() -> None:
    outcome = beat(Duplicate(node=(0, 1), p=1.0), n=2)
    assert len(heard(outcome, 1, 0)) == 20


def test_reordering_changes_the_order_and_loses_nothing(kernel: str) -> None:
    fault = Reorder(node=0, p=0.5, spread_s=0.5)
    order = heard(beat(fault, n=2, kernel=kernel), 1, 0)
    assert sorted(order) == ALL and order != ALL


def test_clog_delays_and_narrows(kernel: str) -> None:
    def first(outcome: Any) -> float:
        return min(
            time for time, node, (src, _) in outcome.emitted("heard") if (node, src) == (1, 0)
        )

    plain = first(beat(kernel=kernel))
    assert first(beat(Clog(link=(0, 1), delay_s=0.03), kernel=kernel)) == pytest.approx(
        plain + 0.03
    )
    twice = [Clog(node=0, delay_s=0.03), Clog(delay_s=0.02)]
    assert first(beat(*twice, kernel=kernel)) == pytest.approx(plain + 0.05)
    narrow = beat(Clog(node=0, fraction=0.5), kernel=kernel, bandwidth_Bps=1e4)
    wide = beat(kernel=kernel, bandwidth_Bps=1e4)
    assert first(narrow) - first(wide) > 0.005


def test_a_slow_node_is_late(kernel: str) -> None:
    def late(outcome: Any, src: int, dst: int) -> float:
        return min(t for t, node, (of, _) in outcome.emitted("heard") if (node, of) == (dst, src))

    slow = beat(Slow(node=0, factor=5.0), kernel=kernel, latency_s=0.001)
    assert late(slow, 0, 1) == pytest.approx(0.005, rel=0.01)
    assert late(slow, 1, 0) == pytest.approx(0.001, rel=0.01)


def test_a_flapping_nic_loses_what_is_sent_while_down(kernel: str) -> None:
    flap = NicFlap(node=0, period_s=0.4, down_fraction=0.5, at_s=0.05)
    outcome = beat(flap, kernel=kernel)
    assert heard(outcome, 1, 0) == heard(outcome, 0, 1) == [0, 3, 4, 7, 8]
    assert heard(outcome, 1, 2) == ALL
    assert outcome.ended == "quiet", "a NIC that flaps for ever does not keep the run going"


class Reads(Node):
    async def main(self) -> None:
        for _ in range(8):
            self.emit(off=round(self.clock() - self.now, 6))
            await self.sleep(1.0)


def test_clock_faults_stack_and_unwind() -> None:
    def offsets(*faults: Any) -> list[float]:
        outcome = beat(*faults, n=1, part=Reads())
        return [value for _, _, value in outcome.emitted("off")]

    skews = [ClockSkew(node=0, skew_s=2.0, at_s=0.5, until_s=3.5)]
    skews += [ClockSkew(node=0, skew_s=-1.0, at_s=1.5, until_s=2.5)]
    assert offsets(*skews) == [0, 2, 1, 2, 0, 0, 0, 0]
    assert offsets(ClockJump(node=0, jump_s=-3.0, at_s=1.5)) == [0, 0, -3, -3, -3, -3, -3, -3]
    drifts = [ClockDrift(node=0, drift=0.1, at_s=1.0, until_s=4.0)]
    drifts += [ClockDrift(node=0, drift=0.2, at_s=2.0, until_s=5.0)]
    expected = pytest.approx([0, 0, 0.1, 0.4, 0.7, 0.9, 0.9, 0.9])
    assert offsets(*drifts) == expected


def test_a_spot_node_is_told_before_it_goes(kernel: str) -> None:
    class Spot(Beat):
        async def on_notice(self, left_s: float) -> None:
            await self.disk.write("saved", b"state")
            await self.disk.fsync("saved")
            self.emit(told=(round(self.now, 6), left_s))

        async def main(self) -> None:
            self.emit(saved=self.disk.exists("saved"))
            await self.sleep(5.0)

    outcome = beat(SpotReclaim(node=1, at_s=2.0, until_s=3.0, notice_s=0.5), part=Spot(), n=2)
    ((_, node, (when, left_s)),) = outcome.emitted("told")
    assert (node, left_s) == (1, 0.5) and when == pytest.approx(1.5, abs=0.01)
    assert [v for _, n, v in outcome.emitted("saved") if n == 1] == [False, True]
    assert [v for _, _, v in outcome.emitted("spot_notice_s")] == [0.5]


def test_an_error_in_a_notice_ends_the_run_by_name() -> None:
    class Bad(Beat):
        def on_notice(self, left_s: float) -> None:
            raise ValueError("no")

    with pytest.raises(PartError, match=r"node 1 failed at 0\.3.* ValueError: no"):
        beat(SpotReclaim(node=1, at_s=0.5, notice_s=0.2), part=Bad())


def test_memory_flips_hit_the_state_once(kernel: str) -> None:
    class Holds(Node):
        def start(self) -> None:
            self.data = np.zeros(16)
            self._private = 7

        async def main(self) -> None:
            await self.sleep(1.0)
            self.emit(bits=sum(int(byte).bit_count() for byte in self.data.view(np.uint8)))

    outcome = beat(BitFlip(node=1, at_s=0.5, where="memory"), part=Holds(), kernel=kernel)
    assert [value for _, _, value in outcome.emitted("bits")] == [0, 1, 0]


# -- flows


class Sends(Node):
    """Node 0 sends a megabyte to every other node."""

    async def main(self) -> None:
        if self.id == 0:
            data = np.zeros(1_000_000, dtype=np.uint8)
            await self.all(*(self.transfer(peer, data) for peer in self.peers))
        else:
            await self.receive(0)
            self.emit(got=self.now)


def flow_time(*faults: Any, n: int = 2) -> float:
    outcome = beat(*faults, n=n, part=Sends(), bandwidth_Bps=1e6, latency_s=0.0)
    return max((time for time, _, _ in outcome.emitted("got")), default=float("inf"))


def test_flows_stall_in_a_partition_and_go_on() -> None:
    assert flow_time() == pytest.approx(1.0)
    assert flow_time(Partition(node=0, at_s=0.5, until_s=2.5)) == pytest.approx(3.0)
    assert flow_time(Partition(node=0, until_s=2.0)) == pytest.approx(3.0)
    assert flow_time(Partition(node=0, at_s=5.0, until_s=6.0)) == pytest.approx(1.0)
    one_way = Partition(node=1, one_way=True, at_s=0.5, until_s=2.5)
    assert flow_time(one_way) == pytest.approx(1.0), "towards the cut-off node data pass"
    assert flow_time(Partition(node=0, at_s=0.5)) == float("inf")


def test_flows_narrow_in_a_clog_and_stop_at_a_flapping_nic() -> None:
    assert flow_time(Clog(node=0, fraction=0.25)) == pytest.approx(4.0)
    assert flow_time(Clog(link=(0, 1), fraction=0.5, until_s=1.0)) == pytest.approx(1.5)
    assert flow_time(Clog(link=(1, 0), fraction=0.5)) == pytest.approx(2.0)
    both = [Clog(fraction=0.5, until_s=1.0), Clog(node=1, fraction=0.5)]
    assert flow_time(*both) == pytest.approx(2.5)
    flap = NicFlap(node=1, period_s=0.5, down_fraction=0.5)
    assert flow_time(flap) == pytest.approx(2.0)
    assert flow_time(NicFlap(node=1, period_s=0.5, until_s=0.6)) == pytest.approx(1.35)


# -- streams


def test_a_fault_shifts_no_other_stream() -> None:
    class Draws(Beat):
        async def main(self) -> None:
            self.emit(drew=self.rng.random())
            await super().main()

    def arrivals(outcome: Any) -> list[Any]:
        return [r for r in outcome.records if r.node == 1 and r.values.get("heard", (9,))[0] == 2]

    # Faults on the ways of nodes 0 and 3 leave the random numbers of nodes 1 and 2 as they were.
    faults = Drop(link=(0, 3), p=0.5), Reorder(link=(3, 0), p=0.5, spread_s=0.1)
    plain, hit = (beat(*some, n=4, part=Draws(), jitter=0.5) for some in ((), faults))
    assert plain.emitted("drew") == hit.emitted("drew")
    assert len(heard(hit, 3, 0)) < 10 and arrivals(plain) == arrivals(hit)


def test_adding_a_fault_at_the_end_changes_no_other() -> None:
    first = Drop(link=(0, 1), p=0.5)
    alone, more = beat(first), beat(first, Drop(link=(1, 2), p=0.5))
    assert heard(alone, 1, 0) == heard(more, 1, 0)


def test_seeds_differ_and_kernels_agree() -> None:
    faults = RandomCrashes(count=3, between_s=(0.0, 1.0), down_s=0.1), Drop(node=0, p=0.3)
    digests = {(seed, k): beat(*faults, seed=seed, kernel=k).digest
               for seed in (1, 2) for k in _kernels()}  # fmt: skip
    assert len(set(digests.values())) == 2


def test_wire_mode_runs_under_message_faults() -> None:
    world = World.lan(3).with_faults(
        BitFlip(node=1, where="message", p=0.5), Duplicate(node=0, p=0.5), Clog(delay_s=0.01)
    )
    outcomes = [Engine({"node": Beat()}, world=world, wire=True, kernel="python").run()
                for _ in range(2)]  # fmt: skip
    assert outcomes[0].digest == outcomes[1].digest
    numbers = heard(outcomes[0], 1, 0)
    assert any(number not in ALL for number in numbers)
