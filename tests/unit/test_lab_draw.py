"""Pictures: valid SVG that says what it shows, for every size of run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import UsageError
from orrery.lab import draw, svg, timeline
from orrery.lab.charts import bar_chart, line_chart
from orrery.lab.spans import Span
from orrery.world import Crash, Partition, Pause

NS = "{http://www.w3.org/2000/svg}"


class Chat(Node):
    """Tells everybody now and then, and reports."""

    every_s: float = 0.01
    times: int = 5

    @rpc
    async def hear(self, number: int) -> None:
        if number == 0:
            self.emit(heard="<b>&\x00\u202e")

    async def main(self):
        for number in range(self.times):
            await self.sleep(self.every_s)
            for peer in list(self.peers)[:3]:
                self.tell(peer, Chat.hear, number)


def tree_of(text):
    root = ET.fromstring(text)
    assert root.tag == NS + "svg" and root.get("role") == "img" and root.get("aria-label")
    assert root.find(NS + "title").text and root.find(NS + "desc").text
    lowered = text.lower().replace("http://www.w3.org/2000/svg", "")
    assert "http" not in lowered and "<script" not in lowered
    assert "href" not in lowered and "<image" not in lowered
    sizes = [float(n) for n in re.findall(r"font-size:\s*([\d.]+)px", text)]
    assert sizes and min(sizes) >= 11
    assert "prefers-color-scheme:dark" in text
    return root


def arrows(root):
    return [line for line in root.iter(NS + "line") if line.find(NS + "title") is not None]


@pytest.fixture(scope="module")
def made():
    world = World.lan(5).with_faults(
        Crash(node=1, at_s=0.015, until_s=0.035), Pause(node=2, at_s=0.02, until_s=0.03),
        Partition(groups=((0, 3),), at_s=0.04, until_s=0.06),
    )  # fmt: skip
    return run(Chat(), world=world, seed=1, until_s=0.1, trace=True)


def test_the_picture_shows_every_node_message_and_fault(made):
    text = draw.space_time(made, from_s=0.0)
    root = tree_of(text)
    assert len(arrows(root)) == len(made.spans)
    words = " ".join(t.text or "" for t in root.iter(NS + "text"))
    for expected in ("node 0", "node 4", "hear", "crash", "up again", "stands still",
                     "partition {0, 3} | rest", "time (ms)", "seed 1", "5 nodes"):  # fmt: skip
        assert expected in words
    assert "node 1: Crash from 15 ms to 35 ms." in root.find(NS + "desc").text
    assert "hear: node 0 to node 1, sent 10 ms" in text


def test_what_users_write_is_escaped(made):
    text = draw.space_time(made, title='<script>alert("x")</script>')
    tree_of(text)
    assert "<script" not in text and "&lt;b&gt;&amp;" in text and "\x00" not in text


def test_a_window_and_some_nodes(made):
    root = tree_of(draw.space_time(made, from_s=0.0, until_s=0.0155, nodes=[0, 1]))
    titles = [line.find(NS + "title").text for line in arrows(root)]
    inside = [r for r in made.spans if r[0] <= 15_500_000 and {r[3], r[4]} & {0, 1}]
    assert len(titles) == len(inside) > 0
    words = " ".join(t.text or "" for t in root.iter(NS + "text"))
    assert "node 0" in words and "node 3" not in words and "3 others" in words


@pytest.mark.parametrize("options", [
    {"from_s": -1}, {"until_s": float("nan")}, {"from_s": 0.05, "until_s": 0.05}, {"from_s": 99.0},
    {"nodes": []}, {"nodes": [77]}, {"nodes": [True]}, {"nodes": ["0"]}, {"nodes": range(5000)},
])  # fmt: skip
def test_windows_that_cannot_be_are_named(made, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        draw.space_time(made, **options)


def test_a_run_without_spans_is_refused_with_the_fix():
    with pytest.raises(UsageError, match="trace=True"):
        draw.space_time(run(Chat(), world=World.lan(3), until_s=0.02))


def test_a_large_run_is_folded_to_what_can_be_read():
    world = World.lan(300).with_faults(Crash(node=200, at_s=0.02))
    made = run(Chat(), world=world, until_s=0.1, trace=True)
    text = draw.space_time(made)
    root = tree_of(text)
    assert len(arrows(root)) <= 1.5 * draw.MOST_ARROWS
    words = [t.text or "" for t in root.iter(NS + "text")]
    assert "node 200" in words  # the one that the fault hits
    assert sum(word.startswith("node ") for word in words) == draw.FOLD_TO
    assert f"{300 - draw.FOLD_TO} others" in words
    assert any(f"{draw.FOLD_TO} of 300 nodes" in word for word in words)
    assert len(text) < 300_000


def test_asking_for_everything_of_a_large_run_stays_small():
    made = run(Chat(times=40), world=World.lan(100), until_s=0.5, trace=True)
    text = draw.space_time(made, from_s=0.0, until_s=0.5, nodes=range(40))
    assert len(arrows(tree_of(text))) <= draw.HARD_ARROWS
    assert "more not drawn" in text


def test_lost_messages_end_in_a_cross(made):
    lost = [Span("lost", "hear", 10_000_000, 10_000_000, 0, 3)]
    text = draw.space_time(made, lost=lost)
    tree_of(text)
    assert "hear: node 0 to node 3, sent 10 ms, never arrived" in text and "1 lost" in text


def test_the_same_run_gives_the_same_picture(made):
    assert draw.space_time(made) == draw.space_time(made)


def test_idle_time_is_folded_and_order_is_kept():
    busy = [(0, 100), (1_000_000, 1_000_100), (2_000_000, 2_000_100)]
    axis = timeline.TimeAxis((0, 2_000_100), busy, 100, 0.0, 1000.0)
    assert axis.folds and sum(s.folded for s in axis.stretches) == 2
    places = [axis.x(t) for t in range(0, 2_000_100, 997)]
    assert places == sorted(places) and places[0] >= 0 and places[-1] <= 1000.0
    # A message is far wider than it would be on an even axis.
    assert axis.x(100) - axis.x(0) > 50
    even = timeline.TimeAxis((0, 1000), [(0, 1000)], 100, 0.0, 1000.0)
    assert not even.folds and even.x(250) == 250.0


def test_ticks_are_round_and_inside():
    for lo, hi in ((0.0, 1.0), (0.13, 0.87), (1e-9, 5e-9), (-3.0, 2.0), (0.0, 1e12)):
        found = svg.ticks(lo, hi, 5)
        assert 2 <= len(found) <= 12
        assert all(lo - 1e-9 * abs(lo) <= x <= hi * (1 + 1e-9) for x in found)
    assert svg.ticks(3.0, 3.0) == [3.0] and svg.ticks(float("nan"), 1.0) == []


def test_charts_are_pictures_too():
    lines = {"gossip": [(0.0, 0.0), (0.5, 0.9), (1.0, 1.0)], "flood": [(0.0, 0.0), (1.0, 0.8)],
             "<none>": [(0.0, float("nan"))]}  # fmt: skip
    root = tree_of(line_chart(lines, title="Coverage", x_label="time (s)", y_label="share"))
    assert "gossip: from 0 to 1" in root.find(NS + "desc").text
    bars = [("a", 1.0, 0.9, 1.1), ("b & c", 2.0, None, None), ("d", float("nan"), None, None)]
    root = tree_of(bar_chart(bars, title="Time", unit="s", better="lower"))
    words = " ".join(t.text or "" for t in root.iter(NS + "text"))
    assert "b & c" in words and "1 s [900 ms, 1.1 s]" in words and "no value" in words
    tree_of(bar_chart([("zero", 0.0, 0.0, 0.0)], title="Nothing"))


def test_charts_of_nothing_are_refused():
    with pytest.raises(UsageError):
        line_chart({"a": []}, title="t", x_label="x", y_label="y")
    with pytest.raises(UsageError):
        line_chart({str(i): [(0, 1)] for i in range(50)}, title="t", x_label="x", y_label="y")
    with pytest.raises(UsageError):
        bar_chart([], title="t")


def test_write_puts_an_svg_file_there(made, tmp_path):
    path = draw.write(made, tmp_path / "run.svg", until_s=0.05)
    tree_of(path.read_text())
    with pytest.raises(UsageError, match=r"\.svg"):
        draw.write(made, tmp_path / "run.png")
