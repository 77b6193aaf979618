"""What a decode step takes, as a + b x sequences + c x tokens in the cache, fitted to tables.

Measured times of whole steps (`orrery.models.steps`) are curved a little; over the range in which a
worker lives a plane through them is enough for questions of balance, and it says in one number, c,
what an unbalanced cache costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import KnobError

SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
CONTEXTS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096)


class StepTime(NamedTuple):
    """Seconds of a step: `fixed_s` + `sequence_s` x sequences + `token_s` x tokens in the cache.

    >>> StepTime(0.005, 0.00001, 0.00000003).seconds(32, 40000)
    0.00652
    """

    fixed_s: float
    sequence_s: float
    token_s: float
    source: str = ""

    def seconds(self, sequences: Any, kv_tokens: Any) -> Any:
        return self.fixed_s + self.sequence_s * sequences + self.token_s * kv_tokens


# Fitted by `fit` to the tables of aiconfigurator-core 0.12.0 (h200_sxm, vLLM 0.24.0), so that a run
# needs no tables; a test fits again where the tables are and holds the numbers against these.
RECORDED = StepTime(
    5.11012e-3, 1.07210e-5, 3.09054e-8, "Llama-3.1-8B on one H200, aiconfigurator-core 0.12.0"
)


def fit(
    model: str = "Llama-3.1-8B", accelerator: str = "H200", tp: int = 1, *, ep: int = 1,
    tables: str | None = "auto",
) -> tuple[StepTime, float]:  # fmt: skip
    """The plane through a model's step times, and the median of its relative errors.

    Least squares of relative errors, none of the three below zero: a negative one means that the
    tables do not show it, so it is left out and the others are fitted again.
    """
    from orrery.models.steps import steps_for
    from orrery.models.weights import Layout

    steps = steps_for(model, accelerator, tp, tables=tables, layout=Layout(tp=tp, ep=ep))
    rows, times = [], []
    for sequences in SEQUENCES:
        for context in CONTEXTS:
            rows.append((1.0, sequences, sequences * context))
            times.append(steps.seconds([], sequences, sequences * context))
    what = "measured tables" if getattr(steps, "measured", True) else "rooflines"
    names = f"{model} on {tp} x {accelerator}, {what}"
    return plane(np.array(rows), np.array(times), names)


def plane(rows: np.ndarray, times_s: np.ndarray, source: str = "") -> tuple[StepTime, float]:
    """The non-negative plane through (1, sequences, tokens) -> seconds, and its median error."""
    if len(rows) < 3 or rows.shape != (len(times_s), 3):
        raise KnobError("plane.rows", f"{rows.shape} for {len(times_s)} times",
                        "give three or more rows of (1, sequences, tokens)")  # fmt: skip
    if not (np.isfinite(rows).all() and np.isfinite(times_s).all() and (times_s > 0).all()):
        raise KnobError("plane.times_s", "a time is not a positive number", "mend the table")
    keep = [0, 1, 2]
    while True:
        weighted = rows[:, keep] / times_s[:, None]
        found = np.linalg.lstsq(weighted, np.ones(len(times_s)), rcond=None)[0]
        if (found >= 0).all() or len(keep) == 1:
            break
        keep.pop(int(found.argmin()))
    whole = np.zeros(3)
    whole[keep] = np.maximum(found, 0.0)
    error = float(np.median(np.abs(rows @ whole / times_s - 1.0)))
    return StepTime(*whole.tolist(), source), error


__all__ = ["RECORDED", "StepTime", "fit", "plane"]
