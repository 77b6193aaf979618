"""Is the page quick on large runs? Views of 100,000 nodes and a million messages; moments of Raft.

Views are answered from an index that is built once; each row is the median of several. Seconds are
CPU seconds of this process, so that a busy machine does not change them much. Sizes are bytes of
JSON as the page sends it. `--real N` also makes a run of push gossip on N nodes and folds that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orrery import World
from orrery.base.plain import encode_json
from orrery.lab import folding, lanes, playback, tracks
from orrery.lab.discover import ask_problem, load
from orrery.lab.playground import Playground
from orrery.world import worlds

NODES, MESSAGES, CRASHES, TIMES = 100_000, 1_000_000, 3_000, 5
VIEWS: dict[str, dict[str, Any]] = {
    "whole run, all nodes": {},
    "whole run, 40 lines, 400 bins": {"lanes": 40, "bins": 400},
    "a hundredth of the time": {"from_s": 0.5, "until_s": 0.51},
    "one fold of 3,572 nodes": {"lo": 0, "hi": 3572},
    "one fold of 128 nodes": {"lo": 0, "hi": 128},
    "28 single nodes": {"lo": 0, "hi": 28},
    "28 nodes, a tenth of the time": {"lo": 0, "hi": 28, "from_s": 0.2, "until_s": 0.3},
}


def took(act: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU seconds of a call, and what it gave."""
    began = time.process_time()
    found = act()
    return time.process_time() - began, found


def random_index() -> folding.Index:
    """Messages between random nodes at random times, which no fold can make easy."""
    rng = np.random.default_rng(1)
    sent = rng.integers(0, 10**9, MESSAGES)
    columns = folding.Columns(
        sent_ns=sent,
        received_ns=sent + rng.integers(400_000, 600_000, MESSAGES),
        src=rng.integers(0, NODES, MESSAGES).astype(np.int32),
        dst=rng.integers(0, NODES, MESSAGES).astype(np.int32),
        method=rng.integers(0, 5, MESSAGES).astype(np.int32),
        size_B=rng.integers(10, 1000, MESSAGES),
        reply=rng.random(MESSAGES) < 0.3,
        lost=rng.random(MESSAGES) < 0.01,
    )
    marks = [
        folding.Mark("down", "Crash", int(at), 10**9, int(node))
        for at, node in zip(
            rng.integers(0, 10**9, CRASHES), rng.integers(0, NODES, CRASHES), strict=True
        )
    ]
    order = lanes.order_of(World.lan(NODES), NODES + 1)
    return folding.Index(columns, list("abcde"), order, end_ns=10**9, marks=marks)


def views(index: folding.Index) -> list[dict[str, Any]]:
    """Each view several times: its median time and the size of its answer."""
    rows = []
    for name, asked in VIEWS.items():
        times = []
        for _ in range(TIMES):
            seconds, answer = took(lambda asked=asked: index.view(**asked))
            times.append(seconds)
        rows.append({
            "view": name, "cpu_s": round(statistics.median(times), 4),
            "json_B": len(encode_json(answer)), "messages": answer["messages"],
            "folded": answer["folded"],
        })  # fmt: skip
    return rows


def moments() -> dict[str, Any]:
    """How long a moment, a crash, and a test of Raft take, each by executing it again."""
    play = Playground.open("raft", seed=7)
    first, _ = took(play.whole)
    look, _ = took(lambda: play.at(2.0))
    edit, _ = took(lambda: play.edit("crash", [1], at_s=1.0))
    save, _ = took(play.save_test)
    return {
        "whole_run_cpu_s": round(first, 4), "a_moment_cpu_s": round(look, 4),
        "a_crash_cpu_s": round(edit, 4), "save_test_cpu_s": round(save, 4),
        "events": play.whole("main").run.events,
    }  # fmt: skip


def real(nodes: int) -> dict[str, Any]:
    """A real run on many nodes: made again with everything on record, indexed, folded."""
    problem = ask_problem("broadcast", {"values": 1})
    world = worlds.get(f"lan:{nodes}")
    run_s, played = took(lambda: playback.play(
        load("push-gossip")(), problem=problem, world=world, seed=7,
        limits=playback.Limits(events=20_000_000, seconds=3600.0)))  # fmt: skip
    index_s, index = took(lambda: folding.index_of(played.run))
    tracks_s, _ = took(lambda: tracks.Tracks(played.run))
    view_s, answer = took(index.view)
    return {
        "nodes": nodes, "messages": len(index), "run_cpu_s": round(run_s, 2),
        "index_cpu_s": round(index_s, 2), "tracks_cpu_s": round(tracks_s, 2),
        "view_cpu_s": round(view_s, 4), "json_B": len(encode_json(answer)),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=0, metavar="N", help="nodes of a real run")
    asked = parser.parse_args()
    build_s, index = took(random_index)
    document: dict[str, Any] = {
        "nodes": NODES, "messages": MESSAGES, "build_cpu_s": round(build_s, 2),
        "views": views(index), "raft": moments(),
    }  # fmt: skip
    if asked.real:
        document["real"] = real(asked.real)
    print(json.dumps(document, indent=2))
