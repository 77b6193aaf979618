"""CCL-D: which rank makes collective communication hang or crawl."""

from __future__ import annotations

from collections.abc import Callable

from orrery.base.codec import encode
from orrery.parts import Count, Fraction, Positive, rpc
from orrery.systems.resilience.ccl_d.hangs import first_cause, silent
from orrery.systems.resilience.ccl_d.judging import Judging
from orrery.systems.resilience.ccl_d.probe import Probe, worst
from orrery.systems.resilience.ccl_d.slowness import cause_of
from orrery.systems.resilience.problems.flight import Recorder
from orrery.systems.resilience.problems.watcher import Beat, Report, Sign, Watcher

__all__ = ["CCLD", "Probe"]

# Of each kind of sign so many go up the tree, which bounds a heart-beat's size.
MOST_SIGNS = 4


class CCLD(Judging, Watcher):
    """Names the rank that makes collective communication hang or crawl, and says why.

    After "CCL-D: A High-Precision Diagnostic System for Slow and Hang Anomalies in Large-Scale
    Model Training" (2026). A probe round each rank's communication library keeps a ring of
    operations (communicator, sequence number, kind, size, enqueue, first movement, end, arrays out
    and in) and knows what is usual for each. Heart-beats of bounded size go up a tree of watchers;
    the root asks single ranks for a dump only where something is odd, O(communicator) at each hop.

    Hangs: from a rank that is blocked the root looks at the members of its communicator. One that
    is gone or gives no answer has crashed or stopped; one that enqueued another operation or size
    mismatches, or skipped, where its operation is the one that should come next; if all are in it,
    an array that does not arrive names a link. Else it follows the member that never enqueued, from
    tp to pp to dp, until it finds the first cause: the rank that is in no communication at all.

    Slowness: a rank whose waits or sends exceed what is usual, `confirm` times in the last `window`
    operations, gives a sign. Waits in one collective are one sign with the votes of all who wait,
    as behind a late rank all of its fellows do; those with most votes go up the tree, and waits in
    pipes have places of their own. The straggler of a communicator is who computed longer than its
    fellows between two operations; ways on which arrays take too long have a NIC in common, or are
    one link. All arrays that go a way in a step count together, as a ring sends many small ones.
    Slow in some steps and not in others is periodic. In its first two steps nothing is slow.

    Knobs: `heartbeat_s`; `hang_s`, how long an operation waits before it is called hung;
    `silent_beats`, after how many a rank is asked whether it lives; `ring`, operations kept at a
    rank; `learn`, values before a judgement; `window`, `confirm`; `far`, in deviations, and
    `share` of a step's time that a slow operation costs at least; `least`, the part by which a
    straggler computes longer at least; `way`, how many times longer arrays take on a slow way;
    `tight`, the part by which ranks with the same data differ at most;
    `calm_s` before a sign that led nowhere is looked at again; `follow`: off, the rank that is
    missing in the first communicator is blamed; `tries`, `answer_s`, how often and how long a rank
    is asked.

    Differs from the paper: its abstract gives neither records nor rules; both are ours. Times are
    differences of one rank's own clock, so clocks need not agree. One cause is named at a time. A
    rank that skips an operation just where the next one is alike (as in a data group with one
    all-reduce a step) corrupts silently and is not found. The NIC of a rank that talks to one other
    alone, as a leaf of the only tree, is also its link, and called so. With a dead root nobody
    reports. The ranks must carry its probe and answer it; `CollectiveDoctor` judges any run alike,
    without the tree and its votes.

    >>> CCLD(heartbeat_s=5.0).hang_s
    120.0
    """

    # In a pipeline of eight stages a rank that computes twice as long costs 4 % of a step.
    share: Fraction = 0.03
    heartbeat_s: Positive = 10.0
    hang_s: Positive = 120.0
    silent_beats: Count = 3
    calm_s: Positive = 60.0

    # -- at a rank

    def recorder_for(self, rank: int, clock: Callable[[], float]) -> Recorder:
        return self.probe_for(rank, clock, quiet_s=2 * self.heartbeat_s)

    def beat_of(self, recorder: Recorder) -> Beat:
        assert isinstance(recorder, Probe)
        return recorder.beat()

    # -- in the tree

    def begin(self) -> None:
        self.latest: dict[int, tuple[float, Beat]] = {}
        self.inflow_B: dict[int, int] = {}
        self.most_inflow_B = 0
        self.links: dict[tuple[int, ...], int] = {}
        self.looked: dict[tuple[str, int], float] = {}

    @rpc
    async def beat(self, beat: Beat, sender: int) -> None:
        """A heart-beat from below: of a rank, or of a watcher."""
        self.latest[sender] = (self.clock(), beat)
        # Since it last told upwards, the bytes that came in; a late beat counts for the next one.
        self.inflow_B[sender] = self.inflow_B.get(sender, 0) + len(encode((beat,)))

    def below(self) -> range:
        """The ranks that this watcher hears itself; none above the lowest level."""
        if self.place >= self.tree.levels[0]:
            return range(0)
        first = self.ranks[0] + self.place * self.tree.fan_in
        return range(first, min(first + self.tree.fan_in, self.ranks[-1] + 1))

    def gathered(self) -> Beat:
        """What is below, in one heart-beat of bounded size."""
        now_s = self.clock()
        stale_s = self.silent_beats * self.heartbeat_s
        fresh = [beat for since_s, beat in self.latest.values() if now_s - since_s <= stale_s]
        signs: list[Sign] = [sign for beat in fresh for sign in beat.signs]
        for rank in self.below():
            since_s = self.latest[rank][0] if rank in self.latest else self.began_s
            if now_s - since_s > stale_s:
                signs.append(Sign("silent", rank, now_s - since_s))
        inflow_B = sum(self.inflow_B.values())
        if inflow_B > self.most_inflow_B:
            self.most_inflow_B = inflow_B
            self.emit(inflow_B=inflow_B)
        self.inflow_B.clear()
        return Beat(sum(beat.heard for beat in fresh), worst(signs, MOST_SIGNS))

    async def relay(self, parent: int) -> None:
        self.began_s = self.clock()
        while True:
            await self.sleep(self.heartbeat_s)
            self.tell(parent, Watcher.beat, self.gathered())

    # -- at the root

    async def watch(self) -> None:
        self.began_s = self.clock()
        while True:
            await self.sleep(self.heartbeat_s)
            report = await self.look(self.gathered().signs)
            if report is not None:
                self.say(report)

    async def look(self, signs: list[Sign]) -> Report | None:
        """What is behind the signs of one heart-beat; the plainest come first."""
        stuck = [sign for sign in signs if sign.hint == "hang"]
        for sign in signs:
            # A rank that nobody waits for may be out of reach of watchers and yet do its work.
            if sign.hint == "silent" and stuck and await self.dump_of(sign.rank) is None:
                return silent(self, sign.rank, f"silent for {sign.score:.0f} s")
        for sign in stuck:
            if sign.score >= self.hang_s:
                found = await first_cause(self, sign.rank, self.hang_s, self.follow)
                if found is not None:
                    return found
        # Ranks of a collective have the same data and tell most. Pipes wait by chance where batches
        # differ, in large jobs somewhere always: so they have places of their own, and come last.
        slow = [sign for hint in ("wait", "send", "pipe") for sign in signs if sign.hint == hint]
        unsure: set[tuple[int, ...]] = set()
        for sign in slow:
            if self._due(sign):
                found = await cause_of(self, sign, self.bounds())
                if found is None:
                    continue
                # Several signs of one heart-beat tell of the same moment, so they count once.
                if found.ranks not in unsure and self.is_sure(found, self.links):
                    return found
                unsure.add(found.ranks)
                del self.looked[sign.hint, sign.rank]
        return None

    def _due(self, sign: Sign) -> bool:
        """Whether a sign of slowness is to be looked at now; if so, not again for a while."""
        key, now_s = (sign.hint, sign.rank), self.clock()
        if now_s - self.looked.get(key, -self.calm_s) < self.calm_s:
            return False
        self.looked[key] = now_s
        return True
