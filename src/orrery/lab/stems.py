"""Stems: the TOML files of the systems, found and read without importing any code.

A stem is `<room>/<stem>.toml` (what was published) beside `<room>/<stem>.py` (the code). A third
party adds its own through the entry point group `orrery.systems`, whose value names a package
that is laid out like `orrery.systems` or like one room.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from orrery.base.errors import OrreryError, StemError, did_you_mean
from orrery.lab.cache import read_cache, write_cache
from orrery.lab.claims import Claim, tidy

GROUP = "orrery.systems"
HOME_PACKAGE = "orrery.systems"
# Folders inside a room that hold no stems (at the top, `data` is a room).
NO_STEMS = frozenset({"problems", "data"})
MOST_STEM_B = 1 << 20


class WorksWhen(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One acceptance line of a system; `test` names the test that judges it."""

    n: int
    text: str
    test: str = ""


class Stem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """The TOML of a system, as it is written."""

    id: str
    name: str
    room: str
    origin: Literal["catalogue", "classic"] = "catalogue"
    title: str = ""
    arxiv: str = ""
    date: str = ""
    date_note: str = ""
    how: Literal["real", "virtual", "both"] = "virtual"
    size: str = ""
    shape: Literal["node", "worker", "policy", "routine", "estimator"]
    problem: str = ""
    class_: str = ""
    job: str = ""
    mechanisms: list[str] = []
    rivals: list[str] = []
    baselines: list[str] = []
    libraries: list[str] = []
    notes: str = ""
    paper: dict[str, str | int] = {}
    works_when: list[WorksWhen] = []
    claims: list[Claim] = []


# -- finding


def packages() -> list[tuple[str, Path, bool]]:
    """(package name, folder, whether it is ours) of every package that holds rooms."""
    found = [(HOME_PACKAGE, folder, True) for folder in folders_of(HOME_PACKAGE)]
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        found += [(point.module, folder, False) for folder in folders_of(point.module)]
    return found


def folders_of(package: str) -> list[Path]:
    """The folders of a package, found without importing it (its parents are imported)."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return []
    return [Path(place) for place in spec.submodule_search_locations or ()]


def stems_under(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Every stem's TOML under a folder, in order; a stem that is a package is not entered."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    tomls = {name[:-5] for name in names if name.endswith(".toml")}
    for name in names:
        path = folder / name
        if name.startswith((".", "_")):
            continue
        if name.endswith(".toml"):
            yield path
        elif "." not in name and name not in tomls and not (depth and name in NO_STEMS):
            yield from stems_under(path, depth + 1)


# -- reading


def read_stem(path: Path) -> Stem:
    """One stem, checked; a fault is a `StemError` that names the file and the field."""
    try:
        if path.stat().st_size > MOST_STEM_B:
            raise StemError(str(path), "is larger than 1 MiB", "a stem is a short text file")
        data = tomllib.loads(path.read_bytes().decode())
    except OSError as failure:
        raise StemError(str(path), f"cannot be read: {failure.strerror}", "check it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise StemError(str(path), f"is not TOML: {failure}", "mend that line") from None
    unknown = [key for key in data if key not in _STEM_KEYS]
    if unknown:
        fix = did_you_mean(unknown[0], _STEM_KEYS)
        raise StemError(f"{path}: {unknown[0]}", "no such field", fix)
    if hasattr(data.get("date"), "isoformat"):
        data["date"] = data["date"].isoformat()  # TOML has dates of its own
    try:
        stem = msgspec.convert(tidy(data), Stem)
    except (msgspec.ValidationError, RecursionError) as failure:
        raise StemError(str(path), f"{failure}", "mend that field") from None
    _check_stem(stem, path)
    return stem


_STEM_KEYS = frozenset(Stem.__struct_encode_fields__)


def _check_stem(stem: Stem, path: Path) -> None:
    if stem.id.replace("-", "_") != path.stem:
        fix = f"the file of {stem.id!r} is {stem.id.replace('-', '_')}.toml"
        raise StemError(f"{path}: id", f"{stem.id!r} does not match the file's name", fix)
    if not stem.id.replace("-", "").replace("_", "").isalnum() or not stem.id.isascii():
        raise StemError(f"{path}: id", f"{stem.id!r} is not a word", "use a-z, 0-9 and -")
    numbers = [line.n for line in stem.works_when]
    if len(set(numbers)) != len(numbers):
        raise StemError(f"{path}: works_when", f"numbers {numbers} repeat", "number each once")
    for i, claim in enumerate(stem.claims):
        try:
            claim.check()
        except OrreryError as error:
            raise StemError(f"{path}: claims[{i}]", str(error), "mend that claim") from None


class Shelf(msgspec.Struct):
    """Stems parsed before, by path, kept until the file's size or time changes.

    Parsing 135 TOML files takes longer than the rest of `orrery list` together.
    """

    stamp: str
    stems: dict[str, tuple[int, int, Stem]] = {}
    changed: bool = False
    used: set[str] = set()

    @classmethod
    def load(cls) -> Shelf:
        """The shelf as it was left, or an empty one when this code has changed since."""
        here = Path(__file__)
        stamp = " ".join(str(p.stat().st_mtime_ns) for p in (here, here.with_name("claims.py")))
        try:
            kept = msgspec.json.decode(read_cache("stems.json"), type=cls)
        except msgspec.MsgspecError:
            return cls(stamp)
        return kept if kept.stamp == stamp else cls(stamp)

    def read(self, path: Path) -> Stem:
        """A stem from the shelf, or from its file."""
        name = str(path)
        self.used.add(name)
        try:
            stat = path.stat()
        except OSError:
            return read_stem(path)
        kept = self.stems.get(name)
        if kept is not None and kept[:2] == (stat.st_size, stat.st_mtime_ns):
            return kept[2]
        stem = read_stem(path)
        self.stems[name] = (stat.st_size, stat.st_mtime_ns, stem)
        self.changed = True
        return stem

    def save(self) -> None:
        """Keep the shelf for the next time, without files that are gone."""
        if self.changed or self.used != set(self.stems):
            self.stems = {k: v for k, v in self.stems.items() if k in self.used}
            self.changed, self.used = False, set()
            write_cache("stems.json", msgspec.json.encode(self))
