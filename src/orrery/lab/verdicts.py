"""The rules by which a measurement becomes one of five words.

All rules read an *interval*, never a bare mean. Each returns None while more seeds may still
decide, and with `final` a word in any case.

**Gains** (`ratio`, `direction`). The ratio ours / theirs is turned so that more is better; the
published figure too. Write g for the interval of the gain, a for the smaller published figure,
and *needed* for a^(1 - tolerance): nine tenths of the claimed gain on a logarithmic scale.

| found | verdict |
|---|---|
| g ends below 1 % (or below half the claimed gain, where that is less) | not here |
| g begins above 1 and at or above *needed* (also when it beats the claim) | holds |
| g begins above 1 and ends below *needed* | holds in part |
| g begins above 1 and contains *needed*, no seeds left | holds, or holds in part, by its middle |
| g contains 1, no seeds left | inconclusive |

A direction has no figure: it holds when g begins above 1 with a middle of 1 % or more. A
published figure of 1 or less ("keeps 95 %") is a bound: it holds when g begins above it, does not
when g ends below it, with the same tolerance and at least 1 %.

**The mechanism** (`off`). When a gain holds, at least in part, the system is run with the
mechanism off against the same rival. If four fifths of the gain (of its logarithm) stay, the
verdict is *gain not from the mechanism*.

**Bounds** (`absolute`, `exponent`). The interval of ours lies on the right side of the published
bound (`better` says which side; none: within the range), give or take the tolerance (a share of
the bound; for an exponent that much of the exponent). Beyond it: *not here*, or *holds in part*
where a rival was run as well and ours is certainly better. Across it: *inconclusive*.

**Properties.** Trials and failures: any failure is *not here*; none in at least 20 trials
*holds*, and the interval's upper end says how rare a failure could still be (the rule of three).
"""

from __future__ import annotations

import math

from orrery.lab.claims import Claim
from orrery.lab.stats import MATTERS, Interval

# The share of a gain that may stay with the mechanism off before the gain is not its own.
STAYS = 0.8
# Fewer trials without a failure than this say too little about a property.
LEAST_TRIALS = 20

HOLDS = "holds"
IN_PART = "holds in part"
NOT_HERE = "not here"
OPEN = "inconclusive"
NOT_MECHANISM = "gain not from the mechanism"


def wants_less(claim: Claim) -> bool:
    """Whether a smaller ratio is better; where the claim does not say, its figure does."""
    if claim.better:
        return claim.better == "lower"
    figure = claim.figure()
    return figure is not None and figure[1] < 1


def turned(interval: Interval, less: bool) -> Interval:
    """A ratio turned so that more is better."""
    if not less:
        return interval
    return Interval(
        _inverse(interval.mean), _inverse(interval.hi), _inverse(interval.lo), interval.n
    )


def _inverse(x: float) -> float:
    if math.isnan(x):
        return x
    return math.inf if x <= 0 else 0.0 if math.isinf(x) else 1 / x


def claimed_gain(claim: Claim) -> float | None:
    """The smaller published figure, turned so that more is better; None where there is none."""
    figure = claim.figure()
    if figure is None or claim.form == "direction":
        return None
    less = wants_less(claim)
    return _inverse(figure[1]) if less else figure[0]


def needed_gain(claimed: float, tolerance: float) -> float:
    """What a gain must reach to hold."""
    if claimed > 1:
        return float(claimed ** (1 - tolerance))
    return float(min(claimed ** (1 + tolerance), claimed * (1 - MATTERS)))


def judge_gain(
    gain: Interval, claimed: float | None, tolerance: float, *, final: bool
) -> str | None:
    """The verdict on a gain that is turned so that more is better."""
    undecided = OPEN if final else None
    if math.isnan(gain.mean):
        return undecided
    if claimed is not None and claimed <= 1:
        need = needed_gain(claimed, tolerance)
        return HOLDS if gain.lo >= need else NOT_HERE if gain.hi < need else undecided
    small = MATTERS if claimed is None else min(MATTERS, (claimed - 1) / 2)
    if gain.hi < 1 + small:
        return NOT_HERE
    if gain.lo <= 1:
        return undecided
    if claimed is None:
        return HOLDS if gain.mean >= 1 + small else undecided
    need = needed_gain(claimed, tolerance)
    if gain.lo >= need:
        return HOLDS
    if gain.hi < need:
        return IN_PART
    if not final:
        return None
    return HOLDS if gain.mean >= need else IN_PART


def judge_off(gain: Interval, off: Interval, *, final: bool) -> bool | None:
    """Whether the gain stays with the mechanism off; None while more seeds may decide."""
    if not gain.mean > 1:
        return False
    line = gain.mean**STAYS
    if off.lo >= line:
        return True
    if off.hi < line:
        return False
    if not final:
        return None
    return not math.isnan(off.mean) and off.mean >= line


def judge_bound(
    value: Interval, claim: Claim, slack: float | None = None, *, final: bool
) -> str | None:
    """The verdict on a value against a published bound or range."""
    undecided = OPEN if final else None
    lo, hi = claim.says_lo, claim.says_hi
    if lo is None and hi is None:
        return OPEN
    if math.isnan(value.mean):
        return undecided
    if claim.better == "lower":
        lo, hi = None, hi if hi is not None else lo
    elif claim.better == "higher":
        lo, hi = lo if lo is not None else hi, None
    floor = -math.inf if lo is None else lo - _slack(lo, claim, slack)
    ceiling = math.inf if hi is None else hi + _slack(hi, claim, slack)
    if floor <= value.lo and value.hi <= ceiling:
        return HOLDS
    return NOT_HERE if value.hi < floor or value.lo > ceiling else undecided


def _slack(bound: float, claim: Claim, slack: float | None) -> float:
    return claim.tolerance * abs(bound) if slack is None else slack


def judge_property(failures: int, trials: int, least: int = LEAST_TRIALS) -> str:
    """The verdict on a property from its trials."""
    if failures:
        return NOT_HERE
    return HOLDS if trials >= least else OPEN
