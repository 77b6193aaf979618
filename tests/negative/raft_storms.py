"""Storms for Raft: from a seed a world full of faults, a workload and the knobs of the node.

Six kinds of weather take turns, because no single mix reaches every kind of bug: what one bug
needs (a crash within a vote, a cut at the right entry, a power loss) would drown another.
"""

from __future__ import annotations

from typing import Any

from orrery import World, run
from orrery.base.errors import OrreryError
from orrery.base.rand import Stream
from orrery.systems.protocols.problems.replicated_store import ReplicatedStore
from orrery.world import (
    ClockJump,
    ClockSkew,
    Crash,
    Drop,
    Duplicate,
    Fault,
    Partition,
    Pause,
    Reorder,
    TornWrite,
)
from orrery.world.hardware import Disk, Machine

END_S = 3.6
"""Every fault is over by this time."""

Storm = tuple[World, ReplicatedStore, dict[str, Any]]


def storm(seed: int) -> Storm:
    """The world, the workload and the node's knobs of one seed."""
    rng = Stream(seed, "storm", "raft")
    kind = (_mixed, _blinks, _rolling, _laggards, _members, _power)[seed % 6]
    return kind(rng)


def weather(rng: Stream, nodes: int, drop: float, late_s: float) -> list[Fault]:
    """What goes on all the time: loss, second copies, late messages, skewed clocks, torn writes."""
    everyone = tuple(range(nodes))
    return [
        Drop(p=drop, until_s=END_S),
        Duplicate(p=0.1, until_s=END_S),
        Reorder(p=0.1, spread_s=0.02, until_s=END_S),
        Reorder(p=0.04, spread_s=late_s, until_s=END_S),
        TornWrite(node=everyone, p=0.5, until_s=END_S),
        ClockSkew(node=rng.below(nodes), skew_s=rng.uniform(-5, 5), until_s=END_S),
        ClockJump(node=rng.below(nodes), jump_s=rng.uniform(-1, 1), at_s=rng.uniform(0, END_S)),
    ]


def crashes(rng: Stream, nodes: int, count: int, down_s: tuple[float, float]) -> list[Fault]:
    """Crashes of single nodes at any time; one node's crashes do not overlap."""
    up_s = [0.0] * nodes
    made: list[Fault] = []
    for at_s in sorted(rng.uniform(0.2, END_S - down_s[1] - 0.01) for _ in range(count)):
        node = rng.below(nodes)
        if up_s[node] < at_s:
            up_s[node] = at_s + rng.uniform(*down_s)
            made.append(Crash(node=node, at_s=at_s, until_s=up_s[node]))
    return made


def cuts(rng: Stream, nodes: int, lasts_s: tuple[float, float], gap_s: float) -> list[Fault]:
    """Partitions one after the other, some of them one-way, each of one or two nodes."""
    made: list[Fault] = []
    at_s = rng.uniform(0.2, 0.5)
    while True:
        until_s = at_s + rng.uniform(*lasts_s)
        if until_s >= END_S:
            return made
        alone = tuple(sorted(rng.sample(range(nodes), rng.randint(1, nodes // 2))))
        made.append(Partition(node=alone, at_s=at_s, until_s=until_s, one_way=rng.random() < 0.2))
        at_s = until_s + rng.uniform(0.001, gap_s)


def _zombies(rng: Stream) -> Storm:
    """Leaders that are cut off and, with rare heartbeats, learn of it only after the next election.

    Clients keep asking at random, so that some ask the old leader while others use the new one.
    """
    faults = weather(rng, 3, 0.01, 0.6) + cuts(rng, 3, (0.4, 0.8), 0.15)
    problem = ReplicatedStore(clients=8, ops=30, keys=2, reads=0.6, think_s=0.05, wander=0.5)
    knobs = {"snapshot_entries": 40, "heartbeat_s": 0.13}
    return World.lan(3).with_faults(*faults), problem, knobs


def _mixed(rng: Stream) -> Storm:
    """A bit of everything on a local network."""
    if rng.random() < 0.4:
        return _zombies(rng)
    faults = weather(rng, 5, 0.03, 0.8) + crashes(rng, 5, 5, (0.03, 0.6))
    faults += cuts(rng, 5, (0.2, 0.7), 0.4)
    if rng.random() < 0.4:  # one of five may be lost for good
        faults.append(Crash(node=rng.below(5), at_s=rng.uniform(0.3, END_S)))
    start_s = rng.uniform(0.3, 1.8)
    faults.append(Pause(node=rng.below(5), at_s=start_s, until_s=start_s + rng.uniform(0.1, 0.5)))
    return World.lan(5).with_faults(*faults), ReplicatedStore(), {"snapshot_entries": 25}


def _blinks(rng: Stream) -> Storm:
    """Elections that split, and a voter that is gone for moments in the midst of them.

    All nodes restart at once and links are slow for the timeouts, so two candidates often run in
    the same term; the third node blinks, if the seed will have it so between their two messages.
    """
    faults = weather(rng, 3, 0.02, 0.1)
    at_s = rng.uniform(0.2, 0.4)
    while at_s < END_S - 0.4:
        up_s = at_s + 0.005
        faults.append(Crash(node=(0, 1, 2), at_s=at_s, until_s=up_s))
        voter = rng.below(3)
        blink_s = up_s + 0.09
        while blink_s < up_s + 0.24:
            blink_s += rng.uniform(0.01, 0.02)
            faults.append(Crash(node=voter, at_s=blink_s, until_s=blink_s + 0.0005))
        at_s = up_s + rng.uniform(0.35, 0.4)
    world = World.lan(3, latency_s=0.015, jitter=1.0).with_faults(*faults)
    return world, ReplicatedStore(), {"snapshot_entries": 40, "election_s": 0.06}


def _rolling(rng: Stream) -> Storm:
    """Three nodes on slow links, cut off in turns, one entry a message: figure 8 of the paper.

    All restart, one of them sooner, so that it leads. It is cut off with entries that nobody has.
    The next one falls silent in the midst of its election. The first comes back, spreads its old
    entries, and is cut off again, if the seed will have it so before it is done.
    """
    faults = weather(rng, 3, 0.01, 0.03)
    at_s = rng.uniform(0.05, 0.15)
    while at_s < END_S - 1.4:
        first, second, third = rng.sample((0, 1, 2), 3)
        cut_s = at_s + rng.uniform(0.4, 0.5)
        # Silent before it leads: it has an entry that nobody has. After: others have it, and the
        # first one's log is old, though perhaps longer.
        late = rng.random() < 0.4
        silent_s = cut_s + (rng.uniform(0.28, 0.4) if late else rng.uniform(0.14, 0.26))
        again_s = silent_s + rng.uniform(0.3, 0.55)
        until_s = again_s + 0.4
        faults += [
            Crash(node=first, at_s=at_s, until_s=at_s + 0.001),
            Crash(node=(second, third), at_s=at_s, until_s=at_s + 0.1),
            Partition(node=first, at_s=cut_s, until_s=silent_s),
            # A restart begins its wait anew, so the third node lets the second one run.
            Crash(node=third, at_s=cut_s + 0.08, until_s=cut_s + 0.081),
            Partition(node=second, at_s=silent_s, until_s=again_s, one_way=not late),
            Partition(node=first, at_s=again_s, until_s=until_s),
        ]
        at_s = until_s + rng.uniform(0.05, 0.15)
    problem = ReplicatedStore(clients=8, think_s=0.08)
    world = World.lan(3, latency_s=0.025, jitter=0.2).with_faults(*faults)
    knobs = {"batch": 1, "snapshot_entries": 60, "election_s": 0.1, "heartbeat_s": 0.03}
    return world, problem, knobs


def _laggards(rng: Stream) -> Storm:
    """Tiny snapshots in tiny pieces, and nodes that miss much: InstallSnapshot all the time."""
    faults = weather(rng, 5, 0.05, 0.6) + cuts(rng, 5, (0.3, 0.9), 0.1)
    faults += crashes(rng, 5, 4, (0.1, 0.8))
    world = World.lan(5).with_faults(*faults)
    return world, ReplicatedStore(think_s=0.08), {"snapshot_entries": 6, "chunk_B": 60}


def _members(rng: Stream) -> Storm:
    """Members leave and come back while nodes crash and links fail."""
    faults = weather(rng, 4, 0.05, 0.8) + cuts(rng, 4, (0.15, 0.5), 0.05)
    faults += crashes(rng, 4, 3, (0.05, 0.5))
    world = World.lan(4).with_faults(*faults)
    return world, ReplicatedStore(changes=8), {"snapshot_entries": 15}


def _power(rng: Stream) -> Storm:
    """The power of all machines fails a few times; slow disks, so that much is not yet synced."""
    disk = Disk(latency_s=0.002, fsync_s=0.004)
    faults = weather(rng, 3, 0.02, 0.5)
    at_s = rng.uniform(0.4, 0.7)
    while at_s < END_S - 0.3:
        faults.append(Crash(node=(0, 1, 2), at_s=at_s, until_s=at_s + rng.uniform(0.01, 0.05)))
        at_s += rng.uniform(0.35, 0.6)
    world = World.lan(3, machine=Machine(disk=disk)).with_faults(*faults)
    return world, ReplicatedStore(think_s=0.05), {"snapshot_entries": 5}


def verdict(raft: type, seed: int) -> list[str]:
    """The kinds of violations that the checkers find in one storm, each once; [] for none.

    A node that breaks down is reported as `error:…`, which is not a finding of a checker.
    """
    world, problem, knobs = storm(seed)
    try:
        result = run(raft(**knobs), problem=problem, world=world, seed=seed)
    except OrreryError as error:
        return [f"error: {str(error)[:300]}"]
    return sorted({violation.kind for violation in result.violations})


def first_found(raft: type, seeds: range) -> tuple[int, list[str]] | None:
    """The first seed at which a checker (and no mere breakdown) finds something, and what."""
    for seed in seeds:
        kinds = [kind for kind in verdict(raft, seed) if not kind.startswith("error")]
        if kinds:
            return seed, kinds
    return None
