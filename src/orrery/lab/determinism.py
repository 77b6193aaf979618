"""`verify determinism`: does the same seed give the same run, everywhere it should?

A suite of cases (every built system on its problem under the faults it declares to survive, and
small parts that use all of an engine) is run for each seed: twice in this process, on both kernels,
in wire mode, and, with `fresh`, in new processes under other hash seeds. Each pair must agree on a
fingerprint of everything that happened. Where one does not, both are run again with tracing and the
first event that differs is named.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from orrery.base.errors import InternalError, OrreryError, PartError, UsageError
from orrery.lab.run import _roles
from orrery.lab.spans import plain
from orrery.world import World

MOST_SEEDS = 100_000
UNTIL_S = 1.5
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


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Something to run, as data, so that another process can make the same."""

    name: str
    part: str
    knobs: dict[str, Any] = {}
    problem: str = ""
    problem_knobs: dict[str, Any] = {}
    world: str  # as TOML, which has infinities and JSON has not
    until_s: float = UNTIL_S


class Variant(NamedTuple):
    """How a case is run."""

    kernel: str
    wire: bool = False
    hash_seed: int | None = None  # None: in this process
    again: bool = False

    def say(self) -> str:
        """The variant in words."""
        words = [f"{self.kernel} kernel"]
        if self.wire:
            words.append("wire mode")
        if self.hash_seed is not None:
            words.append(f"a fresh process with PYTHONHASHSEED={self.hash_seed}")
        if self.again:
            words.append("a second time")
        return ", ".join(words)


class Shot(msgspec.Struct):
    """What one run of a case was: its fingerprint and, if asked for, its events."""

    print: str
    error: str = ""
    rows: list[Any] = []
    sums: list[int] = []
    records: list[Any] = []


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


Jobs = Sequence[tuple[Case, int]]


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


# -- one run


def shoot(case: Case, seed: int, variant: Variant, trace: bool = False) -> Shot:
    """Run a case once; an error of the part is a result like any other."""
    from orrery.engines.virtual.engine import Engine

    part, problem, world = build(case)
    engine = Engine(
        _roles(part, problem, world), world=world, problem=problem, part=part, seed=seed,
        wire=variant.wire, kernel=variant.kernel, trace=trace,
    )  # fmt: skip
    sums = _count_payloads(engine) if trace and variant.wire else []
    error = ""
    try:
        outcome = engine.run(case.until_s)
        told: list[Any] = [outcome.digest, outcome.events, outcome.messages, outcome.bytes,
                           repr(outcome.seconds), repr(outcome.energy_J), repr(outcome.money)]  # fmt: skip
        records = outcome.records
    except (OrreryError, InternalError) as failure:
        error = f"{type(failure).__name__}: {failure}"
        told, records = [error], engine.records
    said = [[repr(time_s), node, plain(values)] for time_s, node, values in records]
    data = msgspec.json.encode([told, said])
    print_ = hashlib.blake2b(data, digest_size=16).hexdigest()
    if not trace:
        return Shot(print_, error)
    return Shot(print_, error, [list(row) for row in engine.kernel.trace or []], sums, said)


def _count_payloads(engine: Any) -> list[int]:
    """A checksum of each payload, in the order of delivery."""
    import zlib

    sums: list[int] = []
    to_bytes, to_values = engine.kernel.wire

    def watched(slot: Any, data: bytes, is_reply: bool) -> Any:
        sums.append(zlib.crc32(data))
        return to_values(slot, data, is_reply)

    engine.kernel.wire = (to_bytes, watched)
    return sums


def build(case: Case) -> tuple[Any, Any, World]:
    """The part, the problem and the world that a case names; made once for each case."""
    return _built(msgspec.json.encode(case, order="deterministic"))


@functools.lru_cache(maxsize=512)
def _built(data: bytes) -> tuple[Any, Any, World]:
    from orrery.lab.discover import load
    from orrery.lab.questions import ask_problem

    case = msgspec.json.decode(data, type=Case)
    problem = ask_problem(case.problem, case.problem_knobs) if case.problem else None
    return load(case.part)(**case.knobs), problem, World.from_toml(case.world)


def known_kernels() -> list[str]:
    """The kernels that work here, the one in use first."""
    from orrery.base.errors import PlatformLacks
    from orrery.engines.virtual import kernel

    try:
        kernel.load("c")
    except PlatformLacks:
        return ["python"]
    return ["c", "python"]


# -- where two runs part


def locate(case: Case, seed: int, a: Variant, b: Variant) -> dict[str, Any]:
    """Run both again with tracing and name the first event in which they differ."""
    first = _traced(case, seed, a)
    second = _traced(case, seed, b)
    return {
        "case": case.name, "seed": seed, "between": [a.say(), b.say()],
        **divergence(first, second),
    }  # fmt: skip


def _traced(case: Case, seed: int, variant: Variant) -> Shot:
    if variant.again:
        shoot(case, seed, variant)  # the run before it is what may have left something behind
    if variant.hash_seed is None:
        return shoot(case, seed, variant, trace=True)
    away = Away([(case, seed)], variant.kernel, variant.hash_seed, trace=True)
    try:
        return next(shot for _, _, wire, shot in away.shots() if wire == variant.wire)
    finally:
        away.close()


def divergence(a: Shot, b: Shot, fields: Sequence[int] = range(8)) -> dict[str, Any]:
    """The first event, payload or report in which two traced runs differ."""
    for i in range(max(len(a.rows), len(b.rows))):
        one = a.rows[i] if i < len(a.rows) else None
        other = b.rows[i] if i < len(b.rows) else None
        same = one is not None and other is not None and all(one[f] == other[f] for f in fields)
        if not same:
            return {"event": i, "here": _event(one, a), "there": _event(other, b)}
        if i < min(len(a.sums), len(b.sums)) and a.sums[i] != b.sums[i]:
            note = f"the payload differs (checksums {a.sums[i]:08x} and {b.sums[i]:08x})"
            return {"event": i, "here": _event(one, a), "there": _event(other, b), "what": note}
    for i in range(max(len(a.records), len(b.records))):
        one = a.records[i] if i < len(a.records) else None
        other = b.records[i] if i < len(b.records) else None
        if one != other:
            return {"report": i, "here": _report(one), "there": _report(other)}
    if a.error != b.error:
        return {"here": {"error": a.error or None}, "there": {"error": b.error or None}}
    what = "the traced runs agree; what differs did not come back, or lies outside messages"
    return {"event": None, "here": None, "there": None, "what": what}


def _event(row: Sequence[Any] | None, shot: Shot) -> dict[str, Any] | None:
    if row is None:
        return {"error": shot.error} if shot.error else None
    sent_ns, received_ns, seq, src, dst, method, size_B, is_reply = row
    return {
        "time_s": received_ns / 1e9, "sent_s": sent_ns / 1e9, "seq": seq, "src": src, "dst": dst,
        "method": method, "size_B": size_B, "is_reply": bool(is_reply),
    }  # fmt: skip


def _report(record: Sequence[Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {"time_s": float(record[0]), "node": record[1], "values": record[2]}


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
        one, other = _traced(case, seed, a), _traced(case, seed, b)
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


# -- fresh processes


class Away:
    """A new interpreter with its own hash seed that runs cases and tells their fingerprints."""

    def __init__(self, jobs: Jobs, kernel: str, hash_seed: int, trace: bool = False) -> None:
        self.kernel = kernel
        self.hash_seed = hash_seed
        paths = [path for path in sys.path if path] + [os.getcwd()]
        env = {**os.environ, "PYTHONHASHSEED": str(hash_seed),
               "PYTHONPATH": os.pathsep.join(paths)}  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orrery.lab.determinism"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
        )  # fmt: skip
        cases = {case.name: case for case, _ in jobs}
        order = msgspec.json.encode(_Order(
            cases=cases, jobs=[(case.name, seed) for case, seed in jobs], kernel=kernel,
            trace=trace))  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(order)
        self._process.stdin.close()

    def shots(self) -> Iterator[tuple[str, int, bool, Shot]]:
        """Every (case, seed, wire, result), as they come."""
        assert self._process.stdout is not None and self._process.stderr is not None
        decoder = msgspec.json.Decoder(tuple[str, int, bool, Shot])
        for line in self._process.stdout:
            yield decoder.decode(line)
        told = self._process.stderr.read().decode(errors="replace").strip()
        if self._process.wait() != 0:
            last = told.splitlines()[-1] if told else f"exit code {self._process.returncode}"
            raise PartError(f"a fresh process failed: {last}")

    def close(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class _Order(msgspec.Struct, kw_only=True):
    cases: dict[str, Case]
    jobs: list[tuple[str, int]]
    kernel: str
    trace: bool = False


def _serve(source: IO[bytes]) -> None:
    order = msgspec.json.decode(source.read(), type=_Order)
    # What parts print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with answers:
        for name, seed in order.jobs:
            for wire in (False, True):
                shot = shoot(order.cases[name], seed, Variant(order.kernel, wire), order.trace)
                answers.write(msgspec.json.encode((name, seed, wire, shot)) + b"\n")


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
    heavy = World.lan(4).with_faults(Crash(node="random", at_s=0.01, until_s=0.03))
    return [
        Case(name="chatter", part="orrery.lab.trials:Chatter", world=rough.to_toml()),
        Case(name="hauler", part="orrery.lab.trials:Hauler", world=heavy.to_toml()),
    ]


def _case_of(id: str, problem: str) -> Case:
    from orrery.lab.discover import load
    from orrery.lab.questions import ask_problem

    cls = load(id)
    asked = ask_problem(problem, SMALL.get(problem))
    world = World.lan(SMALL_LANS[problem]) if problem in SMALL_LANS else asked.world()
    return Case(
        name=id, part=id, problem=problem, problem_knobs=SMALL.get(problem, {}),
        world=under_faults(world, getattr(cls, "tolerates", ())).to_toml(),
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


if __name__ == "__main__":
    _serve(sys.stdin.buffer)
