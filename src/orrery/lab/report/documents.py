"""What other commands print with `--json`, read back: typed, and refused by name where it is not.

`orrery compare … --json > found.json` and `orrery report found.json` give the report of a finding
long after it was made, and on another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import UsageError

MOST_FILE_B = 64 << 20


class _Document(msgspec.Struct, kw_only=True):
    """Fields that a later version adds are passed over."""


class Figure(_Document):
    """A metric of one system over its seeds."""

    mean: float | None = None
    lo: float | None = None
    hi: float | None = None
    unit: str = ""
    kind: str = "modelled"


class ComparedRow(_Document):
    """One system of a comparison."""

    system: str
    metrics: dict[str, Figure] = {}
    seeds: int = 0
    violations: list[dict[str, Any]] = []
    runs: list[str] = []


class Compared(_Document):
    """`orrery compare`."""

    problem: str
    world: str
    rows: list[ComparedRow]
    by: str = ""
    decided: bool = False
    partial: bool = False
    same: dict[str, float | None] = {}
    ties: list[tuple[str, str]] = []


class RankedRow(_Document):
    """One system of a choice."""

    system: str
    score: float | None = None
    lo: float | None = None
    hi: float | None = None
    why: str = ""


class FlipRow(_Document):
    """Where a choice changes."""

    parameter: str
    at: float
    to: str
    side: str = "above"
    base: float | None = None


class Chosen(_Document):
    """`orrery choose`."""

    problem: str
    ranking: list[RankedRow]
    world: str = ""
    by: str = ""
    flips: list[FlipRow] = []
    tried: dict[str, list[float]] = {}
    decided: bool = False


class ClaimRow(_Document):
    """One claim of a check."""

    metric: str
    form: str = "direction"
    says: str = ""
    says_lo: float | None = None
    says_hi: float | None = None
    against: str | None = None
    measured: float | None = None
    lo: float | None = None
    hi: float | None = None
    off: float | None = None
    verdict: str | None = None
    kind: str = ""
    seeds: int = 0
    untestable: str | None = None
    note: str = ""


class Checked(_Document):
    """`orrery check`."""

    id: str
    claims: list[ClaimRow]


class AxisRow(_Document):
    """One axis of a map."""

    parameter: str
    lo: float
    hi: float
    scale: str = "linear"


class GridRow(_Document):
    """Both axes of a map."""

    x: AxisRow
    y: AxisRow


class PointRow(_Document):
    """One point of a map."""

    x: float
    y: float
    holds: bool | None = None
    verdict: str | None = None
    measured: float | None = None
    lo: float | None = None
    hi: float | None = None
    seeds: int = 0
    note: str = ""


class Mapped(_Document):
    """`orrery when`."""

    id: str
    claim: dict[str, Any]
    grid: GridRow
    values: list[PointRow]
    break_even: list[list[tuple[float, float]]] = []
    share: dict[str, float] = {}
    complete: bool = False
    kind: str = "modelled"


class TrialRow(_Document):
    """One trial of a sweep."""

    n: int
    values: dict[str, Any]
    score: float | None = None
    lo: float | None = None
    hi: float | None = None
    seeds: int = 0
    violations: int = 0
    note: str = ""
    runs: list[str] = []


class Swept(_Document):
    """`orrery sweep`."""

    problem: str
    by: str
    over: list[dict[str, Any]]
    trials: list[TrialRow]
    systems: list[str] = []
    better: str = ""
    search: str = "grid"
    seeds: list[int] = []
    best: TrialRow | None = None
    ties: list[int] | None = None
    total: int = 0
    partial: bool = False


class Ran(_Document):
    """`orrery run`: what the report needs is the folder, whose name is the id."""

    digest: str
    folder: str


Document = Compared | Chosen | Checked | Mapped | Swept | Ran
# A document is known by fields that only its kind has.
_KINDS: tuple[tuple[tuple[str, ...], type[Document]], ...] = (
    (("ranking",), Chosen),
    (("grid", "values"), Mapped),
    (("trials", "over"), Swept),
    (("rows", "problem"), Compared),
    (("claims", "id"), Checked),
    (("digest", "folder"), Ran),
)


def read_documents(path: Path) -> list[Document]:
    """The findings in a file that a command printed with `--json`."""
    try:
        if path.stat().st_size > MOST_FILE_B:
            raise UsageError(f"{path}: is larger than {MOST_FILE_B >> 20} MiB; no finding is")
        data = msgspec.json.decode(path.read_bytes())
    except OSError as failure:
        raise UsageError(f"{path}: cannot be read: {failure.strerror}; check it") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as failure:
        raise UsageError(f"{path}: is not JSON ({failure}); write it with --json") from None
    return documents_of(data, str(path))


def documents_of(data: Any, name: str) -> list[Document]:
    """The findings in plain data; `name` stands in errors."""
    several = data if isinstance(data, list) else [data]
    found: list[Document] = []
    for each in several:
        kind = next((kind for keys, kind in _KINDS if _has(each, keys)), None)
        if kind is None:
            fix = "give the --json of run, compare, choose, check, when or sweep"
            raise UsageError(f"{name}: is none of the findings that can be reported; {fix}")
        try:
            found.append(msgspec.convert(each, kind))
        except msgspec.ValidationError as failure:
            raise UsageError(f"{name}: {failure}; write it again with --json") from None
    if not found:
        raise UsageError(f"{name}: is empty; give the --json of a command")
    return found


def _has(data: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(data, dict) and all(key in data for key in keys)
