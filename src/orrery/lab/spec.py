"""The spec of a run: all that decides its result, as plain data whose hash names the run.

It holds the part and the problem with every knob, the hash of the world, the seed, the engine,
and hashes of the code: of the modules that the part and the problem use, and of the core below
them. A run saved under another version of any of these has another id, so a comparison that is
taken up again never mixes the two.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import StoreError
from orrery.parts.knobs import Part

if TYPE_CHECKING:
    from orrery.lab.run import Run
    from orrery.world import World

# What every run rests on, whatever the part; the rooms are hashed by the modules in use.
CORE = ("base", "world", "parts", "check", "inputs", "models", "engines")
SOURCES = (".py", ".c", ".h", ".toml", ".csv")


def spec_of(
    part: Any,
    *,
    problem: Part | None = None,
    world: World,
    seed: int = 0,
    engine: str = "virtual",
    until_s: float | None = None,
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> dict[str, Any]:
    """The spec of one run. `name` (an id, for people) is shown and does not change the hash."""
    import orrery

    told = describe(part)
    if name:
        told["name"] = name
    used: dict[str, str] = {}
    for one in [*_parts_of(part), *([problem] if problem is not None else [])]:
        cls: type = type(one)
        used.update(sources(cls))
    return {
        "part": told,
        "problem": describe(problem) if problem is not None else None,
        "world": world.hash,
        "seed": seed,
        "engine": engine,
        "until_s": until_s,
        "options": canonical(dict(options or {}), "options"),
        "version": orrery.__version__,
        "core": core_hash(),
        "sources": dict(sorted(used.items())),
    }


def spec_id(spec: dict[str, Any]) -> str:
    """The id of a run: the first digits of the SHA-256 of its canonical spec."""
    bare = {**spec, "part": _nameless(spec["part"])}
    data = msgspec.json.encode(bare, order="deterministic")
    from orrery.lab.store import ID_DIGITS

    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]


def _nameless(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != "name"}


def _parts_of(part: Any) -> list[Any]:
    return list(part.values()) if isinstance(part, Mapping) else [part]


def describe(part: Any) -> dict[str, Any]:
    """A part (or {role: part}) as data: its class and every knob."""
    if isinstance(part, Mapping):
        return {"roles": {str(role): describe(each) for role, each in part.items()}}
    cls = type(part)
    told: dict[str, Any] = {"class": f"{cls.__module__}:{cls.__qualname__}"}
    if isinstance(part, Part):
        told["knobs"] = {
            knob: canonical(value, f"{cls.__name__}.{knob}")
            for knob, value in sorted(part.knobs().items())
        }
    return told


def canonical(value: Any, path: str) -> Any:
    """A knob's value as JSON data that is the same in every process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # inf and nan as words
    if isinstance(value, Part):
        return describe(value)
    if isinstance(value, enum.Enum):
        return canonical(value.value, path)
    if isinstance(value, Mapping):
        return {str(k): canonical(v, path) for k, v in sorted(value.items(), key=_key_text)}
    if isinstance(value, list | tuple):
        return [canonical(each, path) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((canonical(each, path) for each in value), key=repr)
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    return _canonical_other(value, path)


def _key_text(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _canonical_other(value: Any, path: str) -> Any:
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        shape = [int(n) for n in value.shape]
        data = hashlib.sha256(value.tobytes()).hexdigest()
        return {"dtype": str(value.dtype), "shape": shape, "data": data}
    if isinstance(value, os.PathLike):
        return _file(Path(value))
    if hasattr(value, "hash") and hasattr(value, "to_data"):
        return {"world": value.hash}
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {"struct": type(value).__qualname__, **canonical(fields, path)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"struct": type(value).__qualname__, **canonical(told, path)}
    name = getattr(value, "__qualname__", "")
    if name and "<" not in name:  # a function or a class, but no lambda
        return f"{value.__module__}:{name}"
    fix = "use numbers, text, containers, parts, structs or named functions"
    raise StoreError(f"{path}: a {type(value).__name__} cannot stand in a spec; {fix}")


def _file(path: Path) -> dict[str, str]:
    """A file counts by what is in it."""
    try:
        return {"file": hashlib.sha256(path.read_bytes()).hexdigest()}
    except OSError:
        return {"path": str(path)}


# -- code


@functools.lru_cache(maxsize=4096)
def sources(cls: type) -> dict[str, str]:
    """The hash of every module outside the core that a class's code can reach, by name."""
    tops = {"orrery.systems", cls.__module__.partition(".")[0]} - {"orrery", "builtins"}
    todo = [each.__module__ for each in cls.__mro__]
    found: dict[str, str] = {}
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        inside = any(name == top or name.startswith(top + ".") for top in tops)
        if module is None or name in found or not inside:
            continue
        found[name] = _source_hash(module)
        for value in list(vars(module).values()):
            other = value.__name__ if inspect.ismodule(value) else getattr(
                value, "__module__", None)  # fmt: skip
            if isinstance(other, str) and other not in found:
                todo.append(other)
    return found


def _source_hash(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    try:
        data = Path(path).read_bytes() if path else b""
    except OSError:
        data = b""
    return hashlib.sha256(data).hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def core_hash() -> str:
    """16 hex digits of the source of everything below the rooms."""
    import orrery

    root = Path(orrery.__file__).parent
    digest = hashlib.sha256()
    for room in CORE:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def environment(run: Run) -> dict[str, Any]:
    """Where and with what a run was made; for people, not part of its identity."""
    import numpy

    import orrery

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "orrery": orrery.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "kernel": run.extra.get("kernel"),
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
    }
