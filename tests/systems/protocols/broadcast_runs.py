"""Runs of reliable broadcast that both the acceptance tests and the planted faults go through."""

from __future__ import annotations

import socket

from orrery import World, run
from orrery.base.rand import Stream
from orrery.engines.processes import wire
from orrery.engines.virtual.engine import Engine
from orrery.systems.protocols.amortized_brb import AmortizedBRB
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine, Crash, Reorder

REAL = ReliableBroadcast(shots=50, size_B=4096, pace_s=0.02, settle_s=4.0)


def restarted(part, n, seed):
    """The broadcaster falls at a moment of chance and comes back with another chain."""
    rng = Stream(seed, n, "fork")
    at_s = rng.uniform(0.0, 0.15)
    world = World.lan(n, latency_s=0.005, jitter=3.0).with_faults(
        Crash(node=0, at_s=at_s, until_s=at_s + rng.uniform(0.0, 0.02)),
        Reorder(p=0.3, spread_s=0.05),
    )
    return run(part, problem=ReliableBroadcast(), world=world, seed=seed)


def forked_in_chosen_order(part, seed):
    """What the checker says of a broadcaster that begins its chain again in mid-stream."""
    problem = ReliableBroadcast(shots=4, size_B=4)
    world = World.chosen(4).with_faults(Byzantine(node=0, strategies=("fork",)))
    outcome = Engine(problem.alone(part, world), world=world, seed=seed).run()
    return problem.check(outcome)


def killed(part, problem, *faults, engine="processes", **options):
    """Seven nodes, of which node 5 is killed; on real processes unless told otherwise."""
    world = World.lan(7).with_faults(Crash(node=5, at_s=0.4), *faults)
    if engine == "processes":
        options = {"nodes_per_process": 1, **options}
    return run(part, problem=problem, world=world, engine=engine, seed=1, **options)


class Shouting(AmortizedBRB):
    """Node 6 sends everybody payloads above the limit."""

    async def main(self):
        if self.id == 6:
            self.say_all("payload", AmortizedBRB.shot, 1, bytes(self.most_B + 1))


class Battered(ReliableBroadcast):
    """The same stream, while somebody who knows the secret sends node 1 frames over the cap."""

    async def drive(self, driver):
        engine = driver._place._engine
        host, port, _ = engine._ready[engine.place.spec.group_of[1]]
        spec = engine.place.spec
        for _ in range(3):
            with socket.create_connection((host, port), timeout=5) as sock:
                theirs = wire.read_hello(sock.recv(wire.HELLO.size, socket.MSG_WAITALL))
                lane, nonce = wire.LANE_MESSAGES, bytes(wire.NONCE_B)
                sock.sendall(wire.opening(spec.secret, lane, spec.group_of[6], theirs, nonce))
                sock.recv(wire.MAC_B, socket.MSG_WAITALL)
                sock.sendall(wire.FRAME.pack(spec.max_frame_B + 1, 0) + b"x" * 100)
        return await super().drive(driver)
