"""Chord finds the owner of a key in about half of log2 n hops."""

import math

from orrery import World, run
from orrery.systems.protocols import Chord, Lookup


def main() -> None:
    print(f"{'nodes':>6} {'mean hops':>10} {'log2(n)/2':>10} {'p99 latency':>12} {'right':>6}")
    for n in (16, 64, 256, 1024):
        question = Lookup(lookups=300, final=0, join_s=0.5)
        result = run(Chord(), problem=question, world=World.lan(n), seed=2)
        found = result.metrics
        print(
            f"{n:>6} {found['mean_hops']:>10.2f} {math.log2(n) / 2:>10.2f}"
            f" {found['p99_latency_s'] * 1e3:>9.2f} ms {found['success_rate']:>6.0%}"
        )
        assert result.ok, result.violations[:1]


if __name__ == "__main__":
    main()
