"""The run store: whole folders or none, first writer wins, damage is named."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.unit.lab_toys import Plain, Race, Racer

from orrery import World
from orrery.base.errors import StoreError, UsageError
from orrery.lab import store as stores
from orrery.lab.run import run
from orrery.lab.spec import spec_id, spec_of
from orrery.lab.store import Store
from orrery.parts import Node, Violation


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def make(seed=0, part=None, **more):
    part, problem, world = part or Racer(), Race(), World.lan(2)
    spec = spec_of(part, problem=problem, world=world, seed=seed, **more)
    return run(part, problem=problem, world=world, seed=seed), spec


def test_what_is_saved_is_loaded(store):
    made, spec = make()
    id = store.save(made, spec)
    found = store.load(id)
    assert found.metrics == made.metrics
    assert found.digest == made.digest
    assert found.seconds == made.seconds
    assert found.spec["seed"] == 0
    assert found.kind == "modelled"
    assert found.units["time_s"][:2] == ("s", "lower")
    assert found.environment["python"]
    names = set(os.listdir(found.folder))
    assert {"spec.json", "metrics.json", "violations.json", "environment.json", "digest"} <= names
    assert found.row()["part"] == "Racer"


def test_metrics_that_json_lacks_survive(store):
    made, spec = make()
    made.metrics = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 0.1 + 0.2}
    found = store.load(store.save(made, spec)).metrics
    assert found["a"] == math.inf
    assert found["b"] == -math.inf
    assert math.isnan(found["c"])
    assert found["d"] == 0.1 + 0.2


def test_evidence_may_be_anything(store):
    made, spec = make()
    made.violations = [Violation(kind="k", message="m", evidence={(1, 2): {3}, "f": print})]
    found = store.load(store.save(made, spec))
    assert found.violations[0]["kind"] == "k"
    assert "(1, 2)" in found.violations[0]["evidence"]
    assert not found.ok


def test_every_part_of_a_spec_counts():
    base = {"problem": Race(), "world": World.lan(2)}
    ids = {
        spec_id(spec_of(Racer(), **base)),
        spec_id(spec_of(Racer(cost=2.0), **base)),
        spec_id(spec_of(Plain(), **base)),
        spec_id(spec_of(Racer(), **base, seed=1)),
        spec_id(spec_of(Racer(), **base, engine="processes")),
        spec_id(spec_of(Racer(), **base, until_s=1.0)),
        spec_id(spec_of(Racer(), problem=Race(rounds=2), world=World.lan(2))),
        spec_id(spec_of(Racer(), problem=Race(), world=World.lan(3))),
        spec_id(spec_of({"node": Racer()}, **base)),
    }
    assert len(ids) == 9


def test_a_label_does_not_change_the_id():
    base = {"problem": Race(), "world": World.lan(2)}
    assert spec_id(spec_of(Racer(), **base)) == spec_id(spec_of(Racer(), **base, name="mine"))


def test_the_code_of_a_part_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from orrery.parts import Node\nclass P(Node):\n    pass\n"

    def id_of(body):
        (tmp_path / "coded_part.py").write_text(body)
        sys.modules.pop("coded_part", None)
        import importlib

        importlib.invalidate_caches()
        module = importlib.import_module("coded_part")
        return spec_id(spec_of(module.P(), world=World.lan(2)))

    first = id_of(text)
    assert id_of(text) == first
    assert id_of(text + "# changed\n") != first


def test_ids_are_equal_in_another_process(monkeypatch):
    # The core is left out, so that an edit while the test runs is not taken for a difference.
    monkeypatch.setattr("orrery.lab.spec.core_hash", lambda: "")
    code = (
        "from orrery import World\nfrom orrery.lab import spec\n"
        "from tests.unit.lab_toys import Race, Racer\n"
        "spec.core_hash = lambda: ''\n"
        "print(spec.spec_id(spec.spec_of(Racer(), problem=Race(), world=World.lan(2))))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"src{os.pathsep}."},
            cwd=Path(__file__).parents[2],
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {spec_id(spec_of(Racer(), problem=Race(), world=World.lan(2)))}


def test_a_knob_that_cannot_stand_in_a_spec_is_named():
    class Odd(Node):
        what: object = None

    with pytest.raises(StoreError, match=r"Odd\.what"):
        spec_of(Odd(what=object()), world=World.lan(2))


def test_saving_twice_is_saving_once(store):
    made, spec = make()
    id = store.save(made, spec)
    before = os.stat(store.runs / id).st_ino
    assert store.save(made, spec) == id
    assert os.stat(store.runs / id).st_ino == before
    assert os.listdir(store.runs) == [id]


def test_many_writers_leave_one_run(store):
    made, spec = make()
    faults = []

    def write():
        try:
            for _ in range(5):
                store.save(made, spec)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert os.listdir(store.runs) == [spec_id(spec)]
    assert store.load(spec_id(spec)).metrics == made.metrics


def test_a_whole_run_replaces_a_partial_one_and_not_the_reverse(store):
    made, spec = make()
    id = store.save(made, spec, partial=True)
    assert store.load(id).partial
    assert not store.has(id)
    store.save(made, spec)
    assert not store.load(id).partial
    store.save(made, spec, partial=True)
    assert not store.load(id).partial


@pytest.mark.parametrize("file", ["spec.json", "metrics.json", "digest", "manifest.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_damage_is_named_and_skipped(store, file, how, capsys):
    made, spec = make()
    id = store.save(made, spec)
    other = store.save(*make(seed=1))
    path = store.runs / id / file
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with pytest.raises(StoreError, match="damaged"):
        store.load(id)
    assert [run.id for run in store.ls()] == [other]
    assert id in capsys.readouterr().err
    # The same run made again mends it.
    store.save(made, spec)
    assert store.load(id).metrics == made.metrics


def test_a_newer_schema_is_refused(store):
    id = store.save(*make())
    path = store.runs / id / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(StoreError, match="schema 99"):
        store.load(id)
    told = []
    assert store.ls(told.append) == []
    assert len(told) == 1


def test_find_takes_a_prefix(store):
    ids = [store.save(*make(seed=seed)) for seed in range(3)]
    assert store.find(ids[0][:12]) == ids[0]
    assert store.load(ids[1][:12]).id == ids[1]
    with pytest.raises(StoreError, match="no run"):
        store.find("0" * 19)
    with pytest.raises(StoreError, match="hexadecimal"):
        store.find("../../etc")
    with pytest.raises(StoreError, match="hexadecimal"):
        store.load("")
    (store.runs / (ids[0][:12] + "00000000")).mkdir()
    with pytest.raises(StoreError, match="more digits"):
        store.find(ids[0][:12])


def test_rm_and_gc(store):
    ids = [store.save(*make(seed=seed)) for seed in range(4)]
    store.rm(ids[0])
    assert sorted(store.ids()) == sorted(ids[1:])
    for age, id in zip((300, 200, 100), ids[1:], strict=True):
        when = os.stat(store.runs / id).st_mtime - age
        os.utime(store.runs / id, (when, when))
    assert store.gc() == []
    assert store.gc(older_than_s=250) == [ids[1]]
    assert store.gc(keep=1) == [ids[2]]
    assert store.ids() == [ids[3]]
    with pytest.raises(UsageError):
        store.gc(keep=-1)
    with pytest.raises(UsageError):
        store.gc(older_than_s=math.nan)


def test_gc_sweeps_what_the_dead_left_and_nothing_of_the_living(store):
    store.save(*make())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = store.runs / f".tmp-{stores._host()}-{gone.pid}-aa"
    living = store.runs / f".tmp-{stores._host()}-{os.getppid()}-bb"
    elsewhere = store.runs / ".tmp-otherhost-1-cc"
    for folder in (dead, living, elsewhere):
        folder.mkdir()
        (folder / "spec.json").write_text("{")
    store.gc()
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists()
    old = os.stat(elsewhere).st_mtime - stores.STALE_S - 10
    os.utime(elsewhere, (old, old))
    store.gc()
    assert not elsewhere.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="ORRERY_HOME"):
        Store(tmp_path / "file").save(*make())


def test_the_functions_use_orrery_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    id = stores.save(*make())
    assert stores.find(id[:10]) == id
    assert [run.id for run in stores.ls()] == [id]
    assert (tmp_path / "home" / "runs" / id).is_dir()
    assert stores.load(id).id == id
    assert stores.rm(id) == id
    assert stores.gc() == []


def test_spans_are_kept_when_asked(store):
    part, problem, world = Racer(), Race(), World.lan(2)
    made = run(part, problem=problem, world=world, trace=True)
    spec = spec_of(part, problem=problem, world=world)
    id = store.save(made, spec, spans=True)
    assert len(store.spans(id)) == len(made.spans) > 0
    other = store.save(*make(seed=5))
    with pytest.raises(StoreError, match="no spans"):
        store.spans(other)
