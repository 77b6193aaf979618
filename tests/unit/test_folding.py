"""Folding: whatever is asked of a diagram or a timeline is counted right and stays small."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from orrery import World
from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.lab import folding, lanes, playback, tracks
from orrery.lab.discover import ask_problem, load
from orrery.lab.folding import Columns, Index, Mark
from orrery.lab.spans import Span
from orrery.world import Crash, Drop, Partition

LIMIT_B = 300_000


def made(nodes, messages, seed=1, marks=(), world=None):
    """An index of messages drawn from a seed, on any number of nodes."""
    rng = np.random.Generator(np.random.Philox(Stream(seed, 0, "test").word()))
    sent = np.sort(rng.integers(0, 10**9, messages))
    columns = Columns(
        sent_ns=sent,
        received_ns=sent + rng.integers(400_000, 600_000, messages),
        src=rng.integers(0, nodes, messages).astype(np.int32),
        dst=rng.integers(0, nodes, messages).astype(np.int32),
        method=rng.integers(0, 3, messages).astype(np.int32),
        size_B=rng.integers(1, 999, messages),
        reply=rng.random(messages) < 0.3,
        lost=rng.random(messages) < 0.05,
    )
    order = lanes.order_of(world or World.lan(nodes), nodes)
    return Index(columns, ["ping", "pong", "push"], order, end_ns=10**9, marks=marks)


@pytest.fixture(scope="module")
def large():
    marks = [Mark("down", "Crash", i * 10_000, 10**9, i * 7 % 100_000) for i in range(3000)]
    return made(100_000, 200_000, marks=marks)


@pytest.fixture(scope="module")
def raft():
    """A small Raft run in which a node crashes, a link is cut and the network is parted."""
    problem = ask_problem("replicated_store", {"clients": 2, "ops": 8})
    world = problem.world().with_faults(
        Crash(node=1, at_s=0.3, until_s=0.6), Drop(p=1.0, link=(0, 2), at_s=0.2, until_s=0.5),
        Partition(groups=((3, 4),), at_s=0.7, until_s=0.8),
    )  # fmt: skip
    return playback.play(load("raft")(), problem=problem, world=world, seed=5).run


# -- lanes


def test_lanes_cover_a_stretch_once_and_in_order():
    for size, most, lo, hi in [(100_000, 28, 0, 100_001), (5, 28, 0, 6), (999, 7, 13, 700)]:
        order = lanes.order_of(World.lan(size), size + 1)
        found = order.lanes(lo, hi, most)
        assert found[0].lo == lo and found[-1].hi == hi and len(found) <= most
        assert all(a.hi == b.lo for a, b in itertools.pairwise(found))


def test_a_lane_of_one_node_says_so():
    order = lanes.order_of(World.lan(5), 6)
    assert [lane.name for lane in order.lanes(0, 6, 10)] == [
        "node 0", "node 1", "node 2", "node 3", "node 4", "clients"]  # fmt: skip


@pytest.mark.parametrize(
    ("world", "names"),
    [
        (World.lan({"coordinator": 2, "worker": 500}), {"coordinators", "workers 2"}),
        (World.wan(100), {"frankfurt", "tokyo"}),
        (World.fat_tree(8), {"pod 0", "pod 7"}),
        (World.islands(640, island=8), {"nodes 0"}),
        (World.islands(64, island=8), {"island 0", "island 7"}),
    ],
)
def test_folds_follow_roles_sites_racks_and_islands(world, names):
    order = lanes.order_of(world, world.size + 1)
    found = [lane.name for lane in order.lanes(0, world.size + 1, 16)]
    assert all(any(each.startswith(name) for each in found) for name in names), found


def test_no_fold_spans_two_sites_while_sites_are_few():
    world = World.wan(100)
    order = lanes.order_of(world, 101)
    site = {node: name for name, nodes in world.domains().items() if name not in world.roles
            for node in nodes}  # fmt: skip
    for lane in order.lanes(0, 100, 14):
        assert len({site[int(node)] for node in order.nodes[lane.lo : lane.hi]}) == 1


def test_pinned_nodes_have_lanes_of_their_own(large):
    view = large.view(pin=[5, 77_777])
    assert {5, 77_777} <= {lane.get("node") for lane in view["lanes"]}
    assert sum(lane["hi"] - lane["lo"] for lane in view["lanes"]) == 100_000


# -- counts


def brute(index, view):
    """Counts by (lane, lane, bin), one message at a time."""
    lane_of = {}
    for number, lane in enumerate(view["lanes"]):
        for place in range(lane["lo"], lane["hi"]):
            lane_of[int(index.order.nodes[place])] = number
    start, end = round(view["from_s"] * 1e9), round(view["until_s"] * 1e9)
    step, rest = (end - start) / view["bins"], len(view["lanes"])
    found = {}
    c = index.columns
    for sent, received, src, dst in zip(c.sent_ns, c.received_ns, c.src, c.dst, strict=True):
        a, b = lane_of.get(int(src), rest), lane_of.get(int(dst), rest)
        if sent > end or received < start or (a == rest and b == rest):
            continue
        key = (a, b, int(min(max((sent - start) / step, 0), view["bins"] - 1)))
        found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize("asked", [
    {}, {"lo": 100, "hi": 700}, {"from_s": 0.2, "until_s": 0.8, "lanes": 5, "bins": 20},
])  # fmt: skip
def test_every_message_is_counted_in_its_cell(asked):
    index = made(1000, 9000)
    view = index.view(**{"lanes": 6, "bins": 30, **asked})
    assert view["folded"] and view["cells_left_out"] == 0
    counted = brute(index, view)
    assert {tuple(cell[:3]): cell[3] for cell in view["cells"]} == counted
    assert view["messages"] == sum(counted.values())


def test_a_window_finds_messages_that_began_before_it():
    index = made(10, 500)
    sent, received = int(index.columns.sent_ns[250]), int(index.columns.received_ns[250])
    middle = (sent + received) / 2e9
    view = index.view(middle, middle + 1e-9)
    assert any(round(a[0] * 1e9) == sent for a in view["arrows"])
    for arrow in view["arrows"]:
        assert arrow[0] <= middle + 1e-9 and arrow[1] >= middle


def test_zooming_in_ends_at_single_nodes_and_messages(large):
    lo, hi, steps = 0, large.nodes, 0
    while True:
        view = large.view(0.0, 1.0, lo, hi)
        lane = view["lanes"][len(view["lanes"]) // 2]
        if "node" in lane:
            break
        lo, hi, steps = lane["lo"], lane["hi"], steps + 1
    assert steps <= folding.depth(100_000) + 1
    assert not view["folded"] and set(view["methods"]) <= {"ping", "pong", "push"}
    assert all(arrow[4] != arrow[5] or arrow[2] == arrow[3] for arrow in view["arrows"])


def test_answers_stay_small(large):
    views = [{}, {"lanes": 40, "bins": 400}, {"from_s": 0.1, "until_s": 0.11}, {"hi": 3000},
             {"hi": 40}, {"pin": list(range(12))}]  # fmt: skip
    for asked in views:
        assert len(json.dumps(large.view(**asked))) < LIMIT_B
    full = made(39, folding.MOST_SINGLE).view()
    assert not full["folded"] and len(json.dumps(full)) < LIMIT_B


def test_marks_are_folded_to_counts(large):
    view = large.view()
    assert view["marks"] == [] and view["mark_counts"]
    assert sum(count[-1] for count in view["mark_counts"]) <= 3000
    near = large.view(hi=200)
    assert all(mark[0] == "down" for mark in near["marks"])


def test_an_empty_run_has_a_view():
    nothing = made(4, 0)
    view = nothing.view()
    assert view["messages"] == 0 and len(view["lanes"]) == 4


@pytest.mark.parametrize("wrong", [
    {"from_s": -1.0}, {"from_s": math.nan}, {"until_s": math.inf}, {"from_s": True},
    {"from_s": 0.5, "until_s": 0.5}, {"from_s": 2.0}, {"lo": -1}, {"lo": 10}, {"hi": 5, "lo": 5},
    {"hi": 11}, {"lanes": 0}, {"lanes": 41}, {"bins": 0}, {"bins": 401}, {"lanes": 2.0},
    {"pin": [10]}, {"pin": [-1]}, {"pin": [*list(range(10)), 1, 2, 3]}, {"pin": 3},
])  # fmt: skip
def test_a_wrong_view_is_refused_by_name(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))[:4]):
        made(10, 50).view(**wrong)


# -- from runs


def test_a_run_becomes_an_index_with_its_losses_and_faults(raft):
    index = folding.index_of(raft)
    lost = len(raft.extra["lost_spans"])
    assert len(index) == len(raft.spans) + lost and int(index.columns.lost.sum()) == lost > 0
    view = index.view(0.25, 0.4)
    kinds = {(mark[0], mark[5]) for mark in view["marks"]}
    assert {("down", 1), ("link", 0), ("link", 2)} <= kinds
    wide = [mark for mark in index.view(0.7, 0.8)["marks"] if mark[1] == "Partition"]
    assert [mark[4] for mark in wide] == [-1]
    assert "append_entries" in view["methods"]


def test_transfers_are_drawn_as_arrows():
    problem = ask_problem("all_reduce", {})
    run = playback.play(load("ring")(), problem=problem, world=problem.world(), seed=1).run
    view = folding.index_of(run).view()
    assert "transfer" in view["methods"]
    assert any(arrow[7] > 1000 for arrow in view["arrows"])


# -- tracks


def test_tracks_pair_questions_with_their_answers(raft):
    found = tracks.Tracks(raft)
    rows = {(row["kind"], row["name"]): row for row in found.totals()}
    asks, serves = rows["ask", "command"], rows["serve", "command"]
    assert asks["count"] == serves["count"] > 0
    assert asks["total_s"] > serves["total_s"] > 0
    answers = sum(1 for row in raft.spans if row[7] and row[5] == "command")
    assert asks["count"] == answers
    assert rows["down", "Crash"]["total_s"] == pytest.approx(0.3)


def test_nested_spans_lie_below_each_other():
    found = [Span("ask", "a", 0, 100, 1), Span("compute", "b", 10, 40, 1),
             Span("emit", "c", 20, 20, 1), Span("compute", "d", 40, 60, 1),
             Span("ask", "e", 50, 200, 2), Span("emit", "f", 300, 300, 2)]  # fmt: skip
    assert tracks.depths(found) == [0, 1, 2, 1, 0, 1]


def test_spans_of_one_row_never_overlap(raft):
    found = tracks.Tracks(raft)
    ends: dict = {}
    for start, end, node, depth in zip(found.start, found.end, found.node, found.depth,
                                       strict=True):  # fmt: skip
        if end > start and depth < tracks.MOST_DEPTH - 1:
            assert ends.get((node, depth), 0) <= start
            ends[node, depth] = end


def test_a_view_of_tracks_keeps_the_longest_and_counts_the_rest(raft, monkeypatch):
    found = tracks.Tracks(raft)
    monkeypatch.setattr(tracks, "MOST_SPANS", 50)
    view = found.view()
    assert len(view["spans"]) == 50
    assert view["left_out"] == view["found"] - 50 == sum(map(sum, view["heat"]))
    shortest = min(s[1] - s[0] for s in view["spans"])
    longer = sum(int(e - s) > shortest * 1e9 + 1 for s, e in zip(found.start, found.end,
                                                                  strict=True))  # fmt: skip
    assert longer <= 50
    hits = found.view(find="vote")
    named = [hits["names"][s[5]] for s in hits["spans"]]
    assert sum("vote" in name for name in named) == min(50, found.search("vote")["count"])


def test_searching_finds_names_by_a_part_of_them(raft):
    found = tracks.Tracks(raft)
    assert found.search("APPEND")["count"] > 10
    assert found.search("no such thing") == {"count": 0, "hits": []}
    assert found.search("  ")["count"] == 0
    with pytest.raises(UsageError, match="at most 60"):
        found.search("x" * 61)


@pytest.mark.parametrize("wrong", [
    {"from_s": -1.0}, {"from_s": math.nan}, {"until_s": 0.0}, {"lo": 99}, {"lanes": 99},
    {"find": "y" * 61}, {"hi": 0},
])  # fmt: skip
def test_a_wrong_view_of_tracks_is_refused(raft, wrong, monkeypatch):
    monkeypatch.setattr(tracks, "MOST_SPANS", 10)
    with pytest.raises(UsageError):
        tracks.Tracks(raft).view(**wrong)
