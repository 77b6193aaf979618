"""Points: a verdict at one place of the map, and how far that place is from break-even."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.lab import verdicts
from orrery.lab.stats import MATTERS

if TYPE_CHECKING:
    from orrery.lab.claims import Claim, Verdict

YES, NO, OPEN = "yes", "no", "open"
# Beyond e^20 a gain is as good as without end, and such a number draws no line.
FAR = 20.0
# The score of a place where there is a verdict and no measurement to tell by how much.
UNMEASURED = 1e-3


class Point(msgspec.Struct, kw_only=True):
    """What was found at one place.

    `margin` is how far the measured value is on the good side of break-even, with an interval: for
    a gain its logarithm above the least gain that counts (1 %, as in `orrery.lab.verdicts`), for a
    bound its distance from where the verdict turns, as a share of the bound.
    """

    x: float
    y: float
    verdict: str | None
    measured: float | None = None
    lo: float | None = None
    hi: float | None = None
    off: float | None = None
    seeds: int = 0
    note: str = ""
    margin: float | None = None
    margin_lo: float | None = None
    margin_hi: float | None = None
    digest: str = ""

    @property
    def state(self) -> str:
        """Whether the claim holds here (at least in part), does not, or stays open."""
        if self.verdict in (verdicts.HOLDS, verdicts.IN_PART):
            return YES
        return NO if self.verdict in (verdicts.NOT_HERE, verdicts.NOT_MECHANISM) else OPEN

    @property
    def score(self) -> float | None:
        """A number whose zero is break-even; its sign follows the verdict where that is firm.

        None where nothing was decided and nothing was measured: no side of the line is known.
        """
        size = abs(self.margin) if self.margin is not None else UNMEASURED
        if self.state == YES:
            return max(size, 1e-12)
        unearned = self.verdict == verdicts.NOT_MECHANISM or self.margin is None
        if self.state == NO and unearned:
            return -max(size, 1e-12)
        return self.margin

    @property
    def measured_score(self) -> bool:
        """Whether the score is the margin itself, so that it tells how far break-even is."""
        return self.margin is not None and self.score == self.margin

    @property
    def straddles(self) -> bool:
        """Whether break-even lies inside the interval."""
        if self.margin_lo is None or self.margin_hi is None:
            return False
        return self.margin_lo <= 0 <= self.margin_hi

    def to_json(self) -> dict[str, Any]:
        """The point as the JSON of `orrery when` tells it."""
        return {"holds": {YES: True, NO: False, OPEN: None}[self.state],
                **msgspec.to_builtins(self)}  # fmt: skip


def point_of(x: float, y: float, found: Verdict) -> Point:
    """The point of a verdict."""
    ends = [margin(found.claim, each) for each in (found.measured, found.lo, found.hi)]
    middle, sides = ends[0], sorted(end for end in ends[1:] if end is not None)
    if found.claim.better == "" and found.claim.form in ("absolute", "exponent"):
        # Inside a range the margin falls to both sides, so the ends of the interval bound it only
        # from below.
        sides = [sides[0], middle] if sides and middle is not None else []
    both = len(sides) == 2
    return Point(
        x=x, y=y, verdict=found.verdict, measured=_plain(found.measured), lo=_plain(found.lo),
        hi=_plain(found.hi), off=_plain(found.off), seeds=found.seeds, note=found.note,
        margin=middle, margin_lo=sides[0] if both else None, margin_hi=sides[1] if both else None,
        digest=found.digest,
    )  # fmt: skip


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def margin(claim: Claim, value: float | None) -> float | None:
    """How far a measured value is on the good side of break-even; None where none is defined."""
    if value is None or math.isnan(value):
        return None
    if claim.form in ("ratio", "direction"):
        return _gain_margin(claim, value)
    if claim.form in ("absolute", "exponent"):
        return _bound_margin(claim, value)
    return None  # a property holds or it does not


def _gain_margin(claim: Claim, ratio: float) -> float:
    claimed = verdicts.claimed_gain(claim)
    if claimed is not None and claimed <= 1:
        level = verdicts.needed_gain(claimed, claim.tolerance)
    else:
        # Below this a gain is "not here", so the line and the verdicts agree.
        level = 1 + (MATTERS if claimed is None else min(MATTERS, (claimed - 1) / 2))
    gain = ratio if not verdicts.wants_less(claim) else math.inf if ratio <= 0 else 1 / ratio
    if gain <= 0 or level <= 0:
        return -FAR
    return max(-FAR, min(FAR, math.log(gain / level))) if math.isfinite(gain) else FAR


def _bound_margin(claim: Claim, value: float) -> float | None:
    """The distance to the nearer bound, tolerance included, as a share of that bound."""
    lo, hi = claim.says_lo, claim.says_hi
    if claim.better == "lower":
        lo, hi = None, hi if hi is not None else lo
    elif claim.better == "higher":
        lo, hi = lo if lo is not None else hi, None
    found = []
    for bound, side in ((lo, 1.0), (hi, -1.0)):
        if bound is None:
            continue
        slack = claim.tolerance * (abs(bound) if claim.form == "absolute" else 1.0)
        size = abs(bound) if bound else 1.0
        found.append((side * (value - bound) + slack) / size)
    return max(-FAR, min(FAR, min(found))) if found else None
