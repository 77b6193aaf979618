"""BalanceRoute: fill every worker up to the heaviest one, and let nobody stand above it."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort

from orrery.parts import Count, Fraction, NonNegative, Positive, Whole
from orrery.systems.serve.balanceroute.choosers import Chooser, Horizon, OneStep
from orrery.systems.serve.balanceroute.termination import Termination
from orrery.systems.serve.problems.dp_decode.ports import Assigner, Pairs, Waiting, Workers


class BalanceRoute(Assigner):
    """Give every free slot the waiting request that best fills its worker below the heaviest one.

    "Tackling the Data-Parallel Load Balancing Bottleneck in LLM Serving: Practical Online Routing
    at Scale", 2026.

    How it works. Decode workers meet at a barrier in every step, so the worker with the most tokens
    in its cache sets the pace. Its load is the envelope E; a worker with load L has the margin
    m = E - L. Admitting a request of l tokens scores F = alpha min(l, m) - beta max(0, l - m): good
    as far as it fills the margin, bad as far as it lifts the envelope. *Stage 1* says who may be
    admitted: the oldest `window` requests, counted in size classes of `grain` tokens of which the
    oldest goes first, and among those each worker's free cache. A request that `overtake` younger
    ones have passed goes before all others. *Stage 2* takes the lightest worker with a free slot
    from a heap, gives it the request with the best F, raises its load and, where need be, the
    envelope; and so on while there are slots and requests. In a full cluster a freed slot already
    names the worker, and the gain lies in which request of the window fills it.

    BR-H (`horizon` > 0) scores sum over h of gamma^h F_h, where the loads of step h are projected:
    one token more a step for each request, times the chance that it is still there, which a
    termination classifier gives (`orrery.systems.serve.balanceroute.termination`).

    Cost of one assignment: O(log window + log workers), for BR-H O(window x horizon).

    Knobs: `window`, requests that are looked at (1: the head of the queue only, which switches the
    mechanism off); `overtake`, how many younger ones may pass a request; `alpha`, `beta`, reward
    and penalty a token; `tolerance`, how far the envelope may rise, as a share of it; `grain`,
    tokens of a size class (16: a block of the cache); `horizon` H in steps, `discount` gamma,
    `classifier`.

    **Differs from the paper.** Only its abstract was at hand: the formula of F, the two stages, the
    bound on overtaking and the projection are our design. Prompts are computed elsewhere, so a
    request brings its whole prompt into the cache when it is admitted. The paper's 144 NPUs, its
    production trace and Azure's trace of 2024 are not here.

    >>> BalanceRoute(window=1).changed_knobs()
    {'window': 1}
    """

    window: Count = 64
    overtake: Whole = 256
    alpha: Positive = 1.0
    beta: Positive = 8.0
    tolerance: NonNegative = 0.0
    grain: Count = 16
    horizon: Whole = 0
    discount: Fraction = 0.9
    classifier: Termination = Termination()

    def most_overtaken(self) -> int:
        return self.overtake

    def start(self) -> None:
        # The requests, in order, that were admitted although an older one waited. Whoever passes a
        # younger request passes the older ones too, so only the oldest need be watched.
        self.ahead: list[int] = []

    def chooser(self, waiting: Waiting, workers: Workers) -> Chooser:
        """Who scores in this round."""
        how = (waiting, workers, self.alpha, self.beta, self.tolerance, self.grain)
        if not self.horizon:
            return OneStep(*how)
        return Horizon(*how, self.horizon, self.discount, self.classifier)

    def assign(self, waiting: Waiting, workers: Workers, now_s: float) -> Pairs:
        free, room = workers.free_slots.tolist(), workers.free_tokens.tolist()
        count = min(sum(free), len(waiting))
        if not count:
            return []
        # In a round with many slots the window moves on as requests leave it.
        waiting = waiting.head(self.window + count - 1)
        ids, tokens = waiting.ids.tolist(), waiting.tokens.tolist()
        need = (waiting.tokens + waiting.limit).tolist()
        kv = workers.kv_tokens.tolist()
        chooser = self.chooser(waiting, workers)
        window = list(range(min(self.window, len(ids))))  # the oldest first
        entering = len(window)
        chooser.begin(entering)
        del self.ahead[: bisect_right(self.ahead, ids[0])]
        heap = [(kv[worker], worker) for worker in range(len(free)) if free[worker]]
        heapq.heapify(heap)
        pairs: Pairs = []
        while window and heap:
            load, worker = heapq.heappop(heap)
            if load != kv[worker] or not free[worker]:
                continue  # it got a request out of turn; its new entry is in the heap
            place = window[0]
            if len(self.ahead) - bisect_right(self.ahead, ids[place]) >= self.overtake:
                fits = [w for w in range(len(free)) if free[w] and need[place] <= room[w]]
                if not fits:
                    break  # whoever is admitted now would overtake it
                heapq.heappush(heap, (load, worker))
                worker = chooser.best_worker(place, fits)
            else:
                place = chooser.best_for(worker, room[worker])
                if place < 0:
                    continue  # nothing in the window fits its cache
            pairs.append((ids[place], worker))
            chooser.take(place, worker)
            window.remove(place)
            insort(self.ahead, ids[place])
            if entering < len(ids):
                window.append(entering)
                chooser.enter(entering)
                entering += 1
            kv[worker] += tokens[place]
            room[worker] -= need[place]
            free[worker] -= 1
            if free[worker]:
                heapq.heappush(heap, (kv[worker], worker))
        return pairs


__all__ = ["BalanceRoute"]
