"""The world: all that a run happens in, as frozen, checked, hashable data."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from orrery.base.errors import FaultError, WorldError, did_you_mean
from orrery.base.rand import Stream
from orrery.base.units import show
from orrery.world import hardware, paths, schedule
from orrery.world.faults import Fault
from orrery.world.graphs import check_connected
from orrery.world.hardware import Accelerator, Machine
from orrery.world.makers import Makers
from orrery.world.network import Network
from orrery.world.processors import Processors
from orrery.world.spec import Count, Name, Spec, Text, brief, build, to_data
from orrery.world.surroundings import Clocks, ObjectStore, Power, Prices
from orrery.world.wiring import Wiring, wire

MOST_NODES = 10_000_000
# Notes for people: they say where a figure comes from and do not change what happens.
NOT_HASHED = frozenset({"source", "title"})
# Fields that came after worlds had been judged in: at these values a world is what it was.
LATER: dict[str, Any] = {"latency_sigma": 0.0}


class Group(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many equal machines in one place. The name is the role that they play."""

    label: ClassVar[str] = "group"
    name: Name = "node"
    count: Count
    machine: Name = "server"
    site: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_+\- ]{0,63})?$")] = ""


class World(Makers, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Machines in groups, a network, what surrounds them, and faults over time.

    Node ids are 0 to size - 1, in the order of the groups. Groups of one name must stand together;
    they may differ in site and machine. `over_budget` says that the faults exceed what the part
    tolerates on purpose, and that the checker is expected to notice.

    >>> world = World.lan(5, drop=0.1)
    >>> world.size, world.network.drop
    (5, 0.1)
    """

    label: ClassVar[str] = "world"
    unchecked: ClassVar[frozenset[str]] = frozenset({"faults"})

    title: Text = ""
    groups: Annotated[tuple[Group, ...], Meta(min_length=1, max_length=100_000)]
    network: Network = Network()
    machines: dict[Name, Machine] = {}
    store: ObjectStore = ObjectStore()
    clocks: Clocks = Clocks()
    power: Power = Power()
    prices: Prices = Prices()
    # Left out, nothing waits for a processor, and the hash is that of a world without the field.
    processors: Processors | None = None
    faults: tuple[Fault, ...] = ()
    over_budget: bool = False

    # -- checking

    def _prepare(self) -> None:
        if not isinstance(self.faults, (list, tuple)):
            raise FaultError("world.faults", f"{brief(self.faults)} is refused", "give a tuple")
        for i, fault in enumerate(self.faults):
            if not isinstance(fault, Fault):
                fix = "give faults such as Crash(node=0, at_s=1.0)"
                raise FaultError(f"world.faults.{i}", f"{brief(fault)} is refused", fix)
        msgspec.structs.force_setattr(self, "faults", tuple(self.faults))

    def _check(self) -> None:
        used: dict[str, Machine] = {}
        for i, group in enumerate(self.groups):
            given = self.machines.get(group.machine)
            if given is None and group.machine not in hardware.catalogue_names("machines"):
                known = (*self.machines, *hardware.catalogue_names("machines"))
                problem = f"there is no machine {group.machine!r}"
                fix = did_you_mean(group.machine, known)
                raise WorldError(f"world.groups.{i}.machine", problem, fix)
            used[group.machine] = given or hardware.machine(group.machine)
        # The catalogue's figures are copied in, so the hash covers them and a file stands alone.
        machines = dict(sorted((self.machines | used).items()))
        msgspec.structs.force_setattr(self, "machines", machines)
        if self.size > MOST_NODES:
            raise self._refuse("groups", f"have {self.size} nodes", f"give at most {MOST_NODES}")
        last: dict[str, int] = {}
        for i, group in enumerate(self.groups):
            if last.get(group.name, i - 1) != i - 1:
                path = f"groups.{i}.name"
                fix = "put the groups of one name next to one another"
                raise self._refuse(path, f"{group.name!r} comes again", fix)
            last[group.name] = i
        self.accelerators  # noqa: B018 - checks that one name means one accelerator
        self._check_topology()
        for i, fault in enumerate(self.faults):
            schedule.check_against(self, fault, f"world.faults.{i}")

    def _check_topology(self) -> None:
        topology, size = self.network.topology, self.size
        path = "network.topology"
        if topology.kind == "fat_tree" and topology.k and size > topology.k**3 // 4:
            most = topology.k**3 // 4
            raise self._refuse(f"{path}.k", f"{topology.k} carries {most} nodes", f"not {size}")
        if topology.kind == "torus":
            room = functools.reduce(lambda a, b: a * b, topology.dims, 1)
            if room != size:
                problem = f"{topology.dims} has {room} places for {size} nodes"
                raise self._refuse(f"{path}.dims", problem, "make them equal")
        if topology.kind == "graph":
            if topology.names and len(topology.names) != size:
                problem = f"has {len(topology.names)} names for {size} nodes"
                raise self._refuse(f"{path}.names", problem, "make them equal")
            check_connected(size, topology.edges)
        if topology.kind == "random" and topology.degree and topology.degree >= max(size, 2):
            problem = f"{topology.degree} is too many for {size} nodes"
            raise self._refuse(f"{path}.degree", problem, f"give at most {max(size - 1, 1)}")
        for i, group in enumerate(self.groups):
            if topology.kind == "wan" and group.site not in topology.sites:
                fix = did_you_mean(group.site, topology.sites)
                raise self._refuse(f"groups.{i}.site", f"there is no site {group.site!r}", fix)

    # -- nodes

    @functools.cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(group.count for group in self.groups))

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return self._ends[-1]

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the groups, each once, in order."""
        return tuple(dict.fromkeys(group.name for group in self.groups))

    def group_of(self, index: int) -> Group:
        """The group of a node."""
        if not 0 <= index < self.size:
            problem = f"there is no node {brief(index)}"
            raise WorldError("world", problem, f"give 0 to {self.size - 1}")
        return self.groups[bisect.bisect_right(self._ends, index)]

    def role_of(self, index: int) -> str:
        """The role of a node."""
        return self.group_of(index).name

    def machine_of(self, index: int) -> Machine:
        """The machine of a node."""
        return self.machines[self.group_of(index).machine]

    def members(self, role: str) -> range:
        """The ids of the nodes of a role."""
        places = [i for i, group in enumerate(self.groups) if group.name == role]
        if not places:
            fix = did_you_mean(role, self.roles)
            raise WorldError("world.groups", f"there is no role {role!r}", fix)
        first = self._ends[places[0]] - self.groups[places[0]].count
        return range(first, self._ends[places[-1]])

    def domains(self) -> dict[str, tuple[int, ...]]:
        """The nodes of every group and every site, by name; of equal names the group counts."""
        found: dict[str, list[int]] = {}
        for group, end in zip(self.groups, self._ends, strict=True):
            if group.site and group.site not in self.roles:
                found.setdefault(group.site, []).extend(range(end - group.count, end))
        named = {role: tuple(self.members(role)) for role in self.roles}
        return named | {site: tuple(nodes) for site, nodes in found.items()}

    @property
    def accelerators(self) -> dict[str, Accelerator]:
        """Every accelerator in the machines, by name."""
        found: dict[str, Accelerator] = {}
        for name, machine in self.machines.items():
            for i, item in enumerate(machine.accelerators):
                if found.setdefault(item.name, item) != item:
                    path = f"machines.{name}.accelerators.{i}"
                    fix = "give it a name of its own"
                    raise self._refuse(path, f"another {item.name!r} has other figures", fix)
        return dict(sorted(found.items()))

    def wiring(self) -> Wiring:
        """The topology as arithmetic; made once and kept."""
        return self._wiring

    @functools.cached_property
    def _wiring(self) -> Wiring:
        return wire(self)

    # -- faults

    def with_faults(self, *faults: Fault, over_budget: bool | None = None) -> World:
        """The same world with more faults, checked against it."""
        more = {} if over_budget is None else {"over_budget": over_budget}
        return self.replace(faults=self.faults + faults, **more)

    def schedule(self, seed: int = 0) -> tuple[Fault, ...]:
        """The concrete faults that an engine follows with this seed, in order of time."""
        return schedule.schedule(self, seed)

    def targets(self, fault: Fault, stream: Stream | None = None) -> tuple[int, ...]:
        """The nodes that a fault hits."""
        return schedule.targets(self, fault, stream)

    # -- variants

    def with_(self, *, changes: Mapping[str, Any] | None = None, **fields: Any) -> World:
        """The same world with some fields changed.

        A table changes only what it names: `world.with_(network={"drop": 0.1})`. Dotted paths go
        in `changes`, or as keywords by `**{"network.drop": 0.1}`.
        """
        document = self.to_data()
        for path, value in {**(changes or {}), **fields}.items():
            if "." in path:
                paths.write(document, path, value)
            elif isinstance(value, Mapping) and isinstance(document.get(path), dict):
                for key, inner in value.items():
                    paths.write(document, f"{path}.{key}", inner)
            else:
                paths.write(document, path, to_data(value))
        return World.from_data(document)

    def with_param(self, path: str, value: Any) -> World:
        """The same world with one figure changed: `with_param("network.latency_s", 0.01)`."""
        return self.with_(changes={path: value})

    def param(self, path: str) -> Any:
        """One figure: `param("network.latency_s")`, `param("machines.server.disk.fsync_s")`.

        >>> World.lan(3).param("network.topology.kind")
        'lan'
        """
        return paths.read(self.to_data(), self, path)

    # -- in and out

    def to_data(self) -> dict[str, Any]:
        """Plain dicts and lists; accelerators stand once, in a table of their own."""
        data: dict[str, Any] = to_data(self)
        for machine in data["machines"].values():
            machine["accelerators"] = [item["name"] for item in machine["accelerators"]]
        named = {name: to_data(item) for name, item in self.accelerators.items()}
        for item in named.values():
            del item["name"]
        if named:
            data["accelerators"] = named
        return data

    @classmethod
    def from_data(cls, data: Any) -> World:
        """A world from plain data, as `to_data` gives it."""
        if not isinstance(data, Mapping):
            raise WorldError("world", f"{brief(data)} is refused", "give a table of fields")
        fields = dict(data)
        own = fields.pop("accelerators", {})
        if not isinstance(own, Mapping):
            raise WorldError("accelerators", f"{brief(own)} is refused", "give a table")
        made: dict[str, Accelerator] = {}
        for name, item in own.items():
            if not isinstance(item, Mapping):
                problem = f"{brief(item)} is refused"
                raise WorldError(f"accelerators.{name}", problem, "give a table")
            made[name] = build(Accelerator, {"name": name, **item}, f"accelerators.{name}")
        machines = fields.get("machines", {})
        if isinstance(machines, Mapping):
            fields["machines"] = {
                name: _equip(machine, made) for name, machine in machines.items()
            }  # fmt: skip
        if "faults" in fields:
            fields["faults"] = schedule.faults_from(fields["faults"])
        try:
            return build(cls, fields, "")
        except RecursionError:
            raise WorldError("world", "is nested too deeply", "flatten it") from None

    def to_toml(self) -> str:
        """The world as TOML; `World.from_toml` gives an equal world."""
        import tomli_w  # only who writes a world needs it

        return tomli_w.dumps(self.to_data())

    @classmethod
    def from_toml(cls, text: str) -> World:
        """A world from TOML text."""
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as failure:
            raise WorldError("world", f"is not TOML: {failure}", "mend that line") from None
        return cls.from_data(data)

    @classmethod
    def load(cls, path: str | Path) -> World:
        """A world from a TOML (or .json) file."""
        return cls.from_data(schedule.parse_text(Path(path), WorldError))

    def save(self, path: str | Path) -> Path:
        """Write the world as TOML, whole or not at all."""
        target = Path(path)
        text = self.to_toml()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(name, target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise WorldError(str(target), f"cannot be written: {reason}", "check it") from None
        return target

    # -- identity

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits that name what the world is; notes (`title`, `source`) do not count."""
        text = json.dumps(_bare(self.to_data()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def summary(self) -> dict[str, str]:
        """What a person wants to see first, by label."""
        net = self.network
        groups = ", ".join(
            f"{group.count} {group.name}" + (f" in {group.site}" if group.site else "")
            for group in self.groups[:6]
        )
        more = f" and {len(self.groups) - 6} groups" if len(self.groups) > 6 else ""
        loss = f", drop {net.drop:g}" if net.drop else ""
        figures = f"{show(net.latency_s, 's')}, {show(net.bandwidth_Bps, 'Bps')}{loss}"
        found = {
            "nodes": groups + more,
            "network": f"{net.topology.kind}, {net.model}, {figures}",
            "accelerators": ", ".join(self.accelerators),
            "faults": ", ".join(dict.fromkeys(fault.kind for fault in self.faults)),
            "hash": self.hash,
        }
        return {label: text for label, text in found.items() if text}

    def __repr__(self) -> str:
        parts = "; ".join(f"{label} {text}" for label, text in self.summary().items())
        return f"World({self.title + ': ' if self.title else ''}{parts})"

    def _repr_html_(self) -> str:
        from orrery.world import show as cells  # only a notebook needs it

        return cells.facts(f"World: {self.title}" if self.title else "World", self.summary())


def _bare(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            key: _bare(value)
            for key, value in data.items()
            if key not in NOT_HASHED and LATER.get(key, data) != value
        }
    return [_bare(each) for each in data] if isinstance(data, list) else data


def _equip(machine: Any, made: Mapping[str, Accelerator]) -> Any:
    """Put a file's own accelerators in the place of their names."""
    if not isinstance(machine, Mapping) or not isinstance(machine.get("accelerators"), list):
        return machine
    found: list[Any] = []
    for item in machine["accelerators"]:
        count, _, name = item.partition("x") if isinstance(item, str) else ("", "", "")
        if isinstance(item, str) and item in made:
            found.append(made[item])
        elif count.isdigit() and name in made:
            found += [made[name]] * min(int(count), 1025)
        else:
            found.append(item)
    return {**machine, "accelerators": found}
