"""What Ray support does without a Ray: names, addresses, sources, parcels, and its errors."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
import types
from pathlib import Path

import msgspec
import pytest
from tests.parity.ray_toys import Gate, Toll
from tests.unit.test_cli_kit import cli, refused

from orrery import World
from orrery.base import codec
from orrery.base.errors import PartError, PlatformLacks, StoreError, UsageError
from orrery.engines.processes import values, wire
from orrery.engines.processes.spec import Counters
from orrery.engines.ray import cluster, code, lines
from orrery.lab import run
from orrery.lab.cells import Cell, pack
from orrery.lab.store import MANIFEST, Store
from orrery.lab.sweep.on_ray import RayRunner, _Parcel, _parcel, _Shelf, perform
from orrery.lab.sweep.workers import make_workers

SWEEP = ("sweep", "push-gossip", "fanout=2,3", "--by", "coverage")
CELL = Cell(name="gate", part=Gate(), problem=Toll(), world=World.lan(2), seed=3)


# -- Ray is not there


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PlatformLacks, match=r'pip install "orrery\[ray\]"'):
        run(Gate(), problem=Toll(), world=World.lan(1), engine="ray")
    with pytest.raises(PlatformLacks, match=r"orrery\[ray\]"):
        make_workers("ray", Store(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_the_same_and_shows_no_traceback(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "orrery[ray]" in refused("run", "push-gossip", "--engine", "ray")
    assert "orrery[ray]" in refused(*SWEEP, "--on", "ray")


def test_help_and_doctor_name_ray():
    for command in ("run", "compare", "sweep"):
        assert "ray" in cli(command, "--help").out
    found = cli("doctor", "--json").json
    assert found["extras"]["ray"] == bool(found["ray"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--on", "rays"), 'did you mean "ray"'),
        (("--address", "1.2.3.4:5"), "add --on ray"),
        (("--on", "ray", "--address", " "), "--address is empty"),
        (("--on", "processes:x"), "no such workers"),
    ],
)
def test_bad_words_of_a_sweep_are_named(words, says):
    assert says in refused(*SWEEP, *words)


# -- addresses


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "h:0", "h:99999"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(UsageError, match="host:port"):
        cluster._knock(address)


def test_a_closed_door_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound and not listening
        began = time.monotonic()
        with pytest.raises(UsageError, match="nobody answers there.*ray start --head"):
            cluster._knock(f"127.0.0.1:{port}")
    assert time.monotonic() - began < cluster.CONNECT_S


def test_ray_client_is_refused():
    with pytest.raises(UsageError, match="Ray Client"):
        cluster._join(None, "ray://127.0.0.1:10001")


def test_jobs_out_of_range_are_refused(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    for bad in (-1, 1025, True, 2.0):
        with pytest.raises(UsageError, match="jobs"):
            RayRunner(Store(tmp_path), bad)


def test_only_folders_of_the_dead_are_swept(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead = tmp_path / f"orrery-ray-{os.getuid()}-{child}-ab"
    mine = tmp_path / f"orrery-ray-{os.getuid()}-{os.getpid()}-cd"
    strange = tmp_path / f"orrery-ray-{os.getuid()}-notes-x"
    for folder in (dead, mine, strange):
        (folder / "session").mkdir(parents=True)
    assert cluster.sweep_stale(str(tmp_path)) == [dead.name]
    assert not dead.exists() and mine.exists() and strange.exists()


# -- sources that travel


def test_modules_that_can_be_found_do_not_travel():
    classes = code.classes_of([Gate(), Toll(), {"role": [Gate()]}])
    assert Gate in classes and object not in classes
    told = codec.decode(code.pack(classes))
    assert told["sources"] == []


def test_a_file_that_was_loaded_by_its_path_travels_as_source(tmp_path, monkeypatch):
    from orrery.lab.discover import load

    path = tmp_path / "some_part_of_mine.py"
    path.write_text("from orrery import Node\n\n\nclass Mine(Node):\n    knob: int = 1\n")
    part = load(f"{path}:Mine")(knob=3)
    data = code.pack(code.classes_of([part]))
    assert [source[0] for source in codec.decode(data)["sources"]] == ["some_part_of_mine"]
    path.unlink()  # as on a machine that has no such file
    monkeypatch.delitem(sys.modules, "some_part_of_mine")
    monkeypatch.setattr(code, "_brought", {})
    code.bring(data)
    module = sys.modules["some_part_of_mine"]
    assert module.Mine(knob=3).knobs() == part.knobs()
    assert Path(module.__file__).read_text().startswith("from orrery import Node")
    kept = module.Mine
    code.bring(data)
    assert sys.modules["some_part_of_mine"].Mine is kept  # once is enough
    monkeypatch.delitem(sys.modules, "some_part_of_mine")


def test_a_script_that_runs_while_it_is_loaded_is_told_the_guard(monkeypatch):
    text = "from orrery.engines.ray.cluster import need_ray\nneed_ray()\n"
    sources = [("unguarded_script", "", "/nowhere/unguarded_script.py", text)]
    import orrery

    data = codec.encode({"version": orrery.__version__, "sources": sources})
    with pytest.raises(UsageError, match='if __name__ == "__main__"'):
        code.bring(data)
    assert not code.is_bringing()
    sys.modules.pop("unguarded_script", None)


def test_another_version_is_refused():
    with pytest.raises(PartError, match="install the same version"):
        code.bring(codec.encode({"version": "0.0.0", "sources": []}))


def test_a_module_without_a_file_is_named(monkeypatch):
    module = types.ModuleType("typed_at_a_prompt")
    monkeypatch.setitem(sys.modules, "typed_at_a_prompt", module)
    exec("from orrery import Node\nclass Mine(Node): pass", module.__dict__)
    with pytest.raises(PartError, match="typed_at_a_prompt, which is no file"):
        code.pack(code.classes_of([module.Mine()]))


# -- parcels


def made() -> tuple[str, dict[str, bytes]]:
    kind, id, files = msgspec.msgpack.decode(perform(_parcel(CELL)))
    assert kind == "run"
    return id, files


def test_a_run_comes_back_whole_and_is_the_same_as_one_made_here(tmp_path):
    id, files = made()
    there, here = Store(tmp_path / "a"), Store(tmp_path / "b")
    assert _Shelf(there.root).take(id, files) == id
    from orrery.lab.cells import run_cell

    mine = run_cell(CELL, here)
    assert mine.id == id and there.load(id).metrics == mine.metrics
    assert there.load(id).digest == mine.digest


def spoil(files: dict[str, bytes], how: str) -> dict[str, bytes]:
    changed = dict(files)
    if how == "flip":
        changed["metrics.json"] = files["metrics.json"].replace(b"1", b"2", 1) + b" "
    elif how == "lose":
        del changed["digest"]
    elif how == "add":
        changed["extra.json"] = b"{}"
    elif how == "no manifest":
        del changed[MANIFEST]
    elif how == "not a manifest":
        changed[MANIFEST] = b"\xff"
    elif how == "another id":
        other = json.loads(files[MANIFEST]) | {"id": "ab" * 10}
        changed[MANIFEST] = json.dumps(other).encode()
    else:
        manifest = json.loads(files[MANIFEST])
        changed["../evil"] = b"x"
        manifest["files"]["../evil"] = hashlib.sha256(b"x").hexdigest()
        changed[MANIFEST] = json.dumps(manifest).encode()
    return changed


@pytest.mark.parametrize(
    "how",
    ["flip", "lose", "add", "no manifest", "not a manifest", "another id", "outside"],
)
def test_a_damaged_parcel_is_refused_and_nothing_is_written(how, tmp_path):
    id, files = made()
    with pytest.raises(StoreError, match="came back damaged"):
        _Shelf(tmp_path / "home").take(id, spoil(files, how))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    id, files = made()

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StoreError, match="free some space"):
        _Shelf(tmp_path).take(id, files)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_refusal_comes_back_as_itself():
    part = Gate()
    bad = Cell(name="gate", part=part, problem=Toll(), world=World.lan(2), seed=3, engine="vrtual")
    import pickle

    answer = msgspec.msgpack.decode(perform(pickle.dumps(pack(bad))))
    assert answer[0] == "UsageError" and "did you mean" in answer[1]
    with pytest.raises(UsageError, match="did you mean"):
        RayRunner._keep(types.SimpleNamespace(), msgspec.msgpack.encode(answer))


def test_a_part_made_in_a_function_does_not_travel():
    class Local(Gate):
        """Nobody can import it."""

    local = Cell(name="x", part=Local(), problem=Toll(), world=World.lan(1), seed=0)
    assert _parcel(local) is None and _Parcel(Path(".")).root == Path(".")


# -- lines and counters


def test_the_clock_of_another_machine_is_set_by_the_quickest_answer(monkeypatch):
    ours, theirs = socket.socketpair()
    ahead_ns = 5_000_000_000

    def parent() -> None:
        reader = wire.FrameReader()
        for number in range(lines.CLOCK_QUESTIONS):
            while not (found := list(reader.feed(theirs.recv(4096)))):
                pass
            assert values.unpack(found[0]) == ("clock",)
            answer = values.pack(("clock", time.monotonic_ns() + ahead_ns))
            time.sleep(0.01 if number else 0.05)  # the answers are late by different times
            theirs.sendall(wire.frame(answer))

    thread = threading.Thread(target=parent)
    thread.start()
    measured = lines.clock_ahead_ns(ours)
    thread.join()
    # Half of the quickest round trip is the most that it can be wrong by.
    assert abs(measured - ahead_ns) < 20_000_000
    ours.close()
    theirs.close()


def test_a_stranger_gets_no_line():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            line, _ = server.accept()
            line.sendall(wire.hello(b"n" * wire.NONCE_B))
            line.recv(4096)
            line.sendall(b"m" * wire.MAC_B)  # it does not know the secret
            line.recv(1)
            line.close()

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(wire.WireError, match="does not know the secret"):
            lines.open_line(server.getsockname(), b"s" * 32, 0)
        thread.join()


def test_a_row_of_counters_crosses_without_a_shared_file(tmp_path):
    far, near = tmp_path / "far", tmp_path / "near"
    far.mkdir()
    near.mkdir()
    theirs, ours = Counters(str(far), 3, 1, 2), Counters(str(near), 3, 2, 2)
    theirs.add("messages", 7)
    theirs.fire(1)
    ours.add("messages", 1)
    ours.set_row(1, theirs.row())
    assert ours.total("messages") == 8 and ours.fired(1) == 1 and ours.fired(0) == 0
    theirs.close()
    ours.close()


def test_this_machine_has_one_mark():
    assert lines.machine_mark() == lines.machine_mark() and lines.machine_mark().count("|") == 3
