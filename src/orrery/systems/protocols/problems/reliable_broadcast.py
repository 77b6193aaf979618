"""The problem `reliable_broadcast`: one node sends a stream of shots, some nodes may lie.

A client outside the world hands payloads to the broadcaster, one after another. Every correct node
delivers them by `self.deliver(index, payload)`. The checker is that of Byzantine reliable
broadcast: **agreement** (no two correct nodes deliver different payloads for an index), **order**
(indices from 1 on, none skipped, none twice), **totality** (what one correct node delivers, all
deliver) and, where the broadcaster is correct, **validity** (all shots are delivered) and
**integrity** (nothing else is). Correct are the nodes that no `Byzantine` fault bends and that
never fell: a node that lost its memory may vote twice, so it counts among the faulty ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from orrery.base.codec import size_of
from orrery.base.errors import DeadlineExceeded, KnobError, PartError
from orrery.base.violation import Violation
from orrery.check import agreement, broadcast
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
    rpc,
)
from orrery.systems.protocols.common import as_violations, downtimes, last_fault_end_s
from orrery.world import Byzantine, World

CLIENT = "client"
VOTE, PAYLOAD, REQUEST = "vote", "payload", "request"


class ReliableBroadcaster(Node):
    """The port of `ReliableBroadcast`: `broadcast(payload)` in, `self.deliver(index, payload)` out.

    Knobs of every such node: `broadcaster`, whose shots are believed (the problem sets it);
    `tolerated`, how many nodes may lie (-1: as many as n > 3 f allows); `most_B`, the largest
    payload that is taken. What a node says goes through `say` and `say_all`, which count it.
    """

    broadcaster: Whole = 0
    tolerated: int = -1
    most_B: Count = 16 << 20

    # How many nodes are needed for f liars, as (factor, constant): n >= factor * f + constant.
    resilience: ClassVar[tuple[int, int]] = (3, 1)

    @classmethod
    def liars_of(cls, n: int, tolerated: int) -> int:
        """How many of n nodes may lie; a number that n cannot bear is refused."""
        factor, constant = cls.resilience
        most = max(0, (n - constant) // factor)
        if tolerated > most:
            raise KnobError(
                f"{cls.__name__}.tolerated",
                f"{tolerated} liars among {n} nodes",
                f"give at most {most}, or at least {factor * tolerated + constant} nodes",
            )
        return most if tolerated < 0 else tolerated

    def start(self) -> None:
        self.n = len(self.peers) + 1
        self.f = self.liars_of(self.n, self.tolerated)
        self.sent = 0  # shots of its own
        self.delivered = 0
        self.spoken = {kind: [0, 0] for kind in (VOTE, PAYLOAD, REQUEST)}  # messages, bytes
        self.rounds = 0  # how often it spoke to all without a payload
        self.asked: dict[int, int] = {}  # index -> requests for its payload
        self.refused: dict[str, int] = {}  # why -> messages that were thrown away

    @rpc
    def broadcast(self, payload: bytes) -> None:
        """Send the next shot to all; the client calls it at the broadcaster."""
        raise PartError(f"{type(self).__name__} has no broadcast(payload); write what sends it")

    @rpc
    def report(self) -> dict[str, float]:
        """What this node has counted, for the client at the end of a run."""
        told = {f"{kind}_messages": float(count) for kind, (count, _) in self.spoken.items()}
        told |= {f"{kind}_B": float(size_B) for kind, (_, size_B) in self.spoken.items()}
        told |= {f"refused_{why}": float(count) for why, count in self.refused.items()}
        told["rounds"] = float(self.rounds)
        told["requests"] = float(sum(self.asked.values()))
        told["requests_max"] = float(max(self.asked.values(), default=0))
        return told

    # -- what the parts of this problem are written with

    def next_shot(self) -> int:
        """The index of a new shot, noted as sent now."""
        self.sent += 1
        self.emit(sent=self.sent)
        return self.sent

    def say(self, kind: str, peer: int, method: Callable[..., Any], *args: Any) -> None:
        """Tell one peer, and count it under `kind`."""
        self.tell(peer, method, *args)
        self._count(kind, 1, args)

    def say_all(self, kind: str, method: Callable[..., Any], *args: Any) -> None:
        """Tell every peer, and count it; without a payload that is a round."""
        for peer in self.peers:
            self.tell(peer, method, *args)
        self._count(kind, self.n - 1, args)
        if kind == VOTE:
            self.rounds += 1

    def _count(self, kind: str, copies: int, args: tuple[Any, ...]) -> None:
        # The size is the one by which the virtual network counts, so that engines agree.
        spoken = self.spoken[kind]
        spoken[0] += copies
        spoken[1] += copies * (self.world.network.header_B + size_of(args))

    def note_request(self, index: int) -> None:
        """A payload was asked for once more."""
        self.asked[index] = self.asked.get(index, 0) + 1

    def refuse(self, why: str) -> None:
        """A message is thrown away; why is counted."""
        self.refused[why] = self.refused.get(why, 0) + 1

    def deliver(self, index: int, payload: bytes, fast: bool = False) -> None:
        """Hand the next shot to the application; `fast` marks an optimistic path."""
        self.delivered = index
        digest = hashlib.sha256(payload).hexdigest()
        self.emit(delivered=index, digest=digest, fast=fast)


class ReliableBroadcast(Problem):
    """Hand `shots` payloads to one broadcaster; do all correct nodes deliver the same stream?

    Knobs: `shots`; `size_B` of each payload; `broadcaster`, the node that sends; `pace_s` between
    two shots; `settle_s`, how long the run goes on after the last shot and the last fault.

    >>> ReliableBroadcast(shots=5).knobs()["size_B"]
    1024
    """

    shots: Count = 20
    size_B: Whole = 1024
    broadcaster: Whole = 0
    pace_s: NonNegative = 0.01
    settle_s: Positive = 0.5

    port: ClassVar[type] = ReliableBroadcaster
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "bytes_per_shot": Metric("B", "lower", "bytes that all correct nodes send for a shot"),
        "payload_bytes_per_shot": Metric("B", "lower", "of these, in messages with a payload"),
        "vote_bytes_per_shot": Metric("B", "lower", "of these, in votes and other short messages"),
        "vote_B": Metric("B", "lower", "bytes of one vote, header included, on average"),
        "copies_per_node": Metric("", "lower", "bytes per shot over n times the payload's size"),
        "latency_steps": Metric(
            "", "lower", "mean time from sending to delivery, in longest one-way delays"
        ),
        "latency_steps_max": Metric("", "lower", "the same for the latest delivery of all"),
        "steps_per_shot": Metric("", "lower", "time between two deliveries at a node, in delays"),
        "rounds_per_shot": Metric(
            "", "lower", "times that a correct node speaks to all besides the first sending"
        ),
        "requests": Metric("", "lower", "payloads that correct nodes asked for, per shot"),
        "requests_max": Metric("", "lower", "most requests of one correct node for one payload"),
        "fast_share": Metric("", "higher", "share of deliveries by an optimistic path"),
        "delivered_share": Metric("", "higher", "share of (shot, correct node) pairs delivered"),
        "refused": Metric("", "", "messages that correct nodes threw away"),
        "refused_garbage": Metric("", "", "of these, payloads that do not fit their hash"),
        "refused_oversized": Metric("", "", "of these, payloads that are too large"),
    }

    def world(self) -> World:
        return World.lan(7)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        if self.broadcaster >= world.size:
            raise KnobError(
                "ReliableBroadcast.broadcaster",
                f"{self.broadcaster} is no node of a world of {world.size}",
                f"give 0 to {world.size - 1}",
            )
        parts = part if isinstance(part, Mapping) else dict.fromkeys(roles_of(world), part)
        return {role: self._fitted(one, world) for role, one in parts.items()}

    def _fitted(self, part: Any, world: World) -> Node:
        if not isinstance(part, ReliableBroadcaster):
            self.accept(part)
        part.liars_of(world.size, part.tolerated)
        if self.size_B > part.most_B:
            raise KnobError(
                "ReliableBroadcast.size_B",
                f"{self.size_B} is above most_B = {part.most_B} of {type(part).__name__}",
                "make the payload smaller or raise most_B",
            )
        fitted: Node = part.with_knobs(broadcaster=self.broadcaster)
        return fitted

    async def drive(self, driver: Driver) -> dict[int, dict[str, float]]:
        noise = driver.rng.numpy()
        for index in range(1, self.shots + 1):
            payload = noise.bytes(self.size_B)
            # Recorded and not returned, so that a run cut short can be judged as far as it went.
            driver.emit(offered=index, digest=hashlib.sha256(payload).hexdigest())
            driver.tell(self.broadcaster, ReliableBroadcaster.broadcast, payload)
            await driver.sleep(self.pace_s)
        calm_s = max(driver.now, last_fault_end_s(driver.world))
        await driver.sleep(calm_s - driver.now + self.settle_s)
        reports = {}
        for node in driver.nodes:
            if not driver.alive(node):
                continue
            try:
                async with driver.deadline(self.settle_s):
                    reports[node] = await driver.ask(node, ReliableBroadcaster.report)
            except DeadlineExceeded:
                continue  # it hangs or is paused; then it has no figures
        return reports

    def alone(self, part: ReliableBroadcaster, world: World) -> Mapping[str, Node]:
        """The same parts without a client: the broadcaster begins by itself, all shots at once.

        For worlds of chosen order, where a client's clock would be one more thing to choose: the
        run ends when all is quiet, and `check` judges it the same way.
        """
        hosted = self.host(part, world)
        script = tuple(bytes([index % 256]) * self.size_B for index in range(1, self.shots + 1))
        return {role: _self_starting(one, script) for role, one in hosted.items()}

    # -- judging

    def check(self, outcome: Outcome) -> list[Violation]:
        good = correct_nodes(outcome)
        heard = _deliveries(outcome, good)
        offers = {record.values["offered"]: record.values["digest"]
                  for record in outcome.records if "offered" in record.values}  # fmt: skip
        found = agreement.state_machine_safety(heard, first_index=1)
        logs: dict[Any, list[tuple[str, Any]]] = {
            node: [("deliver", shot) for shot in shots] for node, shots in heard.items()
        }
        if self.broadcaster in good:
            found += broadcast.integrity(
                {**logs, CLIENT: [("broadcast", shot) for shot in offers.items()]}, good
            )
        if outcome.ended in ("driven", "quiet"):  # else the shots had no time to arrive
            if self.broadcaster in good:
                own = [("broadcast", shot) for shot in offers.items()]
                sent = {**logs, self.broadcaster: own + logs[self.broadcaster]}
                found += broadcast.validity(sent, good)
            found += broadcast.agreement(logs, good)
        return as_violations(found, outcome.seconds)

    def decisions(self, outcome: Outcome) -> dict[int, list[Any]]:
        """The stream that each correct node delivered."""
        good = correct_nodes(outcome)
        return {node: [list(shot) for shot in shots]
                for node, shots in _deliveries(outcome, good).items()}  # fmt: skip

    def measure(self, outcome: Outcome) -> dict[str, float]:
        good = correct_nodes(outcome)
        reports = [told for node, told in (outcome.driven or {}).items() if node in good]
        metrics = self._spoken(reports, outcome.world.size)
        metrics |= self._timed(outcome, good)
        made = [record for record in outcome.records
                if "delivered" in record.values and record.node in good]  # fmt: skip
        metrics["fast_share"] = _share(sum(r.values["fast"] for r in made), len(made))
        metrics["delivered_share"] = _share(len(made), self.shots * len(good))
        return metrics

    def _spoken(self, reports: list[dict[str, float]], n: int) -> dict[str, float]:
        def total(*names: str) -> float:
            return sum(told.get(name, 0.0) for told in reports for name in names)

        votes_B, votes = total("vote_B", "request_B"), total("vote_messages", "request_messages")
        spoken_B = votes_B + total("payload_B")
        refused = sum(v for told in reports for k, v in told.items() if k.startswith("refused_"))
        return {
            "bytes_per_shot": spoken_B / self.shots,
            "payload_bytes_per_shot": total("payload_B") / self.shots,
            "vote_bytes_per_shot": votes_B / self.shots,
            "vote_B": _share(votes_B, votes),
            "copies_per_node": _share(spoken_B, self.shots * n * self.size_B),
            "rounds_per_shot": _share(total("rounds"), self.shots * len(reports)),
            "requests": total("requests") / self.shots,
            "requests_max": max((told["requests_max"] for told in reports), default=0.0),
            "refused": refused,
            "refused_garbage": total("refused_garbage"),
            "refused_oversized": total("refused_oversized"),
        }

    def _timed(self, outcome: Outcome, good: set[int]) -> dict[str, float]:
        step_s = step_of(outcome.world)
        sent = {index: time_s for time_s, node, index in outcome.emitted("sent")
                if node == self.broadcaster}  # fmt: skip
        lags: list[float] = []
        times: dict[int, list[float]] = {}
        for time_s, node, index in outcome.emitted("delivered"):
            if node in good:
                times.setdefault(node, []).append(time_s)
                if index in sent:
                    lags.append((time_s - sent[index]) / step_s)
        gaps = [(each[-1] - each[0]) / step_s / (len(each) - 1)
                for each in times.values() if len(each) > 1]  # fmt: skip
        return {
            "latency_steps": _share(sum(lags), len(lags)),
            "latency_steps_max": max(lags, default=0.0),
            "steps_per_shot": _share(sum(gaps), len(gaps)),
        }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def roles_of(world: World) -> list[str]:
    """The roles of a world's groups, each once."""
    return list(dict.fromkeys(group.name for group in world.groups))


def step_of(world: World) -> float:
    """The longest one-way delay of a short message: what asynchronous protocols call a step."""
    network = world.network
    if network.model == "rounds":
        return network.round_s
    return max(network.latency_s * (1.0 + network.jitter), 1e-9)


def correct_nodes(outcome: Outcome) -> set[int]:
    """The nodes that neither lied nor ever fell."""
    fallen = set(downtimes(outcome))
    for fault in outcome.world.schedule(outcome.seed):
        if isinstance(fault, Byzantine) and fault.at_s <= outcome.seconds:
            fallen |= set(outcome.world.targets(fault))
    return {node for node, up in enumerate(outcome.alive) if up and node not in fallen}


def _deliveries(outcome: Outcome, good: set[int]) -> dict[int, list[tuple[int, str]]]:
    heard: dict[int, list[tuple[int, str]]] = {node: [] for node in sorted(good)}
    for record in outcome.records:
        if "delivered" in record.values and record.node in good:
            heard[record.node].append((record.values["delivered"], record.values["digest"]))
    return heard


def _self_starting(part: Any, script: tuple[bytes, ...]) -> Node:
    """The same part, whose broadcaster sends the script as soon as it starts."""
    cls = type(part)

    async def main(self: Any) -> None:
        if self.id == self.broadcaster:
            for index, payload in enumerate(script, 1):
                self.emit(offered=index, digest=hashlib.sha256(payload).hexdigest())
                self.broadcast(payload)
        await cls.main(self)

    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made: type[Node] = type(cls.__name__, (cls,), {**body, "main": main})
    return made(**part.changed_knobs())
