"""Any data as JSON: what JSON lacks becomes null, and objects become their text."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def encode_json(value: Any) -> bytes:
    """Any data as JSON; NaN and infinity become null, sets sorted lists, objects their text.

    >>> encode_json({"a": float("nan"), "b": {2, 1}})
    b'{"a":null,"b":[1,2]}'
    """
    plain = msgspec.to_builtins(value, enc_hook=_as_plain, str_keys=True)
    return msgspec.json.encode(_finite(plain))


def _as_plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return repr(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
