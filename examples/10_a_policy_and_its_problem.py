"""A policy and a tiny problem that hosts it: the shortest queue against a random one."""

from orrery import Node, Policy, Problem, World, rpc, run
from orrery.parts import Metric, Violation


class Dispatcher(Policy):
    """The port: `pick` names a server, given how many jobs each one has. This one is random."""

    def pick(self, queues: tuple[int, ...], draw: float) -> int:
        return int(draw * len(queues))


class ShortestQueue(Dispatcher):
    """Join the shortest queue."""

    def pick(self, queues, draw):
        return min(range(len(queues)), key=lambda i: queues[i])


class Server(Node):
    """One job at a time, in order of arrival."""

    def start(self) -> None:
        self.turn = self.lock()

    @rpc
    async def serve(self, work_s: float) -> None:
        async with self.turn:
            await self.sleep(work_s)


class Queueing(Problem):
    """Poisson arrivals, exponential work of mean 1 s, so many servers at the given load."""

    jobs: int = 20_000
    load: float = 0.8
    port = Dispatcher
    metrics = {"mean_s": Metric("s", "lower", "mean time from arrival to the end of a job")}

    def host(self, part, world):
        return {"server": Server()}

    async def drive(self, driver):
        driver.part.start()
        queues, times = [0] * len(driver.nodes), []

        async def job(work_s, draw):
            began_s, server = driver.now, driver.part.pick(tuple(queues), draw)
            queues[server] += 1
            await driver.ask(server, Server.serve, work_s)
            queues[server] -= 1
            times.append(driver.now - began_s)

        jobs = []
        for _ in range(self.jobs):
            await driver.sleep(driver.rng.expovariate(self.load * len(queues)))
            jobs.append(driver.spawn(job(driver.rng.expovariate(1.0), driver.rng.random())))
        for each in jobs:
            await each
        return times

    def check(self, outcome):
        lost = self.jobs - len(outcome.driven)
        return [Violation(kind="lost", message=f"{lost} jobs never ended")] if lost else []

    def measure(self, outcome):
        return {"mean_s": sum(outcome.driven) / len(outcome.driven)}


def main() -> None:
    world = World.lan(4, latency_s=1e-6)
    for load in (0.5, 0.8, 0.9):
        question = Queueing(load=load)
        found = [run(p, problem=question, world=world, seed=1).metrics["mean_s"]
                 for p in (Dispatcher(), ShortestQueue())]  # fmt: skip
        print(f"load {load}: random {found[0]:.2f} s (M/M/1 says {1 / (1 - load):.2f} s), "
              f"shortest queue {found[1]:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
