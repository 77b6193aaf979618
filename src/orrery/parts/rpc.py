"""`@rpc`: a method that other nodes may call with `tell` and `ask`.

The parameters are annotated, because the wire codec is built from them. A last parameter named
`sender` is filled in by the engine with the id of the node that sent the message (links are
authenticated, so a lying node cannot forge it); callers do not pass it.
"""

from __future__ import annotations

import inspect
import typing
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from orrery.base import codec
from orrery.base.errors import PartError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

ASYNC = 1
SENDER = 2


class Rpc:
    """What an engine knows of one rpc method: how to call it and how its arguments travel."""

    __slots__ = ("_codecs", "defaults", "flags", "fn", "mark", "name", "params", "qualname")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.qualname = fn.__qualname__
        params = list(inspect.signature(fn).parameters.values())[1:]
        self.flags = ASYNC if inspect.iscoroutinefunction(fn) else 0
        if params and params[-1].name == "sender":
            self.flags |= SENDER
            params.pop()
        for param in params:
            if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD):
                raise PartError(
                    f"@rpc {self.qualname}: *args and **kwargs cannot travel; name the parameters"
                )
            if param.annotation is param.empty:
                raise PartError(
                    f"@rpc {self.qualname}: parameter {param.name!r} has no annotation; "
                    "the wire codec needs one"
                )
        self.params = tuple(param.name for param in params)
        self.defaults = {p.name: p.default for p in params if p.default is not p.empty}
        # Stable across processes and Python versions, so that digests can be compared.
        self.mark = zlib.crc32(self.name.encode())
        self._codecs: tuple[Callable[[bytes], Any], Callable[[bytes], Any]] | None = None

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Positional and keyword arguments as one full positional tuple."""
        if not kwargs and len(args) == len(self.params):
            return args
        if len(args) > len(self.params):
            raise PartError(f"{self.qualname} takes {len(self.params)} arguments, got {len(args)}")
        values = dict(zip(self.params, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.params:
                raise PartError(
                    f"{self.qualname} has no parameter {name!r}; {did_you_mean(name, self.params)}"
                )
            if name in values:
                raise PartError(f"{self.qualname}: {name!r} is given twice")
            values[name] = value
        for name in self.params:
            if name not in values:
                if name not in self.defaults:
                    raise PartError(f"{self.qualname}: argument {name!r} is missing")
                values[name] = self.defaults[name]
        return tuple(values[name] for name in self.params)

    def _build_codecs(self) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
        try:
            hints = typing.get_type_hints(self.fn)
        except NameError as e:
            raise PartError(f"@rpc {self.qualname}: annotation not found: {e}") from None
        kinds = tuple(hints.get(name, Any) for name in self.params)
        arguments: Any = tuple.__class_getitem__(kinds) if kinds else tuple[()]
        built = (codec.decoder(arguments), codec.decoder(hints.get("return", Any)))
        self._codecs = built
        return built

    def decode_arguments(self, data: bytes) -> Any:
        return (self._codecs or self._build_codecs())[0](data)

    def decode_result(self, data: bytes) -> Any:
        return (self._codecs or self._build_codecs())[1](data)


def rpc(fn: F) -> F:
    """Mark a method of a `Node` as callable from other nodes."""
    fn.__rpc__ = Rpc(fn)  # type: ignore[attr-defined]
    return fn


def rpc_of(method: Any) -> Rpc:
    """The `Rpc` of a method, or an error that tells the fix."""
    spec = getattr(method, "__rpc__", None)
    if spec is None:
        name = getattr(method, "__qualname__", repr(method))
        raise PartError(f"{name} is not an rpc; put @rpc above its definition")
    return spec  # type: ignore[no-any-return]


def rpcs_of(cls: type) -> dict[str, Rpc]:
    """Every rpc of a class by name; a subclass's override wins, marked again or not."""
    found: dict[str, Rpc] = {}
    for name in dir(cls):
        if name.startswith("__"):
            continue
        marked = next((vars(b)[name].__rpc__ for b in cls.__mro__
                       if hasattr(vars(b).get(name), "__rpc__")), None)  # fmt: skip
        if marked is not None:
            fn = inspect.getattr_static(cls, name)
            found[name] = marked if marked.fn is fn else Rpc(fn)
    return found


def resolve(cls: type, method: Any) -> Rpc:
    """Which method a message reaches at a node of class `cls`: the one of the same name."""
    name = rpc_of(method).name
    for base in cls.__mro__:
        marked = getattr(vars(base).get(name), "__rpc__", None)
        if marked is not None:
            fn = inspect.getattr_static(cls, name)
            return marked if marked.fn is fn else Rpc(fn)
    raise PartError(f"{cls.__name__} has no rpc {name!r}; {did_you_mean(name, rpcs_of(cls))}")
