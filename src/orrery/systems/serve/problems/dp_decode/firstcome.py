"""First come, first served: what the plain rules of load balancers share.

A rule says which worker is to have the next request; the order of requests is that of their age.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from orrery.base.errors import PartError
from orrery.systems.serve.problems.dp_decode.ports import Assigner, Pairs, Waiting, Workers


class FirstCome(Assigner):
    """The base of rules that take requests in order: a subclass writes `pick`.

    `late`: a request is given to a worker when one has a free slot, which is the better way to use
    any of these rules; else, as the front of vLLM does, it is bound to a worker when it comes and
    waits for that one, whoever else is free.
    """

    late: bool = True

    def start(self) -> None:
        self.queues: dict[int, deque[tuple[int, int]]] = {}  # (request, need) bound to a worker
        self.known: dict[int, int] = {}

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        """One of the workers in `able`; the others are indexed by worker."""
        raise PartError(f"{type(self).__name__} has no pick(able, outstanding, kv); write it")

    def most_overtaken(self) -> int | None:
        return 0 if self.late else None

    def assign(self, waiting: Waiting, workers: Workers, now_s: float) -> Pairs:
        return self._late(waiting, workers) if self.late else self._early(waiting, workers)

    def _late(self, waiting: Waiting, workers: Workers) -> Pairs:
        free, room = workers.free_slots.tolist(), workers.free_tokens.tolist()
        outstanding, kv = workers.running.tolist(), workers.kv_tokens.tolist()
        oldest = waiting.head(sum(free))
        rows = zip(oldest.ids.tolist(), oldest.tokens.tolist(), oldest.limit.tolist(), strict=True)
        pairs: Pairs = []
        for request, tokens, limit in rows:
            able = [w for w, slots in enumerate(free) if slots and room[w] >= tokens + limit]
            if not able:
                break  # nobody passes the head of the queue
            worker = self.pick(able, outstanding, kv)
            pairs.append((request, worker))
            free[worker] -= 1
            room[worker] -= tokens + limit
            outstanding[worker] += 1
            kv[worker] += tokens
        return pairs

    def _early(self, waiting: Waiting, workers: Workers) -> Pairs:
        alive = [w for w, up in enumerate(workers.alive.tolist()) if up]
        for worker in [w for w in self.queues if w not in alive]:
            for request, _ in self.queues.pop(worker):
                del self.known[request]
        if not alive:
            return []
        free, room = workers.free_slots.tolist(), workers.free_tokens.tolist()
        outstanding, kv = workers.running.tolist(), workers.kv_tokens.tolist()
        ids, tokens, limit = waiting.ids.tolist(), waiting.tokens.tolist(), waiting.limit.tolist()
        place = dict(zip(ids, range(len(ids)), strict=True))
        for worker, queue in self.queues.items():
            outstanding[worker] += len(queue)
            kv[worker] += sum(tokens[place[request]] for request, _ in queue)
        for at, request in enumerate(ids):
            if request not in self.known:
                worker = self.pick(alive, outstanding, kv)
                self.known[request] = worker
                self.queues.setdefault(worker, deque()).append((request, tokens[at] + limit[at]))
                outstanding[worker] += 1
                kv[worker] += tokens[at]
        pairs: Pairs = []
        for worker, queue in sorted(self.queues.items()):
            while queue and free[worker] and queue[0][1] <= room[worker]:
                request, need = queue.popleft()
                del self.known[request]
                pairs.append((request, worker))
                free[worker] -= 1
                room[worker] -= need
        return pairs


__all__ = ["FirstCome"]
