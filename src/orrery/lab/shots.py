"""Single runs for the check of determinism: fingerprints, and where two runs part.

A case is data, so that a fresh interpreter with another hash seed can run the same; started as
`python -m orrery.lab.shots`, this module is that interpreter.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from orrery.base.errors import InternalError, OrreryError, PartError, PlatformLacks
from orrery.lab.run import _engine, _roles
from orrery.lab.spans import plain
from orrery.parts.swarm import Swarm
from orrery.world import World

UNTIL_S = 1.5


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


Jobs = Sequence[tuple[Case, int]]


# -- one run


def shoot(case: Case, seed: int, variant: Variant, trace: bool = False) -> Shot:
    """Run a case once; an error of the part is a result like any other."""
    part, problem, world = build(case)
    swarm = isinstance(part, Swarm)  # it has one kernel of its own and no messages to encode
    options = {} if swarm else {"wire": variant.wire, "kernel": variant.kernel, "trace": trace}
    engine = _engine("virtual", part)(
        _roles(part, problem, world), world=world, problem=problem, part=part, seed=seed, **options
    )
    sums = _count_payloads(engine) if trace and variant.wire and not swarm else []
    error = ""
    try:
        outcome = engine.run(case.until_s)
        told: list[Any] = [
            outcome.digest, outcome.events, outcome.messages, outcome.bytes, repr(outcome.seconds),
            repr(outcome.energy_J), repr(outcome.money),
        ]  # fmt: skip
        records = outcome.records
    except (OrreryError, InternalError) as failure:
        error = f"{type(failure).__name__}: {failure}"
        told, records = [error], engine.records
    said = [[repr(time_s), node, plain(values)] for time_s, node, values in records]
    data = msgspec.json.encode([told, said])
    print_ = hashlib.blake2b(data, digest_size=16).hexdigest()
    if not trace:
        return Shot(print_, error)
    return Shot(
        print_, error, [] if swarm else [list(row) for row in engine.kernel.trace or []], sums, said
    )


def _count_payloads(engine: Any) -> list[int]:
    """A checksum of each payload, in the order of delivery."""
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
    return load(case.part, lint=False)(**case.knobs), problem, World.from_toml(case.world)


def known_kernels() -> list[str]:
    """The kernels that work here, the one in use first."""
    from orrery.engines.virtual import kernel

    try:
        kernel.load("c")
    except PlatformLacks:
        return ["python"]
    return ["c", "python"]


# -- where two runs part


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


def traced(case: Case, seed: int, variant: Variant) -> Shot:
    if variant.again:
        shoot(case, seed, variant)  # the run before it is what may have left something behind
    if variant.hash_seed is None:
        return shoot(case, seed, variant, trace=True)
    away = Away([(case, seed)], variant.kernel, variant.hash_seed, trace=True)
    try:
        return next(shot for _, _, wire, shot in away.shots() if wire == variant.wire)
    finally:
        away.close()


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
            [sys.executable, "-m", "orrery.lab.shots"], stdin=subprocess.PIPE,
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


if __name__ == "__main__":
    _serve(sys.stdin.buffer)
