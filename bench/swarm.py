"""How many messages a CPU-second does the vectorised tier carry with a million agents?"""

from __future__ import annotations

import json
import time

import numpy as np

from orrery import World, run
from orrery.parts import Mail, Swarm


class Epidemic(Swarm):
    """Push gossip: every infected agent tells one random other in each round."""

    def start(self) -> None:
        self.infected = np.zeros(self.n, dtype=bool)
        self.infected[0] = True

    def step(self, mail: Mail) -> Mail | None:
        if len(mail):
            self.infected[mail.dst] = True
        if self.infected.all():
            return None
        tellers = np.flatnonzero(self.infected)
        return Mail(tellers, self.rng.integers(0, self.n, len(tellers)), hello=np.int8(1))


if __name__ == "__main__":
    began = time.process_time()
    done = run(Epidemic(), world=World.rounds(1_000_000), seed=1)
    cpu_s = time.process_time() - began
    print(json.dumps({"agents": 1_000_000, "cpu_s": cpu_s, "per_s": done.messages / cpu_s}))
