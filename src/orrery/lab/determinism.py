"""`verify determinism`: does the same seed give the same run, everywhere it should?

A suite of cases (every built system on its problem under the faults it declares to survive, and
small parts that use all of an engine) is run for each seed: twice in this process, on both kernels,
in wire mode, and, with `fresh`, in new processes under other hash seeds. Each pair must agree on a
fingerprint of everything that happened. Where one does not, both are run again with tracing and the
first event that differs is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, UsageError
from orrery.lab.shots import (
    Away,
    Case,
    Jobs,
    Shot,
    Variant,
    divergence,
    known_kernels,
    shoot,
    traced,
)
from orrery.world import World

MOST_SEEDS = 100_000
BATCH = 25
ALL_CASES = 10
PER_SEED = 3
HASH_SEEDS = (1, 20_011)

# Small settings of the problems, so that a thousand seeds take minutes.
SMALL: dict[str, dict[str, Any]] = {
    "broadcast": {"values": 4, "settle_s": 0.4},
    "replicated_store": {"clients": 3, "ops": 6, "think_s": 0.02, "settle_s": 0.2},
    "lookup": {"lookups": 20, "final": 5, "join_s": 0.5, "spread_s": 0.5, "settle_s": 0.3},
    "all_reduce": {"items": 3000, "rounds": 1},
    "atomic_commit": {"transactions": 8},
}
SMALL_LANS = {"broadcast": 8, "lookup": 8}


def verify_determinism(
    seeds: int = 20,
    fresh: bool = False,
    *,
    cases: Sequence[Case] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run the suite for seeds 0 … seeds-1; `{runs, mismatches, first_divergence, …}`."""
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"seeds={seeds!r}: give a whole number from 1 to {MOST_SEEDS}")
    broken: dict[str, str] = {}
    todo = list(suite(broken) if cases is None else cases)
    if not todo:
        raise UsageError("there is no case to verify; build a system or give cases=")
    kernels = known_kernels()
    turns = {seed: turn(todo, seed) for seed in range(seeds)}
    tally = Tally(sum(map(len, turns.values())), progress)
    tally.failed.update(broken)
    for start in range(0, seeds, BATCH):
        batch = range(start, min(start + BATCH, seeds))
        # The fresh processes work while this one does.
        jobs = [(case, seed) for seed in batch for case in turns[seed]]
        away = [Away(jobs, kernels[0], each) for each in hash_seeds(start)] if fresh else []
        try:
            here = _in_process(jobs, kernels, tally)
            for other in away:
                _compare_away(other, here, todo, tally)
        finally:
            for other in away:
                other.close()
    return {
        "runs": tally.runs, "mismatches": tally.mismatches, "first_divergence": tally.first,
        "seeds": seeds, "cases": [case.name for case in todo], "kernels": kernels, "fresh": fresh,
        "failed": tally.failed,
    }  # fmt: skip


def hash_seeds(start: int) -> tuple[int, ...]:
    """The hash seeds of the fresh processes of a batch: two at first, then a new one each time."""
    return HASH_SEEDS if start == 0 else (1 + start,)


class Tally:
    """What has been run and what disagreed."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.total = total
        self.done = 0
        self.runs = 0
        self.mismatches = 0
        self.first: dict[str, Any] | None = None
        self.failed: dict[str, str] = {}
        self._progress = progress

    def step(self) -> None:
        self.done += 1
        if self._progress is not None:
            self._progress(self.done, self.total)

    def judge(
        self, case: Case, seed: int, a: tuple[Variant, Shot], b: tuple[Variant, Shot]
    ) -> None:
        """Count a pair; locate the first that differs (finding it takes two more runs)."""
        if a[1].print == b[1].print:
            return
        self.mismatches += 1
        if self.first is None:
            self.first = locate(case, seed, a[0], b[0])


def turn(cases: Sequence[Case], seed: int) -> list[Case]:
    """The cases that a seed runs: all for the first seeds, afterwards some of them in turn.

    So a thousand seeds stay a matter of minutes however many systems are built.
    """
    if seed < ALL_CASES or len(cases) <= PER_SEED:
        return list(cases)
    first = (seed - ALL_CASES) * PER_SEED
    return [cases[(first + i) % len(cases)] for i in range(PER_SEED)]


def _in_process(
    jobs: Jobs, kernels: Sequence[str], tally: Tally
) -> dict[tuple[str, int, bool], Shot]:
    found: dict[tuple[str, int, bool], Shot] = {}
    for case, seed in jobs:
        for wire in (False, True):
            first = Variant(kernels[0], wire)
            base = shoot(case, seed, first)
            tally.runs += 1
            found[case.name, seed, wire] = base
            if base.error:
                tally.failed.setdefault(case.name, base.error)
            others = [Variant(kernel, wire) for kernel in kernels[1:]]
            if not wire:
                others.insert(0, Variant(kernels[0], again=True))
            for other in others:
                tally.runs += 1
                tally.judge(case, seed, (first, base), (other, shoot(case, seed, other)))
        tally.step()
    return found


def _compare_away(
    other: Away, here: dict[tuple[str, int, bool], Shot], cases: Sequence[Case], tally: Tally
) -> None:
    by_name = {case.name: case for case in cases}
    for name, seed, wire, shot in other.shots():
        tally.runs += 1
        mine = Variant(other.kernel, wire)
        theirs = Variant(other.kernel, wire, other.hash_seed)
        tally.judge(by_name[name], seed, (mine, here[name, seed, wire]), (theirs, shot))


# -- where two runs part


def locate(case: Case, seed: int, a: Variant, b: Variant) -> dict[str, Any]:
    """Run both again with tracing and name the first event in which they differ."""
    first = traced(case, seed, a)
    second = traced(case, seed, b)
    return {
        "case": case.name, "seed": seed, "between": [a.say(), b.say()],
        **divergence(first, second),
    }  # fmt: skip


# -- one part, examined closely


def examine(case: Case, seed: int = 0, fresh: bool = True) -> list[dict[str, Any]]:
    """Every way in which one case differs from itself, each with the first event that does.

    Besides what `verify_determinism` compares, a run in which messages are handed over is compared
    with one in which they are encoded: what differs there was changed after it was sent.
    """
    kernels = known_kernels()
    pairs = [(Variant(kernels[0]), Variant(kernels[0], again=True))]
    pairs += [(Variant(kernels[0]), Variant(kernel)) for kernel in kernels[1:]]
    if fresh:
        pairs += [(Variant(kernels[0], False, HASH_SEEDS[0]), Variant(kernels[0], False, other))
                  for other in HASH_SEEDS[1:]]  # fmt: skip
    found = []
    for a, b in pairs:
        one, other = traced(case, seed, a), traced(case, seed, b)
        if one.print != other.print:
            between = {"between": [a.say(), b.say()]}
            found.append({"case": case.name, "seed": seed, **between, **divergence(one, other)})
    return found + aliasing(case, seed)


def aliasing(case: Case, seed: int = 0) -> list[dict[str, Any]]:
    """Whether a part changes what it has sent: the same run with and without the codec.

    On links so fast that the size of a message costs no time, both must do the same.
    """
    world = World.from_toml(case.world).with_param("network.bandwidth_Bps", 1e18)
    quick = msgspec.structs.replace(case, world=world.to_toml())
    kernel = known_kernels()[0]
    handed, coded = Variant(kernel), Variant(kernel, wire=True)
    one, other = shoot(quick, seed, handed, True), shoot(quick, seed, coded, True)
    other.sums = []
    but_size = (0, 1, 2, 3, 4, 5, 7)
    same = [[row[i] for i in but_size] for row in one.rows] == [
        [row[i] for i in but_size] for row in other.rows]  # fmt: skip
    if same and one.records == other.records and one.error == other.error:
        return []
    return [{
        "case": case.name, "seed": seed, "between": [handed.say(), coded.say()],
        "what": "a message was changed after it was sent, or does not survive the codec",
        **divergence(one, other, but_size),
    }]  # fmt: skip


# -- the suite


def suite(broken: dict[str, str] | None = None) -> list[Case]:
    """Every built system on its problem under the faults it survives, and the small parts.

    What cannot be made is told in `broken`, so that a suite never shrinks in silence.
    """
    from orrery.lab.discover import entries

    found = [*_small_parts()]
    for entry in entries():
        if not (entry.built and entry.problem):
            continue
        try:
            found.append(_case_of(entry.id, entry.problem))
        except OrreryError as failure:
            if broken is not None:
                broken[entry.id] = str(failure)
    return found


def _small_parts() -> list[Case]:
    from orrery.world import ClockDrift, Crash, Duplicate, Pause, Reorder

    rough = World.lan(5, drop=0.05).with_faults(
        Crash(node=1, at_s=0.02, until_s=0.05), Pause(node=2, at_s=0.03, until_s=0.04),
        Duplicate(p=0.1), Reorder(p=0.2, spread_s=0.002), ClockDrift(node=0, drift=0.01),
    )  # fmt: skip
    many = World.lan(60, drop=0.1).with_faults(Crash(node=3, at_s=0.001, until_s=0.002))
    heavy = World.lan(4).with_faults(Crash(node="random", at_s=0.01, until_s=0.03))
    return [
        Case(name="chatter", part="orrery.lab.trials:Chatter", world=rough.to_toml()),
        Case(name="hauler", part="orrery.lab.trials:Hauler", world=heavy.to_toml()),
        Case(name="rumour", part="orrery.lab.trials:Rumour", world=many.to_toml()),
    ]


def _case_of(id: str, problem: str) -> Case:
    from orrery.lab.discover import load
    from orrery.lab.questions import ask_problem

    cls = load(id)
    asked = ask_problem(problem, SMALL.get(problem))
    world = World.lan(SMALL_LANS[problem]) if problem in SMALL_LANS else asked.world()
    return Case(
        name=id, part=id, problem=problem, problem_knobs=SMALL.get(problem, {}),
        world=under_faults(world, getattr(cls(), "tolerates", ())).to_toml(),
    )  # fmt: skip


def under_faults(world: World, tolerates: Sequence[str]) -> World:
    """The world with some of everything that a part says it survives."""
    from orrery.world import Duplicate, Partition, Pause, RandomCrashes, Reorder

    faults: list[Any] = []
    if "crash" in tolerates and "restart" in tolerates and world.size > 1:
        faults.append(RandomCrashes(count=2, between_s=(0.05, 0.5), down_s=(0.05, 0.2), at_most=1))
    if "pause" in tolerates:
        faults.append(Pause(node="random", at_s=0.3, until_s=0.34))
    if "partition" in tolerates and world.size > 1:
        faults.append(Partition(node="random", at_s=0.4, until_s=0.5))
    if "duplicate" in tolerates:
        faults.append(Duplicate(p=0.05))
    if "reorder" in tolerates:
        faults.append(Reorder(p=0.1, spread_s=0.005))
    if "drop" in tolerates:
        world = world.with_param("network.drop", 0.05)
    return world.with_faults(*faults)
