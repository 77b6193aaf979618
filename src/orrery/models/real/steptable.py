"""`StepTable`: what a step of a measured engine takes, for the virtual one.

A step's time is a sum of parts that each have a cause: a curve over the tokens of the step (the
matrices), a curve over the rows that are sampled (the output matrix), and lines over what attention
reads and multiplies. The curves are piecewise linear and never fall; an engine that pads its steps
has a level for each padded size instead of the first curve. All weights are non-negative and fitted
to measured steps by relative error. Engine overhead is in the measurements, so it is in
the table.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError
from orrery.models.runs import sum_of_ramp
from orrery.models.specs import ModelSpec

SCHEMA = "orrery.steptable/1"
# Where curves may bend.
KNOTS = (
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096,
)  # fmt: skip
# Tokens of chunks that a device may attend to at once; the fit takes what explains most.
LANES = (0, 128, 256, 384, 512, 768, 1024, 2048)
LINES = ("decodes", "decode_kv", "chunks", "chunk_reach", "chunk_pairs")

Floats = npt.NDArray[np.float64]
Shape = tuple[Sequence[tuple[int, int]], int, int]


class StepTable:
    """Step times fitted to measured steps; has what `Steps` asks for.

    A step with more tokens, rows or context than were measured counts as extrapolated: curves go on
    with their last slope. `watts` is the power of the device while it computes. `pads` are the
    sizes to which the engine pads a step's tokens: "decode" alone, or "mixed" with prompt chunks.
    `lanes` are the tokens of chunks that a device attends to at once: fewer take as long.
    """

    spread = False
    measured = True

    def __init__(
        self, model: ModelSpec, *, tokens: dict[int, float], rows: dict[int, float],
        lines: dict[str, float], most: dict[str, int], error: float = math.nan,
        watts: float = 0.0, about: str = "", pads: dict[str, list[int]] | None = None,
        lanes: int = 0,
    ) -> None:  # fmt: skip
        self.lanes = lanes
        self.model, self.tp, self.extrapolated, self.pads = model, 1, 0, check_pads(pads)
        self.tokens, self.rows, self.lines, self.most = tokens, rows, lines, most
        self.error, self.watts, self.about = error, watts, about
        unknown = sorted(set(LINES) ^ set(lines))
        if unknown or not tokens or not rows:
            raise SpecError("steptable", f"its parts are off: {unknown}", "fit it again")
        self._tokens, self._rows = _Curve(tokens), _Curve(rows)
        self._line = tuple(lines[name] for name in LINES)

    # -- Steps

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """One step: prompt chunks (new tokens, cached tokens), decodes, their context in all."""
        if decodes < 0 or decode_kv < 0:
            raise SpecError("decodes, decode_kv", f"({decodes}, {decode_kv})", "give 0 or more")
        new = reach = pairs = longest = chunks = 0
        for chunk, past in prefill:
            if chunk < 1 or past < 0:
                raise SpecError("prefill", f"({chunk}, {past}) is refused", "give (>= 1, >= 0)")
            if chunk == 1:  # is computed as a decode is
                decodes, decode_kv = decodes + 1, decode_kv + past + 1
                continue
            length = chunk + past
            new, reach, pairs = new + chunk, reach + length, pairs + chunk * length
            longest, chunks = max(longest, length), chunks + 1
        tokens, rows = new + decodes, decodes + chunks
        if not tokens:
            return 0.0
        pairs = max(pairs, self.lanes * longest)
        most = self.most
        beyond = tokens > most["tokens"] or rows > most["rows"]
        if beyond or decode_kv > most["decode_kv"] or reach > most["chunk_reach"]:
            self.extrapolated += 1
        a, b, c, d, e = self._line
        return (
            self._tokens(padded(self.pads, tokens, bool(chunks))) + self._rows(rows)
            + a * decodes + b * decode_kv + c * chunks + d * reach + e * pairs
        )  # fmt: skip

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many pure decode steps in a row; the context grows by `decodes` with each."""
        if not decodes or steps <= 0:
            return 0.0
        matrices_s = self._tokens(padded(self.pads, decodes, False))
        flat_s = matrices_s + self._rows(decodes) + self._line[0] * decodes
        last_kv = decode_kv + decodes * (steps - 1)
        if decodes > min(self.most["tokens"], self.most["rows"]):
            self.extrapolated += steps
        elif last_kv > self.most["decode_kv"]:
            over = (last_kv - self.most["decode_kv"] + decodes - 1) // decodes
            self.extrapolated += min(steps, over)
        return sum_of_ramp(self._line[1], flat_s, decode_kv, decodes, steps)

    def joules(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """Energy of the step at the power given for the device."""
        before = self.extrapolated
        took_s = self.seconds(prefill, decodes, decode_kv)
        self.extrapolated = before
        return took_s * self.watts

    # -- files

    def to_data(self) -> dict[str, Any]:
        """Everything, as plain data."""
        import msgspec

        return {
            "schema": SCHEMA, "about": self.about, "model": msgspec.to_builtins(self.model),
            "tokens": [[k, v] for k, v in self.tokens.items()],
            "rows": [[k, v] for k, v in self.rows.items()],
            "lines": self.lines, "most": self.most, "watts": self.watts, "pads": self.pads,
            "lanes": self.lanes,
            "error": None if math.isnan(self.error) else self.error,
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Any) -> StepTable:
        """The table that `to_data` wrote."""
        import msgspec

        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise SpecError("schema", "is not that of a step table", f"give {SCHEMA}")
        try:
            error = data["error"]
            curves = [{int(k): float(v) for k, v in data[name]} for name in ("tokens", "rows")]
            return cls(
                msgspec.convert(data["model"], ModelSpec), tokens=curves[0], rows=curves[1],
                lines={str(k): float(v) for k, v in data["lines"].items()},
                most={str(k): int(v) for k, v in data["most"].items()},
                error=math.nan if error is None else float(error), watts=float(data["watts"]),
                about=str(data["about"]), pads=data.get("pads"),
                lanes=int(data.get("lanes", 0)),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as failure:
            raise SpecError("steptable", f"a field is off: {failure!r}", "fit it again") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON, whole or not at all."""
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".steps-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_data(), file, indent=1, allow_nan=False)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StepTable:
        """Read what `save` wrote."""
        try:
            return cls.from_data(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as failure:
            raise SpecError(str(path), f"cannot be read: {failure}", "give a step table") from None

    def __repr__(self) -> str:
        return f"StepTable({self.model.name}, error {self.error:.1%})"


def check_pads(pads: dict[str, list[int]] | None) -> dict[str, list[int]]:
    """Sizes to pad to: rising whole numbers by kind of step, or none at all."""
    if not pads:
        return {}
    rising = all(list(sizes) == sorted(set(sizes)) and sizes[0] >= 1 for sizes in pads.values())
    if set(pads) != {"decode", "mixed"} or not rising:
        raise SpecError("pads", f"{pads} is refused", "give rising sizes for decode and mixed")
    return {kind: [int(size) for size in sizes] for kind, sizes in pads.items()}


def padded(pads: dict[str, list[int]], tokens: int, mixed: bool) -> int:
    """The tokens that a step of so many really computes.

    >>> sizes = {"decode": [1, 2, 4], "mixed": [64, 128]}
    >>> padded(sizes, 3, False), padded(sizes, 3, True), padded(sizes, 200, True)
    (4, 64, 200)
    """
    if not pads:
        return tokens
    sizes = pads["mixed" if mixed else "decode"]
    at = bisect.bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else tokens


class _Curve:
    """A piecewise linear function of a whole number, tabulated as it is asked for."""

    def __init__(self, points: dict[int, float]) -> None:
        self._x = np.array(list(points), float)
        self._y = np.array(list(points.values()), float)
        self._known: dict[int, float] = {}

    def __call__(self, x: int) -> float:
        value = self._known.get(x)
        if value is None:
            xs, ys = self._x, self._y
            if x > xs[-1] and len(xs) > 1:
                slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
                value = float(ys[-1] + slope * (x - xs[-1]))
            else:
                value = float(np.interp(x, xs, ys))
            self._known[x] = value
        return value


# -- the fit


def fit(
    model: ModelSpec, shapes: Sequence[Shape], seconds: Sequence[float], *, watts: float = 0.0,
    about: str = "", pads: dict[str, list[int]] | None = None,
) -> StepTable:  # fmt: skip
    """A table from measured steps: their shapes (prefill, decodes, decode_kv), and seconds each."""
    took, pads = np.asarray(seconds, float), check_pads(pads)
    if len(shapes) != len(took) or len(took) < 10:
        raise SpecError("seconds", f"{len(shapes)} shapes, {len(took)} times", "give ten or more")
    if not np.isfinite(took).all() or (took <= 0).any():
        raise SpecError("seconds", "a time is not positive", "leave that step out")
    more = {"watts": watts, "about": about, "pads": pads}
    tables = [_fit(model, shapes, took, lanes, more) for lanes in (LANES if pads else (0,))]
    return min(tables, key=lambda table: table.error)


def _fit(
    model: ModelSpec, shapes: Sequence[Shape], took: Floats, lanes: int, more: dict[str, Any]
) -> StepTable:
    pads = more["pads"]
    causes = np.array([_causes(shape, lanes) for shape in shapes], float)
    mixed = causes[:, 4] > 0
    most_tokens, rows = int(causes[:, 0].max()), causes[:, 1]
    sizes = zip(causes[:, 0], mixed, strict=True)
    tokens = np.array([padded(pads, int(n), bool(chunks)) for n, chunks in sizes], float)
    at_rows = _knots(rows)
    if pads:
        # Each padded size is a recording of its own, with kernels of its own: its time may fall.
        at_tokens = sorted({int(n) for n in tokens})
        levels = np.array([tokens == n for n in at_tokens], float).T
    else:
        at_tokens = _knots(tokens)
        levels = _ramps(tokens, at_tokens)
    columns = np.hstack([levels, _ramps(rows, at_rows)[:, 1:], causes[:, 2:]])
    weights = non_negative(columns / took[:, None], np.ones_like(took))
    first, second = len(at_tokens), len(at_tokens) + len(at_rows) - 1
    base = weights[:first] if pads else np.cumsum(weights[:first])
    return StepTable(
        model,
        tokens=dict(zip(at_tokens, base.tolist(), strict=True)),
        rows=dict(zip(at_rows, [0.0, *np.cumsum(weights[first:second]).tolist()], strict=True)),
        lines=dict(zip(LINES, weights[second:].tolist(), strict=True)),
        most={
            "tokens": most_tokens, "rows": int(rows.max()),
            "decode_kv": int(causes[:, 3].max()), "chunk_reach": int(causes[:, 5].max()),
        },
        error=float(np.mean(np.abs(columns @ weights / took - 1))), lanes=lanes, **more,
    )  # fmt: skip


def _causes(shape: Shape, lanes: int) -> list[float]:
    prefill, decodes, decode_kv = shape
    chunks = [(new, new + past) for new, past in prefill if new > 1]
    ones = [past + 1 for new, past in prefill if new == 1]
    decodes, decode_kv = decodes + len(ones), decode_kv + sum(ones)
    reach = sum(length for _, length in chunks)
    pairs = sum(new * length for new, length in chunks)
    pairs = max(pairs, lanes * max((length for _, length in chunks), default=0))
    tokens, rows = decodes + sum(new for new, _ in chunks), decodes + len(chunks)
    return [tokens, rows, decodes, decode_kv, len(chunks), reach, pairs]


def _knots(values: Floats) -> list[int]:
    """Where a curve may bend: at those of the usual places between which there are samples."""
    low, high = int(values.min()), int(values.max())
    kept = [low]
    for knot in [*(k for k in KNOTS if low < k < high), high]:
        if np.count_nonzero((values > kept[-1]) & (values <= knot)) >= 2 or knot == high:
            kept.append(knot)
    return sorted(set(kept))


def _ramps(values: Floats, knots: list[int]) -> Floats:
    """A column of ones, then for each stretch how far a value is along it (0 to 1)."""
    columns = [np.ones_like(values)]
    for a, b in itertools.pairwise(knots):
        columns.append(np.clip((values - a) / (b - a), 0.0, 1.0))
    return np.stack(columns, 1)


def non_negative(matrix: Floats, wanted: Floats) -> Floats:
    """The non-negative x with the least squares of matrix @ x - wanted (Lawson and Hanson, 1974).

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    # Columns of like size keep the tolerance meaningful.
    size = np.linalg.norm(matrix, axis=0)
    size[size == 0] = 1.0
    a = matrix / size
    count = a.shape[1]
    x, used = np.zeros(count), np.zeros(count, bool)
    for _ in range(10 * count):
        pull = a.T @ (wanted - a @ x)
        pull[used] = -np.inf
        best = int(np.argmax(pull))
        if pull[best] <= 1e-10 * max(1.0, float(np.linalg.norm(wanted))):
            break
        used[best] = True
        while True:
            trial = np.zeros(count)
            trial[used] = np.linalg.lstsq(a[:, used], wanted, rcond=None)[0]
            if (trial[used] > 0).all():
                x = trial
                break
            sinking = used & (trial <= 0)
            drop = x[sinking] - trial[sinking]
            step = float(np.min(np.where(drop > 0, x[sinking] / np.where(drop > 0, drop, 1), 0)))
            x = x + step * (trial - x)
            used &= x > 1e-14
            x[~used] = 0.0
            if not used.any():
                break
    return x / size


__all__ = ["SCHEMA", "StepTable", "fit", "non_negative"]
