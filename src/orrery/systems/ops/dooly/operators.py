"""From labelled calls to operators, and from operators to the keys of the latency database.

An operator is what one structure of models calls, with a polynomial for each dimension. Its key for
one model has numbers where the configuration decides, stars where the request does, and question
marks where data does: equal keys are measured once, whatever models they come from.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.origins import Origin, parse
from orrery.systems.ops.dooly.taint import Label, Labelled

BLOCK_TOKENS = 16
PLAIN, STATE, DATA = "plain", "state", "data"
# Named arguments that say where a result lies, not what is computed.
PLACING = ("device", "dtype", "layout", "pin_memory", "memory_format")


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of a structure.

    op       its name; for one that works on the engine's state, the engine's method
    kind     plain, state (measured through the engine's own cache) or data (of its own class)
    dims     the origin of each dimension of each input, as text; "?" depends on data
    dtypes   "f" for the model's number type, else the type; `order` of strides, outermost first
    scalars  whole numbers among the arguments
    at       the origin of the request dimension that its output has, or "?"
    where    the kind of layer it is in; empty: once a step
    count    how often in such a layer; `looped`: so often for every expert that gets a token
    """

    op: str
    kind: str = PLAIN
    dims: tuple[tuple[str, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    order: tuple[tuple[int, ...], ...] = ()
    scalars: tuple[str, ...] = ()
    at: str = ""
    where: str = ""
    count: int = 1
    looped: bool = False
    window: bool = False


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep of measurements is filed under."""

    op: str
    kind: str
    dims: tuple[tuple[str, ...], ...]
    dtypes: tuple[str, ...]
    order: tuple[tuple[int, ...], ...]
    scalars: tuple[str, ...]
    window: int
    dtype: str
    backend: str
    device: str

    @property
    def text(self) -> str:
        """The key as one line."""
        dims = " ".join("x".join(each) or "-" for each in self.dims)
        tail = f" window={self.window}" if self.window else ""
        return f"{self.op} [{dims}]{tail} {self.dtype} {self.backend} {self.device}"

    @property
    def code(self) -> str:
        """A short name that differs for any two keys."""
        return _code(self)


@functools.lru_cache(maxsize=1 << 14)
def _code(key: Key) -> str:
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]


class Use(msgspec.Struct, frozen=True):
    """A key as one model uses it: how often in a step, and at which request size."""

    key: Key
    at: str
    times: int
    looped: bool


# -- from calls to operators


def operators_of(calls: Sequence[Labelled]) -> list[Operator]:
    """The operators of labelled calls: views cost nothing, and methods of the state are one each.

    The calls must be of one structure; layers of one kind have equal operators.
    """
    layers = {each.call.layer: each.call.kind for each in calls if each.call.layer >= 0}
    firsts = {kind: layer for layer, kind in sorted(layers.items(), reverse=True)}
    kept = [c for c in calls if c.call.layer < 0 or firsts[c.call.kind] == c.call.layer]
    found: list[Operator] = []
    group: list[Labelled] = []
    for each in [*kept, None]:
        inside = each is not None and bool(each.call.state)
        if group and (not inside or _home(each) != _home(group[0])):
            found.append(_state_operator(group))
            group = []
        if each is not None and inside:
            group.append(each)
        elif each is not None and not each.call.view:
            looped = each.data and (not each.aligned or _repeats(each, kept))
            found.append(_plain_operator(each, looped))
    return merged(found)


def _home(each: Any) -> tuple[int, str]:
    return each.call.layer, each.call.state


def _repeats(one: Labelled, calls: Sequence[Labelled]) -> bool:
    same = [
        c for c in calls
        if (c.call.layer, c.call.line, c.call.op, c.call.site)
        == (one.call.layer, one.call.line, one.call.op, one.call.site)
        and _dims(c.inputs) == _dims(one.inputs)
    ]  # fmt: skip
    return len(same) > 1


def merged(operators: Iterable[Operator]) -> list[Operator]:
    """Equal operators as one, with their counts added; a loop's body counts once a turn."""
    counts: dict[Operator, int] = {}
    for each in operators:
        bare = msgspec.structs.replace(each, count=1)
        counts[bare] = counts.get(bare, 0) + each.count
    loops = [n for each, n in counts.items() if each.looped]
    turns = min(loops, default=1)
    return [
        msgspec.structs.replace(each, count=max(1, n // turns) if each.looped else n)
        for each, n in counts.items()
    ]


def _dims(tensors: Sequence[Sequence[Label]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple("?" if x is None else x.text for x in labels) for labels in tensors)


def _at(labelled: Labelled) -> str:
    """The request size that the output has; the input's, where the output has none."""
    for tensors in (labelled.outputs, labelled.inputs):
        for labels in tensors:
            for label in labels:
                if label is None:
                    return "?"
                if label.kind == "request":
                    return label.text
    return ""


def _plain_operator(each: Labelled, looped: bool) -> Operator:
    call, dims = each.call, _dims(each.inputs)
    dtypes = tuple("f" if t.dtype.startswith("float") else t.dtype for t in call.inputs)
    order = tuple(t.order for t in call.inputs)
    scalars = _scalars(each.scalars)
    for name, value in call.kwargs:
        if name not in PLACING:
            number = Origin.number(value) if type(value) is int else value
            scalars += (f"={name}", *_scalars((number,)))
    if each.data and any(isinstance(a, tuple) and a[:1] != ("t",) for a in call.args):
        # A list of parts has as many as the data says: its first stands for all.
        dims, dtypes, order, scalars = dims[:1], dtypes[:1], order[:1], ("[", "t", "]")
    return Operator(
        op=call.op, kind=DATA if each.data else PLAIN, dims=dims, dtypes=dtypes, order=order,
        scalars=scalars, at=_at(each), where=call.kind, looped=looped,
    )  # fmt: skip


def _scalars(values: Any) -> tuple[str, ...]:
    """Arguments as text: t a tensor, brackets a list, 'x a word, else the origin of a number."""
    made: list[str] = []
    for each in values:
        if isinstance(each, tuple) and each[:1] == ("t",):
            made.append("t")
        elif isinstance(each, tuple):
            made += ["[", *_scalars(each), "]"]
        elif isinstance(each, Origin):
            made.append(each.text)
        elif isinstance(each, float):
            made.append("'float")  # a scale or an epsilon takes no time
        else:
            made.append(f"'{each}")
    return tuple(made)


def _state_operator(group: Sequence[Labelled]) -> Operator:
    """A method of the engine's state: keyed by the configuration of what is handed to it."""
    inside = {t.uid for each in group for t in each.call.outputs}
    seen: dict[int, None] = {}
    dims: list[tuple[str, ...]] = []
    for each in group:
        for tensor, labels in zip(each.call.inputs, each.inputs, strict=True):
            if tensor.uid in inside or tensor.uid in seen or not tensor.dtype.startswith("float"):
                continue
            seen[tensor.uid] = None
            kept = [x.text for x in labels if x is not None and x.kind == "config"]
            if tuple(kept) not in dims:
                dims.append(tuple(kept))
    call = group[0].call
    if call.state.endswith("write"):
        dims = dims[:1]  # what is written has the shape of the cache's rows
    return Operator(
        op=call.state, kind=STATE, dims=tuple(dims), at="tokens", where=call.kind,
        window=bool(max(each.call.window for each in group)),
    )  # fmt: skip


# -- structures


FLAGS = (
    "tied", "gated", "norm", "norms", "qkv_bias", "out_bias", "mlp_bias", "router_bias",
    "expert_bias", "qk_norm", "embedding_norm", "rope",
)  # fmt: skip


def structure(model: ModelSpec) -> str:
    """What decides which operators a model calls, sizes aside."""

    def share(some: int, every: int) -> str:
        return "none" if not some else "all" if some >= every else "some"

    parts = [model.attention] + [f"{name}={getattr(model, name)}" for name in FLAGS]
    parts += [f"positions={bool(model.positions)}", f"q_lora={bool(model.q_lora_rank)}"]
    parts += [f"window={share(model.window_layers, model.layers)}"]
    parts += [f"experts={bool(model.experts)}", f"shared={bool(model.shared_experts)}"]
    return " ".join([*parts, f"dense={share(model.first_dense, model.layers)}"])


def traced(model: ModelSpec) -> list[Operator]:
    """The operators of a model's structure, traced now; needs PyTorch."""
    from orrery.systems.ops.dooly.twins import label

    return operators_of(label(model)[0])


@functools.cache
def _shipped() -> dict[str, list[Operator]]:
    file = resources.files("orrery.systems.ops.dooly").joinpath("structures.json")
    return msgspec.convert(json.loads(file.read_text("utf-8")), dict[str, list[Operator]])


def operators(model: ModelSpec) -> list[Operator]:
    """The operators of a model: as shipped for its structure, or traced where PyTorch is there."""
    found = _shipped().get(structure(model))
    if found is not None:
        return found
    return traced(model)


# -- keys


def layer_kinds(model: ModelSpec) -> dict[str, int]:
    """How many layers of each kind a model has, as the engine spreads them."""
    found: dict[str, int] = {"": 1}
    some, every = model.window_layers, model.layers
    for number in range(every):
        windowed = (number + 1) * some // every > number * some // every
        experts = model.experts and number >= model.first_dense
        kind = f"{'window' if windowed else 'full'} {'experts' if experts else 'dense'}"
        found[kind] = found.get(kind, 0) + 1
    return found


def sizes_of(model: ModelSpec, block_tokens: int = BLOCK_TOKENS) -> dict[str, int]:
    """The configuration by symbol."""
    sizes = {name: getattr(model, name) for name in model.__struct_fields__}
    found = {name: v for name, v in sizes.items() if type(v) is int}
    return found | {"block_tokens": block_tokens}


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Origin:
    return parse(text)


def fill(text: str, sizes: Mapping[str, int], stars: list[str]) -> str:
    """One dimension of a key: a number, a star for a request size, ~ for a capacity."""
    if text == "?":
        return "?"
    origin = _parsed(text)
    if origin.kind == "request":
        if text not in stars:
            stars.append(text)
        return f"*{stars.index(text)}"
    if origin.kind == "capacity":
        return "~"
    return str(origin.value(sizes))


def key_of(
    each: Operator, model: ModelSpec, device: str, dtype: str, backends: Mapping[str, str],
    block_tokens: int = BLOCK_TOKENS,
) -> Key:  # fmt: skip
    """The key of an operator for one model on one device."""
    sizes, stars = sizes_of(model, block_tokens), []
    return Key(
        op=each.op, kind=each.kind,
        dims=tuple(tuple(fill(d, sizes, stars) for d in dims) for dims in each.dims),
        dtypes=each.dtypes, order=each.order,
        scalars=tuple(_scalar(s, sizes, stars) for s in each.scalars),
        window=model.window if each.window else 0, dtype=dtype,
        backend=backends.get(each.kind, backends.get("", "torch")), device=device,
    )  # fmt: skip


def _scalar(text: str, sizes: Mapping[str, int], stars: list[str]) -> str:
    return text if text in ("t", "[", "]") or text[0] in "'=" else fill(text, sizes, stars)


def uses(
    model: ModelSpec, device: str, *, dtype: str = "", backends: Mapping[str, str] | None = None,
    block_tokens: int = BLOCK_TOKENS, found: Sequence[Operator] | None = None,
) -> list[Use]:  # fmt: skip
    """Every key of a model with how often a step uses it; equal ones at one size are added up."""
    kinds = layer_kinds(model)
    total: dict[tuple[Key, str, bool], int] = {}
    for each in operators(model) if found is None else found:
        times = kinds.get(each.where, 0) * each.count
        if times:
            key = key_of(each, model, device, dtype or model.dtype, backends or {}, block_tokens)
            total[key, each.at, each.looped] = total.get((key, each.at, each.looped), 0) + times
    return [Use(key, at, times, looped) for (key, at, looped), times in total.items()]


__all__ = [
    "BLOCK_TOKENS", "DATA", "PLAIN", "STATE", "Key", "Operator", "Use", "key_of", "layer_kinds",
    "operators", "operators_of", "sizes_of", "structure", "traced", "uses",
]  # fmt: skip
