"""Values of a history: frozen when recorded, and carried through JSON without loss.

A recorded value is compared and hashed long after it was recorded, so it must not change by then.
Lists become tuples, sets become frozensets, and maps become tuples of pairs.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from orrery.base.errors import CodecError, SpecError

_ATOMS = frozenset({int, str, bool, type(None), bytes})


def freeze(value: Any, path: str = "value") -> Any:
    """The value in a form that cannot change and can be hashed; NaN is refused.

    >>> freeze([1, {"b": [2], "a": 1}])
    (1, (('a', 1), ('b', (2,))))
    """
    if type(value) in _ATOMS:
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise SpecError(path, "NaN equals nothing, not even itself", "record None or a number")
        return value
    if isinstance(value, list | tuple):
        return tuple(freeze(item, f"{path}[{i}]") for i, item in enumerate(value))
    if isinstance(value, set | frozenset):
        return frozenset(freeze(item, path) for item in value)
    if isinstance(value, Mapping):
        pairs = [(freeze(k, path), freeze(v, f"{path}[{k!r}]")) for k, v in value.items()]
        return tuple(sorted(pairs, key=lambda pair: repr(pair[0])))
    try:
        hash(value)
    except TypeError:
        raise SpecError(
            path, f"a {type(value).__name__} cannot be compared later", "record a plain value"
        ) from None
    return value


def to_plain(value: Any) -> Any:
    """A frozen value as JSON data; what JSON lacks is written as a map with one ``$`` key."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, frozenset):
        # Sets have no order, so the text is sorted to keep equal histories equal byte for byte.
        return {"$set": sorted((to_plain(item) for item in value), key=repr)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    raise CodecError(f"a {type(value).__name__} has no JSON form; record numbers, text or tuples")


def from_plain(data: Any) -> Any:
    """The frozen value that `to_plain` wrote."""
    if isinstance(data, list):
        return tuple(from_plain(item) for item in data)
    if isinstance(data, dict):
        if len(data) == 1:
            ((tag, body),) = data.items()
            try:
                if tag == "$set":
                    return frozenset(from_plain(item) for item in body)
                if tag == "$bytes":
                    return base64.b64decode(body, validate=True)
                if tag == "$float":
                    return freeze(float(body))
            except (TypeError, ValueError) as error:
                raise CodecError(f"{tag}: {body!r} does not decode ({error})") from None
        return freeze({key: from_plain(item) for key, item in data.items()})
    return freeze(data)
