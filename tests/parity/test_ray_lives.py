"""Lives and deaths with Ray: scripts, kills of the parent and of workers, clusters of others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.parity import ray_toys
from tests.parity.ray_toys import Gate, Toll
from tests.unit.test_lab_sweep_kill import Disk, lines_of

import orrery
from orrery import World
from orrery.base.errors import PartError, StoreError
from orrery.base.rand import Stream
from orrery.engines.ray import shutdown
from orrery.engines.ray.watcher import TAG, end_all, members
from orrery.lab.store import Store
from orrery.lab.sweep import sweep

pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(orrery.__file__).resolve().parents[1]
OVER = {"problem.load": [1.0, 2.0, 3.0, 4.0], "part.fixed": [5.0, 50.0]}


@pytest.fixture(scope="module", autouse=True)
def no_ray_afterwards():
    yield
    shutdown()


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(SOURCE), str(ROOT)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def do(*words: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(**more), text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip


# -- code that only this process has

SCRIPT = """
from __future__ import annotations
import dataclasses
from orrery import Node, World, rpc, run

@dataclasses.dataclass
class Vote:
    value: int

class Echo(Node):
    @rpc
    def back(self, vote: Vote) -> Vote:
        return Vote(vote.value + 1)

    async def main(self):
        if self.id == 0:
            self.emit(got=(await self.ask(1, Echo.back, Vote(41))))

GUARDED
    made = run(Echo(), world=World.lan(2), engine="ray", nodes_per_actor=1)
    print(made.records[0].values["got"], made.ended)
"""


def test_a_script_needs_no_module_but_a_guard(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT.replace("GUARDED", 'if __name__ == "__main__":'))
    done = do("mine.py", folder=tmp_path)
    assert done.stdout.strip() == "Vote(value=42) quiet", done.stderr
    (tmp_path / "mine.py").write_text(SCRIPT.replace("GUARDED", "if True:"))
    done = do("mine.py", folder=tmp_path)
    assert done.returncode and 'if __name__ == "__main__":' in done.stderr


def test_the_command_line_runs_a_file_and_prints_one_document(tmp_path):
    (tmp_path / "own.py").write_text(
        "from orrery.systems.protocols import PushGossip\n\n\n"
        'class Own(PushGossip):\n    """Ours."""\n\n    fanout: int = 2\n'
    )
    (tmp_path / "kill.toml").write_text(
        '[[faults]]\nkind = "Crash"\nnode = 1\nat_s = 0.2\nuntil_s = 0.5\n'
    )
    home = str(tmp_path / "home")
    words = ("-m", "orrery.cli", "run", "own.py:Own", "--problem", "broadcast:settle_s=2.0",
             "--world", "lan:3", "--engine", "ray", "--faults", "kill.toml", "--json")  # fmt: skip
    done = do(*words, folder=tmp_path, ORRERY_HOME=home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["engine"] == "ray" and told["violations"] == []
    words = ("-m", "orrery.cli", "sweep", "own.py:Own", "fanout=1,2", "--problem", "broadcast",
             "--world", "lan:4", "--by", "messages_per_value", "--on", "ray", "--json")  # fmt: skip
    done = do(*words, folder=tmp_path, ORRERY_HOME=home)
    assert done.returncode == 0, done.stderr
    assert [t["seeds"] for t in json.loads(done.stdout)["trials"]] == [1, 1]


# -- the parent is killed

KILLED = """
import os, sys
from orrery import World, run
from orrery.engines.ray.cluster import connect
from tests.parity.test_processes_faults import Chatty
if __name__ == "__main__":
    connect()
    print("begun", flush=True)
    run(Chatty(), world=World.lan(3), engine="ray", until_s=60.0, monitors=[], on_log=None)
"""


def test_after_kill_9_of_the_parent_nothing_is_left(tmp_path):
    (tmp_path / "child.py").write_text(KILLED)
    places = {"TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "child.py"], cwd=tmp_path, env=environment(**places), text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout.readline() == "begun\n"
    (folder,) = Path("/tmp").glob(f"orrery-ray-{os.getuid()}-{child.pid}-*")
    began = time.monotonic()
    while not list(tmp_path.glob("orrery-*/counters")) and time.monotonic() - began < 60:
        time.sleep(0.05)
    time.sleep(5.0)
    assert child.poll() is None and len(members(folder.name)) > 5
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert ray_toys.wait_until_gone(folder.name, 20.0) == []
    while folder.exists() and time.monotonic() - began < 90:
        time.sleep(0.1)
    assert not folder.exists()
    assert list(tmp_path.glob("orrery-*/counters")) == []  # the actors cleared up


# -- sweeps


def whole(tmp_path):
    return sweep({"gate": Gate()}, OVER, problem=Toll, world=World.lan(1), seeds=2,
                 store=Store(tmp_path / "whole"))  # fmt: skip


SWEEPER = """
import sys
from pathlib import Path
from orrery import World
from orrery.lab.store import Store
from orrery.lab.sweep import sweep
from tests.parity.ray_toys import Gate, Toll
from tests.parity.test_ray_lives import OVER
if __name__ == "__main__":
    told = open(sys.argv[2], "a", buffering=1)
    sweep({"gate": Gate(busy_s=0.2)}, OVER, problem=Toll, world=World.lan(1), seeds=2, on="ray",
          jobs=2, store=Store(Path(sys.argv[1])), progress=lambda t: told.write(f"{t.n}\\n"))
"""


def test_ten_kills_of_the_parent_and_forty_of_workers(tmp_path):
    """The storm of 500 kills in a smaller form, as each start of Ray takes seconds."""
    (tmp_path / "sweeper.py").write_text(SWEEPER)
    home, log, dice = tmp_path / "home", tmp_path / "log", Stream(4, 0, "kills")
    parents = workers = 0
    for _ in range(60):
        child = subprocess.Popen(
            [sys.executable, "sweeper.py", str(home), str(log)], cwd=tmp_path, env=environment(),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + (3.0 + 9.0 * dice.random() if parents < 10 else 300.0)
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            for pid in victims(child.pid):
                if workers < 4 * (parents + 1) and child.poll() is None and dice.random() < 0.3:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        workers += 1
        acknowledged = [int(line) for line in log.read_text().split()] if log.exists() else []
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            parents += 1
        said = child.communicate()[1]
        kept = [trial.n for trial in lines_of(home)]
        assert len(kept) == len(set(kept)) and set(acknowledged) <= set(kept)
        if child.returncode == 0:
            if parents >= 10 and workers >= 40:
                break
            # Finished too early: go on in a fresh home.
            check_end(home)
            home, log = tmp_path / f"home{parents}-{workers}", tmp_path / f"log{parents}-{workers}"
        else:
            assert child.returncode == -signal.SIGKILL or "Ray workers died" in said, said
    assert parents >= 10 and workers >= 40, (parents, workers)
    check_end(home)


def check_end(home):
    """Every trial once, and each run as if nothing had happened."""
    asked = {"problem": Toll, "world": World.lan(1), "seeds": 2, "store": Store(home)}
    found = sweep({"gate": Gate(busy_s=0.2)}, OVER, **asked)
    assert len(found.trials) == 8
    with tempfile.TemporaryDirectory() as other:
        plain = sweep({"gate": Gate(busy_s=0.2)}, OVER, **asked | {"store": Store(other)})
    assert [t.scores for t in found.trials] == [t.scores for t in plain.trials]


def victims(parent: int) -> list[int]:
    """The Ray workers that do a task of this parent's local Ray right now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            tag = f"{TAG}=orrery-ray-{os.getuid()}-{parent}-".encode()
            title = (path / "cmdline").read_bytes()
            if title.startswith(b"ray::call") and tag in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


@pytest.mark.parametrize("every", [3, 29])
def test_write_errors_at_every_nth_call(every, tmp_path, monkeypatch):
    ray_toys.begin()
    options = {"problem": Toll, "world": World.lan(1), "seeds": 2, "on": "ray", "jobs": 2}
    plain, home, told = whole(tmp_path), tmp_path / "home", []
    with monkeypatch.context() as patch:
        disk = Disk(patch, every, once=False)
        for _ in range(30):
            try:
                sweep({"gate": Gate()}, OVER, store=Store(home), progress=told.append, **options)
                break
            except StoreError:
                pass
            assert {trial.n for trial in told} <= {trial.n for trial in lines_of(home)}
    assert disk.failed
    found = sweep({"gate": Gate()}, OVER, store=Store(home), **options)
    assert found.runs == plain.runs
    assert [t.scores for t in found.trials] == [t.scores for t in plain.trials]


def test_a_cell_that_kills_every_worker_is_given_up(tmp_path):
    ray_toys.begin()
    marks = tmp_path / "marks"
    marks.mkdir()
    fragile = {"fragile": ray_toys.Fragile(marks=str(marks), deaths=99)}
    with pytest.raises(PartError, match="5 Ray workers died at fragile"):
        sweep(fragile, {"fixed": [7.0]}, problem=Toll, world=World.lan(1), on="ray",
              store=Store(tmp_path / "home"))  # fmt: skip
    assert len(list(marks.iterdir())) == 5


# -- a cluster that is there

CLUSTER = """
import json, os, sys
from ray.cluster_utils import Cluster
from orrery import World, run
from orrery.engines.ray import cluster as ways
from orrery.engines.ray.cluster import connect, shutdown
from orrery.lab.store import Store
from orrery.lab.sweep import sweep
from orrery.systems.protocols import Broadcast, PushGossip
from tests.parity.ray_toys import Gate, Toll
from orrery.world import Crash
if __name__ == "__main__":
    theirs = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    theirs.add_node(num_cpus=1)
    address, told = theirs.address, {}
    if sys.argv[2] == "far":  # as if the cluster had other machines: Ray carries the packages
        see = ways._describe
        ways._describe = lambda ray: see(ray)._replace(
            here=False, host=ray.util.get_node_ip_address())
    world = World.lan(4).with_faults(Crash(node=1, at_s=0.3, until_s=0.6))
    made = run(PushGossip(), problem=Broadcast(values=3, settle_s=6.0), world=world, engine="ray",
               address=address, shared=sys.argv[2] != "far")
    assert made.violations == [], made.violations
    told["ray"], told["restarts"] = made.extra["ray"], made.extra["restarts"]
    os.environ["RAY_ADDRESS"] = address
    found = sweep({"gate": Gate()}, {"part.fixed": [1.0, 2.0]}, problem=Toll, world=World.lan(1),
                  on="ray", jobs=0, store=Store(sys.argv[1]))
    told["trials"] = len(found.trials)
    cluster = connect()
    told["ours"] = cluster.ours
    shutdown()
    cluster = connect(address)   # it is still there
    told["nodes"] = len(cluster.nodes)
    try:
        connect("local")
    except Exception as error:
        told["conflict"] = str(error)
    shutdown()
    theirs.shutdown()
    print(json.dumps(told))
"""


@pytest.mark.parametrize("where", ["here", "far"])
def test_a_cluster_of_others_is_used_and_left_running(where, tmp_path):
    (tmp_path / "cluster.py").write_text(CLUSTER)
    # A Unix socket's path is short, so the cluster's folder cannot be in the test's own.
    tag = {
        TAG: f"cluster-of-{os.getpid()}",
        "RAY_TMPDIR": tempfile.mkdtemp(prefix="rc-", dir="/tmp"),
    }
    done = do("cluster.py", str(tmp_path / "home"), where, folder=tmp_path,
              RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="ab" * 32, **tag)  # fmt: skip
    end_all(tag[TAG])  # helpers of that cluster
    shutil.rmtree(tag["RAY_TMPDIR"], ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ray"]["nodes"] == 2 and told["ray"]["local"] is False
    assert told["ray"]["far_actors"] == (4 if where == "far" else 0)
    assert ray_toys.far_folders() == []
    assert told["restarts"] == 1 and told["trials"] == 2
    assert told["ours"] is False and told["nodes"] == 2
    assert "uses another Ray already" in told["conflict"]
