"""The TOML file of a sweep: the options of the command line, and a table of what is varied."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from orrery.base.errors import UsageError, did_you_mean
from orrery.lab.sweep.space import from_data

MOST_BYTES = 1_000_000
# Each field with the types that it takes.
FIELDS: dict[str, tuple[type, ...]] = {
    "system": (str, list), "problem": (str,), "world": (str,), "engine": (str,),
    "search": (str,), "trials": (int,), "seeds": (int, list), "seed": (int,), "by": (str,),
    "better": (str,), "until_s": (int, float), "over": (dict,),
}  # fmt: skip
_NAMES = {str: "text", list: "a list", int: "a whole number", float: "a number", dict: "a table"}


def read_spec(path: Path) -> dict[str, Any]:
    """The fields of a sweep's file, checked; `over` as {parameter: what is asked}."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: is larger than {MOST_BYTES} bytes; that is no sweep")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise UsageError(f"{path}: cannot be read: {failure.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise UsageError(f"{path}: is not TOML: {failure}") from None
    if not document:
        raise UsageError(f"{path}: is empty; it needs system or problem, and a table [over]")
    for key, value in document.items():
        if key not in FIELDS:
            raise UsageError(f"{path}: {key}: no such field; {did_you_mean(key, FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, FIELDS[key]):
            kinds = " or ".join(_NAMES[kind] for kind in FIELDS[key])
            raise UsageError(f"{path}: {key}={value!r}: give {kinds}")
    over: dict[str, Any] = {}
    for name, value in document.get("over", {}).items():
        for parameter, asked in from_data(name, value):
            if parameter in over:
                raise UsageError(f"{path}: over.{parameter} comes twice; give it once")
            over[parameter] = asked
    return {**document, "over": over}
