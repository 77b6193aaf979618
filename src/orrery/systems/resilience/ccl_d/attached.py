"""CCL-D attached to any run of workers: a monitor of collectives that hang or crawl."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from orrery.base.codec import encode
from orrery.base.violation import Violation
from orrery.parts import Monitor, Positive
from orrery.parts.monitor import Memory
from orrery.systems.resilience.ccl_d.hangs import LAST, Scene, first_cause, mismatch
from orrery.systems.resilience.ccl_d.judging import Judging
from orrery.systems.resilience.ccl_d.losses import Loss, behind_losses
from orrery.systems.resilience.ccl_d.mirror import Board, Mirror, at_once
from orrery.systems.resilience.ccl_d.slowness import cause_of, latecomer
from orrery.systems.resilience.ccl_d.tap import HINTS, Tap, nodes_told
from orrery.systems.resilience.problems.flight import Channel
from orrery.systems.resilience.problems.watcher import Hint, Report, Sign

# A call that usually takes long hangs only when it has taken so many times as long.
TIMES = 4.0
# Behind a sign that leads nowhere the monitor looks at least once in so many calls.
SELDOM = 64
# What was not clear is looked at again after this part of `hang_s`.
AGAIN = 0.25
# So many nodes are named one by one.
FEW = 8
# What a record of an end says where it says no more than its slot.
LEFT_AWAY: tuple[Any, ...] = ("", (), (), (), 0)
HINT_OF: dict[int, Hint] = {number: hint for hint, number in HINTS.items()}  # type: ignore[misc]


class Finding(msgspec.Struct, frozen=True):
    """What was found: a hang or slowness, its ailment, the nodes that have it, and since when."""

    kind: Literal["hang", "slow"]
    ailment: str
    ranks: tuple[int, ...]
    why: str
    since_s: float
    said_s: float

    def to_violation(self) -> Violation:
        """The finding as a run reports it."""
        who = " and ".join(f"node {rank}" for rank in self.ranks) or "nobody in particular"
        return Violation(
            kind=self.kind, time_s=self.since_s, evidence=msgspec.to_builtins(self),
            node=self.ranks[0] if len(self.ranks) == 1 else None,
            message=f"{self.ailment.replace('_', ' ')}: {who}, since {self.since_s:.6g} s; "
                    f"{self.why}",
        )  # fmt: skip


class Streak(msgspec.Struct):
    """Signs of one kind that follow each other; counts are those of calls."""

    since_s: float
    latest: int
    due: int  # when a cause is looked for again
    gap: int = 1


class CollectiveDoctor(Judging, Monitor):
    """Names the node that makes the collectives of any run hang or crawl, and says why.

    The rules of `CCLD`, attached to a run whose nodes are `Worker`s, on every engine:

        run(Synchronous(), problem=DataParallel(), monitors=[CollectiveDoctor()])

    A probe at each rank sees when collectives begin and end and how long each array takes to its
    peer; it knows what is usual, in a memory of fixed size, and tells some bytes of each call (at
    most 32 before it and 208 after it, mostly 4 and 2, and once the nodes of each new group). The
    monitor makes dumps of these and puts them before the rules of hangs and of slowness. Where
    computing and communicating overlap, who stays away longest and waits least is late. What it
    finds are the run's violations "hang" and "slow" (ailment, nodes, since when); `findings` has
    them as data. Nothing of the run changes.

    Knobs: `hang_s`, how long a call waits before it hangs (and four times as long as such calls
    have taken); `hangs` and `slows`, whether these rules are on; `ring`, calls kept of a rank;
    `learn`, `window`, `confirm`, `far`, `share`, `least`, `way`, `tight`, `follow` as for `CCLD`.

    Limits. A monitor cannot ask: a rank that stands still outside of collectives and one that
    computes for ever are both "stuck", and who has crashed is known when it comes back or the run
    ends. A hang is noticed when something else happens, or at the end. If all ranks are inside the
    call that hangs, only what ranks say who give up (`lost`) tells where; a rank that was stopped
    inside a call and goes on before that is not named. Slowness is a change against what was
    usual, so a rank that was slow from its first step on is not named (`diagnose` may find it), nor
    is lateness that ranks wait off by messages (as in EDiT) or by `send` and `recv`. The NIC of a
    leaf of a tree is also its link, and called so. On real processes the noise of a busy machine
    needs wider bounds. A look behind a sign costs O(ring x ranks of the group).

    >>> CollectiveDoctor(hang_s=30.0).follow
    True
    """

    hang_s: Positive = 120.0
    hangs: bool = True
    slows: bool = True

    # -- at the rank

    def at_rank(
        self, memory: Memory, time_s: float, phase: str, kind: str, tag: str, data: Any
    ) -> Any:
        if memory.group is None:
            return None
        return self._tap_of(memory).record(memory, memory.group, phase, kind, tag, data) or None

    def array_at_rank(
        self, memory: Memory, peer: int, nbytes: int, took_s: float, among: int
    ) -> None:
        self._tap_of(memory).arrived(peer, nbytes, took_s, among)

    def _tap_of(self, memory: Memory) -> Tap:
        tap: Tap | None = memory.get("tap")
        if tap is None:
            probe = self.probe_for(memory.node, memory.clock, quiet_s=float("inf"))
            tap = memory["tap"] = Tap(probe, self.way)
        return tap

    # -- at the monitor

    def start(self) -> None:
        self.check_knobs()
        self.findings: list[Finding] = []
        self.gone: set[int] = set()
        self.mirrors: dict[int, Mirror] = {}
        self.now_s = 0.0
        self.calls = self.told_B = self.most_B = 0
        self._board = Board(self.mirrors, self.gone, self.ring)
        self._open: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._groups: dict[tuple[int, ...], tuple[str, list[int]]] = {}
        self._again_s = 0.0
        self._episode: tuple[int, str] | None = None
        self._spoken: Finding | None = None
        self._losses: list[Loss] = []
        self._ways: dict[tuple[int, ...], int] = {}
        self._streaks: dict[tuple[str, str], Streak] = {}

    def before_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        self._tick(time_s)
        number, nbytes, *more = data
        size_B = len(encode(data))
        if len(more) > 1:  # the nodes are told once, and their number is no matter of calls
            size_B -= len(encode(more[1]))
        self._count(size_B)
        mirror = self.mirrors.get(node)
        if number == 0 and len(more) > 1:
            mirror = self._new_life(node, time_s)
        if mirror is None:
            return
        mirror.hear(time_s)
        if len(more) > 1:
            mirror.first_use(number, more[0], tag, *self._known(list(more[1])))
        comm = mirror.enqueue(number, more[0] if more else "", kind, nbytes)
        self._open[node, comm] = time_s
        self.calls += 1

    def after_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        self._tick(time_s)
        mirror = self.mirrors.get(node)
        if mirror is None:
            return
        self._count(len(encode(data)))
        told: list[Any] = [*data, *LEFT_AWAY[len(data) - 1 :]]
        number, key, cut, signs, ways, spent_s = told
        mirror.hear(time_s)
        mirror.spent_s = spent_s or mirror.spent_s
        for comm in (mirror.comm(*each) for each in cut):
            if comm in mirror.open:
                mirror.cut(comm)
                self._close(node, comm)
        comm = mirror.comm(number, key)
        if comm in mirror.open:
            mirror.end(comm)
            self._close(node, comm)
        for peer, ratio in ways:
            mirror.way(peer, ratio, ratio >= self.way)
            if peer in self.mirrors:  # so that whoever looks at the peer finds this way too
                self.mirrors[peer].coarse.channels.setdefault(node, Channel(node))
        if self.slows:
            self._hear_signs(mirror, signs)

    def on_emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        self._tick(time_s)
        mirror = self.mirrors.get(node)
        rank = values.get("lost")
        if mirror is None or not mirror.exact.busy or not isinstance(rank, int):
            return
        op = mirror.exact.busy[0]
        nodes = mirror.exact.members[op.comm]
        if 0 <= rank < len(nodes):
            waited_s = time_s - op.enqueued_s
            self._losses.append(Loss(time_s, node, nodes[rank], waited_s))
            self._look_for_hang(node, min(self.hang_s, waited_s))

    def on_end(self, time_s: float, crashed: Collection[int]) -> None:
        self.now_s = max(self.now_s, time_s)
        if not self.hangs:
            return
        known = {node for _, nodes in self._groups.values() for node in nodes}
        self.gone.update(known.intersection(crashed))
        if self.gone:
            self._withdraw()
        for rank in sorted(self.gone):
            heard_s = self.mirrors[rank].heard_s if rank in self.mirrors else 0.0
            self._say("hang", Report("crashed", (rank,), "its process ended"), heard_s)
        waiting = [(node, comm) for node, comm in self._open if node not in self.gone]
        for comm, node in {comm: node for node, comm in waiting}.items():  # one rank of each group
            found = self._disagreement(node, comm)
            if found is not None:
                self._say("hang", found, self._open[node, comm])
                return
        if waiting and not self.gone:
            self._look_again(*waiting[0])

    def _look_again(self, node: int, comm: str) -> None:
        """At the end: what was not clear before may be clear now, and a hang is told anyhow."""
        least_s = self._hang_after_s(node, comm)
        gave_up = [loss for loss in self._losses if loss.witness == node]
        if gave_up:
            least_s = min(least_s, gave_up[0].time_s - self._open[node, comm])
        if self.now_s - self._open[node, comm] >= least_s:
            self._look_for_hang(node, least_s, is_last=True)

    # -- what comes and goes

    def _new_life(self, node: int, time_s: float) -> Mirror:
        """A rank whose memory is fresh: it starts, or starts again after a crash."""
        before = self.mirrors.get(node)
        if before is not None and self.hangs:
            report = Report("crashed", (node,), f"it started again at {time_s:.6g} s")
            self._say("hang", report, before.heard_s)
        for key in [key for key in self._open if key[0] == node]:
            self._close(*key)
        mirror = self.mirrors[node] = Mirror(node, time_s if before else 0.0, self.ring)
        return mirror

    def _close(self, node: int, comm: str) -> None:
        self._open.pop((node, comm), None)
        if self._episode == (node, comm):
            self._episode = None
            self._losses.clear()

    def _count(self, size_B: int) -> None:
        self.told_B += size_B
        self.most_B = max(self.most_B, size_B)

    def _known(self, short: list[int]) -> tuple[str, list[int]]:
        """A short name of some nodes, and the nodes: kept once for all ranks that tell of them."""
        found = self._groups.get(tuple(short))
        if found is None:
            nodes = nodes_told(short)
            label = ",".join(map(str, nodes))
            if short[0] >= 0:
                label = f"{nodes[0]}..{nodes[-1]}"
            elif len(nodes) > FEW:
                label = f"{nodes[0]},… group {len(self._groups)}"
            found = self._groups[tuple(short)] = label, nodes
        return found

    # -- hangs

    def _tick(self, time_s: float) -> None:
        """Something happens: before it counts, see whether a call has hung until now."""
        self.now_s = max(self.now_s, time_s)
        if not self.hangs or not self._open or self._episode is not None:
            return
        (node, comm), since_s = next(iter(self._open.items()))
        age_s = self.now_s - since_s
        if age_s < self.hang_s or self.now_s < self._again_s:
            return
        if age_s >= self._hang_after_s(node, comm):
            self._look_for_hang(node, self.hang_s)

    def _hang_after_s(self, node: int, comm: str) -> float:
        mirror = self.mirrors[node]
        _, op = mirror.open[comm]
        return max(self.hang_s, TIMES * mirror.longest_s(op.slot))

    def _look_for_hang(self, node: int, least_s: float, is_last: bool = False) -> None:
        if not self.hangs:
            return
        board = self._board.at(self.now_s, exact=True)
        found = at_once(first_cause(board, node, least_s, self.follow))
        if found is None or not found.ranks:
            found = behind_losses(self._losses) or found
        if found is None or not (found.ranks or is_last):
            self._again_s = self.now_s + AGAIN * self.hang_s
            return
        before = self._spoken if self._episode is not None else None
        if before is not None and (before.ailment, before.ranks) == (found.ailment, found.ranks):
            return
        mirror = self.mirrors[node]
        blamed = self.mirrors.get(found.ranks[0]) if len(found.ranks) == 1 else mirror
        since_s = blamed.silent_since_s() if blamed is not None else 0.0
        self._withdraw()
        self._episode = (node, mirror.exact.busy[0].comm)
        self._spoken = self._say("hang", found, since_s)

    def _withdraw(self) -> None:
        """What was said of a hang that goes on is said anew, now that more is known."""
        if self._episode is not None and self._spoken in self.findings:
            self.findings.remove(self._spoken)

    def _disagreement(self, node: int, comm: str) -> Report | None:
        """Whether the ranks of an open call called different things, as their records tell."""
        mirror = self.mirrors[node]
        op, _ = mirror.open[comm]
        board = self._board.at(self.now_s, exact=True)
        dumps = at_once(board.dumps_of(mirror.exact.members[comm], LAST))
        found = mismatch(Scene(comm, op.seq, dumps))
        return found if found is not None and found.ranks else None

    # -- slowness

    def _hear_signs(self, mirror: Mirror, signs: list[Any]) -> None:
        for number, score, what in signs:
            hint = HINT_OF[number]
            if hint == "send":
                sign = Sign(hint, mirror.rank, score, "", what)
                self._look_behind(sign, f"{mirror.rank}", mirror.calls)
            elif what in mirror.slots:
                # All ranks of a group wait for the one that is late, and one look is enough.
                comm = mirror.slots[what].name
                count = mirror.coarse.counts[comm]
                self._look_behind(Sign(hint, mirror.rank, score, comm), comm, count)

    def _look_behind(self, sign: Sign, place: str, count: int) -> None:
        """Look for the cause of a sign, unless that was done a few calls ago."""
        streak = self._streaks.get((sign.hint, place))
        if streak is None or count - streak.latest > self.window:
            streak = Streak(self.now_s, count, due=count)
            self._streaks[sign.hint, place] = streak
        streak.latest = max(streak.latest, count)
        if count < streak.due:
            return
        board = self._board.at(self.now_s, exact=False)
        found = at_once(cause_of(board, sign, self.bounds()))
        if found is None and sign.hint == "wait":
            found = at_once(latecomer(board, sign.comm, sign.rank, self.bounds()))
        if found is not None and not self.is_sure(found, self._ways):
            streak.due = count + 1
            return
        # A sign that leads nowhere, or that was followed, is looked at ever less often.
        streak.due, streak.gap = count + streak.gap, min(2 * streak.gap, SELDOM)
        if found is not None:
            self._say_slow(found, streak.since_s)

    def _say_slow(self, found: Report, since_s: float) -> None:
        """A node that is slow is named once; a link of it that was named before is a part of it."""
        mine = set(found.ranks)
        known = [each for each in self.findings if each.kind == "slow" and mine & set(each.ranks)]
        if found.ailment == "slow_link" and known:
            return
        for each in known:
            if each.ailment == "slow_link":
                self.findings.remove(each)
        self._say("slow", found, since_s)

    # -- telling

    def _say(self, kind: Literal["hang", "slow"], report: Report, since_s: float) -> Finding | None:
        """Note a finding; what was said of the same nodes before stands."""
        if any(f.kind == kind and f.ranks == report.ranks and f.ailment == report.ailment
               for f in self.findings):  # fmt: skip
            return None
        found = Finding(kind, report.ailment, report.ranks, report.why, since_s, self.now_s)
        self.findings.append(found)
        return found

    def violations(self) -> list[Violation]:
        return [finding.to_violation() for finding in self.findings]

    def metrics(self) -> dict[str, float]:
        first = next((finding for finding in self.findings if finding.ranks), None)
        spent_s = sum(mirror.spent_s for mirror in self.mirrors.values())
        return {
            "ccl_alarms": float(len(self.findings)),
            "ccl_hangs": float(sum(finding.kind == "hang" for finding in self.findings)),
            "ccl_blamed": float(first.ranks[0]) if first else -1.0,
            "ccl_found_s": first.said_s - first.since_s if first else 0.0,
            "ccl_calls": float(self.calls),
            "ccl_tell_B": self.told_B / max(self.calls, 1),
            "ccl_most_B": float(self.most_B),
            "ccl_share": spent_s / max(self.now_s * len(self.mirrors), 1e-9),
        }
