"""Worlds as data: round trips, hashes, roles, variants, and a named error for every bad field."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import OrreryError, SpecError, WorldError
from orrery.world import (
    FAULTS,
    Accelerator,
    Clocks,
    Crash,
    Disk,
    Group,
    Machine,
    Network,
    ObjectStore,
    Partition,
    Power,
    Prices,
    Topology,
    World,
    accelerator,
    disk,
    machine,
    store,
    worlds,
)
from orrery.world.hardware import DTYPE_B, catalogue_names

SAMPLES = {
    "lan": lambda: World.lan(5, drop=0.1),
    "wan": lambda: World.wan(sites={"frankfurt": 3, "tokyo": 2, "singapore": 1}),
    "fat_tree": lambda: World.fat_tree(4),
    "torus": lambda: World.torus((2, 3, 4)),
    "star": lambda: World.star(6),
    "ring": lambda: World.ring(7),
    "random": lambda: World.random(20, 4, seed=3),
    "graph": lambda: World.graph([(0, 1), (1, 2, 0.01), (2, 0, 0.02, 1e6)]),
    "rounds": lambda: World.rounds(4, round_s=0.5),
    "chosen": lambda: World.chosen(3),
    "islands": lambda: World.islands(16),
    "faulty": lambda: World.lan(4).with_faults(
        Crash(node=1, at_s=0.5, until_s=1), Partition(groups=((0, 1), (2,)), at_s=2.0)
    ),
    **worlds.MAKERS,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trips_keep_the_world_and_its_hash(name, tmp_path):
    world = SAMPLES[name]()
    path = world.save(tmp_path / "deep" / "world.toml")
    (tmp_path / "world.json").write_text(json.dumps(world.to_data()))
    others = [
        World.from_toml(world.to_toml()),
        World.load(path),
        World.load(str(tmp_path / "world.json")),
        pickle.loads(pickle.dumps(world)),
        copy.deepcopy(world),
    ]
    for other in others:
        assert other == world
        assert other.hash == world.hash
        assert hash(other) == hash(world)
    assert [p.name for p in path.parent.iterdir()] == ["world.toml"]  # no scratch file is left
    assert world.hash in repr(world)
    assert "<table>" in world._repr_html_()


def test_hashes_are_stable():
    """A change of these literals resets every recorded verdict: do it knowingly."""
    assert World.lan(5).hash == "97ae239796ff23b4"
    assert worlds.h100_pod(8).hash == "b84c32bbb8504b9b"
    assert World.wan(5).hash == "12853879723e82a5"


def test_hash_is_the_same_in_another_process_with_another_hash_seed():
    code = "from orrery.world import worlds; print(worlds.edge_cloud().hash)"
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "123"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert out.stdout.strip() == worlds.edge_cloud().hash, out.stderr


def test_hash_follows_figures_and_not_notes_or_the_way_of_writing():
    assert World.lan(5, latency_s=1).hash == World.lan(5, latency_s=1.0).hash
    assert World.lan(np.int64(5)).hash == World.lan(5).hash
    assert World.lan(5, title="mine").hash == World.lan(5).hash
    seen = {World.lan(5).hash}
    for path, value in [
        ("network.latency_s", 0.001),
        ("network.fifo", False),
        ("machines.server.disk.fsync_s", 0.1),
        ("groups.node.count", 6),
        ("clocks.skew_s", 0.1),
        ("store.get_price", 1.0),
        ("prices.currency", "EUR"),
    ]:
        seen.add(World.lan(5).with_param(path, value).hash)
    seen.add(World.lan(5).with_faults(Crash(node=0)).hash)
    assert len(seen) == 9


def test_worlds_are_keys_and_cannot_be_changed():
    world = World.lan(3)
    assert {world: 1}[World.lan(3)] == 1
    with pytest.raises(AttributeError):
        world.title = "other"


def test_roles_members_and_machines():
    world = World(
        groups=(
            Group(name="router", count=2),
            Group(name="replica", count=3, machine="dgx_h100"),
            Group(name="replica", count=1, machine="dgx_a100"),
        )
    )
    assert world.size == 6
    assert world.roles == ("router", "replica")
    assert world.members("replica") == range(2, 6)
    assert [world.role_of(i) for i in range(6)] == ["router"] * 2 + ["replica"] * 4
    assert world.machine_of(1).accelerators == ()
    assert world.machine_of(4).accelerators[7].name == "H100-SXM"
    assert world.machine_of(5).accelerators[0].memory_Bps == 2.039e12
    assert list(world.accelerators) == ["A100-80-SXM", "H100-SXM"]
    with pytest.raises(WorldError, match=r"no role 'replcia'.*replica"):
        world.members("replcia")
    for wrong in (-1, 6):
        with pytest.raises(WorldError, match="give 0 to 5"):
            world.role_of(wrong)


def test_variants():
    world = World.lan(4)
    assert world.with_(network={"drop": 0.5}).network.drop == 0.5
    assert world.with_(network={"drop": 0.5}).network.latency_s == world.network.latency_s
    assert world.with_(**{"network.jitter": 0}).network.jitter == 0.0
    assert world.with_(clocks=Clocks(skew_s=0.2)).clocks.skew_s == 0.2
    assert world.param("network.latency_s") == 0.0005
    assert world.param("groups.0.count") == world.param("groups.node.count") == 4
    assert world.param("network.topology.k") is None
    pod = worlds.h100_pod(2).with_param("accelerators.H100-SXM.memory_B", 1 << 30)
    assert {item.memory_B for item in pod.machine_of(0).accelerators} == {1 << 30}
    assert pod.with_param("machines.dgx_h100.nic_Bps", None).machine_of(0).nic_Bps is None


def test_scale_shares_out_and_refuses_what_has_a_size():
    assert World.lan(5).scale(9).size == 9
    world = World(groups=(Group(name="a", count=1), Group(name="b", count=9)))
    assert [group.count for group in world.scale(100).groups] == [11, 89]
    assert [group.count for group in world.scale(2).groups] == [1, 1]
    assert World.ring(4).scale(9).wiring().hops(0, 4) == 4
    for bad, n in [(World.torus((2, 2)), 5), (World.lan(3), 0), (World.lan(3), 2.5)]:
        with pytest.raises(WorldError, match="scale"):
            bad.scale(n)


BAD = {
    "groups.0.count": [0, -1, "3", None, True, 1.5, float("nan"), 10**9, 10**5000],
    "groups.0.name": ["", 3, "a.b", "x" * 100],
    "groups.0.machine": ["srver", 3],
    "groups.0.site": [3, "a.b"],
    "groups": [[], {}, 3, [3]],
    "network.latency_s": [-1, float("nan"), float("inf"), "1ms", True, 1e9],
    "network.jitter": [-0.1, "x"],
    "network.bandwidth_Bps": [0, -1, float("inf"), 10**400],
    "network.drop": [-0.1, 1.1, float("nan")],
    "network.duplicate": [2],
    "network.model": ["message", 3],
    "network.fifo": [1, "yes"],
    "network.header_B": [-1, 0.5],
    "network.round_s": [0],
    "network.topology.kind": ["mesh", 1],
    "network.topology.link_Bps": [0],
    "network.topology.k": [4],
    "network.topology.dims": [[2, 2]],
    "machines.server.cores": [0, 1e9, "8"],
    "machines.server.memory_B": [-1, 0.5],
    "machines.server.disk.fsync_s": [-1],
    "machines.server.disk.page_B": [0],
    "machines.server.accelerators": [["H100"], "nope", 3, ["2000xT4"], [["T4"]]],
    "machines.server": [3],
    "store.bandwidth_Bps": [0],
    "store.conditional_put": ["no"],
    "clocks.drift": [1, -0.1],
    "power.pue": [0.9],
    "prices.currency": ["usd", "DOLLAR"],
    "over_budget": [1],
    "faults": [3, {}, [3], [{"kind": "Crsh"}], [{}]],
    "accelerators": [3, {"x": 3}, {"x": {}}],
}


@pytest.mark.parametrize("path", BAD)
def test_every_bad_field_is_named(path):
    for value in BAD[path]:
        document = World.lan(3).to_data()
        owner = document
        *steps, last = path.split(".")
        for step in steps:
            owner = owner[int(step)] if isinstance(owner, list) else owner[step]
        owner[last] = value
        if value is None:
            del owner[last]
        with pytest.raises(SpecError) as caught:
            World.from_data(document)
        assert caught.value.path.startswith(path), str(caught.value)
        assert caught.value.fix, str(caught.value)
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "path", ["x", "network.latncy_s", "groups.0.nme", "machines.server.disk.foo", "store.y"]
)
def test_unknown_fields_are_named(path):
    with pytest.raises(WorldError, match="unknown field") as caught:
        World.lan(3).with_param(path, 1)
    assert caught.value.path == path
    with pytest.raises(WorldError, match="unknown field"):
        World.lan(3).param(path)


def test_bad_calls_are_named():
    for call, pattern in [
        (lambda: World.lan(3, drp=0.1), 'drp: unknown option; did you mean "drop"'),
        (lambda: World.lan(3, machine="srver"), 'did you mean "server"'),
        (lambda: World.wan(), "give one of them"),
        (lambda: World.wan(3, sites={"tokyo": 1}), "give one of them"),
        (lambda: World.wan(sites={}), "at least one city"),
        (lambda: World.wan(sites={"frankfrt": 3}), 'did you mean "frankfurt"'),
        (lambda: World.wan(sites={"tokyo": 0}), "groups.0.count"),
        (lambda: World.wan(0), "groups.count"),
        (lambda: World.fat_tree(3), "odd"),
        (lambda: World.fat_tree(4, n=17), "carries 16"),
        (lambda: World.torus(()), "dims"),
        (lambda: World.torus((2, 0)), "dims.1"),
        (lambda: World.torus((2, 2), axis_latency_s=(1.0,)), "one for each axis"),
        (lambda: World.random(5, 5), "degree"),
        (lambda: World.graph([(0, 0)]), "to itself"),
        (lambda: World.graph([(0, 1), (1, 0)]), "once more"),
        (lambda: World.graph([(0, 1), (2, 3)]), "cannot be reached"),
        (lambda: World.graph([(0, 5)], n=3), "no node 5"),
        (lambda: World.graph(3), "pairs of node numbers"),
        (lambda: World.graph([(0,)]), "edges.0"),
        (lambda: World.graph("/nowhere/edges.txt"), "cannot be read"),
        (lambda: World.topohub("topozoo/Nowhere"), "no topology"),
        (lambda: Network(latency_s=-1), "network.latency_s"),
        (lambda: Disk().replace(fsnc_s=1), "fsync_s"),
        (lambda: Topology(kind="wan", sites=("a", "b"), site_latency_s=((0.0,),)), "rows"),
        (lambda: Topology(kind="wan", sites=("a",), site_latency_s=((0.0, 1.0),)), "values"),
        (lambda: Topology(kind="wan", sites=("a", "a"), site_latency_s=((0.0,),)), "repeats"),
        (lambda: Topology(kind="fat_tree"), "is missing"),
        (lambda: World(groups=(Group(count=1), Group(name="b", count=1), Group(count=1))), "again"),
        (lambda: worlds.get("h100_pd:8"), "h100_pod"),
        (lambda: worlds.get("h100_pod:x"), "not a number"),
        (lambda: worlds.get("lan:1,2,3"), "lan takes n"),
        (lambda: worlds.get("lan:m=3"), "lan takes n"),
        (lambda: worlds.get("h100_pod:0"), "whole number"),
        (lambda: worlds.get("leo_shell:0,3"), "whole number"),
        (lambda: worlds.get("leo_shell:3,3,1"), "altitude_km"),
        (lambda: worlds.get("edge_cloud:1,2"), "one device a cell"),
        (lambda: accelerator("H100"), "H100-SXM or H100-PCIe"),
        (lambda: accelerator("L4").flops("fp4"), "no published peak"),
        (lambda: accelerator("L4").replace(peak_flops={}), "is empty"),
        (lambda: accelerator("L4").replace(peak_flops={"f16": 1.0}), "fp16"),
    ]:
        with pytest.raises(SpecError, match=pattern):
            call()


def test_two_accelerators_of_one_name_are_refused():
    other = accelerator("T4").replace(memory_B=5)
    with pytest.raises(WorldError, match="another 'T4'"):
        World.lan(2, machine=Machine(accelerators=("T4", other)))


def test_bad_files_are_named(tmp_path):
    cases = {
        "a.toml": b"groups = [",
        "b.toml": b"\xff\xfe",
        "c.json": b"{",
        "d.json": b"[" * 100_000,
        "e.json": b"[]",
        "f.toml": b"",
    }
    for name, content in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(WorldError):
            World.load(path)
    with pytest.raises(WorldError, match="cannot be read"):
        World.load(tmp_path / "none.toml")
    with pytest.raises(WorldError, match="cannot be read"):
        World.load(tmp_path)
    for text in ("x = ", "x = " + "[" * 50_000):
        with pytest.raises(WorldError, match="is not TOML"):
            World.from_toml(text)
    deep: list = []
    for _ in range(950):
        deep = [deep]
    with pytest.raises(WorldError):
        World.from_data({"groups": [{"count": 1, "name": deep}]})
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="cannot be written"):
        World.lan(2).save(tmp_path / "file" / "world.toml")


def test_a_file_may_define_its_own_hardware():
    world = World.from_toml(
        """
        [[groups]]
        name = "worker"
        count = 2
        machine = "mine"
        [machines.mine]
        cores = 4
        disk = "hdd"
        accelerators = ["2xZ9", "T4"]
        [accelerators.Z9]
        peak_flops = { fp32 = 1e12 }
        memory_B = 1e9
        memory_Bps = 1e11
        active_W = 50
        """
    )
    mine = world.machine_of(0)
    assert [item.name for item in mine.accelerators] == ["Z9", "Z9", "T4"]
    assert mine.accelerators[0].watts(0.5) == pytest.approx(27.5)
    assert mine.disk.latency_s == disk("hdd").latency_s
    assert World.from_toml(world.to_toml()) == world


def test_the_catalogue_is_sound_and_sourced():
    for name in catalogue_names("accelerators"):
        item = accelerator(name)
        assert item.source and set(item.peak_flops) <= set(DTYPE_B)
        half = [item.peak_flops[d] for d in ("fp32", "fp16", "fp8", "fp4") if d in item.peak_flops]
        assert half == sorted(half), f"{name}: a narrower dtype is never slower"
        assert 1e9 < item.memory_B < 1e12 and 1e10 < item.memory_Bps < 1e13
    for name in catalogue_names("machines"):
        assert machine(name).source and machine(name).active_W >= machine(name).idle_W
    assert all(disk(name).source for name in catalogue_names("disks"))
    assert all(store(name).source for name in catalogue_names("stores"))
    assert Disk() == disk("nvme").replace(source=Disk().source)
    assert Machine().replace(source="") == machine("server").replace(disk=Disk(), source="")
    assert accelerator("h200") == accelerator("H200")
    assert machine("dgx_h100").watts(1.0, 1.0) == 10_200  # the data sheet's 10.2 kW
    assert Machine(accelerators="2xT4").watts(0.0) == pytest.approx(100 + 2 * 7)
    assert accelerator("TPU-v5e").watts(1.0) is None


def test_pods_have_the_links_of_their_data_sheets():
    pod = worlds.h100_pod(4)
    assert pod.size == 4 and pod.wiring().capacity_Bps[0] == 400e9
    ranks = worlds.h100_pod(4, rank_per_gpu=True)
    wiring = ranks.wiring()
    assert ranks.size == 32 and len(ranks.machine_of(5).accelerators) == 1
    assert min(wiring.capacity_Bps[list(wiring.path(0, 7))]) == 450e9
    assert min(wiring.capacity_Bps[list(wiring.path(0, 8))]) == 50e9


def test_named_worlds_can_be_found(tmp_path):
    for name, line in worlds.names().items():
        assert line.endswith(".")
        assert worlds.find(name).title.startswith(name)
    path = World.lan(3).save(tmp_path / "mine.toml")
    assert worlds.find(str(path)) == World.lan(3)
    assert worlds.get("leo_shell:planes=3,per_plane=4").size == 12
    with pytest.raises(WorldError, match="cannot be read"):
        worlds.find("nowhere.toml")


def test_default_parts_are_those_of_the_world():
    world = World.lan(2)
    assert (world.store, world.clocks) == (ObjectStore(), Clocks())
    assert (world.power, world.prices) == (Power(), Prices())
    assert store("s3").replace(source=world.store.source) == world.store
    assert isinstance(accelerator("L4"), Accelerator)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([*FAULTS, "lan", "wan", "graph", "server", "random"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items if isinstance(data, (dict, list)) else ():
        yield from (
            _places(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]
        )


FUZZED = SAMPLES["faulty"]().with_(network=World.wan(2).to_data()["network"], groups=World.wan(
    sites={"washington": 2, "frankfurt": 2}).to_data()["groups"]).to_data()  # fmt: skip
PLACES = [path for path in _places(FUZZED) if path]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), values)
def test_fuzzed_documents_give_a_world_or_a_named_error(path, value):
    document = copy.deepcopy(FUZZED)
    owner = document
    for step in path[:-1]:
        owner = owner[step]
    owner[path[-1]] = value
    try:
        world = World.from_data(document)
    except OrreryError as error:
        assert str(error)
    else:
        assert World.from_toml(world.to_toml()).hash == world.hash
        world.wiring().latency(0, world.size - 1)
