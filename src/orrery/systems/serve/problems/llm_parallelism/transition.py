"""How instances become others: weights fetched or read, requests drained or moved, GPUs lost.

A plan differs from what runs in some components: sets of GPUs that old and new instances tile
alike. Each goes through the same stages: fetch (peers send what is missing, the old instances serve
on), drain (where caches are not moved), halt at a boundary of steps, load (where weights are read
from disk), then the new instances stand and requests are moved to them. Components that only read
from disk go one after the other, so that the others serve meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orrery.base.errors import PartError
from orrery.systems.serve.problems.llm_parallelism.engine import Instance, Seq
from orrery.systems.serve.problems.llm_parallelism.migrate import Ledger, Trip, cut_of, schedule
from orrery.systems.serve.problems.llm_parallelism.plans import (
    Placed,
    Plan,
    place,
    slice_of,
)

if TYPE_CHECKING:
    from orrery.systems.serve.problems.llm_parallelism.cluster import Cluster

# What a drain is expected to take, in steps of the instance: half of a usual answer.
DRAIN_STEPS = 100


class Component:
    """GPUs on which old instances give way to new ones."""

    def __init__(self, olds: list[Instance], news: list[Placed], positions: set[int]) -> None:
        self.olds, self.news, self.positions = olds, news, positions
        self.stage = "waiting"
        self.halting: set[int] = set()
        self.trips: dict[int, Trip] = {}
        self.made: list[Instance] = []
        self.begun_s = 0.0


class Transitions:
    """The changes of a cluster, one plan after the other, and its GPUs' state.

    alive       which positions work; held, the degree whose shard each has (0: none)
    shut        instances that are sent nothing new
    log         (when, plan) of every change; moved bytes, and requests, are counted
    """

    def __init__(self, cluster: Cluster, regroup_s: float) -> None:
        self.cluster, self.rig, self.regroup_s = cluster, cluster.rig, regroup_s
        self.how = cluster.policy.how()
        self.alive = [True] * self.rig.gpus
        self.held = [0] * self.rig.gpus
        self.shut: set[int] = set()
        self.components: list[Component] = []
        self.log: list[tuple[float, str]] = []
        self.weight_B = self.kv_B = self.disk_B = 0.0
        self.moved = self.lost = 0
        self.gpu_down_s = 0.0
        self.fullest = 0.0  # the largest share of a GPU's memory in use at any stage of a move
        self.switch_s: list[float] = []

    @property
    def busy(self) -> bool:
        """Whether a plan is being carried out."""
        return bool(self.components)

    # -- the beginning

    def begin(self, plan: Plan, now_s: float) -> None:
        """Carry out a plan."""
        cluster, rig = self.cluster, self.rig
        old = [each.placed for each in cluster.live.values()]
        share = [1.0 / tp if tp else 0.0 for tp in self.held]
        news = place(plan, old, self.alive, share, rig.most_tp)
        if news is None or any(tp not in rig.weight_B for _, tp in plan.kinds):
            raise PartError(
                f"{type(cluster.policy).__name__}.plan gave {plan}, which does not fit on "
                f"{sum(self.alive)} GPUs; return one of view.plans"
            )
        self.log.append((now_s, str(plan)))
        if not old and not any(self.held):
            for each in news:  # the first plan is there from the start
                cluster.add(each)
                self._hold(each)
            return
        stay = set(old) & set(news)
        changed = [i for i in cluster.live.values() if i.placed not in stay]
        self.components = _components(changed, [each for each in news if each not in stay])
        for each in self.components if not self._rolling() else self.components[:1]:
            self._start(each, now_s)

    def _rolling(self) -> bool:
        return self.how.weights == "disk" and not self.how.free

    def _start(self, part: Component, now_s: float) -> None:
        part.begun_s = now_s
        if self.how.free or self.how.weights == "disk":
            self._after_fetch(part, now_s)
            return
        part.stage = "fetch"
        missing = self.missing_B(part.news)
        if not any(missing.values()):
            self._after_fetch(part, now_s)
            return
        # The slices that come need room: the old instances have less of it from now on.
        after = {p: each.tp for each in part.news for p in each.positions}
        for each in part.olds:
            weights = max(
                self.rig.share(min(self.held[p], after.get(p, self.held[p])))
                for p in each.placed.positions
            )
            capacity = min(each.view.capacity, self.rig.capacity_with(each.placed.tp, weights))
            each.shrink(capacity, now_s)
            self.cluster.arm(each)
        self._audit(part)
        self.cluster.at(now_s + self.fetch_s(part.news), "fetched", part)

    def missing_B(self, news: Sequence[Placed]) -> dict[int, float]:
        """Bytes of weights that each GPU lacks for its new instance: the least that must move."""
        return {
            p: max(self.rig.share(each.tp) - self.rig.share(self.held[p]), 0.0)
            for each in news for p in each.positions
        }  # fmt: skip

    def fetch_s(self, news: Sequence[Placed]) -> float:
        """Seconds until all missing slices are there; from disk what no GPU nearby has."""
        rig, missing = self.rig, self.missing_B(news)
        took_s = max(missing.values(), default=0.0) / rig.link_Bps
        for machine in {p // rig.per_machine for p in missing}:
            first = machine * rig.per_machine
            near = range(first, min(first + rig.per_machine, rig.gpus))
            gap = 1.0 - _covered([slice_of(p, self.held[p]) for p in near
                                  if self.alive[p] and self.held[p]])  # fmt: skip
            if gap > 1e-9 and any(missing[p] for p in missing if p in near):
                took_s += gap * rig.weight_B[min(rig.weight_B)] / rig.disk_Bps
        return took_s

    def due(self, kind: str, what: Any, now_s: float) -> None:
        """A stage has ended; one of a move that was given up says nothing any more."""
        if kind == "moved":
            part, trip, life = what
            self._moved(part, trip, life, now_s)
        elif what in self.components and what.stage in ("fetch", "load"):
            if kind == "fetched":
                for each in what.news:
                    for p, size_B in self.missing_B([each]).items():
                        self.weight_B += size_B
                        if size_B:
                            self.held[p] = each.tp
                self._after_fetch(what, now_s)
            else:
                self._switch(what, now_s)

    def _after_fetch(self, part: Component, now_s: float) -> None:
        if self.how.free:
            part.stage = "load"
            self._switch(part, now_s)
            return
        part.stage = "drain"
        part.halting = {each.index for each in part.olds}
        self.shut |= part.halting
        drains = self.how.kv == "drain"
        for each in part.olds:
            if drains:
                each.closed = True
                for seq in each.give_waiting():
                    self.cluster.send(seq, now_s)
                self.cluster.hand_all_again(each.index, now_s)
                self.look(each, now_s)
            else:
                each.stop(now_s, self._halted)
                self.cluster.arm(each)
        if not part.olds:
            self._all_halted(part, now_s)

    def look(self, instance: Instance, now_s: float) -> None:
        """An instance that drains may have become empty."""
        drained = instance.closed and instance.empty and instance.index in self.shut
        if drained and not instance.halt:
            instance.stop(now_s, self._halted)

    def _halted(self, instance: Instance, now_s: float) -> None:
        for part in self.components:
            if instance.index in part.halting:
                part.halting.discard(instance.index)
                self.gpu_down_s -= now_s * instance.placed.tp
                if not part.halting:
                    self._all_halted(part, now_s)
                return

    def _all_halted(self, part: Component, now_s: float) -> None:
        part.stage = "load"
        wait_s = self.regroup_s
        if self.how.weights == "disk":
            wait_s += max(self.rig.load_s(each.tp, each.tp) for each in part.news)
            self.disk_B += sum(self.rig.weight_B[each.tp] * each.tp for each in part.news)
        self.cluster.at(now_s + wait_s, "loaded", part)

    # -- the switch

    def _switch(self, part: Component, now_s: float) -> None:
        cluster, rig = self.cluster, self.rig
        carried: list[tuple[Seq, Placed]] = []
        bare: list[Seq] = []
        for each in part.olds:
            here, queued = each.clear()
            carried += [(seq, each.placed) for seq in here]
            bare += queued
            cluster.remove(each)
            self.shut.discard(each.index)
            if not self.how.free:
                self.gpu_down_s += now_s * each.placed.tp
        for p in part.positions:
            self.held[p] = 0 if self.how.weights == "disk" else self.held[p]
        for each in part.news:
            self._hold(each)
            part.made.append(cluster.add(each))
            part.made[-1].closed = True
        for each in part.olds:
            cluster.hand_all_again(each.index, now_s)
        part.stage = "move"
        weights = {p: rig.share(self.held[p]) for p in sorted(part.positions)}
        trips, lost = schedule(rig, carried, Ledger(rig, weights), now_s,
                               lambda seq: self._target(part, seq))  # fmt: skip
        if self.how.free:
            trips = [trip._replace(start_s=now_s, land_s=now_s, moved_B=0.0) for trip in trips]
        for trip in trips:
            part.trips[trip.seq.request.id] = trip
            cluster.at(trip.land_s, "moved", (part, trip, trip.seq.life))
        self._audit(part)
        for seq in lost:
            seq.lose_cache()
            self.lost += 1
        for seq in (*lost, *bare):
            cluster.send(seq, now_s)
        cluster.empty_lobby(now_s)
        if not part.trips:
            self._open(part, now_s)

    def _hold(self, placed: Placed) -> None:
        for p in placed.positions:
            self.held[p] = placed.tp

    def _target(self, part: Component, seq: Seq) -> Instance | None:
        """Where a request that is moved goes on: near where it was, if there is room."""
        near = [each for each in part.made if each.placed.role != "P"]
        far = [self.cluster.live[view.index] for view in self.cluster.decoders()]
        for some in (near, far):
            fitting = [each.view for each in some if each.room() > seq.need + 1]
            if fitting:
                index = self.cluster.policy.hand_over(seq.request, fitting)
                target = self.cluster.live.get(index)
                if target is not None:
                    target.reserve(seq)
                    return target
        return None

    def _moved(self, part: Component, trip: Trip, life: int, now_s: float) -> None:
        seq, target = trip.seq, trip.target
        if part.trips.pop(seq.request.id, None) is not trip or seq.life != life:
            return
        self.kv_B += trip.moved_B
        self.moved += 1
        seq.moved += 1
        target.take_in(seq, now_s)
        self.cluster.arm(target)
        self._audit(part)
        if not part.trips:
            self._open(part, now_s)

    def _open(self, part: Component, now_s: float) -> None:
        """All are moved: prompts are let in again."""
        for each in part.made:
            if each.index in self.cluster.live:
                each.closed = False
                each.wake(now_s)
                self.cluster.arm(each)
        self._audit(part)
        self._over(part, now_s)

    def _over(self, part: Component, now_s: float) -> None:
        self.switch_s.append(now_s - part.begun_s)
        self.components.remove(part)
        if self.components and self._rolling():
            self._start(self.components[0], now_s)

    # -- a GPU dies

    def lose(self, position: int, now_s: float) -> None:
        """A GPU is gone: its instance dies, a move that it took part in is given up."""
        cluster = self.cluster
        if not 0 <= position < len(self.alive) or not self.alive[position]:
            return
        self.alive[position], self.held[position] = False, 0
        homeless: list[Seq] = []
        for part in list(self.components):
            homeless += self._give_up(part, position, now_s)
        for each in list(cluster.live.values()):
            if position in each.placed.positions:
                carried, bare = each.clear()
                for seq in carried:
                    seq.lose_cache()
                homeless += [*carried, *bare]
                cluster.remove(each)
                self.shut.discard(each.index)
                cluster.hand_all_again(each.index, now_s)
        for seq in homeless:
            cluster.send(seq, now_s)
        if not self.busy:
            cluster.ask()
        cluster.empty_lobby(now_s)

    def _give_up(self, part: Component, position: int, now_s: float) -> list[Seq]:
        """Stop a move at the stage where it is; requests that have lost their cache by it."""
        if part.stage == "move":
            gone = [
                trip for trip in part.trips.values()
                if position in (*trip.old.positions, *trip.target.placed.positions)
            ]  # fmt: skip
            for trip in gone:
                del part.trips[trip.seq.request.id]
                trip.target.unreserve(trip.seq.need)
                trip.seq.lose_cache()
            if not part.trips:
                self._open(part, now_s)
            return [trip.seq for trip in gone]
        if position not in part.positions and not self._rolling():
            return []
        if part.stage == "load" and self.how.weights == "disk":
            if position not in part.positions:
                return []  # what is being read will be there
            return self._dissolve(part, now_s)
        # The old instances go on, with what they had; those that halted begin again.
        self.components.remove(part)
        for each in part.olds:
            self.shut.discard(each.index)
            if each.halt and each.on_halt is None:
                self.gpu_down_s += now_s * each.placed.tp
            each.halt, each.closed, each.on_halt = False, False, None
            weights = max((self.rig.share(self.held[p]) for p in each.placed.positions
                           if self.alive[p]), default=0.0)  # fmt: skip
            each.view.capacity = self.rig.capacity_with(each.placed.tp, weights)
            if position not in each.placed.positions:
                each.wake(now_s)
                self.cluster.arm(each)
        return []

    def _dissolve(self, part: Component, now_s: float) -> list[Seq]:
        """The old weights are gone and the new ones not there: these GPUs have nothing."""
        self.components.remove(part)
        homeless: list[Seq] = []
        for each in part.olds:
            carried, bare = each.clear()
            for seq in carried:
                seq.lose_cache()
            homeless += [*carried, *bare]
            self.gpu_down_s += now_s * each.placed.tp
            self.cluster.remove(each)
            self.shut.discard(each.index)
        for p in part.positions:
            self.held[p] = 0
        return homeless

    # -- what it costs, and whether it is right

    def downtime_s(self, plan: Plan) -> float:
        """GPU-seconds that a change to a plan is expected to take from serving."""
        if self.how.free:
            return 0.0
        cluster, rig = self.cluster, self.rig
        old = [each.placed for each in cluster.live.values()]
        share = [1.0 / tp if tp else 0.0 for tp in self.held]
        news = place(plan, old, self.alive, share, rig.most_tp)
        if news is None:
            return float("inf")
        stay, total = set(old) & set(news), 0.0
        for each in news:
            if each in stay:
                continue
            wait_s = self.regroup_s
            if self.how.weights == "disk":
                wait_s += rig.load_s(each.tp, each.tp)
            total += each.tp * wait_s
        for one in cluster.live.values():
            if one.placed in stay:
                continue
            kv_B = one.view.kv_tokens * rig.kv_B
            if self.how.kv == "migrate":
                total += kv_B / rig.link_Bps
            elif one.view.decodes:
                step_s = one.view.cost.seconds([], one.view.decodes, one.view.decode_kv)
                total += one.placed.tp * DRAIN_STEPS * step_s
        return total

    def _audit(self, part: Component) -> None:
        """What lies on each GPU of a component now, counted anew, against its memory."""
        rig = self.rig
        used = {p: rig.share(self.held[p]) for p in part.positions if self.alive[p]}
        if part.stage == "fetch":
            for p, size_B in self.missing_B(part.news).items():
                if p in used:
                    used[p] += size_B
        for each in self.cluster.live.values():
            # What is reserved for caches on their way is counted with the trips.
            tokens = each.view.kv_tokens - each.coming
            for p in each.placed.positions:
                if p in used:
                    used[p] += tokens * rig.kv_B / each.placed.tp
        for trip in part.trips.values():
            size_B = trip.seq.need * rig.kv_B
            under_way = trip.start_s <= self.cluster.now_s
            come = cut_of(trip.old, trip.target.placed).come if under_way else {}
            for p in used:
                used[p] += size_B * come.get(p, 0.0)
                if p in trip.old.positions:
                    used[p] += size_B / trip.old.tp
        self.fullest = max([self.fullest, *(size / rig.memory_B for size in used.values())])
        if any(size > rig.memory_B * (1 + 1e-9) for size in used.values()):
            p = max(used, key=lambda q: used[q])
            self.cluster.faults.append(
                f"GPU {p} held {used[p] / 1e9:.2f} GB of {rig.memory_B / 1e9:.2f} in stage "
                f"{part.stage}"
            )

    def layout_faults(self) -> list[str]:
        """What is wrong with the layout: GPUs shared, dead, or without the weights they need."""
        found, owner = [], {}
        for each in self.cluster.live.values():
            for p in each.placed.positions:
                if p in owner:
                    found.append(f"GPU {p} is in instances {owner[p]} and {each.index}")
                owner[p] = each.index
                if not self.alive[p]:
                    found.append(f"instance {each.index} counts on GPU {p}, which is dead")
                elif not self.held[p] or self.held[p] > each.placed.tp:
                    found.append(f"GPU {p} lacks weights of instance {each.index}")
        return found


def _components(olds: Sequence[Instance], news: Sequence[Placed]) -> list[Component]:
    """Sets of GPUs that old and new instances tile alike."""
    groups: list[tuple[set[int], list[Instance], list[Placed]]] = []
    items: list[tuple[Placed, Any]] = [(each.placed, each) for each in olds]
    items += [(each, None) for each in news]
    for placed, instance in items:
        mine: tuple[set[int], list[Instance], list[Placed]] = (
            set(placed.positions), [instance] if instance is not None else [],
            [] if instance is not None else [placed],
        )  # fmt: skip
        apart = []
        for group in groups:
            if group[0] & mine[0]:
                mine = (mine[0] | group[0], group[1] + mine[1], group[2] + mine[2])
            else:
                apart.append(group)
        groups = [*apart, mine]
    groups.sort(key=lambda group: min(group[0]))
    return [Component(olds, news, positions) for positions, olds, news in groups]


def _covered(slices: Sequence[tuple[float, float]]) -> float:
    """The length of a union of intervals."""
    total, reach = 0.0, 0.0
    for low, high in sorted(slices):
        total += max(high - max(low, reach), 0.0)
        reach = max(reach, high)
    return total


__all__ = ["Component", "Transitions"]
