"""The Ray engine and sweeps on Ray: the same parts, verdicts and runs as elsewhere; nothing stays.

One local Ray serves all tests of this file. More parts, faults and kills are in the slow tests.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.parity import ray_toys
from tests.parity.ray_toys import Breaks, Fragile, Gate, Toll
from tests.parity.test_processes_engine import (
    Averager,
    Everyone,
    Gossip,
    Questions,
    Server,
    Taps,
)
from tests.parity.test_processes_faults import Diarist, Diary

from orrery import World, run
from orrery.base.errors import PartError
from orrery.engines.processes import ProcessEngine
from orrery.engines.virtual.engine import Engine
from orrery.lab.store import Store
from orrery.lab.sweep import sweep
from orrery.world import Crash

pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
from orrery.engines.ray import RayEngine

ENGINES = (Engine, ProcessEngine, RayEngine)


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    """One Ray for the file; afterwards neither a process nor a file of it is left."""
    name = ray_toys.begin()
    yield
    ray_toys.end(name)


def test_gossip_has_the_same_verdict_and_the_same_random_choices():
    picks = []
    for engine in ENGINES:
        options = {"nodes_per_actor": 3} if engine is RayEngine else {}
        made = engine(
            {"node": Gossip()}, world=World.lan(5, drop=0.2), problem=Everyone(), seed=3, **options
        ).run(20)
        assert made.ended == "driven" and Everyone().check(made) == []
        picks.append(sorted((n, v) for _, n, v in made.emitted("first")))
    assert picks[0] == picks[1] == picks[2]
    assert made.engine == "ray" and made.digest == "" and made.extra["actors"] == 2
    assert made.extra["shimmed"] > 0  # the world's loss is played by the shim
    assert made.extra["malformed"] == made.extra["refused"] == made.extra["corrupt"] == 0
    assert made.extra["ray"]["local"] and made.extra["ray"]["far_actors"] == 0
    pids = {pid for each in made.extra["pids"].values() for pid in each}
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_every_waiting_primitive_answers_alike():
    world = World.lan(2)
    virtual = Engine({"node": Server()}, world=world, problem=Questions(), seed=3).run(20).driven
    made = RayEngine(
        {"node": Server()}, world=world, problem=Questions(), seed=3, nodes_per_actor=2
    )
    real = made.run(20).driven
    assert real == virtual and real["refused"] == "not today"


def test_a_kill_and_a_restart_keep_what_was_synced_and_what_was_emitted():
    world = World.lan(2).with_faults(Crash(node=0, at_s=0.1, until_s=0.25))
    picks = []
    for engine in (Engine, RayEngine):
        made = engine({"node": Diary()}, world=world, problem=Diarist(), seed=5).run(30)
        acknowledged, recalled = made.driven
        assert acknowledged and set(acknowledged) <= set(recalled)
        assert [v for _, n, v in made.emitted("again") if n == 0] == [0, 1]
        picks.append([v for _, n, v in made.emitted("pick") if n == 0])
    assert picks[0] == picks[1]
    assert len({v for _, n, v in made.emitted("pid") if n == 0}) == 2  # really another process
    assert made.extra["restarts"] == 1 and made.extra["faults_fired"] == {"Crash": 1}
    assert made.alive == [True, True]


def test_a_worker_with_collectives_gives_the_same_bits():
    found = []
    for engine in (Engine, RayEngine):
        taps = Taps()
        options = {"nodes_per_actor": 2} if engine is RayEngine else {}
        made = engine(
            {"node": Averager()}, world=World.lan(3), monitors=[taps], seed=1, **options
        ).run(20)
        found.append((sorted((r.node, repr(r.values)) for r in made.records), sorted(taps.seen)))
    assert found[0] == found[1] and len(found[0][0]) == 3 and len(found[0][1]) == 12


def test_an_unhandled_error_names_node_and_time_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PartError, match=r"node 1 failed at .* ValueError: the part is broken"):
        run(Breaks(), world=World.lan(2), engine="ray", until_s=5.0, nodes_per_actor=2)
    assert list(tmp_path.glob("orrery-*")) == []


def test_a_sweep_on_ray_equals_one_on_processes_and_survives_a_dead_worker(tmp_path):
    over = {"problem.load": [1.0, 10.0], "part.fixed": [5.0, 50.0]}
    there, here = Store(tmp_path / "ray"), Store(tmp_path / "here")
    options = {"problem": Toll, "world": World.lan(2), "seeds": 2}
    found = sweep({"gate": Gate()}, over, store=there, on="ray", jobs=0, **options)
    plain = sweep({"gate": Gate()}, over, store=here, **options)
    assert found.runs == plain.runs and len(found.runs) == 8
    for id in found.runs:
        ours, theirs = here.load(id), there.load(id)
        assert (ours.metrics, ours.digest, ours.spec) == (
            theirs.metrics,
            theirs.digest,
            theirs.spec,
        )
    assert sweep({"gate": Gate()}, over, store=there, on="ray", **options).made == 0
    marks = tmp_path / "marks"
    marks.mkdir()
    fragile = {"fragile": Fragile(marks=str(marks), deaths=2)}
    found = sweep(
        fragile, {"fixed": [7.0]}, problem=Toll, world=World.lan(1), store=there, on="ray"
    )
    assert found.best.scores == [7.0] and len(list(marks.iterdir())) == 2
    assert not any(name.name.endswith(f"-{os.getpid()}") for name in marks.iterdir())
