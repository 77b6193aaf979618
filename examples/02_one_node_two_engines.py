"""The same node in virtual time and on real processes and sockets, with no line changed."""

import statistics

from orrery import Node, World, rpc, run


class Counter(Node):
    """Everybody sends node 0 a number; node 0 answers with the total so far."""

    def start(self) -> None:
        self.total = 0

    @rpc
    async def add(self, amount: int) -> int:
        self.total += amount
        self.emit(total=self.total)
        return self.total

    async def main(self) -> None:
        if self.id == 0:
            return
        for _ in range(20):
            began_s = self.now
            await self.ask(0, Counter.add, self.id)
            self.emit(round_trip_s=self.now - began_s)


def main() -> None:
    world = World.lan(5, latency_s=0.002)
    for engine in ("virtual", "processes"):
        result = run(Counter(), world=world, engine=engine, seed=1)
        total = max(r.values["total"] for r in result.records if "total" in r.values)
        trips = [r.values["round_trip_s"] for r in result.records if "round_trip_s" in r.values]
        median_ms = statistics.median(trips) * 1e3
        kind = "modelled" if engine == "virtual" else "measured"
        print(f"{engine:>9}: total {total}, median round trip {median_ms:.2f} ms ({kind})")


if __name__ == "__main__":
    main()
