"""What every process of a run knows: the cast, who lives where, the faults, the run's secret."""

from __future__ import annotations

import dataclasses
import mmap
import os
from pathlib import Path
from typing import Any

from orrery.base.errors import CodecError, PartError, PlatformLacks
from orrery.engines.processes import values
from orrery.parts.monitor import Monitor
from orrery.parts.node import Node
from orrery.world import World
from orrery.world.faults import Fault

COUNTERS = (
    "messages", "bytes", "delivered", "refused", "malformed", "corrupt", "lost", "shimmed",
    "oversize", "transfers", "transfer_bytes", "steps", "idle",
)  # fmt: skip
_AT = {name: place for place, name in enumerate(COUNTERS)}


@dataclasses.dataclass
class RunSpec:
    """All that a process needs to play its part; it crosses to children by fork or by a pipe."""

    world: World
    seed: int
    cast: list[tuple[str, Node]]
    groups: list[tuple[int, ...]]  # the nodes of each process
    faults: tuple[Fault, ...]
    folder: str
    arenas: str
    secret: bytes
    host: str
    raw: bool
    max_frame_B: int
    driver: Any
    monitors: tuple[Monitor, ...] = ()  # those that want to see collectives

    def __post_init__(self) -> None:
        self.size = self.world.size  # also where nobody is cast and the problem acts alone
        self.group_of = [0] * self.size
        for group, nodes in enumerate(self.groups):
            for node in nodes:
                self.group_of[node] = group
        self._fellows: dict[int, list[int]] = {}
        self.driver_group = len(self.groups)
        self.group_of.append(self.driver_group)

    def class_of(self, node: int) -> type:
        """The user's class at a node; the driver's for the place after the last."""
        if node >= self.size:
            return type(self.driver)
        return type(self.cast[node][1]) if self.cast else Node

    def role_of(self, node: int) -> str:
        return self.cast[node][0] if node < len(self.cast) else "driver"

    def fellows(self, node: int) -> list[int]:
        """The nodes that run the same part as this one."""
        known = self._fellows
        part = self.cast[node][1]
        if id(part) not in known:
            known[id(part)] = [i for i, (_, other) in enumerate(self.cast) if other is part]
        return known[id(part)]

    def to_bytes(self) -> bytes:
        """The spec for a fresh interpreter; a part that cannot be found there is named."""
        parts = list({id(part): part for _, part in self.cast}.values())
        place = {id(part): i for i, part in enumerate(parts)}
        try:
            return values.pack({
                "world": self.world.to_toml(), "seed": self.seed, "parts": parts,
                "cast": [(role, place[id(part)]) for role, part in self.cast],
                "groups": self.groups, "folder": self.folder, "arenas": self.arenas,
                "secret": self.secret, "host": self.host, "raw": self.raw,
                "max_frame_B": self.max_frame_B, "driver": self.driver,
                "monitors": list(self.monitors),
            })  # fmt: skip
        except CodecError as error:
            raise PartError(
                f"a part cannot be started in a fresh process: {error}; or run on Linux with "
                'start="fork", which needs no names'
            ) from None

    @classmethod
    def from_bytes(cls, data: bytes) -> RunSpec:
        fields = values.unpack(data, trusted=True)
        parts = fields["parts"]
        world = World.from_toml(fields["world"])
        return cls(
            world=world, seed=fields["seed"],
            cast=[(role, parts[place]) for role, place in fields["cast"]],
            groups=fields["groups"], faults=world.schedule(fields["seed"]),
            folder=fields["folder"], arenas=fields["arenas"], secret=fields["secret"],
            host=fields["host"], raw=fields["raw"], max_frame_B=fields["max_frame_B"],
            driver=fields["driver"],
            monitors=tuple(fields["monitors"]),
        )  # fmt: skip


class Counters:
    """Numbers that outlive `kill -9`: one row of a shared file for each process.

    A process counts in its own row and nobody else writes there, so no lock is needed; the parent
    reads all rows at any time, also those of the dead.
    """

    def __init__(self, folder: str, rows: int, row: int, faults: int) -> None:
        path = Path(folder) / "counters"
        self._width = len(COUNTERS) + faults
        size = 8 * self._width * rows
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._all = memoryview(self._map).cast("q")
        self._base = row * self._width
        self._rows = rows

    def add(self, name: str, by: int = 1) -> None:
        self._all[self._base + _AT[name]] += by

    def put(self, name: str, value: int) -> None:
        self._all[self._base + _AT[name]] = value

    def get(self, name: str, row: int) -> int:
        return self._all[row * self._width + _AT[name]]

    def total(self, name: str) -> int:
        return sum(self.get(name, row) for row in range(self._rows))

    def fire(self, place: int) -> None:
        """The fault at this place of the schedule had an effect."""
        self._all[self._base + len(COUNTERS) + place] += 1

    def fired(self, place: int) -> int:
        """How often it had one, in all processes together."""
        at = len(COUNTERS) + place
        return sum(self._all[row * self._width + at] for row in range(self._rows))

    def row(self) -> list[int]:
        """All numbers of this process, for one that shares no file with the parent."""
        return self._all[self._base : self._base + self._width].tolist()

    def set_row(self, row: int, numbers: list[int]) -> None:
        """Write down what such a process counted."""
        for place, number in enumerate(numbers[: self._width]):
            self._all[row * self._width + place] = number

    def close(self) -> None:
        self._all.release()
        self._map.close()


def need_unix() -> None:
    """Refuse platforms without the things that this engine stands on."""
    for thing in ("fork", "killpg"):
        if not hasattr(os, thing):
            raise PlatformLacks(
                f"the processes engine needs os.{thing}, which this platform lacks; run it on "
                "Linux or macOS (WSL on Windows), or use the virtual engine"
            )


def group_nodes(size: int, alone: frozenset[int], per_process: int | None) -> list[tuple[int, ...]]:
    """Which nodes share a process: those that a signal must hit have one of their own."""
    if per_process is None:
        per_process = max(1, -(-(size - len(alone)) // 16))
    groups: list[tuple[int, ...]] = [(node,) for node in sorted(alone)]
    rest = [node for node in range(size) if node not in alone]
    groups += [tuple(rest[i : i + per_process]) for i in range(0, len(rest), per_process)]
    return groups


def check_options(engine: str = "ProcessEngine", **options: Any) -> None:
    """Refuse a numeric option that is not a whole number of at least one."""
    for name, value in options.items():
        if value is not None and (not isinstance(value, int) or value is True or value < 1):
            raise PartError(f"{engine}({name}={value!r}): give a whole number >= 1")
