"""A real instance of the pool: a small float64 model that truly answers, and its prefix cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.models.real.jobs import keys_of
from orrery.parts import Count, Node, Whole, rpc
from orrery.systems.serve.problems.llm_elastic.tiny import Asked, Reserved, TinyEngine, TinyModel

BLOCK = 8  # tokens of a cached block


class InstanceNode(Node):
    """Answers jobs with a tiny model; keeps the records of prompts' blocks for those who follow.

    seed       of the model's weights: all instances of a pool have the same
    cached     blocks of prompts that it keeps
    """

    seed: Whole = 1
    cached: Whole = 256
    seats: Count = 8

    def start(self) -> None:
        self.model = TinyModel(self.seed)
        self.engine = self.new_engine()
        self.answers: dict[int, tuple[Any, list[int], list[int]]] = {}
        self.blocks: dict[int, np.ndarray] = {}
        self.wake = self.event()

    def new_engine(self) -> TinyEngine:
        """The engine, with the simplest memory; a system may bring its own."""
        memory = Reserved(room=100_000, width=self.model.record)
        return TinyEngine(self.model, memory, seats=self.seats)

    @rpc
    async def serve(self, number: int, text: list[int], count: int) -> tuple[list[int], int]:
        """The answer to a job, and how many tokens of its prompt were in the cache."""
        done, said = self.event(), []
        self.answers[number] = (done, said, text)
        known = self._known(text)
        self.engine.submit(Asked(number, text, count, known))
        self.wake.set()
        await done.wait()
        return said, 0 if known is None else len(known)

    @rpc
    async def beat(self) -> int:
        """A sign of life: how many jobs are here."""
        return len(self.answers)

    async def main(self) -> None:
        while True:
            if self.engine.idle:
                self.wake.clear()
                await self.wake.wait()
            kept = self._snapshot()
            made = await self.compute(self._step)
            for number, new in made:
                self.answers[number][1].extend(new)
            self._keep(kept)
            for number in [each for each in self.answers if not self._here(each)]:
                done, said, _ = self.answers.pop(number)
                done.set(said)
            await self.sleep(1e-3)  # let others speak

    def _step(self) -> list[tuple[int, list[int]]]:
        return self.engine.step()

    def _here(self, number: int) -> bool:
        waits = any(job.number == number for job in self.engine.waiting)
        return waits or number in self.engine.running

    # -- the prefix cache

    def _known(self, text: list[int]) -> Any:
        """Records of the longest cached beginning of a text."""
        found = []
        for key in keys_of(text, BLOCK):
            if key not in self.blocks:
                break
            found.append(self.blocks[key])
        return np.concatenate(found) if found else None

    def _snapshot(self) -> list[tuple[int, list[int]]]:
        """Those whose prompts will be complete after this step."""
        return [
            (number, self.answers[number][2])
            for number, (_, computed, _) in self.engine.running.items()
            if computed < len(self.answers[number][2])
        ]

    def _keep(self, those: list[tuple[int, list[int]]]) -> None:
        """Keep the records of prompts that are computed now, the oldest blocks going first."""
        for number, text in those:
            if number not in self.engine.running:
                continue
            records = self.engine.memory.view(number)
            for at, key in enumerate(keys_of(text, BLOCK)):
                if (at + 1) * BLOCK <= len(records) and key not in self.blocks:
                    self.blocks[key] = np.array(records[at * BLOCK : (at + 1) * BLOCK])
        while len(self.blocks) > self.cached:
            del self.blocks[next(iter(self.blocks))]


__all__ = ["BLOCK", "InstanceNode"]
