"""The problem `churned_all_reduce`: sums over a group whose members join, leave and die meanwhile.

Every peer gives an array again and again and must get the sum over those who took part. The data
are whole numbers that come from a seed, so the checker knows the exact sum over any set of peers.
It finds: members with different bits, a wrong sum, two peers that disagree on whether an attempt
committed, an operation committed twice, an input that was changed, a member that began an operation
with another state than the rest, a call that lasted longer than the timeout, and work never done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    DeadlineExceeded,
    Driver,
    Fraction,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.systems.collectives.problems.elastic_peer import (
    ABORTED,
    COMMITTED,
    COORDINATOR,
    PEER,
    Attempt,
    Dtype,
    Elastic,
    Work,
    digest,
)
from orrery.world import World

# The first city has the coordinator as well. Round trips: `orrery.world.cities`.
CITIES = {
    "europe": ("frankfurt", "london", "madrid", "paris", "amsterdam", "stockholm"),
    "atlantic": ("washington", "toronto", "dallas", "frankfurt", "london", "madrid"),
}
# A 100 gigabit Ethernet NIC, the usual front end of a server with eight GPUs (DGX A100 data sheet:
# up to 200 Gb/s), and a trunk of four such waves.
NIC_BPS, FIBRE_BPS = 12.5e9, 50e9
# Linux lets a connection's receive buffer grow to 6 MiB (Documentation/networking/ip-sysctl,
# tcp_rmem), of which half is window (tcp_adv_win_scale = 1).
WINDOW_B = 3.0 * (1 << 20)
# What a busy machine may add to a wait on real processes: its own scheduling, not the part's.
REAL_SLACK_S = 1.0


class ChurnedAllReduce(Problem):
    """All-reduce under churn: what commits, how fast, at which cost, and how long anybody waits.

    Knobs: `ops`, how many reductions; `items`, `dtype` and `kind` of the array; `pause_s` of work
    before each; `timeout_s`, the longest that any call may last; `tolerance`, what a lossy part may
    be off, as a part of the largest sum of magnitudes; `state_items` of the shared state;
    `data_seed`; `hollow`, arrays without memory for very large sizes in virtual time; `where` the
    peers are when no world is given: on one lan, in six cities of Europe, or on both sides of the
    Atlantic.

    The world has one `coordinator` and several `peer`s. Churn is the world's: a `Crash` with
    `until_s` is a peer that dies and joins again.

    >>> ChurnedAllReduce(ops=3).world().roles
    ('coordinator', 'peer')
    """

    ops: Count = 10
    items: Whole = 4096
    dtype: Dtype = "float32"
    kind: Literal["whole", "normal"] = "whole"
    pause_s: NonNegative = 0.0
    timeout_s: Positive = 10.0
    tolerance: Fraction = 0.0
    state_items: Count = 64
    data_seed: Whole = 0
    hollow: bool = False
    where: Literal["lan", "europe", "atlantic"] = "lan"

    port: ClassVar[type] = Elastic
    metrics: ClassVar[Mapping[str, Metric]] = {
        "committed": Metric("", "higher", "operations that committed"),
        "aborted": Metric("", "lower", "attempts that did not"),
        "time_s": Metric("s", "lower", "median time of a committed operation"),
        "sent_B": Metric("B", "lower", "bytes that all peers sent, for one committed operation"),
        "stall_s": Metric("s", "lower", "the longest call of any peer"),
        "goodput_Bps": Metric("B/s", "higher", "bytes of committed arrays for one second of run"),
        "bandwidth_Gbps": Metric(
            "Gbit/s", "higher", "what a peer sends during a committed operation, mean"
        ),
        "error": Metric("", "lower", "largest deviation over the largest sum of magnitudes"),
    }

    def world(self) -> World:
        if self.where == "lan":
            return World.lan({COORDINATOR: 1, PEER: 4})
        cities = CITIES[self.where]
        # The trunks are wider than what 64 connections fill, so that windows and NICs decide.
        base = World.wan(
            sites=dict.fromkeys(cities, 1), link_Bps=FIBRE_BPS, bandwidth_Bps=NIC_BPS,
            window_B=WINDOW_B,
        )  # fmt: skip
        data = base.to_data()
        first = {**data["groups"][0], "name": COORDINATOR}
        data["groups"] = [first, *({**group, "name": PEER} for group in data["groups"])]
        return World.from_data(data)

    def job(self) -> Work:
        """What the peers do."""
        return Work(
            ops=self.ops, items=self.items, dtype=self.dtype, kind=self.kind,
            data_seed=self.data_seed, pause_s=self.pause_s, state_items=self.state_items,
            tolerance=self.tolerance, hollow=self.hollow,
        )  # fmt: skip

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        if isinstance(part, Mapping):
            roles = dict(part)
            roles[PEER] = roles[PEER].with_knobs(work=self.job())
            return roles
        peer = part.with_knobs(work=self.job())
        return {COORDINATOR: peer.helper(), PEER: peer}

    async def drive(self, driver: Driver) -> None:
        """Wait until, after the last fault, every live peer has done its work or given up."""
        ends = [f.until_s for f in driver.world.schedule(0) if f.until_s is not None]
        last_s, peers = max(ends, default=0.0), driver.members(PEER)
        while True:
            told = await driver.all(*(self._ended(driver, node) for node in peers))
            pairs = zip(peers, told, strict=True)
            back = any(not ended and driver.alive(node) for node, ended in pairs)
            if not back and driver.now >= last_s:
                return
            await driver.sleep(0.05 if back else max(last_s - driver.now, 0.0) + 0.05)

    async def _ended(self, driver: Driver, node: int) -> bool:
        """Wait until a peer has ended, or is dead."""
        while driver.alive(node):
            try:
                async with driver.deadline(min(self.timeout_s, 1.0)):
                    await driver.ask(node, Elastic.ended)
                return True
            except DeadlineExceeded:
                continue
        return False

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        tries = attempts_of(outcome)
        found = [*_disputes(tries), *_bits(tries), *_states(tries), *_twice(outcome)]
        found += self._wrong(tries)
        found += [
            Violation(kind="input_changed", node=node,
                      message=f"{name}: the array that node {node} gave is not what it was")
            for name, said in tries.items() for node, values in said.items()
            if not values["intact"]
        ]  # fmt: skip
        slack_s = REAL_SLACK_S if outcome.engine != "virtual" else 1e-6
        for node, call, waited_s in waits_of(outcome):
            if waited_s > self.timeout_s + slack_s:
                found.append(Violation(
                    kind="stall", node=node, evidence=waited_s,
                    message=f"node {node} waited {waited_s:.3g} s in {call}; the stated timeout "
                            f"is {self.timeout_s:g} s"))  # fmt: skip
        if outcome.ended == "driven":
            found += self._undone(outcome)
        return found

    def _undone(self, outcome: Outcome) -> list[Violation]:
        """With a coordinator that lives, every peer that lives has done all."""
        if not all(outcome.alive[node] for node in outcome.world.members(COORDINATOR)):
            return []
        done = {node: time_s for time_s, node, _ in outcome.emitted("finished")}
        gone = {node: time_s for time_s, node, _ in outcome.emitted("gave_up")}
        return [
            Violation(kind="undone", node=node,
                      message=f"node {node} lives, but has not done its {self.ops} operations")
            for node in outcome.world.members(PEER)
            if outcome.alive[node] and (node not in done or gone.get(node, -1.0) > done[node])
        ]  # fmt: skip

    def _wrong(self, tries: dict[str, dict[int, dict[str, Any]]]) -> list[Violation]:
        """The value must be the sum over those who took part."""
        work, found = self.job(), []
        for name, said in tries.items():
            kept = [values for values in said.values() if values["said"] == COMMITTED]
            if not kept:
                continue
            first = kept[0]
            if not self.tolerance:
                # The hash of the true sum is enough: the bits of the members are compared above.
                wanted = digest(_exact(work, first["op"], first["members"]))
                off = "other than the exact sum" if wanted != first["digest"] else ""
            else:
                error = max((v["error"] for v in kept if "error" in v), default=0.0)
                off = f"off by {error:.3g}" if not error <= self.tolerance else ""
            if off:
                found.append(Violation(
                    kind="wrong_sum", evidence=first["members"],
                    message=f"{name}: the value of operation {first['op']} is {off} over those "
                            f"who took part ({first['members']})"))  # fmt: skip
        return found

    # -- the figures

    def measure(self, outcome: Outcome) -> dict[str, float]:
        tries = attempts_of(outcome)
        took, rates, ops, sent_B, aborted = [], [], set(), 0, 0
        errors = [0.0]
        for said in tries.values():
            kept = [v for v in said.values() if v["said"] == COMMITTED]
            sent_B += sum(v["sent_B"] for v in said.values())
            if not kept:
                aborted += 1
                continue
            ops.add(kept[0]["op"])
            took.append(max(v["took_s"] for v in kept))
            rates += [8e-9 * v["sent_B"] / v["took_s"] for v in kept if v["took_s"] > 0]
            errors += [v["error"] for v in kept if "error" in v]
        array_B = self.items * np.dtype(self.dtype).itemsize
        return {
            "committed": float(len(ops)),
            "aborted": float(aborted),
            "time_s": float(np.median(took)) if took else outcome.seconds,
            "sent_B": sent_B / max(len(ops), 1),
            "stall_s": max((waited_s for _, _, waited_s in waits_of(outcome)), default=0.0),
            "goodput_Bps": len(ops) * array_B / outcome.seconds if outcome.seconds > 0 else 0.0,
            "bandwidth_Gbps": float(np.mean(rates)) if rates else 0.0,
            "error": max(errors),
        }


# -- reading what peers reported


def attempts_of(outcome: Outcome) -> dict[str, dict[int, dict[str, Any]]]:
    """What each node said of each attempt, in the order of the run."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for record in outcome.records:
        if "attempt" in record.values:
            found[record.values["attempt"]][record.node] = record.values
    return dict(found)


def waits_of(outcome: Outcome) -> list[tuple[int, str, float]]:
    """(node, call, seconds) of every call; one that a crash ended does not count."""
    begun: dict[tuple[int, int, int], tuple[str, float]] = {}
    last_life: dict[int, int] = {}
    found = []
    for record in outcome.records:
        values, node = record.values, record.node
        if "call" in values:
            begun[node, values["life"], values["number"]] = (values["call"], record.time_s)
            last_life[node] = max(values["life"], last_life.get(node, 0))
        elif "done" in values:
            call, began_s = begun.pop((node, values["life"], values["done"]), ("", record.time_s))
            found.append((node, call, record.time_s - began_s))
    for (node, life, _), (call, began_s) in begun.items():
        if life == last_life[node] and outcome.alive[node]:
            found.append((node, call, outcome.seconds - began_s))
    return found


def _exact(work: Work, step: int, members: tuple[int, ...]) -> Any:
    if work.hollow:
        value = sum(int(work.data(step, node)[0]) for node in members) if work.items else 0
        return np.broadcast_to(np.array(value, work.dtype), (work.items,))
    return work.total(step, members).astype(work.dtype)


def _disputes(tries: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[Violation]:
    found = []
    for name, said in tries.items():
        yes = [n for n, v in said.items() if v["said"] == COMMITTED]
        no = [n for n, v in said.items() if v["said"] == ABORTED]
        if yes and no:
            found.append(Violation(
                kind="dispute", node=no[0], evidence={"committed": yes, "aborted": no},
                message=f"{name}: nodes {yes} committed it, nodes {no} did not"))  # fmt: skip
        groups = {v["members"] for v in said.values()}
        if len(groups) > 1:
            found.append(Violation(
                kind="dispute", evidence=sorted(groups),
                message=f"{name}: {len(groups)} opinions on who takes part"))  # fmt: skip
    return found


def _bits(tries: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[Violation]:
    found = []
    for name, said in tries.items():
        kept = {n: v["digest"] for n, v in said.items() if v["said"] == COMMITTED}
        if len(set(kept.values())) > 1:
            found.append(Violation(
                kind="bits_differ", evidence=kept,
                message=f"{name}: {len(set(kept.values()))} different results among {len(kept)} "
                        "members"))  # fmt: skip
    return found


def _states(tries: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[Violation]:
    found = []
    for name, said in tries.items():
        kept = {n: v["state"] for n, v in said.items() if v["said"] == COMMITTED}
        if len(set(kept.values())) > 1:
            found.append(Violation(
                kind="states_differ", evidence=kept,
                message=f"{name}: members began it with {len(set(kept.values()))} states"),
            )  # fmt: skip
    return found


def _twice(outcome: Outcome) -> list[Violation]:
    """Operations that committed more than once; what a group has taken back does not count."""
    by_op: dict[int, set[str]] = defaultdict(set)
    for record in outcome.records:
        values = record.values
        if values.get("said") == COMMITTED:
            by_op[values["op"]].add(values["attempt"])
        elif "rolled_back" in values:
            for op in [op for op in by_op if op >= values["rolled_back"]]:
                del by_op[op]
    return [
        Violation(kind="committed_twice", evidence=sorted(names),
                  message=f"operation {op} committed in {len(names)} attempts: {sorted(names)}")
        for op, names in by_op.items() if len(names) > 1
    ]  # fmt: skip


__all__ = ["Attempt", "ChurnedAllReduce", "Elastic", "Work", "attempts_of", "waits_of"]
