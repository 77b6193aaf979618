"""`DoolySteps`: the database as a drop-in source of step times for the modelled replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.ops import experts_touched
from orrery.models.runs import sum_of_ramp
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.curves import Curve, Sum, causes
from orrery.systems.ops.dooly.database import Database
from orrery.systems.ops.dooly.operators import STATE, Use, sizes_of
from orrery.systems.ops.dooly.origins import parse
from orrery.systems.ops.dooly.sweep import shape_of


class DoolySteps:
    """Step times of one model from a database: has what `orrery.models.steps.Steps` asks for.

    A step takes the sum of its operators, each from the regression of its own key, and what the
    host does between them (`host`: weights of CAUSES and of layers; see `measure_host`). A size
    beyond the sweep counts as extrapolated, and `outside` names the operator.
    """

    spread = False
    measured = True

    def __init__(
        self, model: ModelSpec, database: Database, used: Sequence[Use], *,
        host: Sequence[float] = (), watts: float = 0.0, block_tokens: int = 16,
    ) -> None:  # fmt: skip
        self.model, self.tp, self.extrapolated, self.watts = model, 1, 0, watts
        self.outside: dict[str, int] = {}
        self._by_tokens: list[tuple[Curve, Any, int, str, bool]] = []
        self._by_rows: list[tuple[Curve, Any, int, str, bool]] = []
        total = np.zeros(len(causes(((), 0, 0))))
        self._most = np.full_like(total, np.inf)
        base = sizes_of(model, block_tokens)
        for use in used:
            entry = database.find(use.key)
            if use.key.kind == STATE:
                fit = Sum([shape_of(p) for p in entry.points], entry.seconds)
                total += fit.weights * use.times
                self._most = np.minimum(self._most, fit.most)
                continue
            order = np.argsort([p[0] for p in entry.points], kind="stable")
            sizes = [entry.points[i][0] for i in order]
            curve = Curve(sizes, [entry.seconds[i] for i in order])
            origin = None if use.at in ("", "?") else parse(use.at)
            by_rows = origin is not None and "rows" in origin.symbols
            slope = 1.0
            if origin is not None:
                name = "rows" if by_rows else "tokens"
                slope = float(origin.value({**base, name: 1}))
            row = (curve, slope, use.times, use.key.op, use.looped)
            (self._by_rows if by_rows else self._by_tokens).append(row)
        if len(host):
            if len(host) != len(total) + 1:
                raise SpecError("host", f"{len(host)} weights", f"give {len(total) + 1}")
            total += np.asarray(host[:-1], float)
            total[0] += host[-1] * model.layers
        self._weights = [float(w) for w in total]
        self._dense: dict[int, tuple[float, tuple[str, ...]]] = {}
        self._head: dict[int, tuple[float, tuple[str, ...]]] = {}

    # -- what depends on one size

    def _sum(self, rows: list[Any], size: int) -> tuple[float, tuple[str, ...]]:
        seconds, out = 0.0, {}
        for curve, slope, times, name, looped in rows:
            x = size * slope
            if looped:
                # Tokens choose experts as if at random; each touched one gets its even share.
                touched = max(1.0, float(experts_touched(self.model, size)))
                x = size * self.model.experts_active / touched
                times = times * touched
            seconds += times * curve(x)
            if x > curve.sizes[-1]:
                out[name] = None
        return seconds, tuple(out)

    def _flat(self, tokens: int, rows: int, steps: int) -> float:
        found = self._dense.get(tokens)
        if found is None:
            found = self._dense[tokens] = self._sum(self._by_tokens, tokens)
        head = self._head.get(rows)
        if head is None:
            head = self._head[rows] = self._sum(self._by_rows, rows)
        names = (*found[1], *head[1])
        if names:
            self.extrapolated += steps
            for name in names:
                self.outside[name] = self.outside.get(name, 0) + steps
        return found[0] + head[0]

    # -- Steps

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """One step: prompt chunks (new tokens, cached tokens), decodes, their context in all."""
        for new, past in prefill:
            if new < 1 or past < 0:
                raise SpecError("prefill", f"({new}, {past}) is refused", "give (>= 1, >= 0)")
        if decodes < 0 or decode_kv < 0:
            raise SpecError("decodes, decode_kv", f"({decodes}, {decode_kv})", "give 0 or more")
        why = causes((prefill, decodes, decode_kv))
        tokens = int(why[1])
        if not tokens:
            return 0.0
        took_s = self._flat(tokens, decodes + len(prefill), 1)
        if any(x > most for x, most in zip(why, self._most, strict=True)):
            self.extrapolated += 1
            self.outside["attention"] = self.outside.get("attention", 0) + 1
        return took_s + sum(w * x for w, x in zip(self._weights, why, strict=True))

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many pure decode steps in a row; the context grows by `decodes` with each."""
        if not decodes or steps <= 0:
            return 0.0
        w = self._weights
        flat_s = self._flat(decodes, decodes, steps) + w[0] + (w[1] + w[2]) * decodes
        if decode_kv + decodes * (steps - 1) > self._most[3]:
            self.extrapolated += steps
            self.outside["attention"] = self.outside.get("attention", 0) + steps
        return sum_of_ramp(w[3], flat_s, decode_kv, decodes, steps)

    def joules(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """Energy of the step at the power given for the device."""
        before = self.extrapolated, dict(self.outside)
        took_s = self.seconds(prefill, decodes, decode_kv)
        self.extrapolated, self.outside = before
        return took_s * self.watts


__all__ = ["DoolySteps"]
