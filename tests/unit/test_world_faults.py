"""Faults: every kind, its files, its refusals, and the schedules that a seed draws."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import FaultError, OrreryError, SpecError
from orrery.world import (
    FAULTS,
    BitFlip,
    Byzantine,
    ClockJump,
    ClockSkew,
    Clog,
    Crash,
    DeviceLoss,
    DomainLoss,
    Drop,
    Fault,
    NicFlap,
    Partition,
    Pause,
    RandomCrashes,
    RandomPartitions,
    Reorder,
    Slow,
    SpotReclaim,
    Straggler,
    World,
    faults_to_toml,
    load_faults,
    sides,
    worlds,
)
from orrery.world.schedule import faults_from
from orrery.world.spec import to_data

ONE_OF_EACH = {
    "Crash": {"node": 3, "at_s": 0.1, "until_s": 0.3},
    "Pause": {"node": (0, 1), "at_s": 1.0},
    "Slow": {"node": "random", "factor": 3.0},
    "Hang": {"domain": "node"},
    "Straggler": {"node": 1, "factor": 2.0, "p": 0.1},
    "DeviceLoss": {"node": 0, "device": 7},
    "PowerCap": {"watts": 500.0},
    "SpotReclaim": {"node": 2, "at_s": 200.0, "notice_s": 30.0},
    "DomainLoss": {"domain": "node", "at_s": 5.0},
    "Partition": {"groups": ((0, 1), (2, 3)), "at_s": 1.0, "until_s": 2.0, "one_way": True},
    "Clog": {"link": (0, 1), "delay_s": 0.5},
    "Drop": {"p": 0.1},
    "Duplicate": {"p": 0.2, "node": 1},
    "Reorder": {"p": 0.3, "spread_s": 0.1},
    "Corrupt": {"p": 0.01, "link": (1, 2)},
    "NicFlap": {"node": 1, "period_s": 0.5, "down_fraction": 0.2},
    "ClockSkew": {"node": 1, "skew_s": -0.5},
    "ClockDrift": {"node": 1, "drift": 1e-4},
    "ClockJump": {"node": 1, "jump_s": -3.0, "at_s": 2.0},
    "DiskFull": {"node": 1},
    "TornWrite": {"node": 1, "p": 1.0},
    "MisdirectedWrite": {"node": 1, "p": 0.01},
    "BitFlip": {"node": 1, "where": "message", "p": 0.5},
    "PriceJump": {"factor": 10.0, "at_s": 3.0},
    "Byzantine": {"node": 0, "strategies": ("equivocate", "delay"), "delay_s": 0.2},
    "RandomCrashes": {"rate_per_s": 2.0, "between_s": (1.0, 9.0), "at_most": 2},
    "RandomPartitions": {"count": 4, "down_s": 0.5, "one_way": True},
}


def test_the_list_is_complete():
    assert set(ONE_OF_EACH) == set(FAULTS)
    for name, kind in FAULTS.items():
        text = kind.__doc__ or ""
        assert "irtual" in text and "eal" in text, f"{name} does not say what the engines do"


@pytest.mark.parametrize("name", FAULTS)
def test_every_kind_goes_to_files_and_back(name, tmp_path):
    world = worlds.h100_pod(4)
    fault = FAULTS[name](**ONE_OF_EACH[name])
    assert fault.kind == name and to_data(fault)["kind"] == name
    (tmp_path / "f.toml").write_text(faults_to_toml([fault]))
    (tmp_path / "f.json").write_text(json.dumps([to_data(fault)]))
    assert load_faults(tmp_path / "f.toml") == (fault,)
    assert load_faults(str(tmp_path / "f.json")) == (fault,)
    faulty = world.with_faults(fault)
    assert World.from_toml(faulty.to_toml()) == faulty
    assert faulty.hash != world.hash
    for concrete in faulty.schedule(seed=1):
        assert not isinstance(concrete, (RandomCrashes, RandomPartitions, DomainLoss))
        assert getattr(concrete, "domain", None) is None
        assert getattr(concrete, "node", None) != "random"
        assert all(0 <= node < 4 for node in faulty.targets(concrete))


@pytest.mark.parametrize("name", FAULTS)
def test_every_number_of_every_kind_is_checked(name):
    for field, value in ONE_OF_EACH[name].items():
        bad = [float("nan"), [], {}, -2.0] if isinstance(value, float) else [{}, float("nan")]
        if field in ("drift", "skew_s", "jump_s"):
            bad = [float("nan"), 1e7, -1e7, "x"]
        if field in ("node", "device"):
            bad = [-1, 1.5, "some", {}, True]
        for wrong in bad:
            with pytest.raises(SpecError) as caught:
                FAULTS[name](**{**ONE_OF_EACH[name], field: wrong})
            assert caught.value.path.startswith(f"{name}.{field}"), str(caught.value)


def test_refusals():
    for call, pattern in [
        (lambda: Crash(node=1, at_s=2.0, until_s=2.0), r"Crash.until_s.*after at_s = 2.0"),
        (lambda: Crash(node=1, at_s=-1), r"Crash.at_s"),
        (lambda: Crash(), r"no target; give node or domain"),
        (lambda: Crash(node=()), "is empty"),
        (lambda: Crash(node=1, domain="x"), "comes with node"),
        (lambda: Drop(p=0.1, node=1, link=(0, 1)), "comes with node"),
        (lambda: Drop(p=0.1, link=(1, 1)), "to itself"),
        (lambda: Drop(p=1.5), "Drop.p"),
        (lambda: Slow(node=1, factor=0.5), "Slow.factor"),
        (lambda: Clog(node=1), "changes nothing"),
        (lambda: Clog(node=1, fraction=0.0), "Clog.fraction"),
        (lambda: Partition(), "groups or node or domain"),
        (lambda: Partition(groups=((0,), (0,))), "in two groups"),
        (lambda: Partition(groups=((0,), ())), "empty group"),
        (lambda: Partition(groups=()), "empty group"),
        (lambda: Partition(groups=((0,),), node=1), "give one of them"),
        (lambda: NicFlap(node=1, period_s=1.0, down_fraction=1.0), "down_fraction"),
        (lambda: Byzantine(node=1, strategies=()), "strategies"),
        (lambda: Byzantine(node=1, strategies=("No such!",)), "strategies"),
        (lambda: Byzantine(node=1, strategies=("selective",)), "name the peers"),
        (lambda: Byzantine(node=1, to=(2,)), "means nothing"),
        (lambda: BitFlip(node=1, where="cpu"), "where"),
        (lambda: RandomCrashes(), "count or rate_per_s"),
        (lambda: RandomCrashes(count=1, rate_per_s=1.0), "only one"),
        (lambda: RandomCrashes(count=1, between_s=(2.0, 1.0)), "span of time"),
        (lambda: RandomCrashes(count=1, down_s=(1.0,)), "give two"),
        (lambda: RandomCrashes(count=1, at_s=1.0), "between_s"),
        (lambda: RandomCrashes(rate_per_s=1e9), "too many"),
        (lambda: RandomCrashes(count=10**9), "count"),
    ]:
        with pytest.raises(FaultError, match=pattern):
            call()
    world = World.lan(3)
    for fault, pattern in [
        (Crash(node=3), "no node 3; this world has nodes 0 to 2"),
        (Crash(node=(0, 9)), "no node 9"),
        (Crash(domain="nodes"), 'did you mean "node"'),
        (DomainLoss(domain="mars"), "no group or site 'mars'"),
        (Drop(p=0.1, link=(0, 3)), "no node 3"),
        (Partition(groups=((0, 7),)), "no node 7"),
        (DeviceLoss(node=0), "0 accelerators"),
        (Byzantine(node=0, strategies="selective", to=(5,)), "no node 5"),
        ("crash", "is refused"),
    ]:
        with pytest.raises(FaultError, match=pattern):
            world.with_faults(fault)


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "f.toml"
    for text, pattern in [
        ("[[faults]]\nnode = 1\n", r"faults.0.kind: is missing"),
        ('[[faults]]\nkind = "Crsh"\n', "Crash"),
        ('[[faults]]\nkind = "Crash"\nnode = 1\nfoo = 2\n', r"faults.0.foo: unknown field"),
        ('[[faults]]\nkind = "Slow"\nnode = 1\n', r"faults.0.factor: is missing"),
        ('[[faults]]\nkind = "Crash"\nnode = 1\nat_s = nan\n', r"faults.0.at_s: nan"),
        ("faults = 3\n", "list of tables"),
        ("fault = []\n", "unknown field"),
        ("faults = [", "is not TOML"),
    ]:
        path.write_text(text)
        with pytest.raises(FaultError, match=pattern):
            load_faults(path)
    with pytest.raises(FaultError, match="cannot be read"):
        load_faults(tmp_path / "none.toml")
    path.write_text("")
    assert load_faults(path) == ()


def test_targets_and_domains():
    world = World.wan(sites={"london": 2, "tokyo": 3}, role="peer")
    assert world.targets(Crash(domain="tokyo")) == (2, 3, 4)
    assert world.targets(Crash(domain="peer")) == (0, 1, 2, 3, 4)
    assert world.targets(Pause(node=(1, 3))) == (1, 3)
    assert world.targets(Drop(p=0.1)) == (0, 1, 2, 3, 4)
    assert world.targets(Drop(p=0.1, link=(0, 4))) == (0, 4)
    (lost,) = world.with_faults(DomainLoss(domain="london", at_s=2.0)).schedule()
    assert lost == Crash(node=(0, 1), at_s=2.0)
    with pytest.raises(FaultError, match="random"):
        world.targets(Crash(node="random"))


def test_schedules_follow_the_seed_and_the_place_only():
    world = World.lan(10).with_faults(
        Straggler(node="random", factor=2.0, at_s=4.0),
        RandomCrashes(rate_per_s=3.0, at_most=2),
        SpotReclaim(node="random", at_s=1.0),
    )
    drawn = world.schedule(7)
    assert drawn == world.schedule(7) == World.from_toml(world.to_toml()).schedule(7)
    assert drawn != world.schedule(8)
    assert [fault.at_s for fault in drawn] == sorted(fault.at_s for fault in drawn)
    more = world.with_faults(ClockJump(node=0, jump_s=1.0, at_s=99.0))
    assert more.schedule(7)[:-1] == drawn
    picked = {world.schedule(seed)[0] for seed in range(40)}
    assert len(picked) > 5  # "random" reaches many nodes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 4), st.integers(1, 60))
def test_random_crashes_keep_their_promises(seed, at_most, count):
    world = World.lan(6).with_faults(
        RandomCrashes(
            count=count, between_s=(1.0, 5.0), down_s=(0.1, 2.0), node=(1, 2, 3, 5), at_most=at_most
        )
    )
    drawn = world.schedule(seed)
    assert 1 <= len(drawn) <= count
    assert {fault.node for fault in drawn} <= {1, 2, 3, 5}
    for fault in drawn:
        assert 1.0 <= fault.at_s < 5.0 and 0.1 - 1e-9 <= fault.until_s - fault.at_s <= 2.0 + 1e-9
        down = [other for other in drawn if other.during(fault.at_s)]
        assert len(down) <= at_most
        assert len({other.node for other in down}) == len(down)


@pytest.mark.parametrize("shape", ["halves", "isolate", "minority", "any"])
def test_random_partitions_heal_one_after_another(shape):
    world = World.lan(7).with_faults(RandomPartitions(count=50, down_s=0.3, shape=shape))
    drawn = world.schedule(3)
    assert len(drawn) > 5
    sizes = {len(fault.node) for fault in drawn}
    assert sizes <= {"halves": {3}, "isolate": {1}}.get(shape, {1, 2, 3})
    for before, after in itertools.pairwise(drawn):
        assert before.until_s < after.at_s
    assert World.lan(1).with_faults(RandomPartitions(count=3)).schedule() == ()


def test_sides_of_a_partition():
    assert sides(Partition(groups=((0, 1), (3,))), 5).tolist() == [0, 0, 2, 1, 2]
    assert sides(Partition(node=2), 4).tolist() == [1, 1, 0, 1]
    assert sides(Partition(node=(0, 3)), 4).tolist() == [0, 1, 1, 0]
    with pytest.raises(FaultError, match="schedule"):
        sides(Partition(domain="node"), 4)


def test_during_and_over_budget():
    fault = ClockSkew(node=0, skew_s=1.0, at_s=1.0, until_s=2.0)
    assert [fault.during(t) for t in (0.9, 1.0, 1.9, 2.0)] == [False, True, True, False]
    assert Reorder(p=0.1, spread_s=1.0).during(1e6)
    world = World.lan(3)
    assert not world.over_budget
    beyond = world.with_faults(Crash(node=(0, 1)), over_budget=True)
    assert beyond.over_budget and beyond.with_faults().over_budget
    assert beyond.hash != world.with_faults(Crash(node=(0, 1))).hash


tables = st.fixed_dictionaries(
    {"kind": st.sampled_from([*FAULTS, "Nope"])},
    optional={
        name: st.one_of(
            st.integers(-2, 9),
            st.floats(),
            st.lists(st.integers(-1, 5), max_size=3),
            st.sampled_from(["random", "node", "delay", "any"]),
            st.none(),
            st.booleans(),
        )
        for name in (
            "node",
            "at_s",
            "until_s",
            "p",
            "factor",
            "link",
            "domain",
            "count",
            "between_s",
            "down_s",
            "groups",
            "device",
            "strategies",
            "rate_per_s",
        )
    },
)


@settings(max_examples=300, deadline=None)
@given(tables)
def test_fuzzed_tables_give_a_fault_or_a_named_error(table):
    try:
        faults = faults_from([table])
        drawn = World.lan(4).with_faults(*faults).schedule(1)
    except OrreryError as error:
        assert str(error)
    else:
        assert all(isinstance(fault, Fault) for fault in drawn)
        assert faults_from([to_data(fault) for fault in drawn]) == drawn
