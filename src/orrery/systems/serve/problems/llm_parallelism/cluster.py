"""The GPUs of a run: instances, requests on their way, and the queue of events; no clock.

What changes instances into others is in `transition`; this file routes requests, hands caches from
prompts to answers, and keeps the order of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from orrery.base.errors import PartError
from orrery.models.requests import Request
from orrery.systems.serve.problems.llm_parallelism.engine import NEVER, Instance, Seq
from orrery.systems.serve.problems.llm_parallelism.plans import (
    Kind,
    Placed,
    Plan,
    all_plans,
    free_blocks,
)
from orrery.systems.serve.problems.llm_parallelism.ports import (
    ClusterView,
    InstanceView,
    Parallelism,
    Tier,
)
from orrery.systems.serve.problems.llm_parallelism.rig import Rig
from orrery.systems.serve.problems.llm_parallelism.transition import Transitions


class Fared(msgspec.Struct, frozen=True):
    """How a request fared, in seconds of the run."""

    id: int
    tier: int
    arrival_s: float
    first_s: float
    last_s: float
    output_tokens: int
    restarts: int
    moved: int
    met: bool

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(self.output_tokens - 1, 1)


class Cluster:
    """Serves requests on a rig as a policy decides; `play()` runs to the end.

    control_s   how often the policy is asked for a plan
    losses      (when, position) GPUs that die
    """

    def __init__(
        self, rig: Rig, policy: Parallelism, requests: Sequence[Request], tiers: tuple[Tier, ...],
        *, control_s: float, chunk_tokens: int, most_seqs: int, regroup_s: float,
        split: bool = True, losses: Sequence[tuple[float, int]] = (), until_s: float = NEVER,
    ) -> None:  # fmt: skip
        self.rig, self.policy, self.requests, self.tiers = rig, policy, requests, tiers
        self.control_s, self.chunk_tokens, self.most_seqs = control_s, chunk_tokens, most_seqs
        self.split, self.until_s = split, until_s
        self.now_s, self.extrapolated_before = 0.0, rig.extrapolated()
        self.live: dict[int, Instance] = {}
        self.lobby: list[Seq] = []
        self.fared: list[Fared] = []
        self.faults: list[str] = []
        self.handed_B = self.handed = 0
        self.preemptions = 0
        self.gpu_busy_s = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = self._next = self._index = 0
        self._armed: dict[int, float] = {}
        self._handing: list[tuple[Instance, Seq, int]] = []
        self._inbox: dict[int, list[tuple[tuple[float, ...], int, int, Seq, Instance]]] = {}
        self._open = len(requests)
        policy.start()
        self.transitions = Transitions(self, regroup_s)
        for at_s, position in losses:
            self.at(at_s, "lose", position)
        self._control()

    # -- time

    def at(self, when_s: float, kind: str, what: Any) -> None:
        """Something is due."""
        self._number += 1
        heappush(self._events, (when_s, self._number, kind, what))

    def next_s(self) -> float:
        """When something is due next; infinity once every request has its answer."""
        if not self._open:
            return NEVER
        arrival = NEVER
        if self._next < len(self.requests):
            arrival = self.requests[self._next].arrival_s
        return min(arrival, self._events[0][0]) if self._events else arrival

    def play(self, until_s: float = NEVER) -> Cluster:
        """Do what is due up to a moment."""
        while (due_s := self.next_s()) <= until_s and due_s < NEVER:
            self._one(due_s)
        return self

    def _one(self, now_s: float) -> None:
        self.now_s = now_s
        if self._next < len(self.requests) and self.requests[self._next].arrival_s <= now_s:
            request = self.requests[self._next]
            self._next += 1
            self.policy.arrived(request, now_s)
            self.send(Seq(request), now_s)
            return
        _, _, kind, what = heappop(self._events)
        if kind == "step":
            self._step(what, now_s)
        elif kind == "land":
            self._land(*what)
        elif kind == "control":
            self._control()
        elif kind == "lose":
            self.transitions.lose(what, now_s)
        else:
            self.transitions.due(kind, what, now_s)

    def arm(self, instance: Instance) -> None:
        """Note when an instance's step ends, after anything that may have changed it."""
        due_s = instance.next_s
        if due_s < NEVER and self._armed.get(instance.index) != due_s:
            self._armed[instance.index] = due_s
            self.at(due_s, "step", instance)

    def _step(self, instance: Instance, now_s: float) -> None:
        if instance.next_s != now_s or instance.index not in self.live:
            return
        self._armed.pop(instance.index, None)
        instance.advance(now_s)
        for source, seq, index in self._handing:
            inbox = self._inbox.setdefault(index, [])
            heappush(inbox, (seq.rank, seq.request.id, seq.life, seq, source))
            if index != instance.index:
                self._pull(self.live[index], now_s)
        self._handing.clear()
        if self._inbox.get(instance.index):
            self._pull(instance, now_s)
        self.arm(instance)
        if instance.closed:
            self.transitions.look(instance, now_s)

    # -- requests

    def send(self, seq: Seq, now_s: float) -> None:
        """To the instance that the policy names; where there is none, it waits before the door."""
        views = self.fronts()
        index = self.policy.route(seq.request, views) if views else -1
        if index == -1 and not views:
            self.lobby.append(seq)
            return
        if index not in {view.index for view in views}:
            raise PartError(
                f"{type(self.policy).__name__}.route sent request {seq.request.id} to {index}, "
                f"which is none of the {len(views)} instances shown; return the index of one"
            )
        instance = self.live[index]
        if not seq.rank:
            seq.rank = self.policy.rank(seq.request, instance.view)
        instance.submit(seq, now_s)
        self.arm(instance)

    def fronts(self) -> list[InstanceView]:
        """Who may be sent a prompt: M and P; where there is none, whoever there is."""
        taking = [i for i in self.live.values() if i.index not in self.transitions.shut]
        fronts = [i.view for i in taking if i.placed.role != "D"]
        return fronts or [i.view for i in taking]

    def decoders(self, but: int = -1) -> list[InstanceView]:
        """Who may be handed a computed prompt: D; where there is none, M."""
        taking = [i for i in self.live.values()
                  if i.index not in self.transitions.shut and i.index != but]  # fmt: skip
        found = [i.view for i in taking if i.placed.role == "D"]
        return found or [i.view for i in taking if i.placed.role == "M"]

    def empty_lobby(self, now_s: float) -> None:
        """Those before the door come in."""
        waiting, self.lobby = self.lobby, []
        for seq in waiting:
            self.send(seq, now_s)

    def _finish(self, seq: Seq, now_s: float) -> None:
        request = seq.request
        target = request.target
        assert target is not None
        tpot_s = (now_s - seq.first_s) / max(seq.limit - 1, 1)
        met = target.met(seq.first_s - request.arrival_s, tpot_s)
        self.fared.append(Fared(
            request.id, seq.tier, request.arrival_s, seq.first_s, now_s, seq.limit, seq.restarts,
            seq.moved, met))  # fmt: skip
        self._open -= 1
        self.policy.finished(request, seq.limit, met, now_s)

    # -- from prompts to answers

    def _prefilled(self, instance: Instance, seq: Seq, now_s: float) -> bool:
        if instance.placed.role != "P":
            return False
        views = self.decoders(instance.index)
        index = self.policy.hand_over(seq.request, views) if views else -1
        if index < 0:
            return False  # it makes the answer itself
        if index not in self.live:
            raise PartError(
                f"{type(self.policy).__name__}.hand_over named {index}, which is none of the "
                f"{len(views)} instances shown; return the index of one"
            )
        self._handing.append((instance, seq, index))
        return True

    def _pull(self, target: Instance, now_s: float) -> None:
        """Let caches come for which there is room."""
        inbox = self._inbox.get(target.index, [])
        while inbox:
            _, _, life, seq, source = inbox[0]
            if seq.life != life:
                heappop(inbox)
                continue
            full = target.room() < seq.need + 1 + int(0.01 * target.view.capacity)
            if (full and not target.empty) or target.view.decodes >= self.most_seqs:
                return
            if not target.empty and not self.policy.takes(seq.request, target.view):
                return
            heappop(inbox)
            target.reserve(seq)
            size_B = seq.need * self.rig.kv_B
            self.handed_B += size_B
            self.handed += 1
            took_s = size_B / self.rig.rate_Bps(source.placed, target.placed)
            self.at(now_s + took_s, "land", (seq, life, seq.need, source, target))

    def _land(self, seq: Seq, life: int, need: int, source: Instance, target: Instance) -> None:
        now_s = self.now_s
        gone = target.index not in self.live
        if seq.life != life or gone:
            if not gone:
                target.unreserve(need)
                self.transitions.look(target, now_s)
            if seq.life == life:
                self._hand_again(source, seq, now_s)
            return
        source.release(seq)
        target.take_in(seq, now_s)
        self.arm(target)
        # The room that it leaves behind may be what the next prompt waits for.
        source.wake(now_s)
        self.arm(source)
        if source.closed:
            self.transitions.look(source, now_s)

    def hand_all_again(self, index: int, now_s: float) -> None:
        """Whoever was to go to an instance that is no more goes elsewhere."""
        for _, _, life, seq, source in sorted(self._inbox.pop(index, []), key=lambda w: w[:3]):
            if seq.life == life and source.index in self.live:
                self._hand_again(source, seq, now_s)

    def _hand_again(self, source: Instance, seq: Seq, now_s: float) -> None:
        views = self.decoders(source.index)
        index = self.policy.hand_over(seq.request, views) if views else -1
        if index < 0:
            # It stays, and its answer is made where its prompt was computed.
            del source.outbox[seq.request.id]
            source.landed.append(seq)
            source.wake(now_s)
            self.arm(source)
            return
        inbox = self._inbox.setdefault(index, [])
        heappush(inbox, (seq.rank, seq.request.id, seq.life, seq, source))
        self._pull(self.live[index], now_s)

    # -- instances

    def add(self, placed: Placed) -> Instance:
        """A new instance, idle."""
        rig, tp = self.rig, placed.tp
        made = Instance(
            self._index, placed, rig.steps[tp], rig.costs[tp], rig.capacity[tp], self.policy,
            chunk_tokens=self.chunk_tokens, most_seqs=self.most_seqs,
            done=self._finish, prefilled=self._prefilled,
        )  # fmt: skip
        self._index += 1
        self.live[made.index] = made
        return made

    def remove(self, instance: Instance) -> None:
        """An instance is no more; its books are closed."""
        del self.live[instance.index]
        self._armed.pop(instance.index, None)
        self.preemptions += instance.preemptions
        self.gpu_busy_s += instance.busy_s * instance.placed.tp
        if instance.over:
            self.faults.append(f"instance {instance.index} held more than fits {instance.over} x")

    def plan(self) -> Plan | None:
        """What runs now."""
        kinds = tuple(Kind(*each.placed[:2]) for each in self.live.values())
        roles = {kind.role for kind in kinds}
        return Plan(kinds) if kinds and roles not in ({"P"}, {"D"}) else None

    def look(self) -> ClusterView:
        """What a controller sees."""
        rig, moves = self.rig, self.transitions
        blocks = tuple(size for _, size in free_blocks(moves.alive, rig.most_tp))
        backlog = [0] * len(self.tiers)
        for each in self.live.values():
            for _, _, seq in each.waiting:
                backlog[seq.tier] += 1
        for seq in self.lobby:
            backlog[seq.tier] += 1
        return ClusterView(
            self.now_s, self.plan(), blocks, self.feasible(blocks), self.tiers, rig.costs,
            rig.capacity, tuple(backlog), tuple(i.view for i in self.live.values()),
            moves.downtime_s, self.chunk_tokens, self.most_seqs,
        )  # fmt: skip

    def feasible(self, blocks: tuple[int, ...]) -> tuple[Plan, ...]:
        """Every plan that fits these blocks and whose instances can hold the model."""
        least = min(self.rig.weight_B)
        return tuple(
            plan for plan in all_plans(tuple(sorted(blocks, reverse=True)), self.rig.most_tp,
                                       self.split)
            if min(tp for _, tp in plan.kinds) >= least
        )  # fmt: skip

    def _control(self) -> None:
        """Ask for a plan; while one is being carried out, nobody is asked."""
        if self.now_s + self.control_s < self.until_s and self._open:
            self.at(self.now_s + self.control_s, "control", None)
        if not self.transitions.busy:
            self.ask()

    def ask(self) -> None:
        """Have the policy decide, and begin what it decides."""
        view = self.look()
        plan = self.policy.plan(view)
        if plan is not None and plan != view.plan:
            self.transitions.begin(plan, self.now_s)


__all__ = ["Cluster", "Fared"]
