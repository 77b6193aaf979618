"""The tests of the processes engine, played on Ray; and published parts on all three engines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.parity import ray_toys
from tests.parity import test_collectives_parity as collectives
from tests.parity import test_processes_engine as engine_tests
from tests.parity import test_processes_faults as fault_tests
from tests.parity import test_raft_parity as raft_tests

from orrery import World, run
from orrery.base.errors import FaultError, PartError, PlatformLacks, UsageError
from orrery.engines.virtual.engine import Engine
from orrery.lab import laws
from orrery.lab.laws.running import same_on_other_engines
from orrery.systems.collectives import AllReduce, RecursiveHalving, Ring, Tree
from orrery.systems.protocols import Broadcast, Flood, PushGossip
from orrery.systems.protocols.baselines.raft import Raft
from orrery.world import Byzantine, Crash, Pause

pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
from orrery.engines.ray import RayEngine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    """One Ray for the file; afterwards neither a process nor a file of it is left."""
    name = ray_toys.begin()
    yield
    ray_toys.end(name)


def on_ray(roles, *, nodes_per_process=None, **options):
    """The Ray engine with the words of the processes engine."""
    return RayEngine(roles, nodes_per_actor=nodes_per_process, **options)


# Those that look at the processes engine itself (how it forks, what it is called) are left out.
ENGINE_TESTS = (
    "test_every_waiting_primitive_answers_alike",
    "test_an_unhandled_error_names_node_time_and_place",
    "test_awaiting_asyncio_is_a_named_error", "test_a_broken_workload_blames_the_driver",
    "test_quiet_is_noticed_and_an_open_ask_is_a_violation",
    "test_a_workload_that_waits_for_nothing_is_stuck",
    "test_a_message_that_does_not_fit_is_a_violation_and_breaks_nothing",
    "test_store_and_arena_lose_no_update",
    "test_collectives_give_the_same_and_monitors_see_them", "test_a_problem_may_act_alone",
)  # fmt: skip
FAULT_TESTS = (
    "test_sigkill_and_restart_keep_what_was_synced",
    "test_pause_stops_the_process_and_forgets_nothing",
    "test_hang_holds_the_code_but_takes_messages",
    "test_slow_gives_the_process_a_part_of_the_time",
    "test_without_faults_all_is_heard_once_and_in_order", "test_traffic_faults_at_the_sender",
    "test_duplicate_reorder_corrupt_and_flap",
    "test_clog_is_late_and_a_flipped_bit_reaches_the_part",
    "test_clock_faults_bend_the_clock_and_not_the_time", "test_disk_faults",
    "test_a_torn_write_is_cut_at_a_page_before_the_restart", "test_compute_faults",
    "test_spot_reclaim_warns_then_kills",
    "test_domain_loss_takes_a_whole_group_and_prices_jump",
    "test_what_was_emitted_before_a_sigkill_is_not_lost",
    "test_random_crashes_are_the_same_faults_in_both_engines", "test_overlapping_crashes_count",
)  # fmt: skip


@pytest.mark.parametrize("name", ENGINE_TESTS)
def test_as_on_processes(name, monkeypatch):
    monkeypatch.setattr(engine_tests, "ProcessEngine", on_ray)
    monkeypatch.setattr(engine_tests, "ENGINES", (Engine, on_ray))
    getattr(engine_tests, name)()


@pytest.mark.parametrize("name", FAULT_TESTS)
def test_faults_as_on_processes(name, monkeypatch):
    monkeypatch.setattr(fault_tests, "ProcessEngine", on_ray)
    getattr(fault_tests, name)()


@pytest.mark.parametrize("strategy", ["equivocate", "silence", "selective"])
def test_liars_as_on_processes(strategy, monkeypatch):
    monkeypatch.setattr(fault_tests, "ProcessEngine", on_ray)
    fault_tests.test_a_liar_lies_as_it_does_in_virtual_time(strategy)


@pytest.mark.parametrize("per_actor", [1, 2])
def test_arrays_arrive_whole(per_actor, monkeypatch):
    monkeypatch.setattr(engine_tests, "ProcessEngine", on_ray)
    engine_tests.test_arrays_arrive_whole(per_actor)


# -- published parts


def three(part, problem, world, seed=7):
    """The runs of a part in virtual time, on processes and on Ray; all without a violation."""
    runs = [
        run(part, problem=problem, world=world, seed=seed, engine=engine)
        for engine in ("virtual", "processes", "ray")
    ]
    for made in runs:
        assert made.violations == [], made.engine
    return runs


@pytest.mark.parametrize("part", [PushGossip(), Flood()], ids=["gossip", "flood"])
def test_broadcast_delivers_the_same_sets(part):
    virtual, processes, ray = three(part, Broadcast(values=6, settle_s=1.5), World.lan(6))
    assert virtual.decisions == processes.decisions == ray.decisions
    assert ray.metrics["coverage"] == 1.0


def test_gossip_with_loss_and_a_real_kill():
    world = World.lan(5, drop=0.1).with_faults(Crash(node=3, at_s=0.4, until_s=0.9))
    made = three(PushGossip(), Broadcast(values=6, settle_s=2.5), world)
    assert all(set(each.decisions) == set(range(5)) for each in made)
    assert made[2].extra["restarts"] == 1


def test_raft_gives_one_client_the_same_answers():
    virtual, processes, ray = three(
        Raft(**raft_tests.PATIENT), raft_tests.ONE, World.lan(3), seed=5
    )
    assert virtual.decisions == processes.decisions == ray.decisions
    assert len(ray.decisions) == 30 + 2 * raft_tests.ONE.keys


def test_raft_survives_a_kill_with_its_log():
    world = World.lan(3).with_faults(Crash(node=0, at_s=1.5, until_s=2.5))
    made = three(Raft(**raft_tests.PATIENT), raft_tests.MANY, world, seed=3)
    assert made[2].extra["faults_fired"] == {"Crash": 1}
    assert made[2].metrics["elections"] >= 1


@pytest.mark.parametrize("part", [Ring(), Tree(), RecursiveHalving()], ids=str)
def test_all_reduce_gives_the_same_bits_and_bytes(part):
    problem = AllReduce(items=10_001, dtype="float32")
    virtual, processes, ray = three(part, problem, World.lan(4), seed=3)
    assert virtual.decisions == processes.decisions == ray.decisions
    assert ray.metrics["all_sent_B"] == virtual.metrics["all_sent_B"]


def test_every_kind_of_collective_agrees_and_a_killed_rank_is_lost():
    runs = [run(collectives.Medley(), world=World.lan(4), engine=e) for e in ("virtual", "ray")]
    told = [{r.node: (r.values["got"], r.values["sent_B"]) for r in made.records} for made in runs]
    assert told[0] == told[1] and len(told[1]) == 4
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.4))
    made = run(collectives.Loses(patience_s=0.5), world=world, engine="ray", until_s=4.0)
    totals = {r.node: r.values["total"] for r in made.records if "total" in r.values}
    assert totals == {0: 2.0, 2: 2.0}


def test_a_law_asks_ray_as_it_asks_processes():
    part, problem = PushGossip(), Broadcast(values=3, settle_s=1.0)
    subject = laws.Subject(part, problem, (0,), ("ray",))
    assert list(same_on_other_engines(subject)) == []


# -- as if the actors were on another machine


def test_without_a_shared_machine_all_is_the_same_but_signals():
    world = World.lan(3).with_faults(Crash(node=0, at_s=0.1, until_s=0.25))
    made = RayEngine(
        {"node": fault_tests.Diary()}, world=world, problem=fault_tests.Diarist(), seed=5,
        shared=False,
    ).run(30)  # fmt: skip
    acknowledged, recalled = made.driven
    assert acknowledged and set(acknowledged) <= set(recalled)  # its disk outlived the actor
    assert [v for _, n, v in made.emitted("again") if n == 0] == [0, 1]
    assert made.extra["ray"]["far_actors"] == 3 and made.extra["faults_fired"] == {"Crash": 1}
    assert made.messages >= 2 * len(acknowledged)  # what they counted came over their lines
    for time_s, _, _ in made.emitted("again"):
        assert -0.05 < time_s < made.seconds  # their clocks were set by the parent's
    world = World.lan(2).with_faults(Pause(node=1, at_s=0.1, until_s=0.3))
    with pytest.raises(FaultError, match=r"Pause.node.*another machine.*use Crash or Hang"):
        RayEngine({"node": fault_tests.Ticker()}, world=world, shared=False).run(5)
    assert ray_toys.far_folders() == []


# -- what is refused


def test_what_cannot_be_real_is_refused_before_anything_starts():
    node = {"node": engine_tests.Server()}
    with pytest.raises(PlatformLacks, match="chosen"):
        RayEngine(node, world=World.chosen(2))
    with pytest.raises(FaultError, match="twins"):
        RayEngine(node, world=World.lan(4).with_faults(Byzantine(node=1, strategies=("twins",))))
    for bad in ({"nodes_per_actor": 0}, {"max_frame_B": -1}):
        with pytest.raises(PartError, match=r"RayEngine\(.*whole number"):
            RayEngine(node, world=World.lan(2), **bad)
    for bad in ("", 7):
        with pytest.raises(UsageError, match="host:port"):
            RayEngine(node, world=World.lan(2), address=bad)
    with pytest.raises(PlatformLacks, match="more than 256; raise nodes_per_actor"):
        RayEngine(node, world=World.lan(300), nodes_per_actor=1)
    with pytest.raises(UsageError, match="until_s"):
        RayEngine(node, world=World.lan(2)).run(float("nan"))


def test_a_part_without_a_name_cannot_travel_and_says_so():
    class Local(engine_tests.Server):
        """Defined in a function."""

    with pytest.raises(PartError, match="top level of a module"):
        run(Local(), world=World.lan(1), engine="ray")


def test_an_actor_that_ends_by_itself_is_an_error_with_its_last_words():
    with pytest.raises(PartError, match="which no fault asked for") as error:
        run(ray_toys.DiesHard(), world=World.lan(1), engine="ray", until_s=5.0)
    assert "last words of the node" in str(error.value)


def test_large_emits_arrive_whole_and_in_order():
    made = run(engine_tests.Verbose(), world=World.lan(2), engine="ray", until_s=1.0)
    for node in (0, 1):
        mine = [r.values for r in made.records if r.node == node]
        assert [v.get("i", "last") for v in mine] == [0, 1, 2, "last"]


def test_inside_a_loop_and_with_arrays_in_messages():
    import asyncio

    async def notebook():
        return run(
            engine_tests.Server(), problem=engine_tests.Questions(), world=World.lan(2),
            engine="ray", until_s=20.0,
        )  # fmt: skip

    made = asyncio.run(notebook())
    assert isinstance(made.extra, dict) and made.violations == []
    assert np.isfinite(made.seconds) and SimpleNamespace(**made.extra).actors == 2
