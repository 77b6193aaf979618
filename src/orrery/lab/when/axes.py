"""Axes: which parameter of a claim is varied, between which values, and on which scale.

A parameter is `world.PATH` (any path that `World.with_` takes), `problem.KNOB`, `ours.KNOB`,
`rival.KNOB`, or `both.KNOB` (ours and the rival's). Without the first word it is looked for among
the knobs of the problem, then of the part, then in the world.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import ClaimError, UsageError, did_you_mean

if TYPE_CHECKING:
    from orrery.lab.checking import Trial
    from orrery.lab.claims import Claim
    from orrery.parts.knobs import Part

OWNERS = ("world", "problem", "ours", "rival", "both")
SCALES = {"log": "log", "lin": "linear", "linear": "linear"}
# Without a word about it, an axis that spans more than this factor is logarithmic.
LOG_FROM = 20.0
_RANGE = re.compile(r"^(?P<name>[^=]+)=(?P<lo>[^:]+?)(?:\.\.|:)(?P<hi>[^:]+?)(?::(?P<scale>\w+))?$")


class Axis(msgspec.Struct, kw_only=True, frozen=True):
    """One parameter between two values."""

    owner: str
    name: str
    lo: float
    hi: float
    log: bool = False
    whole: bool = False

    @property
    def parameter(self) -> str:
        """The parameter with its owner, as the command line takes it."""
        return f"{self.owner}.{self.name}"

    def value(self, share: float) -> float:
        """The value at a share of the axis, from 0 (its low end) to 1.

        >>> Axis(owner="world", name="x", lo=1.0, hi=100.0, log=True).value(0.5)
        10.0
        """
        if share <= 0 or share >= 1:
            found = self.lo if share <= 0 else self.hi
        elif self.log:
            found = math.exp(math.log(self.lo) + share * math.log(self.hi / self.lo))
        else:
            found = self.lo + share * (self.hi - self.lo)
        # Twelve digits: a value that differs in the last bit must not be another point.
        return float(round(found)) if self.whole else float(f"{found:.12g}")

    def share(self, value: float) -> float:
        """Where a value lies on the axis, from 0 to 1."""
        if self.log:
            return math.log(value / self.lo) / math.log(self.hi / self.lo)
        return (value - self.lo) / (self.hi - self.lo)

    def to_json(self) -> dict[str, Any]:
        """The axis as the JSON of `orrery when` tells it."""
        scale = "log" if self.log else "linear"
        return {"parameter": self.parameter, "lo": self.lo, "hi": self.hi, "scale": scale,
                "whole": self.whole}  # fmt: skip


class Asked(typing.NamedTuple):
    """An axis as it is written, before the claim says what the parameter is."""

    name: str
    lo: float
    hi: float
    scale: str = ""


def parse_axis(text: str) -> Asked:
    """`PARAM=a:b`, `PARAM=a..b`, either with `:log` or `:lin` behind it.

    >>> parse_axis("network.latency_s=1e-4:0.1:log")
    Asked(name='network.latency_s', lo=0.0001, hi=0.1, scale='log')
    """
    found = _RANGE.match(text.strip())
    if found is None:
        raise UsageError(f"axis {text!r}: write PARAM=low:high, for example rate_per_s=1:50:log")
    ends = []
    for word in (found["lo"], found["hi"]):
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(f"axis {text!r}: {word.strip()!r} is not a number")
        ends.append(number)
    if not ends[0] < ends[1]:
        raise UsageError(f"axis {text!r}: the low end must be below the high end")
    scale = found["scale"] or ""
    if scale and scale not in SCALES:
        raise UsageError(f"axis {text!r}: {did_you_mean(scale, SCALES)}")
    return Asked(found["name"].strip(), ends[0], ends[1], SCALES.get(scale, ""))


def make_axis(asked: Asked, trial: Trial) -> Axis:
    """The axis of a claim: finds the owner, the type and the scale, and checks the ends."""
    owner, name = find_parameter(asked.name, trial)
    whole = _is_whole(owner, name, trial)
    lo, hi = asked.lo, asked.hi
    if whole and not (lo == round(lo) and hi == round(hi)):
        raise UsageError(f"axis {asked.name}: it is a whole number; give whole ends")
    if asked.scale == "log" and lo <= 0:
        raise UsageError(f"axis {asked.name}: a logarithmic axis begins above 0, not at {lo:g}")
    log = asked.scale == "log" or (not asked.scale and lo > 0 and hi / lo > LOG_FROM)
    return Axis(owner=owner, name=name, lo=lo, hi=hi, log=log, whole=whole)


def find_parameter(text: str, trial: Trial) -> tuple[str, str]:
    """(owner, name) of a parameter as people write it; unknown ones are refused with a hint."""
    owner, dot, name = text.partition(".")
    if dot and owner in OWNERS and name:
        _check(owner, name, trial)
        return owner, name
    homes = [each for each in ("problem", "ours") if text in _knobs(each, trial)]
    if len(homes) > 1:
        fix = f"say problem.{text} or ours.{text}"
        raise UsageError(f"parameter {text!r}: both the problem and the part have it; {fix}")
    if homes:
        return homes[0], text
    if "." in text:
        _check("world", text, trial)
        return "world", text
    known = [*_knobs("problem", trial), *_knobs("ours", trial)]
    fix = f"{did_you_mean(text, known)} A path into the world has a dot: network.latency_s"
    raise UsageError(f"parameter {text!r}: no such knob; {fix}")


def _part(owner: str, trial: Trial) -> Part | None:
    if owner == "problem":
        return trial.problem
    return trial.rival if owner == "rival" else trial.ours


def _knobs(owner: str, trial: Trial) -> dict[str, Any]:
    part = _part(owner, trial)
    return part.knobs() if part is not None else {}


def _check(owner: str, name: str, trial: Trial) -> None:
    if owner == "world":
        trial.world.param(name)  # an unknown path is refused with the nearest one
        return
    if owner == "rival" and not trial.claim.rival:
        raise UsageError(f"parameter rival.{name}: this claim names no rival")
    for each in ("ours", "rival") if owner == "both" else (owner,):
        known = _knobs(each, trial)
        if name not in known:
            raise UsageError(f"parameter {owner}.{name}: no such knob of {each}; "
                             f"{did_you_mean(name, known)}")  # fmt: skip


def _is_whole(owner: str, name: str, trial: Trial) -> bool:
    """Whether the parameter takes whole numbers; one that is no number cannot be an axis."""
    from orrery.parts.knobs import knob_types

    if owner == "world":
        value = trial.world.param(name)
        kind: Any = float if value is None else type(value)
    else:
        part = _part(owner, trial)
        value = getattr(part, name)
        kind = knob_types(type(part)).get(name, type(value))
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if kind is int:
        return True
    if kind is float or (value is None and kind not in (bool, str)):
        return False
    if isinstance(value, float) and not isinstance(value, bool):
        return False  # such as `float | None` with a number set
    raise UsageError(f"parameter {owner}.{name}: {value!r} is no number and cannot be an axis")


def with_values(claim: Claim, values: Mapping[tuple[str, str], Any]) -> Claim:
    """The claim with some parameters set; what it measures and says stays the same."""
    changes: dict[str, dict[str, Any]] = {
        "world_set": dict(claim.world_set), "problem_knobs": dict(claim.problem_knobs),
        "ours": dict(claim.ours), "rival_knobs": dict(claim.rival_knobs),
    }  # fmt: skip
    homes = {"world": ("world_set",), "problem": ("problem_knobs",), "ours": ("ours",),
             "rival": ("rival_knobs",), "both": ("ours", "rival_knobs")}  # fmt: skip
    for (owner, name), value in values.items():
        if f"{owner}.{name}" in claim.sweep:
            raise ClaimError(f"{owner}.{name}: the claim itself sweeps it; choose another axis")
        if owner in ("ours", "both") and name in claim.off:
            raise ClaimError(f"{owner}.{name}: it switches the mechanism off; choose another axis")
        for home in homes[owner]:
            changes[home][name] = value
    return msgspec.structs.replace(claim, **changes)


def typed(axis: Axis, value: float) -> int | float:
    """A value of an axis as its parameter takes it."""
    return int(value) if axis.whole else value
