"""Chapters of findings: comparisons, choices and verdicts on claims."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orrery.base.errors import OrreryError
from orrery.base.units import show
from orrery.lab import html_page as page
from orrery.lab.charts import bar_chart
from orrery.lab.html_page import Said
from orrery.lab.plots import Gain, gain_chart
from orrery.lab.report.chapter import Chapter, Picture, environments
from orrery.lab.report.documents import Checked, Chosen, ClaimRow, Compared, ComparedRow, Figure
from orrery.lab.store import Store
from orrery.parts.problem import Metric

MAIN_COLUMNS = 7
MOST_CHARTS = 6
Units = Mapping[str, Metric]


def units_of(problem: str) -> Units:
    """What the metrics of a problem mean; nothing where the problem is not here."""
    from orrery.lab.questions import problem_class

    try:
        return dict(problem_class(problem).metrics)
    except (OrreryError, ImportError):
        return {}


def shown(value: float | None, lo: float | None, hi: float | None, unit: str) -> str:
    """A value with its interval, where that is known and has a width."""
    if value is None or math.isnan(value):
        return "–"
    text = show(value, unit)
    if lo is not None and hi is not None and math.isfinite(lo) and math.isfinite(hi) and hi > lo:
        text += f" [{show(lo, unit)}, {show(hi, unit)}]"
    return text


# -- compare


def compared_chapter(
    one: Compared, store: Store | None, units: Units | None = None, world_hash: str = ""
) -> Chapter:
    """The systems of a problem side by side."""
    units = units if units is not None else units_of(one.problem)
    seeds = max((row.seeds for row in one.rows), default=0)
    kinds = {figure.kind for row in one.rows for figure in row.metrics.values()}
    lead = f"World {one.world} · ranked by {one.by or 'no metric'} · up to {seeds} seeds"
    made = Chapter(
        title=f"{one.problem}: {len(one.rows)} systems compared",
        lead=" · ".join([lead, *sorted(kinds)]), verdicts=_ranking(one, units),
        commands=_compare_lines(one, world_hash, store),
        environment=environments([row.runs[0] for row in one.rows if row.runs], store),
    )  # fmt: skip
    made.broken = [(row.system, each) for row in one.rows for each in row.violations]
    made.sections.append(("Comparison", _compared_body(one, units)))
    return made


def _ranking(one: Compared, units: Units) -> list[Said]:
    found = [_first(one, units)]
    broken = [row.system for row in one.rows if row.violations]
    found += [
        Said("Violated", f"{name} broke what it promises; see Violations.") for name in broken
    ]
    if one.partial:
        found.append(Said("Stopped", "The comparison was interrupted; these runs were finished."))
    return found


def _first(one: Compared, units: Units) -> Said:
    rows = [row for row in one.rows if _mean(row, one.by) is not None]
    if not rows:
        return Said("Open", f"No system has a value for {one.by or 'any metric'}.")
    best = rows[0]
    value = show(best.metrics[one.by].mean or 0.0, best.metrics[one.by].unit)
    if len(rows) == 1:
        return Said("Fine", f"{best.system}: {one.by} {value}.")
    tied = sorted({name for pair in one.ties for name in pair if best.system in pair})
    if tied:
        return Said("Open", f"{' and '.join(tied)} are level by {one.by} ({value}).")
    if not one.decided:
        said = f"{best.system} is first by {one.by} ({value}), but more seeds could differ."
        return Said("Open", said)
    return Said("Fine", f"{best.system} is best by {one.by}: {value}.")


def _mean(row: ComparedRow, name: str) -> float | None:
    mean = row.metrics[name].mean if name in row.metrics else None
    return mean if mean is not None and math.isfinite(mean) else None


def _compared_body(one: Compared, units: Units) -> list[str | Picture]:
    names = list(dict.fromkeys(name for row in one.rows for name in row.metrics))
    names = [name for name in names if name not in one.same]
    # What ranks comes first, then what has a direction; the rest is there for those who ask.
    names.sort(key=lambda name: (name != one.by, not _better(units, name)))
    body: list[str | Picture] = [
        _compared_table(one, names[:MAIN_COLUMNS], units, f"{one.problem}: what differs")
    ]
    if len(names) > MAIN_COLUMNS:
        rest = _compared_table(one, names[MAIN_COLUMNS:], units, "The other metrics that differ")
        body.append(page.fold(f"More that differs ({len(names) - MAIN_COLUMNS})", rest))
    same = {name: _same(one, name, value) for name, value in one.same.items()}
    for name in ("seeds", "violations"):
        values = {_count(row, name) for row in one.rows}
        if len(values) == 1:
            same[name] = str(values.pop())
    if same:
        body.append(page.fold(f"The same for all ({len(same)})", page.facts(same)))
    drawable = [n for n in names if sum(_mean(row, n) is not None for row in one.rows) > 1]
    figures = [_bars(one, name, units) for name in drawable[:MOST_CHARTS]]
    return [*body, Picture(page.grid(figures))] if figures else body


def _same(one: Compared, name: str, value: float | None) -> str:
    unit = next((row.metrics[name].unit for row in one.rows if name in row.metrics), "")
    return "–" if value is None else show(value, unit)


def _count(row: ComparedRow, name: str) -> int:
    return row.seeds if name == "seeds" else len(row.violations)


def _compared_table(one: Compared, names: Sequence[str], units: Units, caption: str) -> str:
    heads, says = ["system", *names], ["", *(_meaning(units, name) for name in names)]
    lines = [
        [row.system, *(_figure_text(row.metrics.get(name)) for name in names)] for row in one.rows
    ]
    for name in ("seeds", "violations"):  # worth a column only where the systems differ
        if len({_count(row, name) for row in one.rows}) > 1:
            heads.append(name)
            for line, row in zip(lines, one.rows, strict=True):
                line.append(str(_count(row, name)))
    best = {
        i + 1: at for i, name in enumerate(names)
        if (at := _best_row(one, name, _better(units, name))) is not None
    }  # fmt: skip
    return page.table(heads, lines, caption, says=says, best=best)


def _figure_text(figure: Figure | None) -> str:
    return "–" if figure is None else shown(figure.mean, figure.lo, figure.hi, figure.unit)


def _best_row(one: Compared, name: str, better: str) -> int | None:
    """The row with the best value, where there is one and only one."""
    means = [(mean, i) for i, row in enumerate(one.rows) if (mean := _mean(row, name)) is not None]
    if not better or len(means) < 2:
        return None
    top = max(means) if better == "higher" else min(means)
    return top[1] if sum(mean == top[0] for mean, _ in means) == 1 else None


def _better(units: Units, name: str) -> str:
    return units[name].better if name in units else ""


def _meaning(units: Units, name: str) -> str:
    if name not in units:
        return ""
    way = f" ({units[name].better} is better)" if units[name].better else ""
    return units[name].says + way


def _bars(one: Compared, name: str, units: Units) -> str:
    rows = [(row, row.metrics[name]) for row in one.rows if name in row.metrics]
    bars = [(row.system, math.nan if f.mean is None else f.mean, f.lo, f.hi) for row, f in rows]
    unit = rows[0][1].unit if rows else ""
    drawn = bar_chart(bars, title=name, unit=unit, better=_better(units, name))
    says = units[name].says if name in units and units[name].says else name
    return page.figure(drawn, f"{says}; mean, 95 % interval over seeds", _bar_table(bars, name))


def _bar_table(bars: Sequence[tuple[str, float, Any, Any]], name: str) -> str:
    lines = [[who, *(_plain(x) for x in (mean, lo, hi))] for who, mean, lo, hi in bars]
    return page.table(("system", "mean", "from", "to"), lines, f"{name}, with its interval")


def _plain(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _compare_lines(one: Compared, world_hash: str, store: Store | None) -> list[str]:
    """The command, if its words reach the same systems and world; and one replay a system."""
    from orrery.lab.discover import find

    found = []
    try:
        for row in one.rows:
            find(row.system)
        place = _place_words(one, world_hash)
        if place is not None:
            words = ["orrery", "compare", _asked(one, store), "--systems",
                     ",".join(row.system for row in one.rows), *place]  # fmt: skip
            counts = {row.seeds for row in one.rows}
            words += ["--seeds", str(counts.pop())] if len(counts) == 1 else []
            found.append(shlex.join([*words, *(["--by", one.by] if one.by else [])]))
    except (OrreryError, OSError):
        pass  # parts or a world made in Python have no name on the command line
    found += [f"orrery replay {row.runs[0]}   # {row.system}" for row in one.rows if row.runs]
    return found


def _place_words(one: Compared, world_hash: str) -> list[str] | None:
    """The words that name the world: none for the problem's own; None where no words do."""
    from orrery.lab.questions import ask_problem
    from orrery.world import worlds

    own = ask_problem(one.problem).world()
    if own.hash == world_hash or (not world_hash and one.world in (own.title, own.hash)):
        return []
    try:
        reached = worlds.find(one.world).hash in (world_hash, world_hash or None)
    except (OrreryError, OSError):
        return None
    return ["--world", one.world] if reached or not world_hash else None


def _asked(one: Compared, store: Store | None) -> str:
    """The problem with the knobs that were set, as far as a stored run tells."""
    from orrery.lab.questions import problem_class

    for row in one.rows:
        for id in row.runs[:1]:
            with contextlib.suppress(OrreryError):
                told = (store or Store()).load(id).spec.get("problem") or {}
                usual = problem_class(one.problem)().knobs()
                knobs = {k: v for k, v in (told.get("knobs") or {}).items() if usual.get(k) != v}
                plain = all(isinstance(v, str | int | float) for v in knobs.values())
                if knobs and plain:
                    return one.problem + ":" + ",".join(f"{k}={v}" for k, v in knobs.items())
                return one.problem
    return one.problem


# -- choose


def chosen_chapter(one: Chosen, units: Units | None = None) -> Chapter:
    """Which system is best here, why, and what would change that."""
    units = units if units is not None else units_of(one.problem)
    unit = units[one.by].unit if one.by in units else ""
    first = one.ranking[0] if one.ranking else None
    winner = first.system if first is not None and first.score is not None else ""
    made = Chapter(
        title=f"{winner or 'Nothing'} is the choice for {one.problem} by {one.by}",
        lead=f"World {one.world} · {len(one.ranking)} systems ranked by {one.by}",
        commands=[shlex.join(["orrery", "choose", one.problem, "--world", one.world,
                              "--by", one.by])] if one.world and " " not in one.world else [],
    )  # fmt: skip
    if not winner:
        made.verdicts = [Said("Open", f"No system has a value for {one.by}.")]
    else:
        sure = "Fine" if one.decided else "Open"
        said = f"{winner}: {first.why if first is not None else ''}"
        tail = "." if one.decided else "; more seeds could change the order."
        made.verdicts = [Said(sure, said + tail)]
    made.verdicts += [Said("Flips", _flip_words(flip, winner)) for flip in one.flips]
    if one.tried and not one.flips:
        spans = ", ".join(f"{name} {values[0]:.4g} to {values[-1]:.4g}"
                          for name, values in one.tried.items() if values)  # fmt: skip
        made.verdicts.append(Said("Steady", f"The answer stays the same for {spans}."))
    lines = [
        [f"{place}. {row.system}", shown(row.score, row.lo, row.hi, unit), row.why]
        for place, row in enumerate(one.ranking, 1)
    ]
    heads = ("system", one.by or "score", "why it stands here")
    caption = f"{one.problem} by {one.by}, best first"
    table = page.table(heads, lines, caption, says=["", _meaning(units, one.by)])
    made.sections.append(("Ranking", [table]))
    return made


def _flip_words(flip: Any, winner: str) -> str:
    way = "At and above" if flip.side == "above" else "At and below"
    here = "" if flip.base is None else f" (here {flip.base:.4g})"
    return f"{way} {flip.parameter} {flip.at:.4g}{here}, {flip.to} beats {winner}."


# -- check


def checked_chapter(one: Checked) -> Chapter:
    """The claims of a system: what was published, what was found."""
    made = Chapter(
        title=f"{one.id}: {_many(len(one.claims), 'claim')} put to the test",
        lead=_tally(one.claims) or "It makes no claims.",
        commands=[f"orrery check {shlex.quote(one.id)}"],
    )
    made.verdicts = [_claim_said(claim) for claim in one.claims]
    if not one.claims:
        return made
    body: list[str | Picture] = [_claim_table(one)]
    gains = [_gain(claim) for claim in one.claims if claim.form in ("ratio", "direction")]
    gains = [gain for gain in gains if gain.found]
    if gains:
        drawn = gain_chart(gains, title=f"Gains of {one.id}")
        data = [[g.name, *(_plain(x) for x in (*(g.says or (None, None)), g.found, g.lo, g.hi,
                                                g.off))] for g in gains]  # fmt: skip
        heads = ("claim", "published from", "to", "found", "from", "to", "mechanism off")
        table = page.table(heads, data, "Gains, ours / theirs")
        caption = "Published gains beside those found here, with 95 % intervals over seeds"
        body.append(Picture(page.grid([page.figure(drawn, caption, table)], two=True)))
    made.sections.append((f"Claims of {one.id}", body))
    return made


def _many(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def _tally(claims: Sequence[ClaimRow]) -> str:
    counts: dict[str, int] = {}
    for claim in claims:
        word = "cannot be tested" if claim.form == "none" else claim.verdict or "not judged"
        counts[word] = counts.get(word, 0) + 1
    return " · ".join(f"{word}: {count}" for word, count in counts.items())


def _claim_said(claim: ClaimRow) -> Said:
    if claim.form == "none":
        return Said("cannot be tested", f"{claim.metric}: {claim.untestable or claim.says}")
    against = f" against {claim.against}" if claim.against else ""
    said = f"{claim.metric}{against}: claimed {claim.says or claim.form}, "
    said += f"found {_found(claim)}" if claim.measured is not None else "nothing measured"
    if claim.off is not None:
        said += f"; mechanism switched off {_figure(claim, claim.off)}"
    return Said(claim.verdict or "not judged", said + (f" ({claim.note})" if claim.note else ""))


def _figure(claim: ClaimRow, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" + ("x" if claim.form in ("ratio", "direction") else "")


def _found(claim: ClaimRow) -> str:
    text = _figure(claim, claim.measured)
    if claim.lo is not None and claim.hi is not None:
        text += f" [{claim.lo:.4g}, {claim.hi:.4g}]"
    return text


def _claim_table(one: Checked) -> str:
    # Only columns in which there is something.
    columns: dict[str, list[str]] = {
        "claim": [claim.metric for claim in one.claims],
        "published": [claim.says or claim.form for claim in one.claims],
        "against": [claim.against or "" for claim in one.claims],
        "found here": [_found(claim) for claim in one.claims],
        "mechanism off": [_figure(claim, claim.off) for claim in one.claims],
        "verdict": [claim.verdict or "" for claim in one.claims],
        "kind": [claim.kind if claim.form != "none" else "" for claim in one.claims],
        "seeds": [str(claim.seeds or "") for claim in one.claims],
        "note": [claim.note or claim.untestable or "" for claim in one.claims],
    }
    kept = {name: cells for name, cells in columns.items()
            if any(cell not in ("", "–") for cell in cells)}  # fmt: skip
    lines = [list(line) for line in zip(*kept.values(), strict=True)]
    heads = list(kept)
    place = heads.index("verdict") if "verdict" in heads else None
    return page.table(heads, lines, f"Claims of {one.id}", verdict_in=place)


def _gain(claim: ClaimRow) -> Gain:
    ends = [x for x in (claim.says_lo, claim.says_hi) if x is not None]
    says = (ends[0], ends[-1]) if ends and claim.form == "ratio" else None
    return Gain(claim.metric, says, claim.measured, claim.lo, claim.hi, claim.off)
