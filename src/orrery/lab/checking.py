"""Puts claims to the test: runs ours, the rival and ours without its mechanism, and judges."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orrery.base.errors import ClaimError, OrreryError, StoreError, did_you_mean
from orrery.lab import stats, verdicts
from orrery.lab.cells import Cell, Runner
from orrery.lab.claims import Claim, Verdict, Verdicts
from orrery.lab.ledger import Ledger
from orrery.lab.questions import ask_problem
from orrery.lab.stats import Interval
from orrery.lab.store import Store, Stored
from orrery.lab.worldhash import claim_world
from orrery.parts.knobs import Part, knob_types
from orrery.parts.problem import Problem

if TYPE_CHECKING:
    from orrery.world import World

Progress = Callable[[Cell, Stored], None]


def check(
    id: str,
    *,
    record: bool = False,
    store: Store | None = None,
    ledger: Ledger | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Verdicts:
    """Put every claim of a system to the test.

    A claim that cannot be judged as it is written is *inconclusive*, with a note that says why.
    With `record` each verdict goes into the ledger as soon as it is found.
    """
    from orrery.lab import discover

    book = ledger if ledger is not None else Ledger.default()
    entry = discover.find(id, book)
    part = discover.load(entry.id)
    found: list[Verdict] = []
    with Runner(store if store is not None else Store(), jobs) as runner:
        for n, claim in enumerate(entry.stem.claims):
            verdict = judge(claim, part, problem=entry.problem, runner=runner, progress=progress)
            verdict.n = n
            found.append(verdict)
            if record:
                book.record_verdict(entry.id, verdict)
    return Verdicts(entry.id, found)


def judge(
    claim: Claim,
    part: type[Part],
    *,
    problem: Any = "",
    runner: Runner | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Put one claim about a part class to the test."""
    kind = "modelled" if claim.engine == "virtual" else "measured"
    if not claim.testable:
        return Verdict(claim=claim, kind="published")
    try:
        claim.check()
        trial = Trial(claim, part, problem, runner or Runner(Store()), progress)
        found = trial.decide()
    except StoreError:
        raise  # a full disk says nothing about the claim
    except OrreryError as error:
        return Verdict(claim=claim, verdict=verdicts.OPEN, kind=kind, note=str(error))
    found.kind, found.world, found.digest = kind, trial.world_hash(), trial.digest()
    return found


class Trial:
    """The runs for one claim, and what they say so far."""

    def __init__(
        self, claim: Claim, part: type[Part], problem: Any, runner: Runner,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.claim = claim
        self.runner = runner
        self.progress = progress
        if not (claim.problem or problem):
            raise ClaimError(f'{claim.metric!r} names no problem; set problem = "…"')
        self.problem: Problem = ask_problem(claim.problem or problem, claim.problem_knobs)
        self.world: World = claim_world(claim, self.problem)
        self.metric = metric_of(claim, self.problem)
        self.ours = make_part(part, claim.ours)
        self.without = make_part(part, {**claim.ours, **claim.off}) if claim.off else None
        self.rival = self._rival()
        self.digests: list[str] = []
        self.seen: dict[str, dict[int, float]] = {}
        self.faults: dict[str, list[str]] = {}

    def _rival(self) -> Part | None:
        from orrery.lab import discover

        claim = self.claim
        name = claim.rival
        if not name and claim.against:
            # Papers name their rivals in words; only where the words are an id can it be run.
            known = {entry.id for entry in discover.entries() if entry.built}
            name = claim.against if claim.against in known else ""
        if name:
            return make_part(discover.load(name), claim.rival_knobs)
        if claim.form in ("ratio", "direction"):
            if self.without is None:
                fix = 'set rival = "id", or off = {knob = value} to compare with'
                raise ClaimError(f"{claim.metric!r} has nothing to be compared with; {fix}")
            return self.without
        return None

    def world_hash(self) -> str:
        return self.world.hash

    def digest(self) -> str:
        """One digest of all runs that the verdict rests on."""
        return hashlib.sha256("\n".join(sorted(self.digests)).encode()).hexdigest()[:32]

    # -- running

    def run(self, parts: Mapping[str, Any], seeds: range, world: Any = None,
            problem: Any = None) -> None:  # fmt: skip
        cells = [
            Cell(name=name, part=part, problem=problem or self.problem,
                 world=world or self.world, seed=seed, engine=self.claim.engine,
                 until_s=self.claim.until_s)
            for seed in seeds for name, part in parts.items()
        ]  # fmt: skip
        for cell, stored in self.runner.run(cells):
            self.digests.append(f"{stored.id} {stored.digest}")
            for violation in stored.violations:
                said = f"seed {cell.seed}: {violation['kind']}: {violation['message']}"
                self.faults.setdefault(cell.name, []).append(said)
            if self.metric in stored.metrics:
                self.seen.setdefault(cell.name, {})[cell.seed] = stored.metrics[self.metric]
            elif self.metric and stored.metrics:
                fix = did_you_mean(self.metric, stored.metrics)
                raise ClaimError(f"the runs give no metric {self.metric!r}; {fix}")
            if self.progress is not None:
                self.progress(cell, stored)

    def pair(self, one: str, other: str) -> tuple[list[float], list[float]]:
        """The values of two names over the seeds that both have."""
        a, b = self.seen.get(one, {}), self.seen.get(other, {})
        shared = sorted(set(a) & set(b))
        return [a[seed] for seed in shared], [b[seed] for seed in shared]

    # -- deciding

    def decide(self) -> Verdict:
        """Add seeds until the claim is decided or the limit is reached."""
        if self.claim.form == "property":
            return self._property()
        if self.claim.form == "exponent":
            return self._exponent()
        have, look, claim = 0, 0, self.claim
        parts = {"ours": self.ours}
        if self.rival is not None:
            parts["rival"] = self.rival
        if self.without is not None and self.without is not self.rival:
            parts["off"] = self.without
        while True:
            want = stats.next_seeds(have, claim.seeds, claim.most_seeds)
            self.run(parts, range(have, want))
            have, look = want, look + 1
            if self.faults.get("ours"):
                return self._violated(have)
            final = have >= claim.most_seeds
            level = stats.level_at(look)
            gains = claim.form in ("ratio", "direction")
            found = self._gain(level, final) if gains else self._absolute(level, final)
            found.seeds = have
            if found.verdict is not None:
                return self._noted(found)

    def _gain(self, level: float, final: bool) -> Verdict:
        claim, less = self.claim, verdicts.wants_less(self.claim)
        raw = stats.ratio_interval(*self.pair("ours", "rival"), level)
        gain = verdicts.turned(raw, less)
        word = verdicts.judge_gain(gain, verdicts.claimed_gain(claim), claim.tolerance, final=final)
        off = None
        if self.without is not None:
            name = "rival" if self.without is self.rival else "off"
            raw_off = stats.ratio_interval(*self.pair(name, "rival"), level)
            off = raw_off.mean
            if word in (verdicts.HOLDS, verdicts.IN_PART):
                stays = verdicts.judge_off(gain, verdicts.turned(raw_off, less), final=final)
                word = None if stays is None else verdicts.NOT_MECHANISM if stays else word
        return _verdict(claim, word, raw, off)

    def _absolute(self, level: float, final: bool) -> Verdict:
        claim = self.claim
        values = [self.seen.get("ours", {})[seed] for seed in sorted(self.seen.get("ours", {}))]
        found = stats.mean_interval(values, level)
        word = verdicts.judge_bound(found, claim, final=final)
        if word == verdicts.NOT_HERE and self.rival is not None and claim.better:
            word = self._better_anyway("rival", level, final)
        off = None
        if self.without is not None:
            name = "rival" if self.without is self.rival else "off"
            others = self.pair("ours", name)[1]
            off = stats.mean(others) if others else None
            if word in (verdicts.HOLDS, verdicts.IN_PART) and claim.better:
                gain = self._against(name, level)
                if gain.known and gain.hi < 1 + stats.MATTERS:
                    word = verdicts.NOT_MECHANISM
        return _verdict(claim, word, found, off)

    def _against(self, name: str, level: float) -> Interval:
        raw = stats.ratio_interval(*self.pair("ours", name), level)
        return verdicts.turned(raw, self.claim.better == "lower")

    def _better_anyway(self, name: str, level: float, final: bool) -> str | None:
        """A missed bound still holds in part where ours certainly beats the rival."""
        word = verdicts.judge_gain(self._against(name, level), None, 0.0, final=final)
        return {verdicts.HOLDS: verdicts.IN_PART, None: None}.get(word, verdicts.NOT_HERE)

    def _property(self) -> Verdict:
        claim = self.claim
        trials = max(claim.seeds, claim.most_seeds)
        self.run({"ours": self.ours}, range(trials))
        failed = {said.partition(":")[0] for said in self.faults.get("ours", [])}
        if claim.figure() is not None and self.metric:
            low = -math.inf if claim.says_lo is None else claim.says_lo
            high = math.inf if claim.says_hi is None else claim.says_hi
            for seed, value in self.seen.get("ours", {}).items():
                if not low <= value <= high:
                    failed.add(f"seed {seed}")
        rate = stats.failure_interval(len(failed), trials)
        word = verdicts.judge_property(len(failed), trials)
        found = _verdict(claim, word, rate, None)
        found.seeds = trials
        first = self.faults.get("ours") or sorted(failed)
        found.note = f"{len(failed)} failures in {trials} trials" + (
            f"; {first[0]}" if first else ""
        )
        return found

    def _exponent(self) -> Verdict:
        claim = self.claim
        points = sweep_points(claim, self.problem, self.world, self.ours)
        have, look = 0, 0
        while True:
            want = stats.next_seeds(have, claim.seeds, claim.most_seeds)
            for i, (_, world, problem, part) in enumerate(points):
                self.run({f"ours at {i}": part}, range(have, want), world, problem)
            have, look = want, look + 1
            if self.faults:
                self.faults["ours"] = [said for each in self.faults.values() for said in each]
                return self._violated(have)
            x = [at for i, (at, *_) in enumerate(points) for _ in self.seen[f"ours at {i}"]]
            y = [v for i in range(len(points)) for v in self.seen[f"ours at {i}"].values()]
            slope = stats.exponent_interval(x, y, stats.level_at(look))
            final = have >= claim.most_seeds
            word = verdicts.judge_bound(slope, claim, claim.tolerance, final=final)
            if word is not None:
                found = _verdict(claim, word, slope, None)
                found.seeds = have
                return found

    def _violated(self, seeds: int) -> Verdict:
        """A gain bought with a violation is none."""
        found = Verdict(claim=self.claim, verdict=verdicts.NOT_HERE, seeds=seeds)
        found.note = f"ours broke a rule: {self.faults['ours'][0]}"
        return found

    def _noted(self, found: Verdict) -> Verdict:
        for name in ("rival", "off"):
            said = self.faults.get(name)
            if said and not found.note:
                found.note = f"{name} broke a rule: {said[0]}"
        return found


def _verdict(claim: Claim, word: str | None, found: Interval, off: float | None) -> Verdict:
    measured = None if math.isnan(found.mean) else found.mean
    return Verdict(claim=claim, verdict=word, measured=measured, lo=found.lo, hi=found.hi, off=off)


# -- from a claim's text to things that run


def metric_of(claim: Claim, problem: Problem) -> str:
    """The problem's metric that a claim is about."""
    name = claim.measure or claim.metric
    if claim.form == "property" and not claim.measure:
        return ""
    if problem.metrics and name not in problem.metrics:
        fix = f'set measure = "…"; {did_you_mean(name, problem.metrics)}'
        raise ClaimError(f"{name!r} is no metric of {type(problem).__name__}; {fix}")
    return name


def make_part(cls: type[Part], knobs: Mapping[str, Any]) -> Part:
    """A part with knobs from a file: a knob that is itself a part is given by its id."""
    from orrery.lab import discover

    types, made = knob_types(cls), {}
    for name, value in knobs.items():
        kind = types.get(name)
        if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Part):
            value = discover.load(value)()
        made[name] = value
    return cls(**made)


Point = tuple[float, Any, Problem, Part]


def sweep_points(claim: Claim, problem: Problem, world: Any, part: Part) -> list[Point]:
    """(x, world, problem, part) of each point of a claim's sweep."""
    from orrery.lab.compare import world_of

    if len(claim.sweep) != 1:
        raise ClaimError(f"{claim.metric!r} is an exponent: give one sweep, as "
                         'sweep = {"problem.n" = [4, 8, 16]}')  # fmt: skip
    ((path, values),) = claim.sweep.items()
    if claim.at and len(claim.at) != len(values):
        raise ClaimError(f"at has {len(claim.at)} numbers for {len(values)} points; make it equal")
    points: list[Point] = []
    owner, _, knob = path.partition(".")
    for i, value in enumerate(values):
        place, asked, ours = world, problem, part
        if path == "world":
            place = world_of(value, problem)
        elif owner == "world" and knob:
            place = world.with_param(knob, value)
        elif owner == "problem" and knob:
            asked = problem.with_knobs(**{knob: value})
        elif owner == "ours" and knob:
            ours = part.with_knobs(**{knob: value})
        else:
            raise ClaimError(f"sweep {path!r}: begin with world, problem. or ours.")
        at = claim.at[i] if claim.at else place.size if path == "world" else value
        if isinstance(at, bool) or not isinstance(at, int | float):
            raise ClaimError(f"sweep {path!r}: {value!r} is no number; give at = [1.0, 2.0, …]")
        points.append((float(at), place, asked, ours))
    return points
