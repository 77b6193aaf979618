"""What a notebook shows of runs, comparisons and verdicts, with the tables of `world.show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orrery.base.units import show
from orrery.world.show import facts, note, table

if TYPE_CHECKING:
    from orrery.lab.claims import Verdict
    from orrery.lab.compare import Comparison
    from orrery.lab.run import Run
    from orrery.parts.problem import Metric

MOST_ROWS = 60
MOST_COLUMNS = 40
MOST_VIOLATIONS = 10
# The sign says it without colour; the word beside it says it to a screen reader.
_SIGNS = {
    "holds": "✓",
    "holds in part": "◐",
    "not here": "✕",
    "inconclusive": "?",
    "gain not from the mechanism": "✕",
}


def run_cell(run: Run) -> str:
    """A run: what went wrong, its metrics, and what makes it again."""
    count = len(run.violations)
    state = f"{count} violation{'s' * (count != 1)}" if count else "no violations"
    head = f"Run: {show(run.seconds, 's')} on {run.engine}, {state}"
    lines = [
        (name, show(value, _unit(run.units, name)), _better(run.units, name))
        for name, value in list(run.metrics.items())[:MOST_ROWS]
    ]
    parts = [table(head, ("metric", "value", "better"), lines) + _more(len(run.metrics), "metrics")]
    if run.violations:
        found = [
            (each.kind, each.message, show(each.time_s, "s") if each.time_s is not None else "–",
             "–" if each.node is None else each.node)
            for each in run.violations[:MOST_VIOLATIONS]
        ]  # fmt: skip
        parts.append(table("Violations", ("kind", "what happened", "at", "node"), found))
        parts.append(_more(count, "violations", MOST_VIOLATIONS))
    told = {
        "part": _said(run.part), "problem": "" if run.problem is None else _said(run.problem),
        "world": _world(run.world), "seed": run.seed, "ended": run.ended, "events": run.events,
        "messages": run.messages, "emitted": len(run.records), "digest": run.digest,
    }  # fmt: skip
    return "".join([*parts, facts("How it was made", told)])


def comparison_cell(found: Comparison) -> str:
    """A comparison: a line for each system, best first, only the columns that differ."""
    heads, lines = found.table()
    kept = _columns(heads, found.by)
    state = "partial" if found.partial else "decided" if found.decided else "not decided"
    by = f" by {found.by}" if found.by else ""
    caption = f"{found.problem}{by} in {found.world}: {state}, {found.kind}"
    named = [_head(found, heads[i]) for i in kept]
    shown = [[line[i] for i in kept] for line in lines[:MOST_ROWS]]
    parts = [table(caption, named, shown), _more(len(lines), "systems")]
    parts.append(_more(len(heads), "columns", len(kept)))
    same = ", ".join(f"{name} {show(v, _unit(found.units, name))}" for name, v in _same(found))
    if same:
        parts.append(note(f"The same for all: {same}"))
    if found.ties:
        pairs = ", ".join(f"{one} and {other}" for one, other in found.ties)
        parts.append(note(f"Within 1 % of one another: {pairs}"))
    return "".join(parts)


def verdict_cell(verdict: Verdict) -> str:
    """One verdict: what was claimed, what was found, and without the mechanism."""
    claim = verdict.claim
    pairs: dict[str, object] = {
        "claimed": claim.says, "against": claim.against, "setting": claim.setting,
        "found": _figure(verdict.measured, verdict), "interval": _interval(verdict),
        "mechanism off": _figure(verdict.off, verdict), "kind": verdict.kind,
        "seeds": verdict.seeds or "", "note": verdict.note or claim.untestable,
    }  # fmt: skip
    return facts(f"{claim.metric}: {_word(verdict)}", pairs)


def verdicts_cell(id: str, verdicts: Sequence[Verdict]) -> str:
    """The verdicts of one system, a line each."""
    heads = ("metric", "claimed", "against", "found", "interval", "mechanism off", "verdict",
             "kind", "note")  # fmt: skip
    lines = [
        (one.claim.metric, one.claim.says, one.claim.against, _figure(one.measured, one),
         _interval(one), _figure(one.off, one), _word(one), one.kind,
         one.note or one.claim.untestable)
        for one in verdicts[:MOST_ROWS]
    ]  # fmt: skip
    return table(f"Claims of {id}", heads, lines) + _more(len(verdicts), "claims")


# -- pieces


def _word(verdict: Verdict) -> str:
    if not verdict.claim.testable:
        return "cannot be tested"
    if verdict.verdict is None:
        return "not judged"
    return f"{_SIGNS.get(verdict.verdict, '')} {verdict.verdict}".strip()


def _figure(value: float | None, verdict: Verdict) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" + ("x" if verdict.claim.form in ("ratio", "direction") else "")


def _interval(verdict: Verdict) -> str:
    if verdict.lo is None or verdict.hi is None:
        return ""
    return f"{verdict.lo:.4g} to {verdict.hi:.4g}"


def _columns(heads: Sequence[str], by: str) -> list[int]:
    """The columns that are shown: all, or the first ones and the one that ranks."""
    if len(heads) <= MOST_COLUMNS:
        return list(range(len(heads)))
    kept = {0, len(heads) - 2, len(heads) - 1} | {i for i, head in enumerate(heads) if head == by}
    rest = [i for i in range(len(heads)) if i not in kept]
    return sorted(kept | set(rest[: MOST_COLUMNS - len(kept)]))


def _same(found: Comparison) -> list[tuple[str, float]]:
    return list(found.same.items())[:MOST_COLUMNS]


def _head(found: Comparison, name: str) -> str:
    better = _better(found.units, name)
    return f"{name} ({better} is better)" if better else name


def _unit(units: Mapping[str, Metric], name: str) -> str:
    return units[name].unit if name in units else ""


def _better(units: Mapping[str, Metric], name: str) -> str:
    return units[name].better if name in units else ""


def _more(count: int, things: str, shown: int = MOST_ROWS) -> str:
    return note(f"… and {count - shown} more {things}") if count > shown else ""


def _said(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # a part of the user's own may fail to describe itself
        return f"<{type(value).__name__}>"


def _world(world: object) -> str:
    found = getattr(world, "hash", "")
    title = getattr(world, "title", "")
    return f"{title} ({found})" if title else str(found)
