"""Units: integer nanoseconds for time inside engines, and readable quantities for people.

Virtual time is an `int` of nanoseconds (292 years fit in 64 bits), so that no rounding can make two
machines disagree. People write and read seconds as floats.
"""

from __future__ import annotations

import math

from orrery.base.errors import SpecError

NS_PER_S = 1_000_000_000
FOREVER_NS = (1 << 63) - 1


def to_ns(seconds: float) -> int:
    """Seconds to whole nanoseconds, halves upward; negative and NaN are refused.

    >>> to_ns(0.25)
    250000000
    """
    if not seconds >= 0:  # also true for NaN
        raise SpecError("seconds", f"{seconds!r} is not a duration", "give a number >= 0")
    if seconds > 9.2e9:
        return FOREVER_NS
    return int(seconds * 1e9 + 0.5)


def to_s(ns: int) -> float:
    """Nanoseconds to seconds."""
    return ns / 1e9


_SCALES = {
    "s": [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
    "B": [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
    "": [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
}
_SCALES["Bps"] = [(scale, name + "/s") for scale, name in _SCALES["B"]]
_SCALES["W"] = [(1e6, "MW"), (1e3, "kW"), (1.0, "W")]
_SCALES["J"] = [(1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")]


def show(value: float, unit: str = "") -> str:
    """A quantity as a person would write it, with three significant digits.

    >>> show(0.00213, "s"), show(1_250_000_000, "Bps"), show(0.5)
    ('2.13 ms', '1.25 GB/s', '0.5')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return f"0 {unit}".strip()
    scales = _SCALES.get(unit)
    if scales is None:
        return f"{_digits(value)} {unit}".strip()
    size = abs(value)
    if unit == "" and size < 1000:
        return _digits(value)
    for scale, name in scales:
        if size >= scale:
            return f"{_digits(value / scale)} {name}".strip()
    scale, name = scales[-1]
    return f"{_digits(value / scale)} {name}".strip()


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.2e}"
    if size >= 100:
        return f"{value:,.0f}".replace(",", " ") if size >= 10_000 else f"{value:.0f}"
    return f"{value:.3g}"
