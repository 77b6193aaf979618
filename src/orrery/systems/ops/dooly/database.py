"""The latency database: measured seconds by key and request size, of one device.

What is in it is not measured again. A database of another device is refused, because nothing in it
says what this one takes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from orrery.base.errors import SpecError
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.operators import DATA, Key, Operator, Use, uses
from orrery.systems.ops.dooly.sweep import Point, Sweep

SCHEMA = "orrery.dooly/1"


class Meter(Protocol):
    """What takes measurements: on a device, or from tables that stand for one."""

    device: str
    backends: dict[str, str]
    spent_s: float

    def measure(self, key: Key, points: Sequence[Point]) -> list[float]:
        """Seconds at each point; the device time that this took is added to `spent_s`."""


class Entry(msgspec.Struct):
    """The measurements of one key: points and seconds, in the order in which they were taken."""

    key: Key
    points: list[Point]
    seconds: list[float]


class Report(msgspec.Struct):
    """What profiling a model took: points measured and already there, keys with data in them."""

    model: str
    measured: list[tuple[Key, Point]] = []
    skipped: list[tuple[Key, Point]] = []
    data: list[Key] = []
    device_s: float = 0.0

    @property
    def new_keys(self) -> list[Key]:
        """Keys that the database did not have, or not far enough."""
        return list({key.code: key for key, _ in self.measured}.values())


class Database:
    """Measurements of one device."""

    def __init__(self, device: str, about: str = "") -> None:
        if not device:
            raise SpecError("device", "is empty", "name the device that is measured")
        self.device, self.about = device, about
        self.entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def of_device(self, device: str) -> Database:
        """Itself, or a named error when another device was measured."""
        if device != self.device:
            fix = f"profile {device}, or give its database"
            raise SpecError("database.device", f"measured on {self.device}, not {device}", fix)
        return self

    def find(self, key: Key) -> Entry:
        """The entry of exactly this key; none that is merely like it will do."""
        self.of_device(key.device)
        entry = self._entry(key)
        if entry is None:
            raise SpecError("key", f"{key.text} was not measured", "profile a model that has it")
        return entry

    def _entry(self, key: Key) -> Entry | None:
        entry = self.entries.get(key.code)
        return entry if entry is not None and entry.key == key else None

    def missing(self, key: Key, points: Iterable[Point]) -> list[Point]:
        """The redundancy check: which points of a sweep are not there."""
        self.of_device(key.device)
        entry = self._entry(key)
        have = set(entry.points) if entry is not None else set()
        return [point for point in points if point not in have]

    def add(self, key: Key, points: Sequence[Point], seconds: Sequence[float]) -> None:
        """File measurements; a time that cannot be is refused before anything is filed."""
        self.of_device(key.device)
        if len(points) != len(seconds):
            raise SpecError("seconds", f"{len(points)} points, {len(seconds)} times", "give both")
        for each in seconds:
            if not (isinstance(each, int | float) and 0 < each < 1e6):
                raise SpecError(key.text, f"{each!r} s is refused", "measure it again")
        entry = self.entries.setdefault(key.code, Entry(key, [], []))
        if entry.key != key:
            fix = "give keys longer codes"
            raise SpecError(key.text, f"has the code of {entry.key.text}", fix)
        entry.points += [tuple(point) for point in points]
        entry.seconds += [float(each) for each in seconds]

    # -- files

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON, whole or not at all."""
        target = Path(path)
        data = {"schema": SCHEMA, "device": self.device, "about": self.about,
                "entries": [msgspec.to_builtins(each) for each in self]}  # fmt: skip
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".dooly-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, allow_nan=False)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str) -> Database:
        """Read a database of this device; one of another device is refused."""
        try:
            data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as failure:
            raise SpecError(str(path), f"cannot be read: {failure}", "profile again") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise SpecError(f"{path}: schema", "is not that of a latency database", SCHEMA)
        try:
            made = cls(data["device"], data["about"]).of_device(device)
            for each in msgspec.convert(data["entries"], list[Entry]):
                made.add(each.key, each.points, each.seconds)
        except (KeyError, TypeError, msgspec.ValidationError) as failure:
            raise SpecError(str(path), f"a field is off: {failure}", "profile again") from None
        return made


def profile(
    model: ModelSpec, meter: Meter, database: Database, sweep: Sweep, *, reuse: bool = True,
    found: Sequence[Operator] | None = None, dtype: str = "",
    on_progress: Callable[[int], None] | None = None,
) -> Report:  # fmt: skip
    """Measure what the database lacks of a model, sweeping request sizes only.

    reuse   without it, everything of the model is measured again, as if nothing were there
    """
    database.of_device(meter.device)
    before_s = meter.spent_s
    report = Report(model.name)
    used = uses(
        model, meter.device, dtype=dtype, backends=meter.backends, block_tokens=sweep.block_tokens,
        found=found,
    )  # fmt: skip
    for key, points in wanted(used, sweep, model).items():
        lacking = database.missing(key, points) if reuse else list(points)
        report.skipped += [(key, point) for point in points if point not in lacking]
        if key.kind == DATA:
            report.data.append(key)
        if lacking:
            seconds = meter.measure(key, lacking)
            report.measured += [(key, point) for point in lacking]
            new = [(p, s) for p, s in zip(lacking, seconds, strict=True)
                   if p in database.missing(key, [p])]  # fmt: skip
            database.add(key, [p for p, _ in new], [s for _, s in new])
        if on_progress is not None:
            on_progress(1)
    report.device_s = meter.spent_s - before_s
    return report


def wanted(used: Sequence[Use], sweep: Sweep, model: ModelSpec) -> dict[Key, list[Point]]:
    """Every key of a model with the points of its sweep: those of all its uses together."""
    found: dict[Key, dict[Point, None]] = {}
    for use in used:
        points = sweep.points(use, model)
        found.setdefault(use.key, {}).update(dict.fromkeys(points))
    return {key: sorted(points) for key, points in found.items()}


__all__ = ["SCHEMA", "Database", "Entry", "Meter", "Report", "profile", "wanted"]
