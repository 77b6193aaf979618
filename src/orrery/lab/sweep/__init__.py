"""`sweep`: many runs over worlds, problems, parts and seeds, and the best of them.

A trial is one choice of values; each of its seeds is a run in the store. A trial counts once its
runs and its line in the journal are safe on the disk. So the same command goes on after a kill, a
full disk or a reboot: trials in the journal are not looked at again, runs in the store are not made
again. More `trials` of the same question continue the same journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import OrreryError, StoreError
from orrery.lab import stats
from orrery.lab.files import told
from orrery.lab.spec import spec_id
from orrery.lab.sweep.journal import Journal, Trial
from orrery.lab.sweep.question import Question, loss_of, make_question
from orrery.lab.sweep.workers import Workers, make_workers

if TYPE_CHECKING:
    from orrery.lab.cells import Cell
    from orrery.lab.store import Store, Stored
    from orrery.lab.sweep.search import Search

Tell = Callable[[Trial], None]


class Sweep(msgspec.Struct, kw_only=True):
    """What a sweep found: its trials, the best, and those that cannot be told from the best."""

    question: Question
    trials: list[Trial] = []
    total: int = 0
    made: int = 0
    torn: int = 0
    partial: bool = False
    key: str = ""
    journal: str = ""

    def ranking(self) -> list[Trial]:
        """Best first; trials that broke a rule after those that did not, failed ones last."""

        def key(trial: Trial) -> tuple[int, float, int]:
            loss = self._loss(trial)
            state = 2 if math.isnan(loss) else 1 if trial.violations else 0
            return (state, 0.0 if math.isnan(loss) else loss, trial.n)

        return sorted(self.trials, key=key)

    @property
    def best(self) -> Trial | None:
        """The best trial without a violation."""
        first = next(iter(self.ranking()), None)
        sound = first is not None and not first.violations and not math.isnan(self._loss(first))
        return first if sound else None

    @property
    def ties(self) -> list[int] | None:
        """Numbers of trials that the same seeds cannot tell from the best; None with one seed."""
        best = self.best
        if best is None or len(self.question.seeds) < 2:
            return None
        found = []
        for trial in self.trials:
            if trial.n == best.n or trial.violations or math.isnan(self._loss(trial)):
                continue
            gap = stats.difference_interval(trial.numbers(), best.numbers())
            if not gap.known or gap.lo <= 0 <= gap.hi:
                found.append(trial.n)
        return found

    @property
    def runs(self) -> list[str]:
        """The ids of all runs, in order of trial and seed."""
        return [run for trial in self.trials for run in trial.runs]

    def _loss(self, trial: Trial) -> float:
        return loss_of(trial.numbers(), self.question.better)

    def row(self, trial: Trial) -> dict[str, Any]:
        """A trial as the JSON of `orrery sweep` tells it."""
        numbers = trial.numbers()
        found = stats.mean_interval(numbers) if numbers else None
        plain: list[float | None] = [None, None, None]
        if found is not None:
            plain = [x if math.isfinite(x) else None for x in (found.mean, found.lo, found.hi)]
        return {
            "n": trial.n, "values": trial.values, "score": plain[0], "lo": plain[1],
            "hi": plain[2], "seeds": len(trial.runs), "violations": trial.violations,
            "note": trial.note, "runs": trial.runs,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The JSON of `orrery sweep`: the ids of the runs, and what they say."""
        asked, best = self.question, self.best
        return {
            "problem": asked.name, "systems": list(asked.parts), "by": asked.by,
            "better": asked.better, "search": asked.search, "seeds": asked.seeds,
            "over": [dim.to_json() for dim in asked.space.dims],
            "runs": self.runs, "trials": [self.row(trial) for trial in self.trials],
            "best": self.row(best) if best is not None else None, "ties": self.ties,
            "total": self.total, "made": self.made, "torn": self.torn, "partial": self.partial,
            "key": self.key, "journal": self.journal,
        }  # fmt: skip

    def __repr__(self) -> str:
        best = self.best
        words = "none is sound" if best is None else f"best {best.values} {self.row(best)['score']}"
        return f"Sweep({len(self.trials)} of {self.total} trials by {self.question.by}; {words})"


def sweep(
    systems: Any,
    over: Mapping[str, Any],
    *,
    problem: Any = None,
    world: Any = None,
    search: str = "grid",
    trials: int | None = None,
    seed: int = 0,
    seeds: Any = 1,
    by: str = "",
    better: str = "",
    engine: str = "virtual",
    until_s: float | None = None,
    jobs: int = 1,
    on: str = "processes",
    store: Store | None = None,
    progress: Tell | None = None,
) -> Sweep:
    """Run systems over a space of parameters and find the best trial by a metric.

    `over` is {parameter: [values]} or {parameter: Span(low, high)}; `systems` are ids, parts or
    {name: part}. `search` is "grid", "random" or "tpe", the last two with `trials` (50 by default).
    Ctrl-C gives what is finished, marked `partial`.
    """
    asked = make_question(
        systems, over, problem=problem, world=world, search=search, seed=seed, seeds=seeds, by=by,
        better=better, engine=engine, until_s=until_s,
    )  # fmt: skip
    return answer_question(asked, trials=trials, jobs=jobs, on=on, store=store, progress=progress)


def answer_question(
    asked: Question,
    *,
    trials: int | None = None,
    jobs: int = 1,
    on: str = "processes",
    store: Store | None = None,
    progress: Tell | None = None,
) -> Sweep:
    """Make the trials of a question that was checked, or take them from its journal."""
    from orrery.lab.store import Store

    kept = store if store is not None else Store()
    search = asked.make_search()
    found = Sweep(question=asked, total=search.limit(trials))
    workers = make_workers(on, kept, jobs)
    with Journal(asked.to_data(), kept.root) as journal, workers:
        found.key, found.journal, found.torn = journal.key, str(journal.path), journal.torn
        loop = _Loop(found, search, journal, workers, progress or (lambda trial: None))
        try:
            loop.run()
        except KeyboardInterrupt:
            found.partial = True
    found.trials.sort(key=lambda trial: trial.n)
    return found


class _Loop:
    """Goes from generation to generation: choose points, run their cells, keep each trial."""

    def __init__(
        self, found: Sweep, search: Search, journal: Journal, workers: Workers, tell: Tell
    ) -> None:
        self.found, self.search, self.journal = found, search, journal
        self.workers, self.tell = workers, tell

    def run(self) -> None:
        done = 0
        losses: list[float] = []
        while done < self.found.total:
            until = min(self.search.until(done), self.found.total)
            self.search.extend(until, losses)
            generation = sorted(self._generation(done, until), key=lambda trial: trial.n)
            # To the model a trial that broke a rule is as bad as one that failed: quick and wrong
            # must not draw the search.
            losses += [
                math.nan if trial.violations else self.found._loss(trial) for trial in generation
            ]
            done = until

    def _generation(self, first: int, until: int) -> Iterator[Trial]:
        """The trials of one generation, each counted as soon as it is safe."""
        fresh: list[tuple[int, dict[str, Any]]] = []
        for n in range(first, until):
            values = self.found.question.space.values(self.search.points[n])
            known = self.journal.trials.get(n)
            # A line whose values are others was written by another version of the search.
            if known is not None and known.values == values:
                yield self._count(known)
            else:
                fresh.append((n, values))
        yield from self._make(fresh)

    def _make(self, fresh: list[tuple[int, dict[str, Any]]]) -> Iterator[Trial]:
        todo: list[Cell] = []
        owners: dict[int, tuple[int, dict[str, Any]]] = {}
        for n, values in fresh:
            try:
                cells = self.found.question.cells(values)
            except StoreError:
                raise
            except OrreryError as failure:
                # Each value fits alone; where some do not fit together, that is what was found.
                yield self._keep(Trial(n=n, values=values, note=str(failure)))
                continue
            todo += cells
            owners |= {id(cell): (n, values) for cell in cells}
        seen: dict[int, dict[int, Stored]] = {}
        for cell, stored in self.workers.run(todo):
            n, values = owners[id(cell)]
            if stored.id != spec_id(cell.spec()):
                # A worker reads the code when it starts; a journal holds one version of it only.
                fix = "give the same command again; it begins another journal"
                raise StoreError(f"{cell.name}: the code changed while the sweep ran; {fix}")
            runs = seen.setdefault(n, {})
            runs[cell.seed] = stored
            if len(runs) == len(self.found.question.seeds):
                yield self._keep(self._trial(n, values, seen.pop(n)))

    def _trial(self, n: int, values: dict[str, Any], runs: dict[int, Stored]) -> Trial:
        asked = self.found.question
        trial = Trial(n=n, values=values)
        for seed in asked.seeds:
            stored = runs[seed]
            value = stored.metrics.get(asked.by)
            trial.scores.append(None if value is None else told(value))
            trial.runs.append(stored.id)
            trial.violations += len(stored.violations)
            if stored.violations and not trial.note:
                trial.note = str(stored.violations[0].get("message", ""))
        if None in trial.scores:
            trial.note = trial.note or f"a run gave no {asked.by}"
        return trial

    def _keep(self, trial: Trial) -> Trial:
        self.journal.put(trial)
        self.found.made += 1
        return self._count(trial)

    def _count(self, trial: Trial) -> Trial:
        self.found.trials.append(trial)
        self.tell(trial)
        return trial


__all__ = ["Question", "Sweep", "Trial", "answer_question", "make_question", "sweep"]
