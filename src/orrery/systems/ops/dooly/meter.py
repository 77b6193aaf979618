"""Measures operators on the device at hand: plain ones alone, attention through the engine's state.

A plain operator is called with inputs of its key's shapes. Weights rotate among copies that do not
fit the caches together, because in a model every layer has its own. Attention runs on a cache and a
plan made by the engine's own classes, in their layout.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orrery.base.errors import SpecError, UsageError, did_you_mean
from orrery.base.rand import Stream
from orrery.models.real.attend import Plan
from orrery.models.real.backend import need_torch, pick_dtype
from orrery.models.real.measure import ProcessorClock, ragged
from orrery.models.real.paged import PagedCache, Piece
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.meter_spec import cache_spec
from orrery.systems.ops.dooly.operators import STATE, Key
from orrery.systems.ops.dooly.sweep import Point, shape_of

ATTENTION = ("sdpa", "math")
# Between two uses of a tensor a model reads about one weight matrix; so much is read here.
DISTURB_B = 6 << 20
_CAPACITY = 8192  # rows of a table that is only looked into


def device_name(device: str = "cpu") -> str:
    """A name that two different devices do not share."""
    torch = need_torch()
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"cpu {platform.machine()} {platform.node()} {torch.get_num_threads()} threads"


class TorchMeter:
    """Times operators with PyTorch.

    device      cpu or cuda; `dtype`: of weights and activations
    attention   which kernel computes attention: sdpa (PyTorch's choice) or math
    clock       seconds; processor time by default, which other work on the machine does not touch
    repeats     how often a point is timed; the median counts
    least_s     short operators are timed up to eight times as often, until so much was spent
    cache_B     weights rotate among copies of so many bytes together
    even        whether decodes have equal contexts, not ones as unlike as those of a load
    """

    def __init__(
        self, device: str = "cpu", dtype: str = "fp32", *, attention: str = "sdpa",
        clock: Callable[[], float] | None = None, repeats: int = 5, least_s: float = 2e-3,
        cache_B: int = 96 << 20, even: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        if attention not in ATTENTION:
            raise UsageError(f"attention={attention!r}; {did_you_mean(attention, ATTENTION)}")
        if repeats < 1 or not 0 < least_s < 60:
            raise UsageError(f"repeats={repeats}, least_s={least_s}; give 1 or more, and seconds")
        self.torch, self.place = need_torch(), device
        self.dtype_name, self.dtype = dtype, pick_dtype(dtype)
        self.device = device_name(device)
        self.backends = {"": f"torch {self.torch.__version__}", STATE: attention}
        self.clock = clock or ProcessorClock()
        self.repeats, self.least_s, self.cache_B = repeats, least_s, cache_B
        self.even = even
        self.spent_s, self.calls = 0.0, 0
        self._rng = Stream(seed, "dooly", "meter")
        self._caches: dict[Any, Any] = {}
        self._pool: Any = None
        looks = [self.clock() for _ in range(101)]
        self._look_s = float(np.median(np.diff(looks)))

    # -- the port

    def measure(self, key: Key, points: Sequence[Point]) -> list[float]:
        """Seconds of one call at each point."""
        if key.device != self.device:
            raise SpecError("key.device", f"{key.device} is not here", f"this is {self.device}")
        make = self._state_call if key.kind == STATE else self._plain_call
        with self.torch.inference_mode(), self._kernel():
            found = [self.time(make(key, point)) for point in points]
        self._caches.clear()
        return found

    def _kernel(self) -> Any:
        if self.backends[STATE] == "sdpa":
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.MATH)

    def time(self, call: Callable[[int], Any]) -> float:
        """The median seconds of a call, which gets the number of its turn.

        Between two timings other operators run, as in a model, where no operator finds its code
        and its inputs in the nearest cache as a loop of itself would.
        """
        clock = self.clock
        times: list[float] = []
        kept: list[Any] = []  # so that results get new memory, as among other results in a model
        spent = 0.0
        most = 8 * self.repeats
        while len(times) < self.repeats or (spent < self.least_s and len(times) < most):
            self._disturb(len(times))
            self._wait()
            began = clock()
            kept.append(call(len(times)))
            self._wait()
            took = max(clock() - began - self._look_s, 1e-9)
            spent += took
            times.append(took)
        self.spent_s += spent
        self.calls += len(times)
        # The first call of a kind finds things that no later one does.
        return float(np.median(times[1:] or times))

    def _disturb(self, turn: int) -> None:
        torch = self.torch
        if self._pool is None:
            shape = (8, DISTURB_B // 4 // 256, 256)
            self._pool = torch.rand(shape, dtype=torch.float32, device=self.place)
        some = self._pool[turn % 8]
        made = torch.nn.functional.silu(some[:4] @ some[:256].t())
        torch.cat([made, made], -1).softmax(-1).sum()
        some.sum()

    def _wait(self) -> None:
        if self.place.startswith("cuda"):
            self.torch.cuda.synchronize()

    # -- plain operators

    def _plain_call(self, key: Key, point: Point) -> Callable[[int], Any]:
        torch, size = self.torch, point[0]
        shapes = [tuple(_number(d, size) for d in dims) for dims in key.dims]
        domain = shapes[0][0] if shapes and shapes[0] else 1
        fixed = [not any(d[0] in "*?" for d in dims) for dims in key.dims]
        # Tables that are looked into, and vectors, are not rotated: one copy is spread out enough.
        heavy = [
            each and len(dims) > 1 and "~" not in dims and kind == "f"
            for each, dims, kind in zip(fixed, key.dims, key.dtypes, strict=True)
        ]
        weight_B = sum(
            int(np.prod(s)) * 4 for s, each in zip(shapes, heavy, strict=True) if each
        )  # fmt: skip
        copies = 1 if not weight_B else max(2, min(64, -(-self.cache_B // weight_B)))
        kept = []
        for n, (shape, kind, order) in enumerate(zip(shapes, key.dtypes, key.order, strict=True)):
            name = (key.code, n)
            if not heavy[n]:
                kept.append([self._tensor(shape, kind, order, domain)])
                continue
            if name not in self._caches:
                # Arithmetic takes as long with any numbers, and these are made quickly.
                self._caches[name] = [
                    self._tensor(shape, kind, order, domain, fill=0.01) for _ in range(copies)
                ]
            kept.append(self._caches[name])
        bound = [self._bound(key, [t[n % len(t)] for t in kept], size) for n in range(copies)]
        call: Any = torch.ops
        for name in key.op.split("."):
            call = getattr(call, name)
        return lambda turn: call(*bound[turn % copies][0], **bound[turn % copies][1])

    def _tensor(
        self, shape: Any, kind: str, order: Sequence[int], domain: int, fill: float = 0.0
    ) -> Any:
        torch = self.torch
        if kind != "f":
            count = int(np.prod(shape))
            made = (torch.arange(count) * 7 % max(domain, 1)).reshape(shape)
            return made.to(self.place, getattr(torch, kind))
        stored = [shape[n] for n in order]
        made = torch.empty(stored, dtype=self.dtype, device=self.place)
        made = made.fill_(fill) if fill else made.uniform_(-0.1, 0.1)
        back = [list(order).index(n) for n in range(len(shape))]
        return made.permute(back)

    def _bound(self, key: Key, tensors: list[Any], size: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, from the key's text."""
        args: list[Any] = []
        named: dict[str, Any] = {}
        stack: list[list[Any]] = [args]
        left, name = list(tensors), ""
        for text in key.scalars:
            if text == "[":
                stack.append([])
                continue
            if text[0] == "=":
                name = text[1:]
                continue
            value = stack.pop() if text == "]" else self._value(text, left, size)
            if name and len(stack) == 1:
                named[name], name = value, ""
            else:
                stack[-1].append(value)
        return args, named

    def _value(self, text: str, left: list[Any], size: int) -> Any:
        if text == "t":
            return left.pop(0)
        if text[0] != "'":
            return _number(text, size)
        word = text[1:]
        if word.startswith("torch."):
            found = getattr(self.torch, word.removeprefix("torch."))
            return self.dtype if found.is_floating_point else found
        return {"None": None, "True": True, "False": False, "float": 1e-5}.get(word, word)

    # -- what works on the engine's state

    def _state_call(self, key: Key, point: Point) -> Callable[[int], Any]:
        shape = shape_of(point)
        cache, spec = self._cache(key, shape)
        pieces = self._pieces(shape, cache.block_tokens)
        if key.op.endswith("__init__"):
            if not key.window:
                return lambda turn: Plan(pieces, cache)
            return lambda turn: (Plan(pieces, cache), Plan(pieces, cache, window=key.window))
        plan = Plan(pieces, cache, window=key.window)
        tokens, layers = len(plan.tokens), spec.layers
        if key.op.endswith("write"):
            like = cache.keys[0][0, 0]
            k, v = (self._tensor((tokens, *like.shape), "f", (0, 1, 2), 1) for _ in range(2))
            return lambda turn: cache.write(turn % layers, plan.slots, k, v)
        width = cache.keys.shape[-1]
        q = self._tensor((tokens, spec.heads, width), "f", (0, 1, 2), 1)
        scale = float(width) ** -0.5
        keys = [cache.keys[n] for n in range(layers)]
        values = [cache.values[n] for n in range(layers)]
        return lambda turn: plan.attend(q, keys[turn % layers], values[turn % layers], scale)

    def _cache(self, key: Key, shape: Any) -> tuple[Any, ModelSpec]:
        """A cache in the engine's layout, with some layers so that they do not stay warm."""
        prefill, decodes, kv = shape
        spec = cache_spec(key)
        block = int(key.dims[-1][0]) if key.dims else 16
        if key.op.endswith("write"):
            block = int(key.dims[0][0])
        each = spec.kv_elements_per_token() // spec.layers * 4
        reach = kv + sum(n + p for n, p in prefill)
        blocks = 2 + sum(-(-(n + p) // block) for n, p in prefill) + decodes + -(-kv // block)
        layers = max(2, min(8, -(-self.cache_B // max(1, reach * each))))
        known = (key.code, layers)
        held = self._caches.get(known)
        if held is None or held.blocks < blocks:
            spec = cache_spec(key, layers)
            held = PagedCache(spec, blocks, block, device=self.place, dtype=self.dtype)
            self._caches[known] = held
        return held, cache_spec(key, layers)

    def _pieces(self, shape: Any, block: int) -> list[Piece]:
        prefill, decodes, kv = shape
        first, pieces = 0, []
        lengths = []
        if decodes and self.even:
            lengths = [kv // decodes + (n < kv % decodes) for n in range(decodes)]
        elif decodes:
            lengths = ragged(self._rng, decodes, max(kv, 2 * decodes))
        for new, past in [*((1, n - 1) for n in lengths), *prefill]:
            need = -(-(new + past) // block)
            pieces.append(Piece([1] * new, past, list(range(first, first + need))))
            first += need
        return pieces


def _number(text: str, size: int) -> int:
    """A dimension of a key as a number."""
    if text[0] in "*?":
        return size
    return _CAPACITY if text == "~" else int(text)


__all__ = ["TorchMeter", "device_name"]
