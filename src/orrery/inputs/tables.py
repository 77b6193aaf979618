"""Tables of measured distributions, and the file of facts that holds them.

A distribution is kept as its quantiles at fixed levels and drawn by inversion, with straight lines
between the levels; those of lengths are straight on a logarithmic scale, since lengths have long
tails, whose means straight lines would overrate. Two lengths that hang together are kept as the
quantiles of the first, and, for each of equally likely slices of the first, the quantiles of the
second; so any dependence between them stays, not only a correlation.
"""

from __future__ import annotations

import bisect
import functools
import tomllib
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.inputs.workload import F64, I64

# Close together at both ends, because means and 99th percentiles are made there.
LEVELS = (
    0.0, 0.001, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25,
    0.275, 0.3, 0.325, 0.35, 0.375, 0.4, 0.425, 0.45, 0.475, 0.5, 0.525, 0.55, 0.575, 0.6, 0.625,
    0.65, 0.675, 0.7, 0.725, 0.75, 0.775, 0.8, 0.825, 0.85, 0.875, 0.9, 0.915, 0.93, 0.945, 0.96,
    0.97, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1.0,
)  # fmt: skip
SLICE_LEVELS = (
    0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99,
    0.995, 1.0,
)  # fmt: skip
# For the lengths of one client in one quarter of a day.
DAY_LEVELS = (
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99,
    0.995, 0.999, 1.0,
)  # fmt: skip
SLICES = 12


@functools.cache
def facts() -> dict[str, Any]:
    """The measured facts, by workload; the file says source, licence and date of each."""
    text = resources.files("orrery.inputs").joinpath("facts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def quantiles(values: npt.NDArray[Any], levels: tuple[float, ...] = LEVELS) -> list[int]:
    """The quantiles of whole numbers at the levels."""
    found = np.quantile(values, levels, method="inverted_cdf")
    return [int(each) for each in np.rint(found)]


def drawn(table: Any, stream: Stream, count: int) -> F64:
    """Values drawn from a table of quantiles."""
    return np.interp(draws.uniforms(stream, count), LEVELS, np.asarray(table, np.float64))


def tokens(table: Any, level: F64, levels: tuple[float, ...] = LEVELS) -> F64:
    """Numbers of tokens at some levels of a table of quantiles, none of them below 1."""
    found: F64 = np.exp(np.interp(level, levels, np.log(np.maximum(table, 1.0))))
    return found


class Lengths(NamedTuple):
    """The joint distribution of prompt and answer lengths."""

    input: tuple[float, ...]
    output: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, table: dict[str, Any]) -> Lengths:
        """From the file of facts."""
        return cls(tuple(table["input"]), tuple(tuple(row) for row in table["output"]))

    def draw(self, stream: Stream, count: int) -> tuple[I64, I64]:
        """Prompt and answer tokens of `count` requests."""
        level = draws.uniforms(stream, count)
        made = tokens(self.input, level)
        return draws.whole(made), self.answers(stream, level)

    def answers(self, stream: Stream, level: F64) -> I64:
        """Answer tokens, given the rank of each prompt's length (0 to 1)."""
        slices = np.minimum((level * len(self.output)).astype(int), len(self.output) - 1)
        second = draws.uniforms(stream, len(level))
        out = np.empty(len(level))
        for place, row in enumerate(self.output):
            here = slices == place
            out[here] = tokens(row, second[here], SLICE_LEVELS)
        return draws.whole(out)

    def answer(self, input_tokens: int, chance: float) -> int:
        """The answer tokens of one request of a given prompt, at a level of its slice."""
        place = bisect.bisect_left(self.input, input_tokens, 1, len(self.input) - 1)
        low, high = self.input[place - 1], self.input[place]
        part = min(1.0, max(0.0, (input_tokens - low) / (high - low))) if high > low else 0.5
        level = LEVELS[place - 1] + part * (LEVELS[place] - LEVELS[place - 1])
        row = self.output[min(int(level * len(self.output)), len(self.output) - 1)]
        place = bisect.bisect_right(SLICE_LEVELS, chance, 1, len(SLICE_LEVELS) - 1)
        low, high = SLICE_LEVELS[place - 1], SLICE_LEVELS[place]
        part = (chance - low) / (high - low)
        return max(1, round(float(row[place - 1] ** (1.0 - part) * row[place] ** part)))


def joint(input_tokens: npt.NDArray[Any], output_tokens: npt.NDArray[Any]) -> dict[str, Any]:
    """The table of a joint distribution, for the file of facts."""
    order = np.argsort(input_tokens, kind="stable")
    rows = [
        quantiles(output_tokens[part], SLICE_LEVELS)
        for part in np.array_split(order, min(SLICES, len(order)))
    ]
    return {"input": quantiles(input_tokens), "output": rows}
