"""Planted leaks: each must be caught, and located by file and line or by node and event."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from orrery import World, run
from orrery.base.errors import LeakError, OrreryError
from orrery.lab.determinism import Case, examine, verify_determinism
from orrery.lab.discover import load
from orrery.lab.leaks import lint, lint_all, refuse
from orrery.lab.watch import run_watched

# The line that leaks ends in "# leak"; the rest of the part is the same for all.
PART = """
{imports}
from orrery import Node, rpc


class Leaky(Node):
{attributes}
    def start(self):
        self.seen = []
{start}

    @rpc
    async def hear(self, number: int, words: list[str]) -> None:
        self.seen.append((number, tuple(words)))
        self.emit(heard=number, words=tuple(words))

    async def main(self):
        for step in range(3):
            await self.sleep(0.01)
            number, words = step, ["a", "b"]
{body}
            for peer in self.peers:
                self.tell(peer, Leaky.hear, number, words)
{after}
"""


def plant(tmp_path, *, imports="", attributes="", start="", body="", after=""):
    """Write a part with a leak into a file of its own; gives (reference, path, leaking lines)."""
    text = PART.format(
        imports=imports,
        attributes=textwrap.indent(textwrap.dedent(attributes), " " * 4),
        start=textwrap.indent(textwrap.dedent(start), " " * 8),
        body=textwrap.indent(textwrap.dedent(body), " " * 12),
        after=textwrap.indent(textwrap.dedent(after), " " * 12),
    )
    # A name of its own for each test, since Python keeps modules by name.
    path = tmp_path / f"leaky_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(text)
    lines = [i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# leak")]
    return f"{path}:Leaky", str(path), lines


# Leaks that both the source and a watched run show, at the same line.
SEEN = {
    "wall clock": {"imports": "import time", "body": "number = int(time.time())  # leak"},
    "monotonic clock, by name": {
        "imports": "from time import perf_counter as stopwatch",
        "body": "number = int(stopwatch() * 1e6)  # leak",
    },
    "datetime": {
        "imports": "from datetime import datetime",
        "body": "number = datetime.now().microsecond  # leak",
    },
    "random module": {"imports": "import random", "body": "number = random.randint(0, 9)  # leak"},
    "random, by name": {
        "imports": "from random import random",
        "body": "number = int(random() * 1000)  # leak",
    },
    "uuid4": {"imports": "import uuid", "body": "words = [str(uuid.uuid4())]  # leak"},
    "os.urandom": {"imports": "import os", "body": "number = os.urandom(1)[0]  # leak"},
    "environment": {"imports": "import os", "body": 'words = [os.environ["PATH"]]  # leak'},
    "file time": {
        "imports": "import os",
        "body": "number = int(os.stat(__file__).st_mtime)  # leak",
    },
    "real file": {"body": "number = len(open(__file__).read())  # leak"},
    "thread": {
        "imports": "import threading",
        "body": "threading.Thread(target=self.seen.clear).start()  # leak",
    },
    "socket": {"imports": "import socket", "body": "socket.socket().close()  # leak"},
    "process": {"imports": "import subprocess", "body": 'subprocess.run(["true"])  # leak'},
}


@pytest.mark.parametrize("name", SEEN)
def test_the_source_shows_it(name, tmp_path):
    _, path, lines = plant(tmp_path, **SEEN[name])
    found = [each for each in lint(path) if each.level == "leak"]
    assert {each.line for each in found} == set(lines)
    assert all(each.path == path and each.fix for each in found)


@pytest.mark.parametrize("name", SEEN)
def test_a_watched_run_shows_it_with_node_and_time(name, tmp_path):
    part, path, lines = plant(tmp_path, **SEEN[name])
    _, found = run_watched(load(part, lint=False)(), world=World.lan(3), until_s=0.1)
    assert {(each.path, each.line) for each in found} == {(path, line) for line in lines}
    assert found[0].node in (0, 1, 2)
    assert found[0].time_s == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["wall clock", "uuid4", "socket", "thread", "environment"])
@pytest.mark.parametrize("kernel", ["c", "python"])
def test_a_strict_run_ends_at_the_leak(name, kernel, tmp_path):
    part, _, lines = plant(tmp_path, **SEEN[name])
    try:
        with pytest.raises(LeakError, match=rf":{lines[0]}: .*node 0 at 0.010000000 s"):
            run_watched(
                load(part, lint=False)(),
                strict=True,
                world=World.lan(3),
                until_s=0.1,
                kernel=kernel,
            )
    except OrreryError as error:
        if "C kernel" not in str(error):
            raise
        pytest.skip("no C kernel here")


# Leaks that no single run can show: only the source, or two runs that differ.
SET_ORDER = {
    "body": """
    names = {"ann", "bob", "cid", "dan", "eve", "flo", "gus", "hal"}
    words = [name for name in names]  # leak
    """
}
HASH = {"body": 'number = hash("ann") % 1000  # leak'}
ADDRESS = {"body": "words = [str(id(self.seen))]  # leak"}
SHARED = {
    "attributes": "total = []",
    "body": "self.total.append(1)  # leak\nnumber = len(self.total)",
}
ALIAS = {"after": 'words.append("later")  # changed after it was sent'}


@pytest.mark.parametrize("leak", [SET_ORDER, HASH, ADDRESS, SHARED], ids=[
    "set order", "hash", "id", "shared attribute"])  # fmt: skip
def test_the_source_shows_order_hashes_addresses_and_shared_state(leak, tmp_path):
    part, path, lines = plant(tmp_path, **leak)
    found = [each for each in lint(path) if each.level == "leak"]
    assert {each.line for each in found} == set(lines)
    with pytest.raises(LeakError, match=rf"{lines[0]}"):
        refuse(load(part, lint=False))


def case_of(part, n=3):
    return Case(name="leaky", part=part, world=World.lan(n).to_toml(), until_s=0.1)


@pytest.mark.parametrize("leak", [SET_ORDER, HASH], ids=["set order", "hash"])
def test_another_hash_seed_names_the_first_event(leak, tmp_path):
    part, _, _ = plant(tmp_path, **leak)
    found = verify_determinism(2, fresh=True, cases=[case_of(part)])
    assert found["mismatches"] > 0
    first = found["first_divergence"]
    assert "PYTHONHASHSEED" in first["between"][1]
    # The first message of the run already carries the leak, or the first report of it does.
    assert first["seed"] == 0
    where = first["here"]
    assert where["time_s"] < 0.02
    assert where.get("method") == "hear" or "heard" in where["values"]


def test_a_second_run_in_one_process_names_what_the_first_left_behind(tmp_path):
    part, path, _ = plant(tmp_path, **SHARED)
    found = verify_determinism(1, cases=[case_of(part)])
    assert found["mismatches"] > 0
    assert "second time" in found["first_divergence"]["between"][1]
    _, seen = run_watched(load(part, lint=False)(), world=World.lan(3), until_s=0.1)
    assert [each.what for each in seen] == [
        "Leaky.total outlives the nodes, and the run changed it"
    ]
    assert "total = []" in Path(path).read_text().splitlines()[seen[0].line - 1]


def test_wire_mode_names_the_first_event_that_was_changed_after_it_was_sent(tmp_path):
    part, _, _ = plant(tmp_path, **ALIAS)
    (found,) = examine(case_of(part), fresh=False)
    assert "changed after it was sent" in found["what"]
    assert "wire mode" in found["between"][1]
    assert found["here"]["values"]["words"] == ["a", "b", "later"]
    assert found["there"]["values"]["words"] == ["a", "b"]
    assert found["here"]["node"] in (0, 1, 2)


def test_a_wall_clock_makes_two_runs_differ_at_an_event(tmp_path):
    body = "number = time.perf_counter_ns() % 1_000_000_007"
    part, _, _ = plant(tmp_path, imports="import time", body=body)
    found = verify_determinism(1, cases=[case_of(part)])
    assert found["mismatches"] > 0
    assert found["first_divergence"]["here"]["time_s"] < 0.02


def test_a_part_that_swallows_the_error_is_still_told(tmp_path):
    body = """
    try:
        number = int(time.time())  # leak
    except Exception:
        number = 0
    """
    part, _, lines = plant(tmp_path, imports="import time", body=body)
    with pytest.raises(LeakError, match=rf":{lines[0]}: time.time is the wall clock"):
        run_watched(load(part, lint=False)(), strict=True, world=World.lan(3), until_s=0.1)


def test_asyncio_is_seen_in_the_source_and_ends_the_run(tmp_path):
    leak = {"imports": "import asyncio", "body": "await asyncio.sleep(0.001)  # leak"}
    part, path, lines = plant(tmp_path, **leak)
    assert [each.line for each in lint(path)] == lines
    with pytest.raises(OrreryError, match=r"asyncio|event loop"):
        run(load(part, lint=False)(), world=World.lan(3), until_s=0.1)


def test_a_clean_part_is_clean_in_every_way(tmp_path):
    part, path, _ = plant(tmp_path, body='words = sorted({"x", "y", str(self.rng.below(9))})')
    assert lint(path) == [] and lint_all(load(part, lint=False)) == []
    before = sys.getprofile()
    made, found = run_watched(
        load(part, lint=False)(), strict=True, world=World.lan(3), until_s=0.1
    )
    assert found == [] and sys.getprofile() is before
    assert made.digest == run(load(part, lint=False)(), world=World.lan(3), until_s=0.1).digest
    assert examine(case_of(part)) == []


@pytest.mark.parametrize("text", [
    "rng = random.Random(7)",  # seeded: the same everywhere
    "for x in sorted(names): print(x)",
    "total = sum(n for n in numbers)",
    "self.numbers: set[int] = set()\nfor n in self.numbers: print(n)",
    "def hash(x): return 1\nhash('a')",
    "time_s = self.time()",
])  # fmt: skip
def test_what_is_harmless_is_left_alone(text, tmp_path):
    path = tmp_path / "fine.py"
    path.write_text("import random\nnames = set(['a'])\n" + text + "\n")
    assert [each for each in lint(path) if each.level == "leak"] == []


def test_a_file_that_is_not_python_is_named(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def (")
    with pytest.raises(OrreryError, match=r"broken.py: is not Python"):
        lint(path)
    with pytest.raises(OrreryError, match=r"none.py: cannot be read"):
        lint(tmp_path / "none.py")


@pytest.mark.parametrize("name", SEEN)
def test_a_leaking_part_is_refused_when_it_loads(name, tmp_path):
    part, _, lines = plant(tmp_path, **SEEN[name])
    with pytest.raises(LeakError, match=rf"{lines[0]}"):
        load(part)
