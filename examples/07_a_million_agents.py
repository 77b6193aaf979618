"""A rumour among a million agents, as arrays: one window is one latency of the world."""

import math
import sys
import time

import numpy as np

from orrery import World, run
from orrery.parts import Mail, Swarm


class Rumour(Swarm):
    """Every agent that knows tells one random other in each window (Pittel, 1987)."""

    def start(self) -> None:
        self.knows = np.zeros(self.n, dtype=bool)
        self.knows[0] = True

    def step(self, mail: Mail) -> Mail | None:
        self.knows[mail.dst] = True
        self.emit(knowing=int(self.knows.sum()))
        if self.knows.all():
            return None
        tellers = np.flatnonzero(self.knows)
        return Mail(tellers, self.rng.integers(0, self.n, len(tellers)))

    def idle(self) -> bool:
        return bool(self.knows.all())


def main(n: int = 1_000_000) -> None:
    began = time.perf_counter()
    result = run(Rumour(), world=World.lan(n, jitter=0.0), seed=5)
    took_s = time.perf_counter() - began
    knowing = [r.values["knowing"] for r in result.records]
    for window in range(0, len(knowing), 5):
        bar = "#" * round(40 * knowing[window] / n)
        print(f"window {window:>3} {knowing[window]:>9,} {bar}")
    print(f"all know after {len(knowing) - 1} windows; log2 n + ln n = "
          f"{math.log2(n) + math.log(n):.1f}")  # fmt: skip
    print(f"{result.messages:,} messages in {took_s:.1f} s on this machine")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
