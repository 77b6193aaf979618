"""Records what an engine's step really calls: every operator with shapes, types and who called it.

A dispatch mode of PyTorch sees the operators below the model's code, so nothing is instrumented by
hand. What runs inside the engine's own objects of state (the paged cache, the plan of a batch) is
noted as such: attention is measured through them.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from orrery.models.real.attend import Plan
from orrery.models.real.backend import need_torch
from orrery.models.real.paged import PagedCache

STATE = (Plan, PagedCache)


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of a call: its number in the recording, shape, type and order of strides."""

    uid: int
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """One operator as it ran.

    args     its arguments: tensors as ("t", place in inputs), others as they are
    view     it only looks at memory that is there, and costs no kernel
    layer    the layer it belongs to, -1 outside of them
    state    the method of the engine's state that it is part of, and which call of it
    """

    op: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    view: bool = False
    layer: int = -1
    kind: str = ""
    state: str = ""
    window: int = 0
    site: str = ""
    line: int = 0


def recorder() -> Any:
    """A context that records; `calls` are the calls so far."""
    torch = need_torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        """Runs each operator as it is and writes it down."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Call] = []
            self.count = 0

        def uid(self, tensor: Any) -> int:
            found = getattr(tensor, "_dooly", None)
            if found is None:
                self.count += 1
                found = tensor._dooly = self.count
            return int(found)

        def tensor(self, each: Any) -> Tensor:
            strides = each.stride()
            order = tuple(sorted(range(each.dim()), key=lambda i: (-strides[i], i)))
            kind = str(each.dtype).removeprefix("torch.")
            return Tensor(self.uid(each), tuple(map(int, each.shape)), kind, order)

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            inputs: list[Any] = []
            shown = tuple(_plain(each, inputs, torch) for each in args)
            named = tuple((k, _plain(v, inputs, torch)) for k, v in sorted(kwargs.items()))
            before = tuple(self.tensor(each) for each in inputs)
            homes = {_home(each) for each in inputs}
            result = func(*args, **kwargs)
            made: list[Any] = []
            _plain(result, made, torch)
            writes = bool(func._schema.is_mutable)
            view = bool(made) and not writes and all(_home(each) in homes for each in made)
            after = tuple(self.tensor(each) for each in made)
            where = _where()
            self.calls.append(
                Call(str(func), before, after, shown, named, view or not made, *where)
            )
            return result

    return Recorder()


def _home(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _plain(value: Any, tensors: list[Any], torch: Any) -> Any:
    """An argument as plain data; tensors go to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("t", len(tensors) - 1)
    if isinstance(value, list | tuple):
        return tuple(_plain(each, tensors, torch) for each in value)
    if isinstance(value, bool | float | str) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    return str(value)


def _where() -> tuple[int, str, str, int, str, int]:
    """(layer, its kind, method of the state, window, function, line) from the frames."""
    layer, kind, state, window, site, line = -1, "", "", 0, "", 0
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if "orrery/models/real" in code.co_filename.replace("\\", "/"):
            site, line = site or code.co_qualname, line or frame.f_lineno
            held = frame.f_locals
            owner = held.get("self")
            if isinstance(owner, STATE):
                state = code.co_qualname
                window = int(getattr(owner, "window", 0))
            if code.co_name == "step" and "layer" in held:
                found = held["layer"]
                if found is not None and "number" in held and not _after(held, frame):
                    layer, kind = int(held["number"]), _kind(found)
        frame = frame.f_back
    return layer, kind, state, window, site, line


def _after(held: Any, frame: Any) -> bool:
    """Whether the loop over layers is over: the frame is past its last line."""
    layers = getattr(held.get("self"), "layers", None)
    if not layers:
        return True
    last = max(
        (line for _, _, line in frame.f_code.co_lines() if line is not None), default=frame.f_lineno
    )
    return bool(frame.f_lineno >= last)


def _kind(layer: Any) -> str:
    """Which kind of layer it is: windowed or full, with experts or dense."""
    seen = "window" if layer.windowed else "full"
    return f"{seen} {'experts' if layer.router is not None else 'dense'}"


__all__ = ["Call", "Tensor", "recorder"]
