"""Laws of the shapes that never wait: `Policy`, `Routine`, `Estimator`.

A law needs something to try a part on, and the authors give it:

- a policy's problem has `views(rng)`, which gives (method, arguments, legal) triples in the order
  of a history, where `legal(answer)` says whether the answer may be given;
- a routine has `samples(rng)` and `reference` by its shape, and `count(*inputs)`, the counted
  `Work`, where it declares one;
- an estimator (or its problem) has `samples(rng)`, which gives (inputs, targets).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import NotFitted, OrreryError
from orrery.lab.laws.common import Law, Subject

# float32 keeps about seven digits; half of them must survive a computation on it.
FLOAT32_TOLERANCE = float(np.sqrt(np.finfo(np.float32).eps))


# -- policies


def decides_the_same(subject: Subject) -> Iterable[str]:
    """The same history of views gives the same answers: from a new part, and after `start()`."""
    views = _views(subject)
    if views is None:
        yield _no_views(subject)
        return
    first = subject.part.with_knobs()
    answers = _answers(first, views)
    if _answers(subject.part.with_knobs(), views) != answers:
        yield "two equal policies answer the same views differently"
    if _answers(first, views) != answers:
        yield "after start() it answers otherwise than at first; it keeps state beside start()"


def leaves_the_view_alone(subject: Subject) -> Iterable[str]:
    """A view is for reading: after an answer it is what it was."""
    part = subject.part.with_knobs()
    part.start()
    for method, args, _ in _views(subject) or ():
        before = frozen(args)
        getattr(part, method)(*args)
        if frozen(args) != before:
            yield f"{method} changes its view"
            return


def chooses_legally(subject: Subject) -> Iterable[str]:
    """Every answer is one that the problem allows, also when there is nothing to choose from."""
    views = _views(subject) or []
    part = subject.part.with_knobs()
    part.start()
    for method, args, legal in views:
        answer = getattr(part, method)(*args)
        if not legal(answer):
            yield f"{method} answers {answer!r:.80}, which is not allowed"
            return
    if views and not any(_is_empty(arg) for _, args, _ in views for arg in args):
        yield f"{type(subject.problem).__name__}.views(rng) has no empty view; add one"


def _views(subject: Subject) -> list[tuple[str, tuple[Any, ...], Any]] | None:
    give = getattr(subject.problem, "views", None)
    if give is None:
        return None
    return [(method, tuple(args), legal) for method, args, legal in give(subject.stream("views"))]


def _no_views(subject: Subject) -> str:
    return (
        f"{type(subject.problem).__name__} has no views(rng), so its policies cannot be tried; "
        "give (method, arguments, legal) triples"
    )


def _answers(part: Any, views: Iterable[tuple[str, tuple[Any, ...], Any]]) -> list[Any]:
    part.start()
    return [frozen(getattr(part, method)(*copy.deepcopy(args))) for method, args, _ in views]


def _is_empty(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes) and len(value) == 0


def frozen(value: Any, depth: int = 0) -> Any:
    """A value as nested tuples that can be compared, down into objects and arrays."""
    if depth > 20:
        return "…"
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if value is None or isinstance(value, str | bytes | int | float | bool | complex):
        return value
    if isinstance(value, Mapping):
        return ("map", *((frozen(k, depth + 1), frozen(v, depth + 1)) for k, v in value.items()))
    if isinstance(value, list | tuple | range):
        return (type(value).__name__, *(frozen(each, depth + 1) for each in value))
    if isinstance(value, set | frozenset):
        return ("set", *sorted(repr(frozen(each, depth + 1)) for each in value))
    names = list(getattr(value, "__struct_fields__", ())) or [
        *getattr(value, "__slots__", ()), *getattr(value, "__dict__", {}),
    ]  # fmt: skip
    fields = ((name, frozen(getattr(value, name, None), depth + 1)) for name in names)
    return (type(value).__name__, *fields)


# -- routines


def equals_its_reference(subject: Subject) -> Iterable[str]:
    """On its samples; on the same with a NaN; on the same in float32; its inputs unharmed."""
    samples = [tuple(sample) for sample in subject.part.samples(subject.stream("samples"))]
    if not samples:
        yield "samples(rng) gives nothing to try"
    tolerance = type(subject.part).tolerance
    for place, sample in enumerate(samples):
        yield from _compare(subject.part, sample, tolerance, f"sample {place}")
        for where, changed, slack in _altered(sample):
            yield from _compare(
                subject.part, changed, max(tolerance, slack), f"sample {place} {where}"
            )
    sizes = [array.size for sample in samples for array in _arrays(sample)]
    if sizes and not any(size == 0 for size in sizes):
        yield "samples(rng) has no empty array; add one"
    if sizes and not any(size % 2 for size in sizes):
        yield "samples(rng) has no array of odd size; add one"


def _compare(part: Any, sample: tuple[Any, ...], tolerance: float, where: str) -> Iterable[str]:
    before = frozen(sample)
    got, want = _outcome(part, sample), _outcome(part.reference, copy.deepcopy(sample))
    if frozen(sample) != before:
        yield f"{where}: its inputs are changed"
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(got) is not type(want):
            yield f"{where}: gives {got!r:.80}, its reference {want!r:.80}"
        elif not isinstance(want, OrreryError):
            yield f"{where}: raises {want!r:.80}; refuse bad input by an error of Orrery's"
    elif not close(got, want, tolerance):
        yield f"{where}: differs from its reference by more than {tolerance:g}"


def _outcome(fn: Any, sample: tuple[Any, ...]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return fn(*sample)
    except Exception as error:
        return error


def _arrays(sample: tuple[Any, ...]) -> list[Any]:
    return [each for each in sample if isinstance(each, np.ndarray)]


def _altered(sample: tuple[Any, ...]) -> Iterable[tuple[str, tuple[Any, ...], float]]:
    """The sample with a NaN in each float array in turn, and with float64 made float32."""
    floats = [
        i
        for i, each in enumerate(sample)
        if isinstance(each, np.ndarray) and each.dtype.kind == "f"
    ]
    for i in floats:
        if sample[i].size:
            array = sample[i].copy()
            array.reshape(-1)[array.size // 2] = np.nan
            yield f"with a NaN in input {i}", (*sample[:i], array, *sample[i + 1 :]), 0.0
    if any(sample[i].dtype == np.float64 for i in floats):
        small = [each.astype(np.float32) if i in floats else each for i, each in enumerate(sample)]
        yield "in float32", tuple(small), FLOAT32_TOLERANCE


def costs_what_it_declares(subject: Subject) -> Iterable[str]:
    """Where `work` declares a cost, `count` counts the same flops and bytes."""
    for place, sample in enumerate(subject.part.samples(subject.stream("samples"))):
        told = subject.part.work(*sample)
        if told is None:
            continue
        count = getattr(subject.part, "count", None)
        if count is None:
            yield "work(…) declares a cost, but there is no count(*inputs) to hold it against"
            return
        counted = count(*sample)
        for name in ("flops", "bytes"):
            if getattr(told, name) != getattr(counted, name):
                yield (
                    f"sample {place}: declares {getattr(told, name):g} {name}, "
                    f"counted {getattr(counted, name):g}"
                )


def close(got: Any, want: Any, tolerance: float) -> bool:
    """Equal, with numbers allowed to differ by `tolerance`, absolutely or relatively."""
    if isinstance(want, np.ndarray) or isinstance(got, np.ndarray):
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
            return False
        if a.dtype.kind not in "fc":
            return bool((a == b).all())
        return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
    if isinstance(want, float | np.floating) and isinstance(got, int | float | np.number):
        return bool(np.isclose(float(got), want, rtol=tolerance, atol=tolerance, equal_nan=True))
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(want) and all(map(close, got, want, [tolerance] * len(want)))
    if isinstance(want, Mapping) and isinstance(got, Mapping):
        return got.keys() == want.keys() and all(close(got[k], want[k], tolerance) for k in want)
    if isinstance(want, msgspec.Struct) and type(got) is type(want):
        return close(msgspec.structs.astuple(got), msgspec.structs.astuple(want), tolerance)
    return bool(got == want)


# -- estimators


def unfitted_raises(subject: Subject) -> Iterable[str]:
    """Before `fit`, `predict` raises `NotFitted`."""
    data = _data(subject)
    if data is None:
        yield "no samples(rng) at the estimator or its problem; give (inputs, targets)"
        return
    try:
        subject.part.with_knobs().predict(data[0])
    except NotFitted:
        return
    yield "predict answers before fit; it must raise NotFitted"


def predicts_what_it_has_not_seen(subject: Subject) -> Iterable[str]:
    """Fitted twice on the same data it predicts the same; held-out predictions are finite."""
    data = _data(subject)
    if data is None:
        return
    inputs, targets = data
    seen = max(1, len(targets) * 4 // 5)
    made = [
        np.asarray(subject.part.with_knobs().fit(inputs[:seen], targets[:seen]).predict(inputs))
        for _ in range(2)
    ]
    if not np.array_equal(made[0], made[1], equal_nan=True):
        yield "two fits on the same data predict differently"
    if len(made[0]) != len(targets):
        yield f"{len(targets)} inputs give {len(made[0])} predictions"
    elif not np.isfinite(made[0][seen:].astype(float)).all():
        yield "the held-out error is not finite"


def is_monotone_where_declared(subject: Subject) -> Iterable[str]:
    """Raising a column of `monotone` never moves a prediction the other way."""
    data = _data(subject)
    if data is None:
        return
    inputs, targets = np.asarray(data[0], dtype=float), data[1]
    fitted = subject.part.with_knobs().fit(inputs, targets)
    base = np.asarray(fitted.predict(inputs), dtype=float)
    for column, sign in subject.part.monotone.items():
        width = float(np.ptp(inputs[:, column])) or 1.0
        for share in (0.01, 0.1, 1.0):
            moved = inputs.copy()
            moved[:, column] += share * width
            change = sign * (np.asarray(fitted.predict(moved), dtype=float) - base)
            if change.min() < -1e-9 * max(1.0, float(np.abs(base).max())):
                yield f"raising column {column} by {share * width:g} moves predictions wrongly"
                break


def _data(subject: Subject) -> tuple[Any, Any] | None:
    give = getattr(subject.part, "samples", None) or getattr(subject.problem, "samples", None)
    return None if give is None else tuple(give(subject.stream("samples")))


POLICY_LAWS: tuple[Law, ...] = (decides_the_same, leaves_the_view_alone, chooses_legally)
ROUTINE_LAWS: tuple[Law, ...] = (equals_its_reference, costs_what_it_declares)
ESTIMATOR_LAWS: tuple[Law, ...] = (
    unfitted_raises, predicts_what_it_has_not_seen, is_monotone_where_declared,
)  # fmt: skip
