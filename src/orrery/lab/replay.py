"""`replay`: a stored run made again from its seed, event by event, and checked against its digest.

A run folder holds what decides a run, not every message of it: the run is made again, this time
with tracing, and must end in the same digest. While it runs, every sending is noted too, so that
messages that never arrived can be told and drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.codec import encode
from orrery.base.errors import OrreryError, StoreError, UsageError
from orrery.lab import spans
from orrery.lab.run import Run, _engine, _roles, judge
from orrery.lab.spans import Span
from orrery.lab.spec import core_hash, describe, sources
from orrery.lab.store import Store, Stored
from orrery.parts.swarm import Swarm

WORLD_FILE = "world.json"


class Replay(msgspec.Struct, kw_only=True):
    """A run made again: what happened, and whether it is what happened before."""

    id: str
    run: Run
    digest: str
    stored_digest: str
    events: list[Span]
    lost: list[Span]
    changed: list[str] = []
    divergence: dict[str, Any] | None = None
    from_s: float = 0.0
    until_s: float | None = None
    node: int | None = None

    @property
    def same(self) -> bool:
        """Whether the digest is the stored one."""
        return self.digest == self.stored_digest

    def picture(self, **options: Any) -> str:
        """The space-time picture of the part that was asked for, as SVG."""
        from orrery.lab.draw import space_time

        if self.until_s is not None:
            options.setdefault("until_s", self.until_s)
        if self.node is not None:
            options.setdefault("nodes", self._around())
        return space_time(self.run, lost=self.lost, **options)

    def _around(self) -> list[int]:
        """The node and those that it talks with most."""
        assert self.node is not None
        count: dict[int, int] = {}
        for span in self.events:
            for other in (span.node, span.to):
                if other >= 0 and other != self.node:
                    count[other] = count.get(other, 0) + 1
        nearest = sorted(count, key=lambda other: (-count[other], other))[:11]
        size = self.run.world.size
        return sorted({self.node, *(other for other in nearest if other <= size)})

    def to_json(self) -> dict[str, Any]:
        """The document of `orrery replay`."""
        return {
            "id": self.id, "digest": self.digest, "stored_digest": self.stored_digest,
            "same": self.same, "changed": self.changed, "divergence": self.divergence,
            "seconds": self.run.seconds, "violations": spans.plain(self.run.violations),
            "events": [event.to_json() for event in self.events],
        }  # fmt: skip


def replay(
    run: str | Stored | Run,
    *,
    until_s: float | None = None,
    node: int | None = None,
    world: Any = None,
    store: Store | None = None,
) -> Replay:
    """Make a run again and list its events, up to a time and of one node if so asked.

    `run` is an id (or its beginning), a stored run or a `Run`. `world` is needed only where the
    run's folder does not hold its world.
    """
    if until_s is not None and not (isinstance(until_s, int | float) and 0 <= until_s < math.inf):
        raise UsageError(f"until_s={until_s!r}: give a number of seconds >= 0")
    keep = store or Store()
    if isinstance(run, Run):
        id, before, again, changed = "", run.digest, _of_run(run), []
    else:
        stored = keep.load(run) if isinstance(run, str) else run
        id, before = stored.id, stored.digest
        again, changed = _of_stored(stored, world), changes(stored.spec)
    made, lost = again
    size = made.world.size
    if node is not None and (isinstance(node, bool) or not isinstance(node, int)
                             or not 0 <= node <= size):  # fmt: skip
        raise UsageError(f"node={node!r}: this world has nodes 0 to {size - 1}")
    found = Replay(
        id=id, run=made, digest=made.digest, stored_digest=before, lost=lost, changed=changed,
        events=list(events(made, lost, until_s, node)), until_s=until_s, node=node,
    )  # fmt: skip
    if not found.same:
        found.divergence = _first_difference(run, id, keep, made)
    return found


def events(
    run: Run, lost: list[Span], until_s: float | None = None, node: int | None = None
) -> Any:
    """The spans of a run in order of time, of one node and up to a time where that is asked."""
    last_ns = math.inf if until_s is None else round(until_s * 1e9)
    for span in spans.of(run, lost):
        if span.start_ns > last_ns:
            return
        if node is None or node in (span.node, span.to) or (span.kind == "fault" and span.node < 0):
            yield span


# -- making it again


def _of_run(run: Run) -> tuple[Run, list[Span]]:
    if run.engine != "virtual":
        raise UsageError(f"a run on {run.engine} cannot be replayed: real time comes only once")
    until_s = run.seconds if run.ended == "until" else None
    return tapped(run.part, problem=run.problem, world=run.world, seed=run.seed, until_s=until_s)


def _of_stored(stored: Stored, world: Any) -> tuple[Run, list[Span]]:
    spec = stored.spec
    if spec.get("engine") != "virtual":
        what = f"run {stored.id} was made on {spec.get('engine')}"
        raise UsageError(f"{what}, and real time comes only once; run it again instead")
    part, problem, place = rebuild(stored, world)
    options = dict(spec.get("options") or {})
    return tapped(
        part, problem=problem, world=place, seed=int(spec["seed"]), until_s=spec.get("until_s"),
        wire=bool(options.get("wire", False)),
    )  # fmt: skip


def tapped(
    part: Any, *, problem: Any, world: Any, seed: int, until_s: float | None, wire: bool = False
) -> tuple[Run, list[Span]]:
    """A traced run on the virtual engine, and the messages of it that never arrived."""
    # A swarm moves arrays, not messages one by one: there is nothing to trace and nothing to tap.
    options = {} if isinstance(part, Swarm) else {"trace": True, "wire": wire}
    engine = _engine("virtual", part)(
        _roles(part, problem, world), world=world, problem=problem, part=part, seed=seed, **options
    )
    if isinstance(part, Swarm):
        return judge(engine.run(until_s), problem), []
    (sends, bent), work = _tap(engine), _tap_work(engine)
    made = judge(engine.run(until_s), problem)
    lost = _undelivered(sends, made)
    made.extra["lost_spans"] = lost
    made.extra["bent"] = bent
    made.extra["work_spans"] = sorted(work, key=lambda span: (span.start_ns, span.node))
    return made, lost


def _tap(engine: Any) -> tuple[list[tuple[Any, ...]], set[int]]:
    """Note every sending, through the hook by which faults act on messages; and what liars alter.

    The hook changes nothing for a message that it lets pass, so the digest stays the same, and
    replay checks that it did. Each note has the sequence number that the message gets if it is not
    lost: the kernel's next one.
    """
    sends: list[tuple[Any, ...]] = []
    bent: set[int] = set()
    kernel, traffic = engine.kernel, engine.faults._traffic
    inner = traffic.hook

    def hook(src: int, dst: int, slot: Any, args: Any, is_reply: bool) -> Any:
        copies = inner(src, dst, slot, args, is_reply)
        count = 1 if copies is None else len(copies)
        sends.append((kernel.now, kernel.seq + 1, count, src, dst, slot.name, is_reply))
        if copies is not None and src in traffic._liars:
            for i, (_, to, said) in enumerate(copies):
                if to != dst or _differs(said, args):
                    bent.add(kernel.seq + 1 + i)
        return copies

    traffic.hook = hook
    traffic._watch(range(engine.size + (engine.problem is not None)), 1)
    return sends, bent


def _differs(said: Any, meant: Any) -> bool:
    """Whether a node says something else than its part had meant."""
    if said is meant:
        return False
    try:
        return bool(said != meant)
    except ValueError:  # arrays have no single answer; then their bytes decide
        return encode(said) != encode(meant)


def _tap_work(engine: Any) -> list[Span]:
    """Note when computations and bulk transfers began and ended, also those that were cut off."""
    found: list[Span] = []
    kernel, devices, flows = engine.kernel, engine.devices, engine.flows
    compute, send = devices.work, flows.send

    async def noted_compute(index: int, work: Any, device: str, share: float) -> None:
        start = kernel.now
        try:
            await compute(index, work, device, share)
        finally:
            name = f"compute on {device}" if device else "compute"
            told = {"flops": work.flops, "bytes": work.bytes}
            found.append(Span("compute", name, start, kernel.now, index, values=told))

    async def noted_send(src: int, dst: int, array: Any, tag: str, scale: float) -> None:
        start = kernel.now
        try:
            await send(src, dst, array, tag, scale)
        finally:
            size_B = round(array.nbytes * scale)
            found.append(Span("transfer", tag or "transfer", start, kernel.now, src, dst, size_B))

    devices.work, flows.send = noted_compute, noted_send
    return found


def _undelivered(sends: list[tuple[Any, ...]], made: Run) -> list[Span]:
    arrived = {row[2]: row for row in made.spans}
    found: list[Span] = []
    for i, (now, seq, count, src, dst, name, is_reply) in enumerate(sends):
        # Where the next sending expected the same number, this message never got it.
        follows = sends[i + 1] if i + 1 < len(sends) else None
        mine = range(seq, seq + count)
        if follows is not None and follows[1] == seq:
            mine = range(0)
        rows = (arrived.get(each) for each in mine)
        if any(row is not None and row[3] == src and row[5] == name and row[0] == now
               for row in rows):  # fmt: skip
            continue
        values = {"reply": True} if is_reply else None
        found.append(Span("lost", name, now, now, src, dst, values=values))
    return found


# -- from a spec back to parts


def rebuild(stored: Stored, world: Any = None) -> tuple[Any, Any, Any]:
    """The part, the problem and the world of a stored run, made again and checked."""
    spec = stored.spec
    part = make(spec["part"], "part")
    problem = make(spec["problem"], "problem") if spec.get("problem") else None
    return part, problem, _world(stored, problem, world)


def make(told: dict[str, Any], path: str) -> Any:
    """A part from its description in a spec; one that does not come out the same is refused."""
    from orrery.lab.discover import load

    if "roles" in told:
        return {role: make(each, f"{path}.{role}") for role, each in told["roles"].items()}
    name = str(told.get("class", ""))
    try:
        cls: Any = load(name)
        knobs = {}
        for knob, value in (told.get("knobs") or {}).items():
            endless = isinstance(cls._knob_defaults.get(knob), float) and isinstance(value, str)
            knobs[knob] = float(value) if endless else _value(value, f"{path}.{knob}")
        made = cls(**knobs)
    except StoreError:
        raise
    except (OrreryError, ValueError) as failure:
        raise StoreError(f"{path}: {name} cannot be made again: {failure}") from None
    again = describe(made)
    wanted = {key: value for key, value in told.items() if key != "name"}
    if again != wanted:
        before = wanted.get("knobs") or {}
        wrong = [k for k, v in (again.get("knobs") or {}).items() if before.get(k) != v]
        what = f"its knob {wrong[0]} cannot stand in a file" if wrong else "its knobs have changed"
        raise StoreError(f"{path}: {name} cannot be made again: {what}; run it again instead")
    return made


def _value(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        if "class" in value:
            return make(dict(value), path)
        return {k: _value(v, path) for k, v in value.items() if k != "struct"}
    if isinstance(value, list):
        return [_value(each, path) for each in value]
    return value


def _world(stored: Stored, problem: Any, given: Any) -> Any:
    """The run's world: from its folder, or given, or the problem's own; known by its hash."""
    from orrery.lab.compare import world_of
    from orrery.world import World

    wanted = stored.spec.get("world")
    found: list[Any] = []
    file = Path(stored.folder) / WORLD_FILE
    if given is not None:
        found.append(world_of(given, problem))
    elif file.is_file():
        found.append(World.load(file))
    elif problem is not None:
        found.append(problem.world())
    for world in found:
        if world.hash == wanted:
            return world
    what = f"run {stored.id} was made in the world {wanted}"
    if given is not None:
        raise StoreError(f"{what}, but the given one is {found[0].hash}; give that world")
    raise StoreError(f"{what}, which its folder does not hold; name it: --world …")


# -- why it differs


def changes(spec: dict[str, Any]) -> list[str]:
    """What is not as it was when the run was saved: the version, the core, the part's modules."""
    import orrery

    found = []
    if spec.get("version") != orrery.__version__:
        found.append(f"orrery {spec.get('version')} is now {orrery.__version__}")
    if spec.get("core") != core_hash():
        found.append("the core of orrery")
    now: dict[str, str] = {}
    for told in (spec.get("part"), spec.get("problem")):
        for name in _classes(told):
            now.update(_sources(name))
    for module, digest in (spec.get("sources") or {}).items():
        if module in now and now[module] != digest:
            found.append(f"the module {module}")
    return found


def _classes(told: Any) -> list[str]:
    if not isinstance(told, Mapping):
        return []
    if "roles" in told:
        return [name for each in told["roles"].values() for name in _classes(each)]
    return [str(told.get("class", ""))]


def _sources(name: str) -> dict[str, str]:
    from orrery.lab.discover import load

    try:
        return sources(load(name))
    except OrreryError:
        return {}


def _first_difference(
    run: str | Stored | Run, id: str, store: Store, made: Run
) -> dict[str, Any] | None:
    """The first event that is not the stored one, where the run was saved with its spans."""
    from orrery.lab.shots import Shot, divergence

    try:
        before = run.spans if isinstance(run, Run) else store.spans(id)
    except StoreError:
        return None
    if not before:
        return None
    old = Shot("", rows=[list(row) for row in before])
    return divergence(old, Shot("", rows=[list(row) for row in made.spans]))
