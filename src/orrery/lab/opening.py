"""What a request may name when it opens something: ids, knobs with plain values, named worlds.

Nothing here takes a path, a module or a file, so a request can bring no code and read no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orrery.base.errors import UsageError, did_you_mean
from orrery.lab.playback import Limits
from orrery.parts.knobs import Part, check_knob, knob_types
from orrery.world import World, worlds

_WORD = re.compile(r"[A-Za-z0-9_-]{0,64}")
_WORLD = re.compile(r"[a-z0-9_]{1,32}(:[0-9a-z_=,.]{0,64})?")


def listed(id: Any, what: str) -> str:
    """An id, or a refusal: no path, no module, nothing but a word."""
    if not isinstance(id, str) or not id or not _WORD.fullmatch(id):
        raise UsageError(f"{what} {str(id)[:40]!r}: give an id as `orrery list` shows it")
    return id


def with_knobs(cls: type, knobs: Mapping[str, Any]) -> Any:
    """A part or problem with some knobs; a request may give numbers, truth values and words."""
    if not isinstance(knobs, Mapping) or len(knobs) > 64:
        raise UsageError("knobs: give a table of at most 64 names and values")
    if not issubclass(cls, Part):
        raise UsageError(f"{cls.__name__} is not a part: it does not inherit from one")
    types = knob_types(cls)
    values: dict[str, Any] = {}
    for name, value in knobs.items():
        path = f"{cls.__name__}.{str(name)[:40]}"
        if name not in cls._knob_defaults:
            raise UsageError(f"{path}: no such knob; "
                             f"{did_you_mean(str(name)[:40], cls._knob_defaults)}")  # fmt: skip
        # No dot, slash or colon: a word can be neither a path nor a module.
        plain = isinstance(value, bool | int | float) or (
            isinstance(value, str) and _WORD.fullmatch(value)
        )
        if not plain or isinstance(cls._knob_defaults[name], Part):
            raise UsageError(f"{path}: give a number, true, false or one word")
        values[name] = check_knob(path, value, types.get(name, Any))
    return cls(**values)


def world_by_name(text: Any) -> World:
    """A named world (`lan:7`); never a file, and none that is too large to build."""
    if not isinstance(text, str) or not _WORLD.fullmatch(text):
        raise UsageError(f"world {str(text)[:40]!r}: give a name such as lan:7")
    numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text.partition(":")[2])]
    product = 1.0
    for number in numbers:
        product *= max(number, 1.0)
    if product > Limits().nodes * 10:
        raise UsageError(f"world {text!r} is too large to play with; ask for fewer nodes")
    return worlds.get(text)
