"""Strangers, garbage and sudden deaths: no node breaks, and nothing of a run is left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from orrery.base import codec
from orrery.base.errors import CodecError, PartError
from orrery.base.rand import Stream
from orrery.engines.processes import ProcessEngine, wire
from orrery.parts import Node, Problem, rpc
from orrery.world import Crash, World


class Echo(Node):
    """Says back what it hears."""

    @rpc
    def echo(self, value: int) -> int:
        return value


class Attack(Problem):
    """Throws bytes at node 0's sockets, then asks whether it still answers."""

    async def drive(self, driver):
        engine = driver._place._engine
        found = attack(engine, engine.place.spec.secret, Stream(11, 0, "attack"))
        await driver.sleep(0.05)
        async with driver.deadline(5.0):
            return found, await driver.ask(0, Echo.echo, 42)


def opened(address, secret, lane, group):
    """A connection that passed the challenge."""
    sock = socket.create_connection(address, timeout=5)
    nonce = bytes(wire.NONCE_B)
    theirs = wire.read_hello(sock.recv(wire.HELLO.size, socket.MSG_WAITALL))
    sock.sendall(wire.opening(secret, lane, group, theirs, nonce))
    proof = sock.recv(wire.MAC_B, socket.MSG_WAITALL)
    assert proof == wire.welcome(secret, lane, group, theirs, nonce)
    return sock


def attack(engine, secret, rng):
    host, port, bulk_port = engine._ready[0]
    driver_group = engine.place.spec.driver_group
    cases = 0
    for address in ((host, port), (host, bulk_port)):
        for _ in range(60):  # strangers: random bytes, cut short, or a wrong proof
            with socket.create_connection(address, timeout=5) as sock:
                data = rng.randbytes(rng.below(300))
                if rng.below(3) == 0:
                    lane = wire.LANE_MESSAGES
                    data = wire.opening(b"guess" * 8, lane, 0, bytes(32), bytes(32))
                if rng.below(4) == 0:
                    data = b"ORRY" + data
                sock.sendall(data)
                cases += 1
        # One that knows the secret, but opens the wrong lane or is of no group.
        for lane, group in ((wire.LANE_MESSAGES, 99), (wire.LANE_BULK, 99)):
            with socket.create_connection(address, timeout=5) as sock:
                theirs = wire.read_hello(sock.recv(wire.HELLO.size, socket.MSG_WAITALL))
                sock.sendall(wire.opening(secret, lane, group, theirs, bytes(32)))
                assert sock.recv(1) == b""  # closed without a word
                cases += 1
    for _ in range(120):  # a member of the run that has lost its mind
        with opened((host, port), secret, wire.LANE_MESSAGES, driver_group) as sock:
            sock.sendall(mad_frame(rng, engine.size))
            cases += 1
    for _ in range(60):
        with opened((host, bulk_port), secret, wire.LANE_BULK, driver_group) as sock:
            sock.sendall(mad_array(rng, engine.size))
            cases += 1
    return cases


def mad_frame(rng, size):
    kind = rng.below(6)
    body = rng.randbytes(rng.below(64))
    message = wire.Message(rng.below(5), rng.below(4), 0, rng.below(100), "echo", body)
    if kind == 0:  # longer than any frame may be
        return wire.FRAME.pack(wire.MAX_FRAME_B + 1 + rng.below(1000), 0) + body
    if kind == 1:  # a checksum that fails
        return wire.flip_bit(wire.frame(body + b"x"), rng.below(1 << 30))
    if kind == 2:  # cut short
        framed = wire.frame(wire.pack_message(message))
        return framed[: rng.below(len(framed))]
    if kind == 3:  # bytes that are no message
        return wire.frame(body)
    if kind == 4:  # a message whose arguments do not fit, or of an unknown method
        name = rng.choice(["echo", "nothing", "__init__", "start"])
        message = message._replace(kind=rng.below(2), src=size, method=name)
    return wire.frame(wire.pack_message(message))


def mad_array(rng, size):
    shape = rng.choice([(3,), (-1,), (1 << 40, 1 << 40), (2,) * 40, ()])
    dtype = rng.choice(["<f8", "O", "nonsense", "|V99999999", "<f8,(2"])
    header = (1, rng.choice([0, size]), rng.choice([0, 7]), "tag", dtype, shape)
    kind = rng.below(3)
    if kind == 0:
        return wire.frame(codec.encode(header)) + rng.randbytes(50)
    if kind == 1:
        return wire.FRAME.pack(rng.below(1 << 32), rng.below(1 << 32)) + rng.randbytes(100)
    return wire.frame(rng.randbytes(1 + rng.below(100)))


def test_hostile_bytes_never_break_a_node():
    engine = ProcessEngine({"node": Echo()}, world=World.lan(2), problem=Attack(), seed=1)
    outcome = engine.run(30)
    cases, answer = outcome.driven
    assert answer == 42 and cases >= 300
    assert outcome.extra["refused"] >= 100
    assert outcome.extra["malformed"] >= 30
    assert outcome.extra["corrupt"] > 0 and outcome.extra["oversize"] > 0
    assert outcome.extra["restarts"] == 0


class Shouter(Node):
    async def main(self):
        try:
            self.tell(1, Shouter.hear, b"x" * 5000)
        except CodecError as error:
            self.emit(error=str(error))

    @rpc
    def hear(self, data: bytes) -> None:
        self.emit(heard=len(data))


def test_a_message_over_the_cap_is_a_named_error_at_the_sender():
    big = ProcessEngine({"node": Shouter()}, world=World.lan(2), max_frame_B=4096).run()
    errors = [v for _, n, v in big.emitted("error") if n == 0]
    assert "more than the cap of 4096" in errors[0] and "transfer" in errors[0]
    assert big.emitted("heard") == []
    small = ProcessEngine({"node": Shouter()}, world=World.lan(2)).run()
    assert {v for _, _, v in small.emitted("heard")} == {5000}


class Unserialisable(Node):
    @rpc
    def odd(self) -> int:
        return object()

    async def main(self):
        if self.id == 0:
            await self.ask(1, Unserialisable.odd)


def test_an_answer_that_cannot_travel_blames_the_node_that_gave_it():
    with pytest.raises(PartError, match=r"node 1 failed .* cannot put a object on the wire"):
        ProcessEngine({"node": Unserialisable()}, world=World.lan(2)).run(5)


PROGRAM = """
import os
from orrery.engines.processes import ProcessEngine
from orrery.parts import Monitor, Node
from orrery.world import Pause, World

class Sleeper(Node):
    async def main(self):
        arena = self.arena("scratch", 64)
        await self.disk.write("file", b"data")
        self.emit(pid=os.getpid(), folder=self._place.spec.folder, arenas=self._place.spec.arenas)
        await self.sleep(1000)

class Printer(Monitor):
    def on_emit(self, time_s, node, values):
        print(values["pid"], values["folder"], values["arenas"], flush=True)

world = World.lan(3).with_faults(Pause(node=1, at_s=0.2))
ProcessEngine({"node": Sleeper()}, world=world, monitors=[Printer()]).run(100)
"""


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_parent_dies(tmp_path, signum):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, str(program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as parent:  # fmt: skip
        lines = [parent.stdout.readline().split() for _ in range(3)]
        time.sleep(0.4)  # one node is stopped by now, and must be ended all the same
        parent.send_signal(signum)
        parent.wait(20)
    pids = [int(line[0]) for line in lines]
    folders = {folder for line in lines for folder in line[1:]}
    assert len(set(pids)) == 3 and len(folders) == 2
    give_up = time.monotonic() + 20
    left = [*pids, *folders]
    while left and time.monotonic() < give_up:
        time.sleep(0.02)
        left = [p for p in pids if is_running(p)] + [f for f in folders if os.path.exists(f)]
    assert left == []


class Housed(Node):
    async def main(self):
        self.arena("scratch", 64)
        await self.disk.write("file", b"data")
        self.emit(folders=(self._place.spec.folder, self._place.spec.arenas))


def test_a_run_leaves_no_process_folder_or_descriptor():
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.05, until_s=0.1))
    ProcessEngine({"node": Housed()}, world=world).run()  # what is made once is made now
    before = len(os.listdir("/proc/self/fd"))
    outcome = ProcessEngine({"node": Housed()}, world=world).run()
    assert len(os.listdir("/proc/self/fd")) <= before
    folders = {folder for _, _, pair in outcome.emitted("folders") for folder in pair}
    assert len(folders) == 2 and not any(os.path.exists(folder) for folder in folders)
    pids = [pid for pids in outcome.extra["pids"].values() for pid in pids]
    assert len(pids) == 4 and not any(is_running(pid) for pid in pids)


def test_it_runs_inside_an_event_loop_too():
    async def notebook():
        return ProcessEngine({"node": Echo()}, world=World.lan(2)).run()

    assert asyncio.run(notebook()).ended == "quiet"


MODULE = """
from orrery.parts import Node, rpc

class Spawned(Node):
    '''Importable, with a knob that is an array and one that is a part.'''
    base: int = 1
    names: tuple[str, ...] = ("a",)

    @rpc
    def add(self, value: int) -> tuple[int, str]:
        return self.base + value, self.names[-1]
"""


def test_spawn_starts_a_fresh_interpreter(tmp_path, monkeypatch):
    (tmp_path / "orrery_spawned_part.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    from orrery_spawned_part import Spawned

    class Ask(Problem):
        async def drive(self, driver):
            return await driver.ask(1, Spawned.add, 2)

    part = Spawned(base=40, names=("x", "y"))
    world = World.lan(2).with_faults(Crash(node=0, at_s=5.0))
    outcome = ProcessEngine({"node": part}, world=world, problem=Ask(), start="spawn").run(30)
    assert outcome.driven == (42, "y")
    assert outcome.extra["start"] == "spawn"


def test_spawn_refuses_a_part_that_cannot_be_found():
    class Local(Node):
        pass

    with pytest.raises(PartError, match=r"fresh process: .*Local cannot be found .*fork"):
        ProcessEngine({"node": Local()}, world=World.lan(2), start="spawn").run(5)


def test_arrays_survive_a_paused_receiver():
    class Sender(Node):
        async def main(self):
            if self.id == 0:
                await self.transfer(1, np.arange(1 << 18))
                self.emit(arrived=True)
            else:
                await self.sleep(0.2)
                self.emit(total=int((await self.receive(0)).sum()))

    outcome = ProcessEngine({"node": Sender()}, world=World.lan(2), raw=True).run()
    assert [v for _, _, v in outcome.emitted("total")] == [((1 << 18) - 1) << 17]
    assert outcome.emitted("arrived")
