"""Wirings: closed forms against brute force, paths against latencies, NetworkX as the judge."""

from __future__ import annotations

import itertools
import math
import statistics
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import PlatformLacks, WorldError
from orrery.world import Group, Machine, World, cities, worlds
from orrery.world.graphs import GraphWiring, random_edges

SMALL = {
    "lan": lambda: World.lan(6),
    "wan": lambda: World.wan(7),
    "islands": lambda: World.islands(10, island=4, island_latency_s=1e-6),
    "fat_tree 2": lambda: World.fat_tree(2),
    "fat_tree 4": lambda: World.fat_tree(4),
    "fat_tree 6 in part": lambda: World.fat_tree(6, n=23),
    "torus": lambda: World.torus((2, 3, 4)),
    "flat torus": lambda: World.torus((1, 5, 1)),
    "uneven torus": lambda: World.torus((3, 4), axis_latency_s=(0.001, 0.003)),
    "star": lambda: World.star(5),
    "star of one": lambda: World.star(1),
    "ring": lambda: World.ring(7),
    "even ring": lambda: World.ring(8),
    "pair": lambda: World.ring(2),
    "alone": lambda: World.ring(1),
    "random": lambda: World.random(15, 3, seed=2),
    "graph": lambda: World.graph([(0, 1, 0.3), (1, 2, 0.1), (0, 3, 0.1), (3, 2, 0.1)]),
    "leo": lambda: worlds.leo_shell(5, 4),
    "edge_cloud": lambda: worlds.edge_cloud(6, 3, 2),
}


def pairs(n):
    return itertools.product(range(n), repeat=2)


@pytest.mark.parametrize("name", SMALL)
def test_what_every_wiring_keeps(name):
    world = SMALL[name]()
    wiring = world.wiring()
    assert wiring is world.wiring()
    assert wiring.n == world.size
    assert wiring.capacity_Bps.shape == (wiring.links,)
    assert (wiring.capacity_Bps > 0).all()
    for src, dst in pairs(wiring.n):
        path, latency_s = wiring.path(src, dst), wiring.latency(src, dst)
        assert path == wiring.path(src, dst)  # asked twice, answered alike
        if src == dst:
            assert path == () and latency_s == 0.0
            continue
        assert latency_s == pytest.approx(wiring.latency(dst, src))
        assert all(0 <= link < wiring.links for link in path)
        assert len(set(path)) == len(path)  # a flow on one link twice would be refused
        assert not set(path) & set(wiring.path(dst, src))  # links are directed
        if wiring.uniform_latency_s is not None:
            assert latency_s == wiring.uniform_latency_s
        if wiring.site_of is not None:
            a, b = wiring.site_of[src], wiring.site_of[dst]
            assert latency_s == wiring.site_latency_s[a, b]
    for i in range(wiring.n):
        near = wiring.neighbours(i)
        assert list(near) == sorted(set(near) - {i})
        assert all(i in wiring.neighbours(j) for j in near)
    for wrong in (-1, wiring.n):
        with pytest.raises(WorldError, match="no node"):
            wiring.latency(wrong, 0)
        with pytest.raises(WorldError, match="no node"):
            wiring.path(0, wrong)
        with pytest.raises(WorldError, match="no node"):
            wiring.neighbours(wrong)


def as_graph(wiring):
    """The cables as NetworkX sees them, found only through `neighbours` and `latency`."""
    graph = nx.Graph()
    graph.add_nodes_from(range(wiring.n))
    for i in range(wiring.n):
        for j in wiring.neighbours(i):
            graph.add_edge(i, j, weight=wiring.latency(i, j))
    return graph


DIRECT = ["torus", "flat torus", "uneven torus", "star", "ring", "even ring", "pair", "random",
          "leo"]  # fmt: skip


@pytest.mark.parametrize("name", DIRECT)
def test_direct_networks_take_shortest_paths(name):
    wiring = SMALL[name]().wiring()
    graph = as_graph(wiring)
    far = dict(nx.all_pairs_dijkstra_path_length(graph))
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    even = len({data["weight"] for *_, data in graph.edges(data=True)}) == 1
    for src, dst in pairs(wiring.n):
        assert wiring.latency(src, dst) == pytest.approx(far[src][dst])
        if even:
            assert wiring.hops(src, dst) == hops[src][dst]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6), st.integers(1, 5))
def test_graphs_agree_with_networkx(n, seed, degree):
    rng = np.random.default_rng(seed)
    judge = nx.Graph()
    for a, b in random_edges(n, min(degree, n - 1), seed):
        judge.add_edge(a, b, latency_s=float(rng.uniform(0.001, 1)), bandwidth_Bps=1e6 * (a + b))
    judge = nx.relabel_nodes(judge, {i: i for i in range(n)})
    world = World.graph(judge)
    order = list(judge.nodes)
    assert world.network.topology.names == tuple(str(node) for node in order)
    wiring = world.wiring()
    far = dict(nx.all_pairs_dijkstra_path_length(judge, weight="latency_s"))
    for src, dst in pairs(n):
        assert wiring.latency(src, dst) == pytest.approx(far[order[src]][order[dst]])
        # The path is a walk along real cables, and its latency is the sum of theirs.
        here, total_s = src, 0.0
        for link in wiring.path(src, dst)[1:-1]:
            a, b = wiring.edges[(link - 2 * n) // 2]
            here, there = (b, a) if (link - 2 * n) % 2 else (a, b)
            data = judge.edges[order[here], order[there]]
            assert wiring.capacity_Bps[link] == data["bandwidth_Bps"]
            total_s += data["latency_s"]
            here = there
        assert src == dst or here == dst
        assert total_s == pytest.approx(wiring.latency(src, dst))


def test_fat_tree_is_the_published_one():
    for k in (2, 4, 6):
        world = World.fat_tree(k, latency_s=1e-6)
        wiring, h = world.wiring(), k // 2
        assert wiring.n == k**3 // 4
        assert wiring.links == 2 * 3 * k**3 // 4  # hosts, edge-aggregation, aggregation-core
        ends: dict[int, set[tuple]] = {}
        for src, dst in pairs(wiring.n):
            if src == dst:
                continue
            same_edge, same_pod = src // h == dst // h, src // h**2 == dst // h**2
            links = 2 if same_edge else 4 if same_pod else 6
            path = wiring.path(src, dst)
            assert len(path) == links
            assert wiring.latency(src, dst) == pytest.approx(links * 1e-6)
            # One link always joins the same two switches: the way tells which.
            edge, pod, agg = dst // h, dst // h**2, dst % h
            if links == 6:
                ends.setdefault(path[1], set()).add(("edge", src // h, "agg", agg))
                ends.setdefault(path[2], set()).add(("agg", src // h**2, agg, "core", edge % h))
                ends.setdefault(path[3], set()).add(("core", agg, edge % h, "agg", pod))
                ends.setdefault(path[4], set()).add(("agg", pod, agg, "edge", edge))
            elif links == 4:
                ends.setdefault(path[1], set()).add(("edge", src // h, "agg", agg))
                ends.setdefault(path[2], set()).add(("agg", pod, agg, "edge", edge))
        assert all(len(joined) == 1 for joined in ends.values())
        assert len({next(iter(joined)) for joined in ends.values()}) == len(ends)


def test_torus_distance_is_manhattan_with_wraps():
    dims = (3, 4, 5)
    wiring = World.torus(dims, latency_s=0.001).wiring()
    for src, dst in pairs(wiring.n):
        steps = 0
        for a, b, dim in zip(wiring.coordinates(src), wiring.coordinates(dst), dims, strict=True):
            steps += min((a - b) % dim, (b - a) % dim)
        assert wiring.hops(src, dst) == steps
        assert wiring.latency(src, dst) == pytest.approx(steps * 0.001)
    assert wiring.neighbours(0) == (1, 4, 5, 15, 20, 40)


def test_lan_layout_is_as_promised():
    wiring = World.lan(4).wiring()
    assert wiring.links == 8
    assert wiring.path(1, 3) == (2, 7)
    assert wiring.uniform_latency_s == 0.0005
    assert wiring.neighbours(1) == (0, 2, 3)


def test_lan_of_100k_builds_nothing_by_pair():
    tracemalloc.start()
    wiring = World.lan(100_000).wiring()
    assert wiring.latency(0, 99_999) == 0.0005
    assert wiring.path(5, 99_999) == (10, 199_999)
    assert wiring.capacity_Bps.shape == (200_000,)
    peak_B = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_B < 20e6


def test_large_closed_forms_answer_at_once():
    assert World.fat_tree(64).wiring().hops(0, 65_535) == 4
    assert World.torus((100, 100, 10)).wiring().latency(0, 99_999) == pytest.approx(3 * 0.0005)
    assert World.ring(100_000).wiring().hops(0, 50_000) == 50_000


def test_trees_of_shortest_paths_are_bounded(monkeypatch):
    monkeypatch.setattr("orrery.world.graphs.KEPT_NODES", 100)
    wiring = World.random(40, 3).wiring()
    assert isinstance(wiring, GraphWiring)
    before = [wiring.latency(i, 39 - i) for i in range(40)]
    assert len(wiring._trees) == 2
    assert [wiring.latency(i, 39 - i) for i in range(40)] == before


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 29), st.integers(0, 99))
def test_random_graphs_are_connected_and_of_the_size_asked(n, degree, seed):
    degree = min(degree, max(n - 1, 1))
    edges = random_edges(n, degree, seed)
    assert edges == random_edges(n, degree, seed)
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(n))
    assert nx.is_connected(graph)
    least = n if n > 2 else n - 1
    assert len(edges) == len(set(edges)) == max(least, min(n * degree // 2, n * (n - 1) // 2))
    assert n < 6 or random_edges(n, 2, 1) != random_edges(n, 2, 2)


def test_nics_follow_machines_and_direct_nodes_fill_their_cables():
    groups = (Group(name="a", count=2), Group(name="b", count=1, machine="slow"))
    slow = Machine(nic_Bps=1e6)
    world = World(groups=groups, machines={"slow": slow})
    assert world.wiring().capacity_Bps.tolist() == [1.25e9] * 4 + [1e6] * 2
    torus = World.torus((3, 3), bandwidth_Bps=1e9).wiring()
    assert torus.capacity_Bps[0] == 4e9 and torus.capacity_Bps[-1] == 1e9
    star = World.star(4, bandwidth_Bps=1e9).wiring()
    assert star.capacity_Bps.tolist()[:3] == [3e9, 3e9, 1e9]
    graph = World.graph([(0, 1, None, 5.0), (1, 2, None, 7.0)]).wiring()
    assert graph.capacity_Bps.tolist() == [5, 5, 12, 12, 7, 7, 5, 5, 7, 7]
    with pytest.raises(ValueError, match="read-only"):
        star.capacity_Bps[0] = 1.0


def test_bulk_transfers_see_the_fabric_only_under_flows():
    flows = World.ring(6).wiring()
    messages = World.ring(6, model="messages").wiring()
    assert flows.bulk_path(0, 2) == flows.path(0, 2) and len(flows.path(0, 2)) == 4
    assert messages.bulk_path(0, 2) == (0, 5)
    assert messages.bulk_path(3, 3) == ()


def test_cities():
    assert cities.round_trip("tokyo", "osaka") == (0.009, "measured")
    rtt_s, kind = cities.round_trip("singapore", "tokyo")
    assert kind == "modelled" and rtt_s == pytest.approx(2 * 5312 / 199_862 * 1.5, rel=0.01)
    assert cities.distance_km("london", "sydney") == pytest.approx(16_990, rel=0.01)
    factors = []
    for a, b in itertools.combinations(cities._MEASURED_IN, 2):
        assert cities.round_trip(a, b) == cities.round_trip(b, a)
        least_s = 2 * cities.distance_km(a, b) / cities.FIBRE_KM_PER_S
        factors.append(cities.round_trip(a, b)[0] / least_s)
    assert min(factors) > 1  # nothing is faster than light in fibre
    assert statistics.median(factors) == pytest.approx(1.57, abs=0.005)  # as the module says
    for a, b in itertools.combinations(cities.PLACES, 2):
        assert 0 < cities.round_trip(a, b)[0] < 0.4
    world = World.wan(sites={"london": 2, "frankfurt": 1})
    assert world.wiring().latency(0, 2) == 0.0065
    assert world.wiring().latency(0, 1) == 0.00025
    assert world.groups[1].site == "frankfurt"
    assert [group.count for group in World.wan(12).groups] == [3, 3, 2, 2, 2]


def test_leo_shell_has_the_lengths_of_its_orbits():
    across_s, along_s = worlds.leo_shell(72, 22).network.topology.axis_latency_s
    radius_km = 6371 + 550
    assert along_s == pytest.approx(2 * radius_km * math.sin(math.pi / 22) / 299_792.458, abs=1e-8)
    equator_s = 2 * radius_km * math.sin(math.pi / 72) / 299_792.458
    assert math.cos(math.radians(53)) * equator_s < across_s < equator_s


def test_tiers_add_up():
    world = worlds.edge_cloud(4, 2, 1)
    wiring = world.wiring()
    device, other, own_box, cloud = 0, 2, 4, 6
    assert world.role_of(own_box) == "edge" and world.role_of(cloud) == "cloud"
    assert wiring.latency(device, own_box) == 0.005
    assert wiring.latency(device, own_box + 1) == pytest.approx(0.007)
    assert wiring.latency(device, cloud) == pytest.approx(0.021)
    assert wiring.latency(device, other) == pytest.approx(0.012)


def test_topohub_worlds_and_the_error_without_it(monkeypatch):
    pytest.importorskip("topohub")
    world = World.topohub("topozoo/Abilene")
    assert world.size == 11 and len(world.network.topology.edges) == 14
    assert world.network.topology.names[0] == "New York"
    assert world.wiring().latency(0, 1) <= 1146.16 / 200_000 + 1e-12
    monkeypatch.setitem(__import__("sys").modules, "topohub", None)
    with pytest.raises(PlatformLacks, match=r"orrery\[topologies\]"):
        World.topohub("topozoo/Abilene")


def test_edge_lists_from_files(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# cables\n0 1\n1,2,0.01\n\n2 3 0.02 1e6\n")
    world = World.graph(path)
    assert world.size == 4
    assert world.network.topology.edges[2].bandwidth_Bps == 1e6
    path.write_text("0 x\n")
    with pytest.raises(WorldError, match=r"edges.txt:1"):
        World.graph(path)
