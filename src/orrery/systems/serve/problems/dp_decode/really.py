"""The front of a real cluster: the same books and the same assigner before worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import DeadlineExceeded
from orrery.parts import Driver
from orrery.systems.serve.problems.dp_decode.cluster import Cluster, Log
from orrery.systems.serve.problems.dp_decode.worker import DecodeWorker, answer

# A run that waits longer than this for a worker to come back ends with requests unanswered.
PATIENCE = 40


class Front:
    """Tells all workers to step, waits for all (the barrier), and notices who is dead.

    A worker that does not answer within `detect_s` is dead: its requests wait again, once, with the
    words that they had made. It is asked again in every step, and may come back, empty.
    """

    def __init__(self, driver: Driver, books: Cluster, detect_s: float, steps: int) -> None:
        self.driver, self.books = driver, books
        self.detect_s, self.most = detect_s, steps
        self.words: dict[int, list[int]] = {}

    async def run(self) -> Log:
        driver, books = self.driver, self.books
        begin_s, idle = driver.now, 0
        while not books.over and not (self.most and len(books.steps) >= self.most):
            now_s = driver.now - begin_s
            self._look(now_s)
            books.arrive(now_s)
            pairs = books.decide(now_s)
            books.decided_s.append(driver.now - begin_s - now_s)
            if not books.running.any():
                idle += 1
                if idle > PATIENCE:
                    break
                next_s = books.next_arrival_s() - now_s
                await driver.sleep(min(max(next_s, 1e-3), self.detect_s))
                continue
            idle = 0
            await self._step(pairs, now_s, begin_s)
        self._check_answers()
        return books.log(True, 0, driver.now - begin_s)

    def _look(self, now_s: float) -> None:
        for worker in range(self.books.workers):
            alive = self.driver.alive(worker)
            if self.books.alive[worker] and not alive:
                self.books.die(worker, now_s)
            elif alive and not self.books.alive[worker]:
                self.books.revive(worker)

    async def _step(self, pairs: list[tuple[int, int]], now_s: float, begin_s: float) -> None:
        """One step of every worker that has requests; over when the last one is."""
        driver, books = self.driver, self.books
        admit: dict[int, list[Any]] = {}
        for request, worker in pairs:
            before = self.words.setdefault(request, [])
            row = (request, int(books.load.prompt[request]), int(books.rest[request]), before)
            admit.setdefault(worker, []).append(row)
        busy = np.flatnonzero(books.running > 0).tolist()
        said = await driver.all(*(self._ask(worker, admit.get(worker, [])) for worker in busy))
        end_s = driver.now - begin_s
        for worker, heard in zip(busy, said, strict=True):
            if heard is None or not self._believe(worker, heard):
                books.die(worker, end_s)
            else:
                for request, word in heard[0]:
                    self.words[request].append(word)
        if books.running.any():
            books.step(now_s, max(end_s - now_s, 1e-9))

    async def _ask(self, worker: int, rows: list[Any]) -> Any:
        """What a worker says, or None when it does not."""
        try:
            async with self.driver.deadline(self.detect_s):
                return await self.driver.ask(worker, DecodeWorker.step, rows)
        except DeadlineExceeded:
            return None

    def _believe(self, worker: int, heard: Any) -> bool:
        """Whether a worker speaks of the requests that it should have.

        One that has forgotten some crashed and came back between two steps: it counts as dead. One
        that knows of others, or has read another cache than the books say, is at fault.
        """
        books, (made, stays, read) = self.books, heard
        mine = books.used[worker]
        due = set(books.request[worker][mine].tolist())
        spoke = {request for request, _ in made}
        if spoke < due:
            return False
        left = int((books.left[worker][mine] > 1).sum())
        held = int(books.context[worker].sum())
        if spoke != due or stays != left or read != held:
            books.faults.append(
                f"worker {worker} says {len(spoke)} requests, {stays} left, {read} tokens; "
                f"the books {len(due)}, {left}, {held}"
            )
        return True

    def _check_answers(self) -> None:
        """Every answer is the one that the request gives when it decodes alone."""
        load, books = self.books.load, self.books
        for ending in books.endings:
            if not ending.done:
                continue
            request = ending.request
            right = answer(request, int(load.prompt[request]), int(load.output[request]))
            if self.words[request] != right:
                books.faults.append(f"request {request} got another answer than alone")


__all__ = ["Front"]
