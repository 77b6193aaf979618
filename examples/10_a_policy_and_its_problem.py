"""A policy and a tiny problem that hosts it: the shortest queue against a random one."""

from orrery import Node, Policy, Problem, World, rpc, run
from orrery.parts import Metric


class Dispatcher(Policy):
    """The port: `pick` names a server, given how many jobs each one has. This one is random."""

    def pick(self, queues: tuple[int, ...], draw: float) -> int:
        return int(draw * len(queues))


class ShortestQueue(Dispatcher):
    def pick(self, queues, draw):
        return min(range(len(queues)), key=lambda i: queues[i])


class Server(Node):
    def start(self):
        self.turn = self.lock()

    @rpc
    async def serve(self, work_s: float) -> None:
        async with self.turn:  # one job at a time, in order of arrival
            await self.sleep(work_s)


class Queueing(Problem):
    """Poisson arrivals, exponential work of mean 1 s, so many servers at the given load."""

    jobs: int = 40_000
    load: float = 0.8
    port = Dispatcher
    metrics = {"mean_s": Metric("s", "lower", "mean time from arrival to the end of a job")}

    def host(self, part, world):
        return {"server": Server()}

    async def drive(self, driver):
        queues, rng = [0] * len(driver.nodes), driver.rng

        async def job(work_s, draw):
            server = driver.part.pick(tuple(queues), draw)
            queues[server] += 1
            began_s = driver.now
            await driver.ask(server, Server.serve, work_s)
            queues[server] -= 1
            return driver.now - began_s

        jobs = []
        for _ in range(self.jobs):
            await driver.sleep(rng.expovariate(self.load * len(queues)))
            jobs.append(driver.spawn(job(rng.expovariate(1.0), rng.random())))
        return [await each for each in jobs]

    def measure(self, outcome):
        return {"mean_s": sum(outcome.driven) / len(outcome.driven)}


def main():
    question, world = Queueing(load=0.7), World.lan(4, latency_s=1e-6)
    for part in (Dispatcher(), ShortestQueue()):
        mean_s = run(part, problem=question, world=world, seed=2).metrics["mean_s"]
        print(f"{type(part).__name__:>13}: {mean_s:.2f} s in the mean")
    print(f"        M/M/1: {1 / (1 - question.load):.2f} s is the closed form of the random one")


if __name__ == "__main__":
    main()
