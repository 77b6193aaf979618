"""The picture of a run with liars, crashes and decisions says so without the code."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from orrery import Node, World, rpc, run
from orrery.lab import draw, story, timeline
from orrery.lab.replay import replay
from orrery.lab.spans import Span
from orrery.systems.protocols import Bracha, Pbft, ReliableBroadcast, TotalOrder
from orrery.world import Byzantine, Crash, Drop, Partition, Pause

NS = "{http://www.w3.org/2000/svg}"
LIE = Byzantine(node=0, strategies=("equivocate",))


def told(picture):
    root = ET.fromstring(picture)
    return [text.text or "" for text in root.iter(NS + "text")]


@pytest.fixture(scope="module")
def lied():
    world = World.lan(4).with_faults(LIE)
    problem = TotalOrder(clients=1, requests=1)
    return replay(run(Pbft(), problem=problem, world=world, seed=3))


@pytest.fixture(scope="module")
def honest():
    return replay(run(Bracha(), problem=ReliableBroadcast(shots=1), world=World.lan(4), seed=3))


def test_the_headline_says_what_is_seen(lied, honest):
    assert told(lied.picture())[0] == (
        "Pbft on TotalOrder, 4 nodes: node 0 lies (equivocate) — the checker finds no violation"
    )
    words = told(honest.picture())
    assert words[0].startswith("Bracha on ReliableBroadcast, 4 nodes: nothing fails")
    assert not any("LIES" in word or "altered" in word for word in words)


def test_liars_are_named_and_what_they_altered_is_marked(lied):
    words = told(lied.picture())
    assert "node 0 LIES" in words and "node 1" in words
    assert "lies: equivocate" in words and "altered by the liar" in words
    picture = lied.picture(from_s=0.0)
    altered = re.findall(r"<title>([^<]*); the liar has altered it</title>", picture)
    assert altered and all(": node 0 to node " in each for each in altered)
    # Equivocation spares the first half: node 1 always hears the truth, node 3 does not.
    assert any("to node 3" in each for each in altered)
    assert not any("to node 1," in each for each in altered)
    assert len(altered) == len([s for s in lied.run.spans if s[2] in lied.run.extra["bent"]])


def test_an_honest_run_has_nothing_altered(honest):
    assert honest.run.extra["bent"] == set()


def test_arrays_are_compared_by_their_bytes():
    import numpy as np

    from orrery.lab.replay import _differs

    ones = (np.ones(3),)
    assert not _differs(ones, ones)
    assert not _differs((np.ones(3),), ones)
    assert _differs((np.zeros(3),), ones)


def test_repeated_traffic_is_folded_and_the_decision_is_still_there(lied):
    picture = lied.picture()
    words = told(picture)
    assert "the same 4 more times" in words
    assert "idle time or repeated traffic, folded" in words
    assert "decision (ordered)" in words and "ordered 1 (empty)" in words
    assert any("repeated ones folded" in word for word in words)
    # A stretch that was asked for is shown with nothing folded away.
    whole = told(lied.picture(from_s=0.0, until_s=0.55))
    assert not any("more times" in word or "repeated" in word for word in whole)


def test_messages_carry_their_names(lied):
    names = [word for word in told(lied.picture()) if word == "pre_prepare"]
    assert 2 <= len(names) <= draw.MOST_NAMES + 1  # with the legend
    labels = told(lied.picture(from_s=0.0, until_s=0.02))
    assert {"submit", "pre_prepare", "prepare", "commit"} <= set(labels)
    assert labels.count("submit") == 2  # once in the legend, once on its first arrow


def test_decisions_and_other_reports_have_signs_of_their_own():
    assert story.is_decision(Span("emit", "", 0, 0, 1, values={"delivered": 3, "digest": "ab"}))
    assert not story.is_decision(Span("emit", "", 0, 0, 1, values={"view": 1}))
    brief = {
        "delivered 3": {"delivered": 3, "digest": "ab"},
        "applied 4, x": {"applied": (4, "x")},
        "ordered 1 (empty)": {"ordered": (1, ())},
        "ordered 2": {"ordered": (2, ({"client": 0},))},
        "view 1, by 2": {"view": 1, "by": 2},
    }
    for words, values in brief.items():
        assert story.brief(Span("emit", "", 0, 0, 1, values=values)) == words


class Beat(Node):
    """Tells everybody, again and again; at one moment it reports."""

    reports_at: int = -1

    @rpc
    async def beat(self, number: int) -> None:
        if number == self.reports_at and self.id == 1:
            self.emit(said=number)

    async def main(self):
        for number in range(40):
            await self.sleep(0.1)
            if self.id == 0:
                for peer in self.peers:
                    self.tell(peer, Beat.beat, number)


def test_a_burst_with_a_report_is_not_folded_away():
    quiet = replay(run(Beat(), world=World.lan(3), seed=1))
    assert "the same 39 more times" in told(quiet.picture())
    loud = replay(run(Beat(reports_at=20), world=World.lan(3), seed=1))
    words = told(loud.picture())
    assert "the same 19 more times" in words and "said 20" in words


def test_series_are_found_only_among_equal_bursts():
    def burst(at, *names):
        return [(at, at + 1, name) for name in names]

    said = [*burst(0, "a", "b"), *burst(100, "a", "b"), *burst(200, "b", "a"), *burst(300, "a")]
    assert timeline.repeats(said, 10, []) == [(100, 201, 2)]
    assert timeline.repeats(said, 10, [200]) == []  # one alone is not worth a fold
    assert timeline.repeats(said[:4], 10, []) == []


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ((Crash(node=1, at_s=0.1),), "node 1 crashes"),
        ((Crash(node=(1, 3), at_s=0.3), Pause(node=2, at_s=0.3, until_s=0.4)),
         "nodes 1 and 3 crash; node 2 stands still"),
        ((Partition(groups=((0,),), at_s=0.1, until_s=0.2),), "the network is parted"),
        ((Drop(p=0.1),), "drop of links"),
        ((Byzantine(node=(1, 2), strategies=("silence", "mutate")),),
         "nodes 1 and 2 lie (silence, mutate)"),
    ],
    ids=["crash", "stops", "partition", "drop", "liars"],
)  # fmt: skip
def test_what_befalls_the_nodes_is_in_the_headline(faults, says):
    made = run(Beat(), world=World.lan(4).with_faults(*faults), seed=1, until_s=1.0, trace=True)
    assert story.headline(made) == f"Beat, 4 nodes: {says}"
    told(draw.space_time(made))


def test_several_liars_and_a_time_down_are_drawn_on_their_lines():
    faults = (Byzantine(node=(1, 2), strategies=("mutate",)),
              Crash(node=3, at_s=0.15, until_s=0.35))  # fmt: skip
    made = run(Beat(), world=World.lan(4).with_faults(*faults), seed=1, until_s=0.5, trace=True)
    picture = draw.space_time(made, from_s=0.0)
    words = told(picture)
    assert "node 1 LIES" in words and "node 2 LIES" in words and "down" in words
    assert picture.count('class="o-lie"') == 3  # two bands and the legend
    assert picture.count('class="o-down"') == 2


def test_a_long_legend_takes_a_second_line(lied):
    root = ET.fromstring(lied.picture())
    heights = {text.get("y") for text in root.iter(NS + "text")}
    assert {"82.0", "104.0"} <= heights
    widest = max(float(t.get("x") or 0) for t in root.iter(NS + "text") if t.get("y") == "82.0")
    assert widest < 1120
