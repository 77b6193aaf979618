"""`Detector`: the port of finding sick ranks: a monitor of ranks before they are averaged.

What a detector hears of a rank in a step is a few numbers that the rank itself has made of its
gradient. The same class judges a run as it goes (attached as a monitor), or the rows of a recorded
one (`fit` on rows without a fault, then `predict` whom each row blames).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import PartError
from orrery.base.violation import Violation
from orrery.parts import Estimator, Monitor
from orrery.parts.collectives import Array

Join = Callable[[Array, Array], Array]

# The collectives in which gradients are averaged.
WATCHED = frozenset({"all_reduce", "reduce_scatter"})
# A step is judged when all ranks have told of so many more, because reports of different processes
# overtake one another; and when so many are open, because then somebody is gone.
BEHIND, GONE = 2, 64
NOBODY = -1


class Alarm(msgspec.Struct, frozen=True):
    """What was noticed: in which step, of which kind, and which ranks are blamed (perhaps none)."""

    step: int
    kind: str
    ranks: tuple[int, ...]
    score: float
    message: str


class Step(msgspec.Struct):
    """One step as a detector sees it; arrays have a place for each rank."""

    number: int
    ranks: tuple[int, ...]
    losses: Array  # nan where the task keeps none
    norms: Array  # -1 where the gradient is not finite
    cosines: Array | None = None  # between all pairs of ranks
    sum_norm: float = math.nan  # of the sum of all ranks' gradients

    @property
    def usable(self) -> bool:
        """Whether every rank has a finite gradient that is not zero."""
        return bool(np.all(self.norms > 0))


def spread(values: Array) -> float:
    """The population standard deviation, and exactly 0 for equal values.

    >>> spread(np.array([0.1, 0.1, 0.1]))
    0.0
    """
    return float(np.std(values - values[0])) if values.size else 0.0


def relative_spread(values: Array) -> float:
    """The coefficient of variation; 0 where the mean is 0."""
    middle = abs(float(np.mean(values))) if values.size else 0.0
    return spread(values) / middle if middle > 0 else 0.0


class Tap:
    """What one rank keeps between the parts of a step; it lives in the monitor's memory there.

    A step begins with its loss or, where none is told, with a tag that comes again. A gradient may
    enter the collectives in parts, one for each layer; they are added up and told once. How many
    there are is known when the first step is over, so it is told together with the second.
    """

    def __init__(self) -> None:
        self.step = -1
        self.loss: float | None = None
        self.counted = False  # whether losses tell where steps begin
        self.tags: set[str] = set()
        self.want = 0
        self.held: list[Any] | None = None
        self.left: list[Any] = []  # the first step, and any that had fewer parts than it

    def begin(self, loss: float | None) -> None:
        """A step begins."""
        if not self.want:
            self.want = len(self.tags)
        if self.held is not None:
            self.left.append(self.held)
        self.tags, self.held, self.loss = set(), None, loss
        self.step += 1

    def part(self, tag: str, square: float, sketch: Array, join: Join) -> list[Any]:
        """A part of the gradient: its squared norm and its sketch; gives what is to be told."""
        if not self.counted and (self.step < 0 or tag in self.tags):
            self.begin(None)
        told, self.left = self.left, []
        self.tags.add(tag)
        if self.held is None:
            self.held = [self.step, square, self.loss, sketch]
        else:
            broken = square < 0 or self.held[1] < 0
            self.held[1] = -1.0 if broken else self.held[1] + square
            self.held[3] = join(self.held[3], sketch)
        if self.want and len(self.tags) >= self.want:
            told.append(self.held)
            self.held = None
        return told


def squared_norm(vector: Array) -> float:
    """The squared norm; -1 where it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(np.dot(vector, vector))
        if not math.isfinite(found):  # perhaps float32 is too narrow for a sound gradient
            wide = vector.astype(np.float64)
            found = float(np.dot(wide, wide))
    return found if math.isfinite(found) else -1.0


class Detector(Estimator, Monitor):
    """Watches the ranks of a data-parallel run and names those that seem sick.

    A subclass writes `look(step)`, which gives the alarms that are on in a step as
    (kind, ranks, score) and notes `self.signal`, the number that it watches most; `begin()`, which
    makes its state; and perhaps `sketch(tag, vector)`, what a rank tells of its gradient beside
    norm and loss.
    """

    # Whether the summed gradient is looked at too, as it leaves the collective.
    watches_sum: ClassVar[bool] = False

    # -- at the rank

    def at_rank(
        self, memory: dict[str, Any], time_s: float, phase: str, kind: str, tag: str, data: Any
    ) -> Any:
        taps: dict[str, Tap] = memory.setdefault("taps", {"before": Tap(), "after": Tap()})
        if kind == "loss":
            for tap in taps.values():
                tap.counted = True
                tap.begin(None if math.isnan(data) else float(data))
            return None
        if kind not in WATCHED or (phase == "after" and not self.watches_sum):
            return None
        vector = np.asarray(data).reshape(-1)
        if not np.issubdtype(vector.dtype, np.floating):
            return None
        square = squared_norm(vector)
        sketch = _NOTHING
        if phase == "before":  # what is not finite has no direction
            sketch = self.sketch(tag, vector if square >= 0 else np.zeros_like(vector))
        told = taps[phase].part(tag, square, sketch, self.join)
        return [_wire(record) for record in told] or None

    def sketch(self, tag: str, vector: Array) -> Array:
        """What a rank tells of the direction of its gradient, or of a part of it."""
        return _NOTHING

    def join(self, one: Array, other: Array) -> Array:
        """The sketch of two parts of a gradient together."""
        return np.asarray(one + other)

    # -- at the monitor

    def start(self) -> None:
        self.alarms: list[Alarm] = []
        self.told_B = 0
        self.signals: list[tuple[int, float]] = []
        self.signal = math.nan
        self.in_alarm: list[int] = []  # the steps in which any alarm is on
        self._open: dict[int, dict[int, list[Any]]] = {}
        self._sums: dict[int, float] = {}
        self._latest: dict[int, int] = {}
        self._judged, self._done = 0, -1
        self._on: set[tuple[str, tuple[int, ...]]] = set()
        self._lost: set[int] = set()
        self.begin()

    def before_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        for record in data:
            number = int(record[0])
            self.told_B += 24 + np.asarray(record[3]).nbytes
            self._latest[node] = max(number, self._latest.get(node, -1))
            if number > self._done:  # what comes after its step was judged is too late
                rows = self._open.setdefault(number, {})
                rows[node] = self._added(rows.get(node), record)
        # Steps that all have told of; the last of these may still lack ranks not yet heard of.
        whole = sorted(number for number in self._open if number <= min(self._latest.values()))
        ready = whole[:-BEHIND]
        self._advance(ready or sorted(self._open)[:-GONE])

    def _added(self, held: list[Any] | None, record: list[Any]) -> list[Any]:
        """A rank's row with one more part of its gradient."""
        number, square, loss, sketch = record
        raw = np.asarray(sketch, np.float64) * math.sqrt(max(square, 0.0))
        if held is None:
            return [number, float(square), loss, raw]
        broken = square < 0 or held[1] < 0
        return [number, -1.0 if broken else held[1] + square, loss, self.join(held[3], raw)]

    def after_collective(self, time_s: float, node: int, kind: str, tag: str, data: Any) -> None:
        # All ranks have the same sum; the first that tells of a step is believed.
        for record in data:
            self.told_B += 24
            self._sums.setdefault(int(record[0]), math.sqrt(max(record[1], 0.0)))

    def on_emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        if "lost" in values and values["lost"] not in self._lost:
            self._lost.add(values["lost"])
            self._raise(max(self._latest.values(), default=0), "rank_lost", (values["lost"],), 0.0)

    def _advance(self, numbers: list[int]) -> None:
        for number in numbers:
            self._done = number
            self._judge(number, self._open.pop(number))

    def finish(self) -> None:
        """Judge the steps that are still open; a run calls it at its end."""
        self._advance(sorted(self._open))

    def _judge(self, number: int, rows: dict[int, list[Any]]) -> None:
        ranks = tuple(sorted(rows))
        losses = np.array([math.nan if rows[r][2] is None else rows[r][2] for r in ranks])
        squares = np.array([rows[r][1] for r in ranks])
        norms = np.where(squares < 0, -1.0, np.sqrt(np.maximum(squares, 0.0)))
        sketches = [rows[r][3] for r in ranks]
        size = max((each.size for each in sketches), default=0)
        cosines = None
        if size:  # a rank without a direction stands there with zeros
            full = [each if each.size == size else np.zeros(size) for each in sketches]
            cosines = cosines_of(np.stack(full))
        total = self._sums.pop(number, math.nan)
        self.see(Step(number, ranks, losses, norms, cosines, total))

    def see(self, step: Step) -> list[Alarm]:
        """Judge one step; gives the alarms that are new."""
        self._judged += 1
        before = len(self.alarms)
        self.signal = math.nan
        found = list(self.look(step))
        if math.isfinite(self.signal):
            self.signals.append((step.number, self.signal))
        now = {(kind, ranks) for kind, ranks, _ in found}
        for kind, ranks, score in found:
            if (kind, ranks) not in self._on:
                self._raise(step.number, kind, ranks, score)
        self._on = now
        if now:
            self.in_alarm.append(step.number)
        return self.alarms[before:]

    def is_on(self, kind: str, ranks: tuple[int, ...]) -> bool:
        """Whether this alarm was on in the step before."""
        return (kind, ranks) in self._on

    def _raise(self, number: int, kind: str, ranks: tuple[int, ...], score: float) -> None:
        who = " and ".join(f"rank {rank}" for rank in ranks) or "nobody in particular"
        message = f"step {number}: {kind.replace('_', ' ')}; blamed: {who} (score {score:.3g})"
        self.alarms.append(Alarm(number, kind, ranks, score, message))

    def violations(self) -> list[Violation]:
        self.finish()
        return [
            Violation(kind=alarm.kind, message=alarm.message, evidence=msgspec.to_builtins(alarm),
                      node=alarm.ranks[0] if len(alarm.ranks) == 1 else None)
            for alarm in self.alarms
        ]  # fmt: skip

    def metrics(self) -> dict[str, float]:
        self.finish()
        reports = max(self._judged * len(self._latest), 1)
        return {
            "alarms": float(len(self.alarms)),
            "watched_steps": float(self._judged),
            "tap_B": self.told_B / reports,
        }

    # -- what a subclass writes

    def begin(self) -> None:
        """Make the state of a run."""

    def look(self, step: Step) -> list[tuple[str, tuple[int, ...], float]]:
        """The alarms that are on in this step: (kind, ranks, score)."""
        raise PartError(f"{type(self).__name__} has no look(step); give the alarms of a step")

    def learn(self, steps: list[Step]) -> None:
        """Take the scale of what is normal from steps without a fault."""

    # -- recorded runs

    def fit(self, inputs: Any, targets: Any) -> Detector:
        """Learn what is normal from rows (see `row_of`) whose target is -1: nobody is sick."""
        steps = [step_of(row, number) for number, row in enumerate(_table(inputs))]
        targets = np.asarray(targets)
        if len(targets) != len(steps):
            raise PartError(f"{len(steps)} rows have {len(targets)} targets; give one for each")
        self.start()
        self.learn([step for step, who in zip(steps, targets, strict=True) if who == NOBODY])
        self._fitted = True
        return self

    def predict(self, inputs: Any) -> Array:
        """For each row, in order, the rank that is blamed in it; -1 for nobody."""
        self.fitted("_fitted")
        self.start()
        said = []
        for number, row in enumerate(_table(inputs)):
            self.see(step_of(row, number))
            said.append(min((ranks[0] for _, ranks in self._on if ranks), default=NOBODY))
        return np.array(said)


_NOTHING: Array = np.zeros(0, np.float32)


def _wire(record: list[Any]) -> list[Any]:
    """A record as it travels: the sketch as a direction in float32, whose length is the norm."""
    step, square, loss, sketch = record
    scale = math.sqrt(square) if square > 0 else 1.0
    return [step, square, loss, (sketch / scale).astype(np.float32)]


def cosines_of(vectors: Array) -> Array:
    """The cosine of every pair; that with a vector of zeros is 0, and a vector's own is 1."""
    norms = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(norms > 0, norms, 1.0)[:, None]
    found = np.clip(units @ units.T, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


# -- rows of recorded steps


def row_of(step: Step) -> Array:
    """A step as one row: losses, norms, cosines of the pairs, norm of the sum."""
    size = len(step.ranks)
    pairs = np.triu_indices(size, 1)
    cosines = np.zeros(len(pairs[0])) if step.cosines is None else step.cosines[pairs]
    return np.concatenate([step.losses, step.norms, cosines, [step.sum_norm]])


def step_of(row: Array, number: int) -> Step:
    """The step that a row tells of."""
    size = round((math.sqrt(1 + 8 * len(row)) - 3) / 2)
    # Sizes fit where n losses, n norms, n(n-1)/2 cosines and one norm of the sum are there.
    if size < 1 or 2 * size + size * (size - 1) // 2 + 1 != len(row):
        raise PartError(f"a row of {len(row)} numbers is no step; make it with row_of(step)")
    pairs = np.triu_indices(size, 1)
    cosines = np.eye(size)
    cosines[pairs] = row[2 * size : -1]
    cosines.T[pairs] = row[2 * size : -1]
    return Step(
        number, tuple(range(size)), row[:size], row[size : 2 * size], cosines, float(row[-1])
    )


def _table(inputs: Any) -> Array:
    rows = np.asarray(inputs, float)
    if rows.ndim != 2:
        raise PartError(f"rows of shape {rows.shape}: give a table with a row for each step")
    return rows
