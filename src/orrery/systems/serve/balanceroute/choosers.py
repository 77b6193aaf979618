"""How BalanceRoute scores: the F-score of one step, and its discounted sum over a horizon.

Both choosers answer the same two questions, and give equal answers where the horizon is 0: which of
the requests in the window is the best for this worker, and which worker is the best for this
request. Loads are counted in whole size classes of `grain` tokens, so that the oldest of equals can
go first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from orrery.systems.serve.balanceroute.termination import Termination
from orrery.systems.serve.problems.dp_decode.ports import F64, Waiting, Workers


class Chooser(Protocol):
    """What a round of assignments asks; requests are named by their place in the window's order."""

    def begin(self, count: int) -> None:
        """The oldest so many are in the window."""

    def enter(self, place: int) -> None:
        """A further request comes into the window."""

    def best_for(self, worker: int, room: int) -> int:
        """The request in the window with the best score for this worker; -1 when none fits."""

    def best_worker(self, place: int, workers: Sequence[int]) -> int:
        """The worker, among these, that is best for this request."""

    def take(self, place: int, worker: int) -> None:
        """A request leaves the window for a worker."""


class OneStep:
    """BR-0: F = alpha min(l, m) - beta max(0, l - m), m being what is left below the envelope.

    F rises with l up to the margin and falls steeply after it, so the best request of a sorted
    window is one of two neighbours of the margin: O(log window) for each assignment.
    """

    def __init__(
        self, waiting: Waiting, workers: Workers, alpha: float, beta: float, tolerance: float,
        grain: int,
    ) -> None:  # fmt: skip
        tokens = waiting.tokens
        self.alpha, self.beta = alpha, beta
        self.tokens, self.need = tokens.tolist(), (tokens + waiting.limit).tolist()
        self.load = (tokens - tokens % grain).tolist()
        self.kv: list[int] = workers.kv_tokens.tolist()
        self.spare = 1.0 + tolerance
        self.envelope = max(self.kv) * self.spare
        self.window: list[tuple[int, int]] = []  # (load, place), the lightest first

    def begin(self, count: int) -> None:
        self.window = sorted(zip(self.load[:count], range(count), strict=True))

    def enter(self, place: int) -> None:
        insort(self.window, (self.load[place], place))

    def score(self, load: int, margin: float) -> float:
        return self.alpha * min(load, margin) - self.beta * max(0.0, load - margin)

    def best_for(self, worker: int, room: int) -> int:
        margin = self.envelope - self.kv[worker]
        window = self.window
        above = bisect_right(window, (margin, len(self.load)))
        under = self._down(above - 1, room)
        over = self._up(above, room)
        if under < 0 or over < 0:
            return max(under, over)
        gain = self.score(self.load[under], margin) - self.score(self.load[over], margin)
        return under if gain > 0 or (gain == 0 and under < over) else over

    def _down(self, at: int, room: int) -> int:
        """The heaviest class from there downwards with a request that fits: its oldest."""
        while at >= 0:
            first = bisect_left(self.window, (self.window[at][0], -1))
            for _, place in self.window[first : at + 1]:
                if self.need[place] <= room:
                    return place
            at = first - 1
        return -1

    def _up(self, at: int, room: int) -> int:
        while at < len(self.window):
            place = self.window[at][1]
            if self.need[place] <= room:
                return place
            at += 1
        return -1

    def best_worker(self, place: int, workers: Sequence[int]) -> int:
        load, kv = self.load[place], self.kv
        return max(workers, key=lambda w: (self.score(load, self.envelope - kv[w]), -kv[w], -w))

    def take(self, place: int, worker: int) -> None:
        self.window.pop(bisect_left(self.window, (self.load[place], place)))
        self.kv[worker] += self.tokens[place]
        self.envelope = max(self.envelope, self.kv[worker] * self.spare)


class Horizon:
    """BR-H: the sum of gamma^h F over h = 0 .. H, with loads projected by survival.

    Each request that decodes holds (context + h) x its chance to be there h steps from now; so does
    each that waits, from the moment it is admitted. O(window x H) for each assignment.
    """

    def __init__(
        self, waiting: Waiting, workers: Workers, alpha: float, beta: float, tolerance: float,
        grain: int, horizon: int, discount: float, classifier: Termination,
    ) -> None:  # fmt: skip
        tokens = waiting.tokens
        self.alpha, self.beta = alpha, beta
        self.tokens, self.need = tokens, tokens + waiting.limit
        self.most = int(self.need.max())
        ahead = np.arange(horizon + 1)
        self.gamma: F64 = discount ** ahead.astype(float)
        live = workers.live()
        stays = classifier.survival(live.prompt, live.made, live._left, horizon)
        held = stays * (live.prompt + live.made + ahead[:, None])
        self.kv: F64 = np.stack([  # [workers, H + 1]
            np.bincount(live.worker, weights=row, minlength=len(workers)).astype(float)
            for row in held
        ], axis=1)  # fmt: skip
        fresh = np.zeros(len(tokens), np.int64)
        stays = classifier.survival(tokens, fresh, waiting._left, horizon).T  # [waiting, H + 1]
        self.brings: F64 = stays * (tokens[:, None] + ahead)
        self.load: F64 = stays * ((tokens - tokens % grain)[:, None] + ahead)
        self.spare = 1.0 + tolerance
        self.envelope: F64 = self.kv.max(axis=0) * self.spare
        self.window: list[int] = []

    def begin(self, count: int) -> None:
        self.window = list(range(count))

    def enter(self, place: int) -> None:
        self.window.append(place)  # places come in order, so the window stays the oldest first

    def score(self, load: F64, margin: F64) -> F64:
        gain = self.alpha * np.minimum(load, margin) - self.beta * np.maximum(0.0, load - margin)
        return (gain * self.gamma).sum(axis=-1)

    def best_for(self, worker: int, room: int) -> int:
        places = np.array(self.window)
        if room < self.most:
            places = places[self.need[places] <= room]
            if not len(places):
                return -1
        found = self.score(self.load[places], self.envelope - self.kv[worker])
        return int(places[found.argmax()])

    def best_worker(self, place: int, workers: Sequence[int]) -> int:
        found = self.score(self.load[place], self.envelope - self.kv[list(workers)])
        now = self.kv[:, 0]
        ranked = zip(found.tolist(), workers, strict=True)
        return max(ranked, key=lambda each: (each[0], -now[each[1]], -each[1]))[1]

    def take(self, place: int, worker: int) -> None:
        self.window.remove(place)
        self.kv[worker] += self.brings[place]
        self.envelope = np.maximum(self.envelope, self.kv[worker] * self.spare)


__all__ = ["Chooser", "Horizon", "OneStep"]
