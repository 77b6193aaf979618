"""An alarm when an iteration takes much longer than iterations do."""

from __future__ import annotations

from orrery.parts import Count, Positive
from orrery.systems.resilience.problems.watcher import Report, Watcher


class IterationThreshold(Watcher):
    """Alarms when a step lasts `factor` times the median, and blames the rank that took longest.

    The usual dashboard of a training run. All ranks of a synchronous job wait for the slowest, so
    their times are nearly equal and say little about who it was; a job that hangs ends no step and
    raises no alarm here.

    Knobs: `factor`; `learn`, steps before the first alarm; `look_s`, how often it looks.

    Differs from the paper: there is none; it is the usual alarm.

    >>> IterationThreshold().factor
    1.5
    """

    factor: Positive = 1.5
    learn: Count = 4
    look_s: Positive = 10.0
    counts_steps = True

    async def watch(self) -> None:
        known: list[float] = []
        while True:
            await self.sleep(self.look_s)
            for step, row in self.ended_steps():
                took_s = max(row.values())
                usual_s = sorted(known)[len(known) // 2] if known else took_s
                if len(known) >= self.learn and took_s > self.factor * usual_s:
                    rank = max(row, key=lambda each: (row[each], -each))
                    why = f"step {step} took {took_s / usual_s:.2f} times the median"
                    self.say(Report("slow_compute", (rank,), why))
                else:
                    known.append(took_s)
