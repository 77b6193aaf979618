"""How the labels of an operator's inputs become those of its output, operator by operator.

A rule gets the call in all runs, the labels of the inputs and the values of one output. What it
says is held against every run, so a rule can be incomplete but not wrong.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from orrery.systems.ops.dooly.origins import Origin

if TYPE_CHECKING:
    from orrery.systems.ops.dooly.taint import Step

Label = Origin | None
Values = tuple[int, ...]
ONE = Origin.number(1)
_FAR = 1 << 60


def _matmul(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return [*inputs[0][:-1], inputs[1][-1]]


def _linear(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return [*inputs[0][:-1], inputs[1][0]]


def _addmm(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return [inputs[1][0], inputs[2][1]]


def _einsum(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    taken, _, given = str(step.call.args[0]).partition("->")
    known: dict[str, Label] = {}
    for letters, labels in zip(taken.split(","), inputs, strict=True):
        known.update(zip(letters, labels, strict=True))
    return [known[letter] for letter in given]


def _broadcast(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    """Each dimension is that of an input which is not stretched there."""
    made: list[Label] = []
    for at, each in enumerate(values):
        found: Label = None
        for number, labels in enumerate(inputs):
            place = at - len(values) + len(labels)
            if place >= 0 and step.shape("inputs", number)[place] == each:
                found = found or labels[place]
        made.append(found)
    return made


def _turned(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels = list(inputs[0])
    a, b = (int(n) for n in step.call.args[1:3]) if len(step.call.args) > 2 else (0, 1)
    if len(labels) > 1:
        labels[a], labels[b] = labels[b], labels[a]
    return labels


def _unsqueeze(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels, at = list(inputs[0]), int(step.call.args[1])
    labels.insert(at if at >= 0 else at + len(labels) + 1, ONE)
    return labels


def _select(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels = list(inputs[0])
    del labels[int(step.call.args[1])]
    return labels


def _slice(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels, at = list(inputs[0]), int(step.call.args[1]) if len(step.call.args) > 1 else 0
    at %= max(len(labels), 1)
    whole = step.shape("inputs", 0)[at]
    if values[at] == whole:
        return labels
    ends: list[Label] = []
    for number, default in ((2, 0), (3, _FAR)):
        given = step.arg(number) if len(step.call.args) > number else (default,) * len(whole)
        clipped = tuple(min(g, w) for g, w in zip(given, whole, strict=True))
        if clipped == whole:
            ends.append(labels[at])
        else:
            ends.append(Origin.number(0) if not any(clipped) else step.match(clipped))
    found = ends[1] - ends[0] if ends[0] is not None and ends[1] is not None else None
    if not step.fits(found, values[at]):
        found = _share(step, labels[at], whole, values[at]) or step.match(values[at])
    labels[at] = found
    return labels


def _share(step: Step, label: Label, whole: Values, part: Values) -> Label:
    """A half, a third ... of a dimension, if it is that in every run."""
    if label is None or not part[0] or whole[0] % part[0]:
        return None
    found = label * Origin.number(Fraction(1, whole[0] // part[0]))
    return found if len(part) > 1 and step.fits(found, part) else None


def _chunk(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels, at = list(inputs[0]), int(step.call.args[2]) if len(step.call.args) > 2 else 0
    whole = step.shape("inputs", 0)[at]
    labels[at] = _share(step, labels[at], whole, values[at])
    return labels


def _cat(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    at = int(step.call.args[1]) if len(step.call.args) > 1 else 0
    labels = list(inputs[0])
    parts = [each[at] for each in inputs]
    if any(part is None for part in parts):
        labels[at] = None
    else:
        labels[at] = sum(parts[1:], parts[0])  # type: ignore[arg-type]
    return labels


def _stack(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    at = int(step.call.args[1]) if len(step.call.args) > 1 else 0
    labels = list(inputs[0])
    labels.insert(at, step.match(values[at]))
    return labels


def _index(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return [*inputs[1], *inputs[0][1:]]


def _index_select(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    labels = list(inputs[0])
    labels[int(step.call.args[1])] = inputs[1][0]
    return labels


def _topk(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return [*inputs[0][:-1], step.match(step.arg(1))]


def _first(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    return list(inputs[0])


def _view(step: Step, inputs: list[Any], values: list[Values]) -> list[Label]:
    """Dimensions are joined and split; each group keeps its product."""
    old, labels = step.shape("inputs", 0), list(inputs[0])
    made: list[Label] = []
    i = j = 0
    while j < len(values):
        ins, outs = [], []
        left, right = _product([]), _product([])
        while True:
            if left != right or not outs:
                grow_right = not outs or (left != right and right[0] < left[0])
            else:
                break
            if grow_right and j < len(values):
                outs.append(j)
                right = _times(right, values[j])
                j += 1
            elif i < len(old):
                ins.append(i)
                left = _times(left, old[i])
                i += 1
            elif j < len(values):
                outs.append(j)
                right = _times(right, values[j])
                j += 1
            else:
                break
        made += _split(step, [labels[n] for n in ins], [old[n] for n in ins],
                       [values[n] for n in outs])  # fmt: skip
    return made


def _product(values: list[Values]) -> Values:
    return tuple(math.prod(each) for each in zip(*values, strict=True)) if values else (1,)


def _times(a: Values, b: Values) -> Values:
    wide = a if len(a) == len(b) else (1,) * len(b) if all(x == 1 for x in a) else a
    return tuple(x * y for x, y in zip(wide, b, strict=True))


def _split(
    step: Step, labels: list[Label], old: list[Values], new: list[Values]
) -> list[Label]:  # fmt: skip
    known = [label for label in labels if label is not None]
    total: Label = None
    if len(known) == len(labels):
        total = ONE
        for label in known:
            total = total * label
    if len(new) == 1:
        return [total]
    made: list[Label] = []
    for each in new:
        same = [lab for lab, was in zip(labels, old, strict=True) if was == each]
        made.append(ONE if all(v == 1 for v in each) else same[0] if same else step.match(each))
    lost = [n for n, label in enumerate(made) if label is None]
    if total is not None and len(lost) == 1:
        rest: Label = total
        for n, label in enumerate(made):
            if n != lost[0] and label is not None and rest is not None:
                rest = rest / label
        made[lost[0]] = rest
    return made


RULES = {
    "matmul": _matmul, "mm": _matmul, "linear": _linear, "addmm": _addmm, "einsum": _einsum,
    "transpose": _turned, "t": _turned, "unsqueeze": _unsqueeze, "select": _select,
    "slice": _slice, "chunk": _chunk, "cat": _cat, "stack": _stack, "index": _index,
    "embedding": lambda step, inputs, values: [*inputs[1], *inputs[0][1:]],
    "index_select": _index_select, "topk": _topk, "view": _view, "reshape": _view,
    "flatten": _view, "_unsafe_view": _view, "rms_norm": _first, "layer_norm": _first,
    "mul": _broadcast, "add": _broadcast, "sub": _broadcast, "silu": _first, "gelu": _first,
    "softmax": _first, "zeros_like": _first, "index_copy_": _first, "index_add_": _first,
    "copy_": _first, "le": _broadcast, "contiguous": _first, "detach_": _first,
}  # fmt: skip

__all__ = ["ONE", "RULES", "Label", "Values"]
