"""Fault schedules: read, written, checked against a world, and drawn for a seed."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import FaultError, SpecError, did_you_mean
from orrery.base.rand import Stream
from orrery.world.faults import KINDS, Crash, DeviceLoss, DomainLoss, Fault, Partition, SpotReclaim
from orrery.world.generators import GENERATORS, _Generator
from orrery.world.spec import brief, build, field_names, to_data

if TYPE_CHECKING:
    from orrery.world.world import World

FAULTS: dict[str, type[Fault]] = {kind.__name__: kind for kind in (*KINDS, *GENERATORS)}
MOST_FILE_B = 64 << 20


# -- in and out


def fault_from(data: Any, path: str) -> Fault:
    """A fault from a table with a `kind`."""
    if isinstance(data, Fault):
        return data
    if not isinstance(data, Mapping):
        raise FaultError(path, f"{brief(data)} is refused", "give a table with a kind")
    kind = data.get("kind")
    if kind is None:
        raise FaultError(f"{path}.kind", "is missing", f"known: {', '.join(sorted(FAULTS))}")
    if not isinstance(kind, str) or kind not in FAULTS:
        raise FaultError(f"{path}.kind", f"unknown kind {brief(kind)}", did_you_mean(kind, FAULTS))
    fields = {key: value for key, value in data.items() if key != "kind"}
    return build(FAULTS[kind], fields, path)


def faults_from(data: Any, path: str = "faults") -> tuple[Fault, ...]:
    """Faults from a list of tables."""
    if not isinstance(data, (list, tuple)):
        raise FaultError(path, f"{brief(data)} is refused", "give a list of tables")
    return tuple(fault_from(each, f"{path}.{i}") for i, each in enumerate(data))


def parse_text(path: Path, error: type[SpecError]) -> Any:
    """The data in a TOML or JSON file; every way in which that can fail has a name."""
    try:
        if path.stat().st_size > MOST_FILE_B:
            size_MB = path.stat().st_size / 1e6
            raise error(str(path), f"has {size_MB:.0f} MB", f"give at most {MOST_FILE_B >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise error(str(path), f"cannot be read: {reason}", "check the path") from None
    except UnicodeDecodeError as failure:
        problem = f"is not UTF-8 at byte {failure.start}"
        raise error(str(path), problem, "save it as UTF-8") from None
    try:
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as failure:
        language = "JSON" if path.suffix == ".json" else "TOML"
        raise error(str(path), f"is not {language}: {failure}", "mend that line") from None


def load_faults(path: str | Path) -> tuple[Fault, ...]:
    """The faults of a TOML file (`[[faults]]` tables) or a JSON file (a list, or {"faults": …})."""
    data = parse_text(Path(path), FaultError)
    if isinstance(data, Mapping):
        for key in data:
            if key != "faults":
                raise FaultError(f"{path}: {key}", "unknown field", 'give "faults" only')
        data = data.get("faults", [])
    return faults_from(data)


def faults_to_toml(faults: Sequence[Fault]) -> str:
    """The faults as TOML, in the form that `load_faults` reads."""
    import tomli_w  # only who writes faults needs it

    return tomli_w.dumps({"faults": [to_data(fault) for fault in faults]})


# -- against a world


def check_against(world: World, fault: Fault, path: str) -> None:
    """Refuse a fault that names a node, a group or a device that the world has not."""
    names = field_names(type(fault))
    indices: list[tuple[str, int]] = []
    node = getattr(fault, "node", None)
    if node is not None and node != "random":
        indices += [("node", each) for each in (node if isinstance(node, tuple) else (node,))]
    for name in ("link", "to"):
        indices += [(name, each) for each in (getattr(fault, name, None) or ())]
    if isinstance(fault, Partition):
        indices += [("groups", each) for group in fault.groups or () for each in group]
    for name, index in indices:
        if index >= world.size:
            fix = f"this world has nodes 0 to {world.size - 1}"
            raise FaultError(f"{path}.{name}", f"there is no node {index}", fix)
    if "domain" in names and getattr(fault, "domain") is not None:  # noqa: B009
        domain = getattr(fault, "domain")  # noqa: B009
        known = world.domains()
        if domain not in known:
            problem = f"there is no group or site {domain!r}"
            raise FaultError(f"{path}.domain", problem, did_you_mean(domain, known))
    if isinstance(fault, DeviceLoss):
        for node in targets(world, fault) if fault.node != "random" else ():
            have = len(world.machine_of(node).accelerators)
            if fault.device >= have:
                problem = f"node {node} has {have} accelerators, not number {fault.device}"
                raise FaultError(f"{path}.device", problem, "name one that it has")


def absences(faults: Iterable[Fault], node: int) -> list[tuple[float, float]]:
    """When a node is away (from, until) by a schedule's crashes, in order and apart.

    >>> absences([Crash(node=1, at_s=2.0, until_s=5.0), Crash(node=1, at_s=4.0)], 1)
    [(2.0, inf)]
    """
    gone = sorted(
        (fault.at_s, math.inf if fault.until_s is None else fault.until_s)
        for fault in faults
        if isinstance(fault, (Crash, SpotReclaim))
        and node in (fault.node if isinstance(fault.node, tuple) else (fault.node,))
    )
    apart: list[tuple[float, float]] = []
    for begin, end in gone:
        if apart and begin <= apart[-1][1]:
            begin, before = apart.pop()
            end = max(end, before)
        apart.append((begin, end))
    return apart


def targets(world: World, fault: Fault, stream: Stream | None = None) -> tuple[int, ...]:
    """The nodes that a fault names; all of them when it names none.

    "random" needs the stream that picks one; a link names its two ends.
    """
    domain = getattr(fault, "domain", None)
    if domain is not None:
        return world.domains()[domain]
    node: Any = getattr(fault, "node", None)
    link = getattr(fault, "link", None)
    if node == "random":
        if stream is None:
            raise FaultError(f"{fault.kind}.node", '"random" has no seed here', "call schedule()")
        return (stream.below(world.size),)
    if link is not None:
        return tuple(link)
    if node is None:
        return tuple(range(world.size))
    return node if isinstance(node, tuple) else (node,)


def schedule(world: World, seed: int) -> tuple[Fault, ...]:
    """What an engine follows: no generator, no "random", no domain, in order of beginning.

    Each fault draws from its own stream, keyed by its place in the world, so that adding a fault
    at the end changes no other.
    """
    concrete: list[Fault] = []
    for place, fault in enumerate(world.faults):
        stream = Stream(seed, place, "faults")
        drawn = fault.expand(stream, world) if isinstance(fault, _Generator) else [fault]
        concrete += [_settle(world, each, stream) for each in drawn]
    return tuple(sorted(concrete, key=lambda fault: fault.at_s))  # stable: ties keep their order


def _settle(world: World, fault: Fault, stream: Stream) -> Fault:
    if isinstance(fault, DomainLoss):
        nodes = world.domains()[fault.domain]
        return Crash(node=nodes, at_s=fault.at_s, until_s=fault.until_s)
    if getattr(fault, "domain", None) is not None:
        return fault.replace(node=targets(world, fault), domain=None)
    if getattr(fault, "node", None) == "random":
        return fault.replace(node=targets(world, fault, stream)[0])
    return fault


def sides(fault: Partition, size: int) -> npt.NDArray[np.int32]:
    """The group number of every node in a partition; nodes in no group come last.

    A message passes where the numbers are equal; in a one-way partition also from a higher number
    to a lower one.
    """
    groups: Iterable[tuple[int, ...]]
    if fault.groups is not None:
        groups = fault.groups
    elif isinstance(fault.node, int):
        groups = ((fault.node,),)
    elif isinstance(fault.node, tuple):
        groups = (fault.node,)
    else:
        raise FaultError("Partition.node", "is not settled yet", "take it from world.schedule()")
    groups = tuple(groups)
    side = np.full(size, len(groups), dtype=np.int32)
    for number, group in enumerate(groups):
        side[list(group)] = number
    return side
