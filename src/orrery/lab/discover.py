"""Finds every system, classic and problem by reading files, without importing any of them.

A system is a *stem*: `<room>/<stem>.toml` says what was published, `<room>/<stem>.py` (or a
package of that name) is the code. A TOML without a module is *planned*. Classics live in
`<room>/baselines/`, problems in `<room>/problems/`. A third party adds its own through the entry
point group `orrery.systems`, whose value names a package that is laid out like `orrery.systems`
or like one room. What was measured comes from the ledger.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, PartError, StemError, UsageError, did_you_mean
from orrery.lab.claims import Claim
from orrery.lab.ledger import Ledger
from orrery.lab.questions import ask_problem, problem_class, problems, question, questions, where
from orrery.lab.stems import (
    GROUP,
    HOME_PACKAGE,
    Shelf,
    Stem,
    WorksWhen,
    folders_of,
    packages,
    read_stem,
    stems_under,
)

__all__ = [
    "Entry", "Found", "Stem", "ask_problem", "entries", "find", "load", "of_problem", "packages",
    "problem_class", "problems", "question", "questions", "scan", "where",
]  # fmt: skip


class Entry(msgspec.Struct, kw_only=True):
    """A system as `orrery list` shows it: what was published and what was measured here."""

    id: str
    room: str
    name: str
    title: str
    origin: str
    shape: str
    problem: str
    status: str = "planned"
    engines: list[str] = []
    works_when: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    stem: Stem
    module: str = ""
    path: str = ""

    @property
    def paper(self) -> dict[str, Any]:
        """Where it was published."""
        stem = self.stem
        found = {"title": stem.title, "arxiv": stem.arxiv, "date": stem.date}
        return {k: v for k, v in {**found, "note": stem.date_note, **stem.paper}.items() if v}

    @property
    def built(self) -> bool:
        """Whether there is code."""
        return self.status != "planned"

    def listed(self) -> dict[str, Any]:
        """The row of `orrery list --json`."""
        names = ("id", "room", "name", "title", "origin", "shape", "problem", "status", "engines",
                 "works_when", "claims")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def shown(self) -> dict[str, Any]:
        """All of it, for `orrery show ID --json`."""
        stem = self.stem
        return {
            **self.listed(), "paper": self.paper, "how": stem.how, "job": stem.job,
            "mechanisms": stem.mechanisms, "rivals": stem.rivals, "baselines": stem.baselines,
            "libraries": stem.libraries, "notes": stem.notes, "module": self.module,
            "published": [msgspec.to_builtins(claim) for claim in stem.claims],
        }  # fmt: skip


class Found(msgspec.Struct):
    """The outcome of one scan: what is well formed, and what is not, by path."""

    entries: list[Entry]
    errors: list[StemError]


# -- reading


def scan(ledger: Ledger | None = None) -> Found:
    """Read every stem of every package; a malformed one is an error beside the others."""
    found = Found([], [])
    seen: dict[str, str] = {}
    book = ledger if ledger is not None else Ledger.default()
    shelf = Shelf.load()
    for package, folder, ours in _safe_packages(found.errors):
        for path in stems_under(folder):
            try:
                entry = read_entry(path, folder, package, ours, book, shelf.read)
                if entry.id in seen:
                    raise StemError(f"{path}: id", f"{entry.id!r} is already that of "
                                    f"{seen[entry.id]}", "choose another id")  # fmt: skip
            except StemError as error:
                found.errors.append(error)
                continue
            seen[entry.id] = str(path)
            found.entries.append(entry)
    shelf.save()
    found.entries.sort(key=lambda e: (e.room, e.origin, e.id))
    return found


def _safe_packages(errors: list[StemError]) -> list[tuple[str, Path, bool]]:
    try:
        return packages()
    except Exception as failure:  # a broken installation of a third party must not hide ours
        errors.append(StemError(f"entry points {GROUP}", f"cannot be read: {failure}",
                                "reinstall the package that declares them"))  # fmt: skip
        return [(HOME_PACKAGE, folder, True) for folder in folders_of(HOME_PACKAGE)]


def read_entry(
    path: Path, root: Path, package: str, ours: bool, book: Ledger,
    read: Callable[[Path], Stem] = read_stem,
) -> Entry:  # fmt: skip
    """The entry of one stem: the stem, whether it has code, and what the ledger says."""
    stem = read(path)
    name = os.fspath(path)
    inside = tuple(os.path.relpath(name, root).split(os.sep)[:-1])
    if ours and (not inside or stem.room != inside[0]):
        where = inside[0] if inside else "no room"
        raise StemError(f"{path}: room", f"{stem.room!r}, but it stands in {where}", "make it so")
    beside = name.removesuffix(".toml")
    built = os.path.isfile(beside + ".py") or os.path.isfile(os.path.join(beside, "__init__.py"))
    module = ".".join((package, *inside, os.path.basename(beside))) if built else ""
    entry = Entry(
        id=stem.id, room=stem.room, name=stem.name, title=stem.title, origin=stem.origin,
        shape=stem.shape, problem=stem.problem, stem=stem, module=module, path=str(path),
    )  # fmt: skip
    entry.engines = book.engines(stem.id)
    entry.works_when = [
        _works_when_row(line, book.works_when(stem.id, line.n, line.text))
        for line in stem.works_when
    ]
    _judge(entry, book, quick=True)
    return entry


def _judge(entry: Entry, book: Ledger, *, quick: bool) -> None:
    """Set what the ledger says of the claims, and the status that follows."""
    stem = entry.stem
    entry.claims = [
        _claim_row(claim, book.verdict(stem.id, claim, stem.problem, quick=quick))
        for claim in stem.claims
    ]
    entry.status = _status(entry, built=bool(entry.module))


def _works_when_row(line: WorksWhen, record: dict[str, Any] | None) -> dict[str, Any]:
    record = record or {}
    return {
        "n": line.n, "text": line.text, "test": line.test or record.get("test") or None,
        "state": record.get("state"), "reason": record.get("reason"),
    }  # fmt: skip


def _claim_row(claim: Claim, record: dict[str, Any] | None) -> dict[str, Any]:
    record = record or {}
    names = ("verdict", "measured", "lo", "hi", "off")
    return {
        "metric": claim.metric, "says": claim.says, "against": claim.against or None,
        **{name: record.get(name) for name in names},
        "kind": record.get("value_kind"), "date": record.get("date"),
    }  # fmt: skip


def _status(entry: Entry, built: bool) -> str:
    if not built:
        return "planned"
    testable = [
        row for row, claim in zip(entry.claims, entry.stem.claims, strict=True) if claim.testable
    ]
    # Where nothing was promised, nothing has been checked.
    if not testable and not entry.works_when:
        return "working"
    judged = all(row["verdict"] for row in testable)
    met = all(line["state"] in ("met", "impossible-here") for line in entry.works_when)
    return "checked" if judged and met else "working"


# -- asking


@functools.lru_cache(maxsize=1)
def _reported(errors: tuple[str, ...]) -> None:
    for line in errors:
        print(f"skipped: {line}", file=sys.stderr)


def entries(room: str | None = None, ledger: Ledger | None = None) -> list[Entry]:
    """Every well-formed entry, in order; malformed stems are named on stderr and left out."""
    found = scan(ledger)
    if found.errors:
        _reported(tuple(str(error) for error in found.errors))
    if room is None:
        return found.entries
    rooms = sorted({entry.room for entry in found.entries})
    if room not in rooms:
        raise UsageError(f"no room {room!r}; {did_you_mean(room, rooms)}")
    return [entry for entry in found.entries if entry.room == room]


def find(id: str, ledger: Ledger | None = None, *, quick: bool = True) -> Entry:
    """The entry of an id, or an error that names the nearest one.

    Unless `quick`, the worlds of its claims are built to see that its verdicts still count.
    """
    wanted = id.replace("_", "-")
    book = ledger if ledger is not None else Ledger.default()
    known = entries(ledger=book)
    for entry in known:
        if entry.id == id or entry.id.replace("_", "-") == wanted:
            if not quick:
                _judge(entry, book, quick=False)
            return entry
    raise UsageError(f"no system {id!r}; {did_you_mean(id, [e.id for e in known])}")


def of_problem(problem: str) -> list[Entry]:
    """Every built entry that answers a problem."""
    return [entry for entry in entries() if entry.problem == problem and entry.built]


def load(id: str, *, lint: bool = True) -> type:
    """The part class of an entry's id, or of `module:Class` (a dotted name or a .py file).

    A part whose source leaks is refused; `lint=False` is for those who look for leaks themselves.
    """
    found = _load_by_path(id) if ":" in id else _load_by_id(id)
    if lint:
        from orrery.lab.leaks import refuse

        refuse(found)
    return found


# Built entries that were loaded by id, with the size and time of their stems.
_loaded: dict[str, tuple[tuple[int, int], Entry]] = {}


def _load_by_id(id: str) -> type:
    """A sweep loads the same few ids over and over: then only the one stem is looked at."""
    stamp, entry = _loaded.get(id, (None, None))
    if entry is None or _stamp(entry.path) != stamp:
        entry = find(id)
        if entry.built:
            _loaded[id] = (_stamp(entry.path), entry)
    return load_entry(entry)


def _stamp(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return (-1, -1)
    return stat.st_size, stat.st_mtime_ns


def load_entry(entry: Entry) -> type:
    """The part class of an entry that is at hand; nothing is looked for in its source."""
    if not entry.built:
        raise UsageError(f"{entry.id} is planned: {Path(entry.path).name} has no module beside it")
    module = _import(entry.module)
    return _the_part(module, entry)


def _the_part(module: ModuleType, entry: Entry) -> type:
    from orrery.parts import Part, Problem

    if entry.stem.class_:
        cls = getattr(module, entry.stem.class_, None)
        if not (inspect.isclass(cls) and issubclass(cls, Part)):
            raise StemError(f"{entry.path}: class", f"{entry.stem.class_!r} is no part of "
                            f"{entry.module}", "name the class of the part")  # fmt: skip
        return cls
    own = parts_in(module, Part, Problem)
    if len(own) != 1:
        names = ", ".join(cls.__name__ for cls in own) or "none"
        raise StemError(f"{entry.path}: class", f"the module has these parts: {names}",
                        'say which one: class = "Name"')  # fmt: skip
    return own[0]


def parts_in(module: ModuleType, base: type, but_not: type) -> list[type]:
    """The public subclasses of `base` that a module (or its submodules) defines, in order."""
    found: list[type] = []
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isclass(value) or value in found:
            continue
        home = value.__module__
        local = home == module.__name__ or home.startswith(module.__name__ + ".")
        if local and issubclass(value, base) and not issubclass(value, but_not):
            found.append(value)
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except OrreryError:
        raise
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise PartError(f"{name} cannot be imported: {why}") from failure


def _load_by_path(text: str) -> type:
    from orrery.parts import Part

    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(f"{text!r}: give module:Class, for example my_router:MyRouter")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_here(place)
    cls = getattr(module, name, None)
    if not (inspect.isclass(cls) and issubclass(cls, Part)):
        known = [each.__name__ for each in parts_in(module, Part, type(None))]
        raise UsageError(f"{place} has no part {name!r}; {did_you_mean(name, known)}")
    return cls


def _import_here(name: str) -> ModuleType:
    """Import by dotted name, also from the current folder, as `python -m` would."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return _import(name)
    finally:
        if added:
            sys.path.remove(here)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    name = path.stem
    if name in sys.stdlib_module_names or not name.isidentifier():
        name = f"orrery_file_{zlib.crc32(name.encode())}"  # never shadow a standard module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except OrreryError:
        raise
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise PartError(f"{path} cannot be imported: {why}") from failure
    return module
