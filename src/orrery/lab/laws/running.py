"""Laws of parts that run on a problem: they do, they repeat, and survive what they declare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from orrery.engines.virtual import kernel as kernels
from orrery.lab.laws.common import Law, Subject
from orrery.lab.run import Run, run
from orrery.parts.node import TOLERABLE
from orrery.world import (
    Byzantine,
    Crash,
    Drop,
    Duplicate,
    Fault,
    Partition,
    Pause,
    Reorder,
    World,
)

# A run under faults may take this many times as long as one without, and this much more.
LONGER, MORE_S = 20.0, 120.0
REAL_MORE_S = 30.0


def runs_clean(subject: Subject) -> Iterable[str]:
    """On its problem, in the problem's world, without faults: it ends, and nothing is violated."""
    for seed in subject.seeds:
        yield from _verdict(_plain(subject, seed), f"seed {seed}")


def same_seed_same_run(subject: Subject) -> Iterable[str]:
    """The same seed gives the same digest, metrics and decisions; on both kernels."""
    seed = subject.seeds[0]
    first = _plain(subject, seed)
    # The slower kernel repeats the run as well as the usual one would; only where it does not is
    # there a question whose fault it is.
    other = _differs(first, _play(subject, seed, kernel="python"))
    if not other:
        return
    usual = kernels.load().NAME
    again = _differs(first, _play(subject, seed)) if usual != "python" else other
    for name in again or other:
        where = "run again" if again else "on the python kernel"
        yield f"{where}, seed {seed} gives another {name}"


def _differs(a: Run, b: Run) -> list[str]:
    names = ("digest", "metrics", "decisions")
    return [name for name in names if not _alike(getattr(a, name), getattr(b, name))]


def same_in_wire_mode(subject: Subject) -> Iterable[str]:
    """With every message encoded and read back, the verdict and the decisions are the same."""
    plain = _plain(subject, subject.seeds[0])
    wired = _play(subject, subject.seeds[0], wire=True)
    yield from _verdict(wired, "wire mode")
    # True sizes may shift times; where the outcome is unique it must not change.
    if subject.problem.unique_outcome and not _alike(plain.decisions, wired.decisions):
        yield "wire mode: other decisions; two nodes share an object through a message"


def tolerates_what_it_says(subject: Subject) -> Iterable[str]:
    """Under each fault of `tolerates`: no violation, and live again after healing."""
    declared = getattr(subject.part, "tolerates", ())
    for unknown in [name for name in declared if name not in TOLERABLE]:
        yield f"tolerates names {unknown!r}; known: {', '.join(TOLERABLE)}"
    if not declared:
        return
    calm = _plain(subject, subject.seeds[0])
    for name in [name for name in declared if name in TOLERABLE]:
        for seed in subject.seeds:
            for fault in faults_of(name, calm.world, calm.seconds):
                yield from _survives(subject, name, fault, seed, calm)


def _survives(subject: Subject, name: str, fault: Fault, seed: int, calm: Run) -> Iterable[str]:
    world = calm.world.with_faults(fault)
    made = _play(subject, seed, world, until_s=calm.seconds * LONGER + MORE_S)
    what = f"{name} ({fault.kind}"
    if isinstance(fault, Byzantine):
        what += f" {'+'.join(fault.strategies)}"
    what += f", seed {seed})"
    if made.extra.get("faults_never_fired"):
        yield f"{what}: the fault never had an effect, so the law shows nothing"
    yield from _verdict(made, what)


def faults_of(name: str, world: World, seconds: float) -> list[Fault]:
    """The faults that put one word of `tolerates` to the test, in a run of that length."""
    at_s, until_s = 0.05 * seconds, 0.5 * seconds
    size = world.size
    spread_s = max(10.0 * world.network.latency_s, 1e-6)
    minority = tuple(range(max(1, (size - 1) // 2)))
    liars = tuple(range(size - max(1, (size - 1) // 3), size))
    match name:
        case "drop":
            return [Drop(p=0.1, at_s=at_s, until_s=until_s)]
        case "duplicate":
            return [Duplicate(p=0.3, at_s=at_s, until_s=until_s)]
        case "reorder":
            return [Reorder(p=0.3, spread_s=spread_s, at_s=at_s, until_s=until_s)]
        case "crash":
            return [Crash(node="random", at_s=at_s)]
        case "restart":
            return [Crash(node="random", at_s=at_s, until_s=until_s)]
        case "pause":
            return [Pause(node="random", at_s=at_s, until_s=until_s)]
        case "partition":
            return [Partition(groups=(minority,), at_s=at_s, until_s=until_s)]
        case _:
            kinds = ("silence", "equivocate", "mutate")
            return [Byzantine(node=liars, strategies=(kind,), at_s=0.0) for kind in kinds]


def same_on_other_engines(subject: Subject) -> Iterable[str]:
    """On a real engine: the same verdict, and equal decisions where the outcome is unique."""
    calm = _plain(subject, subject.seeds[0]) if subject.engines else None
    for engine in subject.engines:
        assert calm is not None
        # Real seconds: what hangs there must not hang the judge.
        limit_s = 3.0 * calm.seconds + REAL_MORE_S
        made = _play(subject, subject.seeds[0], engine=engine, until_s=limit_s)
        yield from _verdict(made, f"on {engine}")
        if subject.problem.unique_outcome and not _alike(calm.decisions, made.decisions):
            yield f"on {engine}: other decisions than in virtual time"


def _plain(subject: Subject, seed: int) -> Run:
    """The run without faults or options; played once for all laws that look at it."""
    if seed not in subject.plain:
        subject.plain[seed] = _play(subject, seed)
    made: Run = subject.plain[seed]
    return made


def _play(subject: Subject, seed: int, world: World | None = None, **options: Any) -> Run:
    return run(subject.part, problem=subject.problem, world=world, seed=seed, **options)


def _verdict(made: Run, where: str) -> Iterable[str]:
    if made.violations:
        first = made.violations[0]
        count = len(made.violations)
        yield f"{where}: {count} violations; the first: {first.kind}: {first.message}"
    if made.ended == "until":
        yield f"{where}: has not ended {made.seconds:g} s after the start; it is not live"


def _alike(a: Any, b: Any) -> bool:
    """Equal, where a metric that is not a number equals itself."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


RUNNING_LAWS: tuple[Law, ...] = (
    runs_clean, same_seed_same_run, same_in_wire_mode, tolerates_what_it_says,
    same_on_other_engines,
)  # fmt: skip
