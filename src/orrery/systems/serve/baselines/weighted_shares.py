"""Shares of the service for each class of traffic."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.requests import Running
from orrery.systems.serve.baselines.queueing import Queueing


class WeightedShares(Queueing):
    """Lets classes of requests in by turns, so that each gets its weight's share of the tokens.

    Virtual token counters (Sheng et al., OSDI 2024): each class has a counter of the tokens that it
    was served, divided by its weight, and the class with the least goes first. A class that comes
    back after a pause starts at the least counter of those that wait, so that it cannot save up.
    `weights` gives classes other weights than 1.
    """

    weights: dict[str, float] = {}

    def start(self) -> None:
        self.counters: dict[str, float] = {}
        self.present: set[str] = set()

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        queues: dict[str, list[Running]] = {}
        for seq in sorted(waiting, key=lambda each: (each.arrived_s, each.request.id)):
            queues.setdefault(seq.request.kind, []).append(seq)
        least = min((self.counters.get(kind, 0.0) for kind in queues if kind in self.present),
                    default=0.0)  # fmt: skip
        for kind in sorted(queues.keys() - self.present):
            self.counters[kind] = max(self.counters.get(kind, 0.0), least)
        self.present = set(queues)
        return self._merged(queues)

    def _merged(self, queues: dict[str, list[Running]]) -> list[Running]:
        """The heads by turns, each turn to the class that has been served least."""
        counted, places, order = dict(self.counters), dict.fromkeys(queues, 0), []
        while len(order) < sum(map(len, queues.values())):
            kind = min((kind for kind in sorted(queues) if places[kind] < len(queues[kind])),
                       key=lambda each: counted.get(each, 0.0))  # fmt: skip
            seq = queues[kind][places[kind]]
            places[kind] += 1
            counted[kind] = counted.get(kind, 0.0) + self.cost(seq)
            order.append(seq)
        return order

    def cost(self, seq: Running) -> float:
        return (seq.missing or 1) / self.weights.get(seq.request.kind, 1.0)

    def let_in(self, seq: Running) -> None:
        """Count what is served when it is let in; a prompt counts whole."""
        kind = seq.request.kind
        self.counters[kind] = self.counters.get(kind, 0.0) + self.cost(seq)


__all__ = ["WeightedShares"]
