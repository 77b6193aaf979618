"""`Claim`: what a paper says, as data; `Verdict`: what was found here.

The rules by which a measurement becomes a verdict stand in `orrery.lab.verdicts`; the runs that
give the measurement are made by `check`.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal

import msgspec

from orrery.base.errors import ClaimError

VERDICTS = (
    "holds",
    "holds in part",
    "not here",
    "inconclusive",
    "gain not from the mechanism",
)
Form = Literal["ratio", "absolute", "exponent", "direction", "property", "none"]
# A field that only people read does not reset a verdict.
NOT_HASHED = frozenset({"setting"})


def tidy(value: Any) -> Any:
    """Data with every run of white space in its texts made one space.

    >>> tidy({"says": ["two\\n  lines "]})
    {'says': ['two lines']}
    """
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [tidy(item) for item in value]
    return value


class Claim(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One published claim, and how it is put to the test.

    What the paper says: `metric`, `says` (text), `against` (text or an id), `setting`, `form`,
    `says_lo` and `says_hi` (where one is missing, the other is the figure), `better`.
    A ratio is always ours / theirs.

    How it is tested: `measure` names the metric of the problem (default: `metric`); `rival` is
    the id that ours is compared with (default: `against`, where that is an id); `ours`,
    `rival_knobs` and `off` set knobs, `off` being those that switch the mechanism off; `problem`,
    `problem_knobs`, `world` (a name such as "h100_pod:8" or a path; default: the problem's own),
    `world_set` ({"network.drop": 0.1}); `sweep` ({"world": ["lan:4", "lan:8"]}, {"problem.n": …}
    or {"ours.n": …}) gives the points of an exponent, with `at` the numbers on its axis.
    `seeds` are the fewest seeds, `most_seeds` the limit; a property gets the larger of the two
    as trials.
    """

    metric: str
    says: str = ""
    against: str = ""
    setting: str = ""
    form: Form = "direction"
    says_lo: float | None = None
    says_hi: float | None = None
    better: Literal["higher", "lower", ""] = ""
    untestable: str = ""
    measure: str = ""
    rival: str = ""
    ours: dict[str, Any] = {}
    rival_knobs: dict[str, Any] = {}
    off: dict[str, Any] = {}
    problem: str = ""
    problem_knobs: dict[str, Any] = {}
    world: str = ""
    world_set: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    at: list[float] = []
    engine: str = "virtual"
    until_s: float | None = None
    seeds: int = 3
    most_seeds: int = 24
    tolerance: float = 0.1

    @property
    def testable(self) -> bool:
        """Whether a run could judge it."""
        return self.form != "none"

    @property
    def hash(self) -> str:
        """16 hex digits of all that a verdict rests on; white space and `setting` do not count.

        >>> Claim(metric="x", says="a  b").hash == Claim(metric="x", says="a b").hash
        True
        """
        data = {k: v for k, v in msgspec.to_builtins(self).items() if k not in NOT_HASHED}
        text = json.dumps(tidy(data), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check(self) -> None:
        """Refuse a claim that contradicts itself."""
        if not self.metric:
            raise ClaimError("metric is empty; say what is measured")
        for name in ("says_lo", "says_hi"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ClaimError(f"{name} = {value} is not a number; leave it out")
        if self.says_lo is not None and self.says_hi is not None and self.says_lo > self.says_hi:
            raise ClaimError(f"says_lo {self.says_lo} is above says_hi {self.says_hi}; swap them")
        if (self.form == "none") != bool(self.untestable):
            raise ClaimError('form = "none" goes with untestable = "reason", and only then')
        if not 1 <= self.seeds <= self.most_seeds and self.form != "property":
            raise ClaimError(f"seeds = {self.seeds}: give 1 to most_seeds = {self.most_seeds}")
        if not (math.isfinite(self.tolerance) and 0 <= self.tolerance < 1):
            raise ClaimError(f"tolerance = {self.tolerance}: give 0 to less than 1")

    def figure(self) -> tuple[float, float] | None:
        """The published range; one given end stands for both."""
        lo, hi = self.says_lo, self.says_hi
        if lo is None and hi is None:
            return None
        return (hi if lo is None else lo, lo if hi is None else hi)  # type: ignore[return-value]


class Verdict(msgspec.Struct, kw_only=True):
    """What was found for one claim: the row of `orrery check --json`, and how it came about."""

    claim: Claim
    verdict: str | None = None
    measured: float | None = None
    lo: float | None = None
    hi: float | None = None
    off: float | None = None
    kind: str = "modelled"
    seeds: int = 0
    note: str = ""
    world: str = ""
    digest: str = ""
    n: int = 0

    def row(self) -> dict[str, Any]:
        """The contract's JSON row."""
        claim = self.claim
        return {
            "form": claim.form, "metric": claim.metric, "says": claim.says,
            "says_lo": claim.says_lo, "says_hi": claim.says_hi, "against": claim.against or None,
            "measured": _plain(self.measured), "lo": _plain(self.lo), "hi": _plain(self.hi),
            "off": _plain(self.off), "verdict": self.verdict, "kind": self.kind,
            "seeds": self.seeds, "untestable": claim.untestable or None,
        }  # fmt: skip

    def sentence(self) -> str:
        """The finding as one line for people."""
        claim = self.claim
        if claim.form == "none":
            return f"{claim.metric}: {claim.says}; cannot be tested: {claim.untestable}"
        said = f"claimed {claim.says}" if claim.says else "claimed"
        sign = "x" if claim.form in ("ratio", "direction") else ""
        if self.measured is None:
            found = "nothing measured"
        else:
            found = f"{self.kind} {_show(self.measured)}{sign}"
            if self.lo is not None and self.hi is not None:
                found += f" [{_show(self.lo)}, {_show(self.hi)}]"
        off = "" if self.off is None else f"; mechanism switched off: {_show(self.off)}{sign}"
        note = f" ({self.note})" if self.note else ""
        return f"{claim.metric}: {said}, {found}{off}; verdict: {self.verdict}{note}"

    def __repr__(self) -> str:
        return f"Verdict({self.sentence()})"

    def _repr_html_(self) -> str:
        from orrery.lab.html_cells import verdict_cell

        return verdict_cell(self)


class Verdicts(list[Verdict]):
    """The verdicts of one system; a list that a notebook shows as a table."""

    def __init__(self, id: str, verdicts: list[Verdict]) -> None:
        super().__init__(verdicts)
        self.id = id

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `orrery check ID`."""
        return {"id": self.id, "claims": [verdict.row() for verdict in self]}

    def exit_code(self) -> int:
        """0 all hold or hold in part, 1 some do not, 2 some are inconclusive (and none fail)."""
        words = {verdict.verdict for verdict in self if verdict.claim.testable}
        if words & {"not here", "gain not from the mechanism"}:
            return 1
        return 2 if "inconclusive" in words else 0

    def _repr_html_(self) -> str:
        from orrery.lab.html_cells import verdicts_cell

        return verdicts_cell(self.id, self)


def _plain(value: float | None) -> float | None:
    """JSON has no infinity and no NaN: an end that is not known is null."""
    return value if value is not None and math.isfinite(value) else None


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def check(id: str, **options: Any) -> Verdicts:
    """Put every claim of a system to the test; see `orrery.lab.checking.check`."""
    from orrery.lab.checking import check as check_claims

    return check_claims(id, **options)
