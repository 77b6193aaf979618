"""All-reduce by ring, tree and star: the time of the ring beside its closed form."""

from orrery import World, run
from orrery.systems.collectives import AllReduce, RecursiveHalving, Ring, Star, Tree

LATENCY_S, BANDWIDTH_BPS = 50e-6, 1.25e9


def ring_s(n: int, size_B: float) -> float:
    """2 (n - 1) steps, each one latency and one n-th of the array."""
    return 2 * (n - 1) * (LATENCY_S + size_B / n / BANDWIDTH_BPS)


def main() -> None:
    question = AllReduce(items=250_000, rounds=1)
    size_B = question.items * 4
    names = (Ring(), RecursiveHalving(), Tree(), Star())
    heads = "".join(f"{type(part).__name__:>19}" for part in names)
    print(f"an array of {size_B / 1e6:.0f} MB, times in ms")
    print(f"{'ranks':>5}{heads}{'ring, formula':>16}")
    for n in (2, 4, 8, 16):
        world = World.lan(n, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, jitter=0.0)
        row = ""
        for part in names:
            result = run(part, problem=question, world=world, seed=1)
            assert result.ok, result.violations[:1]
            row += f"{result.metrics['time_s'] * 1e3:>19.3f}"
        print(f"{n:>5}{row}{ring_s(n, size_B) * 1e3:>16.3f}")


if __name__ == "__main__":
    main()
