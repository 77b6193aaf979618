"""The shapes that never wait: `Policy`, `Routine`, `Estimator`; and the declared `cost` of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from orrery.base.errors import NotFitted, PartError
from orrery.parts.knobs import Part

F = TypeVar("F", bound=Callable[..., Any])


class Work(NamedTuple):
    """What a computation costs a device: arithmetic and memory traffic, and the number type."""

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "fp32"


class Policy(Part):
    """Decides; never waits. A problem's port names the method, such as `route(request, replicas)`.

    Laws: deterministic (the same history of views gives the same answers; state only from
    `start()`), no input or output, a legal choice, the view unchanged, an empty view handled.
    """

    def start(self) -> None:
        """Forget everything; called before each run."""


class Routine(Part):
    """A computation on data: `routine(*inputs)`. Never waits.

    A subclass writes `__call__`, a slow and obvious `reference` that it must equal, `samples(rng)`
    that gives input tuples, and, where it declares its cost, `work(*inputs)`.
    """

    # How closely floats must agree with the reference.
    tolerance: ClassVar[float] = 1e-9

    def __call__(self, *inputs: Any) -> Any:
        raise PartError(f"{type(self).__name__} has no __call__; write the computation there")

    def reference(self, *inputs: Any) -> Any:
        raise PartError(f"{type(self).__name__} has no reference; write the obvious slow version")

    def samples(self, rng: Any) -> Iterable[tuple[Any, ...]]:
        raise PartError(f"{type(self).__name__} has no samples(rng); give a few input tuples")

    def work(self, *inputs: Any) -> Work | None:
        """The declared cost for these inputs, or None where none is declared."""
        return None


class Estimator(Part):
    """`fit` on data, then `predict`; detectors too. Never waits.

    Laws: predicting before fitting raises `NotFitted`; the held-out error is reported;
    a declared monotone input (`monotone = {column: +1}`) is obeyed.
    """

    monotone: ClassVar[dict[int, int]] = {}

    def fit(self, inputs: Any, targets: Any) -> Estimator:
        raise PartError(f"{type(self).__name__} has no fit(inputs, targets)")

    def predict(self, inputs: Any) -> Any:
        raise PartError(f"{type(self).__name__} has no predict(inputs)")

    def fitted(self, name: str) -> Any:
        """A fitted attribute, or `NotFitted` when `fit` has not run."""
        try:
            return self.__dict__[name]
        except KeyError:
            raise NotFitted(
                f"{type(self).__name__} is not fitted; call fit(inputs, targets) first"
            ) from None


def cost(
    flops: float | Callable[..., float] = 0.0,
    bytes: float | Callable[..., float] = 0.0,
    dtype: str = "fp32",
) -> Callable[[F], F]:
    """Declare what a function costs, as numbers or as functions of its arguments.

    >>> @cost(flops=lambda x: 2 * len(x), bytes=lambda x: 8 * len(x))
    ... def total(x): return sum(x)
    >>> work_of(total, ([1, 2, 3],))
    Work(flops=6, bytes=24, dtype='fp32')
    """

    def mark(fn: F) -> F:
        fn.__cost__ = (flops, bytes, dtype)  # type: ignore[attr-defined]
        return fn

    return mark


def together(many: Callable[[list[tuple[Any, ...]]], Sequence[Any]]) -> Callable[[F], F]:
    """Say how many calls of a function are made at once, as fast as one.

    `many` gets the arguments of some calls (for a method, `self` first) and gives their values in
    that order, bit for bit those of the calls alone. In virtual time, calls of `compute` whose
    time runs at once are then made at once; a function that a cost is declared for, and none else.
    Methods of different objects are taken together where the objects have an equal `alike`.

    >>> @together(lambda calls: [x * 2 for (x,) in calls])
    ... @cost(flops=1)
    ... def double(x): return x * 2
    >>> double(4)
    8
    """

    def mark(fn: F) -> F:
        fn.__together__ = many  # type: ignore[attr-defined]
        return fn

    return mark


def work_of(fn: Any, args: tuple[Any, ...]) -> Work | None:
    """The declared cost of calling `fn(*args)`, or None."""
    if isinstance(fn, Routine):
        return fn.work(*args)
    declared = getattr(fn, "__cost__", None)
    if declared is None:
        return None
    flops, nbytes, dtype = declared
    bound = getattr(fn, "__self__", None)
    full = args if bound is None else (bound, *args)
    return Work(
        flops(*full) if callable(flops) else flops,
        nbytes(*full) if callable(nbytes) else nbytes,
        dtype,
    )
