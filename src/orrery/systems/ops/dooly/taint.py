"""Gives every dimension of every recorded operator its origin, from runs with co-prime sizes.

The runs are of one structure with different sizes. Labels start at weights (whose shapes the
engine's own code computes from labelled numbers) and flow through the operators by rules. A number
that lost its label on the way (the sizes of a view, the end of a slice) is looked up among the
origins met so far: it must have the right value in every run, which a dimension that is equal by
chance has not. What no origin explains depends on data, and says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from orrery.systems.ops.dooly.origins import Book, Origin
from orrery.systems.ops.dooly.record import Call, Tensor
from orrery.systems.ops.dooly.rules import ONE, RULES, Label, Values


class Run(msgspec.Struct):
    """One recording: its calls, the sizes it was made with, and the labels of its weights."""

    calls: list[Call]
    sizes: dict[str, int]
    weights: dict[int, tuple[Origin, ...]]
    began: int = 0  # calls before this one build the model


class Labelled(msgspec.Struct, frozen=True):
    """A call with the origin of each dimension; None: it depends on data."""

    call: Call
    inputs: tuple[tuple[Label, ...], ...]
    outputs: tuple[tuple[Label, ...], ...]
    scalars: tuple[Any, ...]
    aligned: bool = True

    @property
    def data(self) -> bool:
        """Whether a dimension depends on data, or the call itself does."""
        return not self.aligned or any(
            label is None for labels in (*self.inputs, *self.outputs) for label in labels
        )


def trace(runs: Sequence[Run], book: Book) -> list[Labelled]:
    """The calls of the first run, labelled so that all runs agree."""
    return _Tracer(runs, book).all()


def aligned(first: Sequence[Call], other: Sequence[Call]) -> dict[int, int]:
    """Which call of another run is which of the first; loops over data may differ in length."""
    tokens = [[(c.op, c.site, c.line, c.layer) for c in calls] for calls in (first, other)]
    match = difflib.SequenceMatcher(None, tokens[0], tokens[1], autojunk=False)
    return {a + i: b + i for a, b, n in match.get_matching_blocks() for i in range(n)}


class _Tracer:
    def __init__(self, runs: Sequence[Run], book: Book) -> None:
        self.runs, self.book = runs, book
        self.labels: dict[int, tuple[Label, ...]] = dict(runs[0].weights)
        self.places = [aligned(runs[0].calls, run.calls) for run in runs[1:]]
        self._values: dict[tuple[str, int], int | Fraction] = {}

    def same(self, call: Call, run: int, place: int) -> bool:
        """Whether a call of another run works on the same weights: their labels are certain."""
        other = self.runs[run].calls[place]
        for side in ("inputs", "outputs"):
            forms = [[(len(t.shape), t.dtype) for t in getattr(c, side)] for c in (call, other)]
            if forms[0] != forms[1] and "cat" not in call.op and "stack" not in call.op:
                return False
            if len(getattr(other, side)) < len(getattr(call, side)):
                return False
        for mine, theirs in zip(call.inputs, other.inputs, strict=False):
            labels = self.runs[0].weights.get(mine.uid)
            if labels and tuple(self.value(each, run) for each in labels) != theirs.shape:
                return False
        return True

    def value(self, label: Origin, run: int) -> int | Fraction:
        """What a label is in a run."""
        key = (label.text, run)
        if key not in self._values:
            self._values[key] = label.value(self.runs[run].sizes)
        return self._values[key]

    def matching(self, values: Values, runs: Sequence[int]) -> list[Origin]:
        """The known origins that have these values in these runs, simplest first."""
        found = [
            each
            for each in self.book.origins.values()
            if all(self.value(each, r) == v for v, r in zip(values, runs, strict=True))
        ]
        return sorted(found, key=lambda each: (len(each.terms), len(each.text), each.text))

    def all(self) -> list[Labelled]:
        found = []
        for place, call in enumerate(self.runs[0].calls):
            twins, here = [call], [0]
            for number, places in enumerate(self.places, 1):
                if place in places and self.same(call, number, places[place]):
                    twins.append(self.runs[number].calls[places[place]])
                    here.append(number)
            found.append(Step(self, twins, here, len(twins) == len(self.runs)).label())
        return found[self.runs[0].began :]


class Step:
    """One call in all runs that have it."""

    def __init__(self, tracer: _Tracer, twins: list[Call], here: list[int], aligned: bool) -> None:
        self.tracer, self.twins, self.here, self.aligned = tracer, twins, here, aligned
        self.call = twins[0]

    # -- values and lookups

    def shape(self, side: str, number: int) -> list[Values]:
        tensors: list[Tensor] = [getattr(twin, side)[number] for twin in self.twins]
        return list(zip(*(t.shape for t in tensors), strict=True)) if tensors[0].shape else []

    def fits(self, label: Label, values: Values) -> bool:
        return label is not None and all(
            self.tracer.value(label, r) == v for v, r in zip(values, self.here, strict=True)
        )

    def match(self, values: Values) -> Label:
        """What numbers stand for: one, a known origin, a constant; None when it is not clear."""
        if all(v == 1 for v in values):
            return ONE
        for share in (1, 2):  # rotary positions come in halves
            found = self.tracer.matching(tuple(share * v for v in values), self.here)
            if found:
                kinds = {each.kind for each in found}
                mixed = len(kinds) > 1 and "request" in kinds
                return None if mixed else found[0] * Origin.number(Fraction(1, share))
        if len(values) > 1 and len(set(values)) == 1 and self.aligned:
            return Origin.number(values[0])
        return None

    def arg(self, number: int) -> Values:
        """A whole number among the arguments, in all runs."""
        return tuple(int(twin.args[number]) for twin in self.twins)

    # -- labelling

    def label(self) -> Labelled:
        inputs = [self.input(i) for i in range(len(self.call.inputs))]
        rule = RULES.get(self.call.op.removeprefix("aten.").partition(".")[0])
        outputs = []
        for number in range(len(self.call.outputs)):
            values = self.shape("outputs", number)
            labels = list(rule(self, inputs, values)) if rule else []
            if len(labels) != len(values):
                labels = [None] * len(values)
            made = [
                label if self.fits(label, each) else self.generic(i, each, inputs, len(values))
                for i, (label, each) in enumerate(zip(labels, values, strict=True))
            ]
            for each in made:
                if each is not None:
                    self.tracer.book.note(each)
            outputs.append(tuple(made))
            self.keep(self.call.outputs[number].uid, tuple(made))
        scalars = tuple(self.scalar(i) for i in range(len(self.call.args)))
        return Labelled(self.call, tuple(inputs), tuple(outputs), scalars, self.aligned)

    def input(self, number: int) -> tuple[Label, ...]:
        tensor = self.call.inputs[number]
        values = self.shape("inputs", number)
        known = self.tracer.labels.get(tensor.uid)
        if known is None or len(known) != len(values):
            known = tuple(self.match(each) for each in values)
        made = tuple(
            label if label is None or self.fits(label, each) else None
            for label, each in zip(known, values, strict=True)
        )
        self.keep(tensor.uid, made)
        return made

    def keep(self, uid: int, labels: tuple[Label, ...]) -> None:
        if uid not in self.tracer.runs[0].weights:
            self.tracer.labels[uid] = labels

    def scalar(self, number: int) -> Any:
        """An argument that is no tensor: whole numbers as origins, lists too."""
        return _scalars(self, [twin.args[number] for twin in self.twins])

    def generic(self, at: int, values: Values, inputs: list[Any], rank: int) -> Label:
        """The label of an input's dimension with the same values, first one in the same place."""
        same: list[Label] = []
        for number, labels in enumerate(inputs):
            for place, each in enumerate(self.shape("inputs", number)):
                if each == values and all(v != 1 for v in values):
                    same.append(labels[place])
                    if len(labels) - place == rank - at:
                        return labels[place]
        if same:
            return same[0]
        return self.match(values)


def _scalars(step: Step, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, tuple) and first[:1] == ("t",):
        return first
    if isinstance(first, tuple):
        if any(len(each) != len(first) for each in values):
            return None
        return tuple(_scalars(step, list(each)) for each in zip(*values, strict=True))
    if isinstance(first, int) and not isinstance(first, bool):
        if len(set(values)) == 1:
            return Origin.number(first)
        found = step.match(tuple(values))
        return found if found is not None else "?"
    return first


__all__ = ["Label", "Labelled", "Run", "aligned", "trace"]
