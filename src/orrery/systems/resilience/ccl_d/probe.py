"""The probe of CCL-D: a recorder that knows what is normal, and makes the heart-beat of a rank."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from orrery.systems.resilience.problems.flight import Op, Recorder
from orrery.systems.resilience.problems.watcher import Beat, Hint, Sign

# So many normal values are kept of each kind of operation.
KEPT = 32
# What a slow way costs is shared by the arrays of a step; fewer than these count as so many.
ARRAYS = 4
# Signs of each kind of wait that a rank gives: one by chance must not hide another.
TOLD = 2
# A scale estimated by the median absolute deviation is that of a normal variable (Hampel, 1974).
MAD = 1.4826


class Norm:
    """What is usual for one kind of operation, by median, deviation and the upper tenth.

    A value is slow when it lies `far` deviations above the median, twice as far as the upper tenth
    of usual values (a wait that is mostly nothing is now and then long), and `floor` above it. Slow
    values do not change what is usual; each bit of `flags` tells of one of the latest values
    whether it was slow.
    """

    __slots__ = ("_latest", "_new", "extra", "flags", "middle", "spread", "upper", "values")

    def __init__(self, window: int) -> None:
        self.values: deque[float] = deque(maxlen=KEPT)
        self.flags, self._latest = 0, (1 << window) - 1
        self.middle = self.spread = self.upper = self.extra = 0.0
        self._new = 0

    def add(self, value: float, learn: int, far: float, floor: float) -> bool:
        """Whether a value is slow; none is before `learn` values are known."""
        known = len(self.values)
        extra = value - self.middle
        slow = (
            known >= learn and extra > floor
            and extra > max(far * MAD * self.spread, 2.0 * (self.upper - self.middle))
        )  # fmt: skip
        self.flags = (self.flags << 1 | slow) & self._latest
        if slow:
            self.extra = extra
            return True
        self.values.append(value)
        self._new += 1
        # The more is known, the less one value changes it; before it is enough, nothing asks.
        if known + 1 >= learn and self._new * 2 >= known:
            self._new = 0
            self._learn()
        return False

    def _learn(self) -> None:
        found = sorted(self.values)
        self.middle, self.upper = found[len(found) // 2], found[9 * len(found) // 10]
        self.spread = sorted(abs(value - self.middle) for value in found)[len(found) // 2]

    def score(self, floor: float) -> float:
        """How far the latest slow value lay above the usual, in deviations."""
        return self.extra / max(MAD * self.spread, floor, 1e-9)


class Way:
    """What the probe remembers of the arrays that went to one peer."""

    __slots__ = ("_latest", "flags", "ratios")

    def __init__(self, window: int) -> None:
        self.flags, self._latest = 0, (1 << window) - 1
        self.ratios: deque[float] = deque(maxlen=window)

    def add(self, slow: bool, ratio: float) -> None:
        """An array has arrived, in so many times the usual time."""
        self.flags = (self.flags << 1 | slow) & self._latest
        self.ratios.append(ratio)

    def ratio(self) -> float:
        """How many times the usual time the latest arrays took, in the middle."""
        return sorted(self.ratios)[len(self.ratios) // 2]


class Probe(Recorder):
    """Notes operations, judges each against what is usual for (communicator, operation, size).

    Memory is fixed: the ring, `KEPT` values for each kind of operation, `window` for each peer.
    """

    def __init__(
        self, rank: int, clock: Callable[[], float], size: int, *,
        learn: int, window: int, confirm: int, far: float, share: float, quiet_s: float,
    ) -> None:  # fmt: skip
        super().__init__(rank, clock, size)
        self.learn, self.window, self.confirm = learn, window, confirm
        self.far, self.share, self.quiet_s = far, share, quiet_s
        self.waits: dict[tuple[str, str, int], Norm] = {}
        self.ships: dict[int, Norm] = {}
        self.ways: dict[int, Way] = {}
        # Before a step is known nothing is slow: what costs little of it cannot be told.
        self.period_s = math.inf
        self.first: tuple[str, str, int] | None = None
        self.first_ended_s = 0.0
        self.sent: dict[int, int] = {}  # arrays to each peer, in this step
        self.sent_before: dict[int, int] = {}  # and in the last one

    # -- learning

    def ended(self, op: Op) -> None:
        key = (op.comm, op.kind, op.nbytes)
        norm = self.waits.get(key)
        if norm is None:
            norm = self.waits[key] = Norm(self.window)
        # The first kind of operation comes once in a step, so its period is that of the step;
        # unless it is not seen again while others are, as where weights are handed out first.
        if key == self.first:
            self.period_s = op.ended_s - self.first_ended_s
            self.first_ended_s = op.ended_s
            self.sent_before, self.sent = self.sent, {}
        elif self.first is None or (
            self.period_s == math.inf and len(norm.values) >= self.learn
        ):  # fmt: skip
            self.first, self.first_ended_s, self.sent = key, op.ended_s, {}
        norm.add(op.took_s, self.learn, self.far, self.share * self.period_s)

    def arrived(self, peer: int, nbytes: int, took_s: float) -> None:
        norm = self.ships.get(nbytes)
        if norm is None:
            norm = self.ships[nbytes] = Norm(self.window)
        way = self.ways.get(peer)
        if way is None:
            way = self.ways[peer] = Way(self.window)
        self.sent[peer] = self.sent.get(peer, 0) + 1
        usual_s = norm.middle
        slow = norm.add(took_s, self.learn, self.far, self.least_s(peer))
        way.add(slow, took_s / usual_s if usual_s > 0 else 1.0)

    def least_s(self, peer: int) -> float:
        """By how much an array to a peer takes longer at least, to be slow.

        A slow way costs `share` of a step when all of its arrays together do. A ring of n ranks
        sends 2 (n - 1) to one peer, so there each must take longer by less.
        """
        return self.share * self.period_s / max(ARRAYS, self.sent_before.get(peer, 0))

    def told(self) -> None:
        for peer, way in self.ways.items():
            channel = self.channels[peer]
            channel.slow, channel.ratio = way.flags.bit_count(), way.ratio()

    # -- telling

    def beat(self) -> Beat:
        """What this rank has to say of itself: at most two signs of each kind of wait."""
        now_s = self.clock()
        signs: list[Sign] = []
        if self.busy:
            age_s = now_s - self.busy[0].enqueued_s
            if age_s > self.quiet_s:
                signs.append(Sign("hang", self.rank, age_s, self.busy[0].comm))
        floor = self.share * self.period_s / self.far
        waits = [
            Sign("pipe" if key[1] == "p2p" else "wait", self.rank, norm.score(floor), key[0])
            for key, norm in self.waits.items()
            if norm.flags.bit_count() >= self.confirm
        ]
        sends = [
            Sign("send", self.rank, way.ratio(), "", peer)
            for peer, way in self.ways.items()
            if way.flags.bit_count() >= self.confirm
        ]
        signs += [*worst(waits, TOLD), *worst(sends, 1)]
        return Beat(1, signs)


def worst(signs: Iterable[Sign], most: int) -> list[Sign]:
    """Of each kind the signs with the most votes, then the highest scores, at most so many.

    Behind a late rank all of its fellows wait; a rank that waits by chance is alone with it. So
    waits in one collective are one sign, and the votes for it count first.
    """
    by_hint: dict[Hint, list[Sign]] = {}
    for sign in signs:
        by_hint.setdefault(sign.hint, []).append(sign)
    found: list[Sign] = []
    for hint in sorted(by_hint):
        told = _merged(by_hint[hint]) if hint == "wait" else by_hint[hint]
        found += sorted(told, key=lambda sign: (-sign.votes, -sign.score, sign.rank))[:most]
    return found


def _merged(signs: list[Sign]) -> list[Sign]:
    """One sign for each communicator: the highest score there, and the votes of all."""
    found: dict[str, Sign] = {}
    for sign in signs:
        known = found.get(sign.comm)
        if known is None:
            found[sign.comm] = sign
            continue
        first = max(known, sign, key=lambda each: (each.score, -each.rank))
        found[sign.comm] = msgspec.structs.replace(first, votes=known.votes + sign.votes)
    return list(found.values())


__all__ = ["Norm", "Probe", "Way", "worst"]
