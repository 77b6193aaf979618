"""Chapters of searches: the map of `when` and the trials of `sweep`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from orrery.lab import html_page as page
from orrery.lab.charts import line_chart
from orrery.lab.html_page import Said
from orrery.lab.plots import MOST_DOTS, dots_chart
from orrery.lab.report.chapter import Chapter, Picture, environments
from orrery.lab.report.documents import Mapped, PointRow, Swept, TrialRow
from orrery.lab.report.findings import shown, units_of
from orrery.lab.store import Store

MOST_TRIALS = 60
MOST_LINES = 6
_STATES = {
    True: ("yes", "holds, at least in part"),
    False: ("no", "does not hold"),
    None: ("open", "open"),
}


# -- when


def mapped_chapter(one: Mapped, picture: str = "") -> Chapter:
    """Where a claim holds; `picture` is the map as `when` drew it, where that is at hand."""
    metric = str(one.claim.get("metric", "the claim"))
    says = str(one.claim.get("says") or one.claim.get("form") or "")
    share = {name: one.share.get(name, 0.0) for name in ("holds", "does_not", "open")}
    x, y = one.grid.x, one.grid.y
    made = Chapter(
        title=f"When {one.id} holds: {metric}",
        lead=f"Claimed: {says} · {len(one.values)} points over {x.parameter} and {y.parameter} · "
        f"{one.kind}",
        commands=[_when_line(one)],
    )
    words = f"It holds on {share['holds']:.0%} of the map and does not on {share['does_not']:.0%}"
    words += f"; {share['open']:.0%} are open." if share["open"] else "."
    held = share["holds"] == 1.0
    word = "holds" if held else "not here" if share["does_not"] == 1.0 else "holds in part"
    made.verdicts = [Said("inconclusive" if share["open"] == 1.0 else word, words)]
    if not one.complete:
        made.verdicts.append(Said("Open", "The points were used up before the line was fine."))
    made.sections.append(("Map", _map_body(one, picture)))
    return made


def _when_line(one: Mapped) -> str:
    words = ["orrery", "when", one.id]
    for name, axis in (("--x", one.grid.x), ("--y", one.grid.y)):
        tail = ":log" if axis.scale == "log" else ""
        words += [name, f"{axis.parameter}={axis.lo:g}:{axis.hi:g}{tail}"]
    if isinstance(one.claim.get("n"), int):
        words += ["--claim", str(one.claim["n"])]
    line = shlex.join([*words, "--points", str(len(one.values))])
    # The document does not say in which world it was asked, nor what was fixed.
    return f"{line}   # with the --world, --set and --seeds that were given"


def _map_body(one: Mapped, picture: str) -> list[str | Picture]:
    x, y = one.grid.x, one.grid.y
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in one.values[:MOST_DOTS]:
        groups.setdefault(_STATES[point.holds], []).append((point.x, point.y))
    body: list[str | Picture] = []
    caption = f"Where the claim holds, over {x.parameter} and {y.parameter}; the line is break-even"
    data = _point_table(one.values, x.parameter, y.parameter)
    drawn = picture
    if not drawn and groups:
        drawn = dots_chart(
            groups, title=f"When {one.id} holds", x_label=x.parameter, y_label=y.parameter,
            log=(x.scale == "log", y.scale == "log"), lines=one.break_even[:40],
        )  # fmt: skip
    if drawn:
        figure = page.figure(drawn, caption, data, wide=bool(picture))
        body.append(Picture(figure if picture else page.grid([figure], two=True)))
    else:
        body.append(data)
    notes = list(dict.fromkeys(point.note for point in one.values if point.note))
    body += [page.note(text) for text in notes[:3]]
    return body


def _point_table(points: Sequence[PointRow], x: str, y: str) -> str:
    lines = [
        [f"{p.x:.4g}", f"{p.y:.4g}", p.verdict or "", shown(p.measured, p.lo, p.hi, ""),
         str(p.seeds or "")]
        for p in points
    ]  # fmt: skip
    heads = (x, y, "verdict", "measured", "seeds")
    return page.table(heads, lines, "Every point of the map", verdict_in=2)


# -- sweep


def swept_chapter(one: Swept, store: Store | None) -> Chapter:
    """The trials of a sweep, the best first, and how the figure moves with what was varied."""
    units = units_of(one.problem)
    unit = units[one.by].unit if one.by in units else ""
    varied = _varied(one)
    made = Chapter(
        title=f"{one.problem}: {len(one.trials)} trials by {one.by}",
        lead=f"{one.search} search over {', '.join(varied) or 'nothing'} · "
        f"{'1 seed' if len(one.seeds) < 2 else f'{len(one.seeds)} seeds'} a trial · "
        f"{one.better or 'neither way'} is better",
        commands=[line] if (line := _sweep_line(one)) else [],
        environment=environments([t.runs[0] for t in one.trials if t.runs][:3], store),
    )
    made.verdicts = _swept_said(one, varied, unit)
    ranked = sorted(one.trials, key=lambda trial: _rank(trial, one.better))
    body: list[str | Picture] = [_trial_table(ranked, varied, one.by, unit)]
    figures = _sweep_figures(one, varied)
    if figures:
        body.append(Picture(page.grid(figures, two=True)))
    made.sections.append(("Trials", body))
    return made


def _varied(one: Swept) -> list[str]:
    """The parameters that took more than one value."""
    names = list(dict.fromkeys(name for trial in one.trials for name in trial.values))
    found = []
    for name in names:
        values = {repr(trial.values.get(name)) for trial in one.trials}
        if len(values) > 1:
            found.append(name)
    return found


def _short(name: str) -> str:
    return name.partition(".")[2] or name


def _rank(trial: TrialRow, better: str) -> tuple[int, float, int]:
    score = trial.score
    if score is None or not math.isfinite(score):
        return (2, 0.0, trial.n)
    return (1 if trial.violations else 0, -score if better == "higher" else score, trial.n)


def _swept_said(one: Swept, varied: Sequence[str], unit: str) -> list[Said]:
    found: list[Said] = []
    if one.best is None:
        found.append(Said("Failed", "No trial ended with a figure and without a violation."))
    else:
        setting = ", ".join(f"{_short(n)} = {_value(one.best.values.get(n))}" for n in varied)
        value = shown(one.best.score, one.best.lo, one.best.hi, unit)
        found.append(Said("Fine", f"Best: {one.by} {value} with {setting or 'no change'}."))
    if one.ties:
        many = "1 other trial" if len(one.ties) == 1 else f"{len(one.ties)} other trials"
        found.append(Said("Open", f"{many} cannot be told from the best with these seeds."))
    broken = sum(1 for trial in one.trials if trial.violations)
    if broken:
        found.append(Said("Violated", f"{broken} of {len(one.trials)} trials broke a rule."))
    if one.partial:
        found.append(Said("Stopped", f"{len(one.trials)} of {one.total} trials were finished."))
    return found


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _trial_table(ranked: Sequence[TrialRow], varied: Sequence[str], by: str, unit: str) -> str:
    noted = any(trial.note for trial in ranked)
    broken = any(trial.violations for trial in ranked)
    heads = ["trial", *map(_short, varied), by]
    heads += ["violations"] * broken + ["note"] * noted
    lines = []
    for trial in ranked[:MOST_TRIALS]:
        line = [str(trial.n), *(_value(trial.values.get(name, "–")) for name in varied)]
        line.append(shown(trial.score, trial.lo, trial.hi, unit))
        line += [str(trial.violations)] * broken + [trial.note] * noted
        lines.append(line)
    found = page.table(heads, lines, f"Trials, best first by {by}")
    left_out = len(ranked) - len(lines)
    return found + (page.note(f"{left_out} more trials are left out here.") if left_out else "")


def _sweep_figures(one: Swept, varied: Sequence[str]) -> list[str]:
    """For each parameter that is a number: the figure over it; lines where a grid allows."""
    numeric = [name for name in varied if all(_is_number(t.values.get(name)) for t in one.trials)]
    figures = []
    for name in numeric[:4]:
        others = [other for other in varied if other != name]
        lines = _grid_lines(one, name, others) if one.search == "grid" else {}
        if lines:
            drawn = line_chart(lines, title=f"{one.by} over {_short(name)}",
                               x_label=_short(name), y_label=one.by)  # fmt: skip
        else:
            drawn = _dots(one, name)
        if drawn:
            caption = f"{one.by} of every trial over {_short(name)}"
            figures.append(page.figure(drawn, caption, _score_table(one, name)))
    return figures


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _grid_lines(
    one: Swept, name: str, others: Sequence[str]
) -> dict[str, list[tuple[float, float]]]:
    """One line for each value of the other parameters, if there are few; else nothing."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for trial in one.trials:
        if trial.score is None or trial.violations:
            continue
        key = ", ".join(f"{_short(other)} {_value(trial.values.get(other))}" for other in others)
        lines.setdefault(key or one.by, []).append((float(trial.values[name]), trial.score))
    if len(lines) > MOST_LINES or any(len(points) < 2 for points in lines.values()):
        return {}
    return {key: sorted(points) for key, points in lines.items()}


def _dots(one: Swept, name: str) -> str:
    best = one.best.n if one.best is not None else -1
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for trial in one.trials[:MOST_DOTS]:
        if trial.score is None or not math.isfinite(trial.score):
            continue
        kind = ("best", "the best") if trial.n == best else ("dot", "a trial")
        kind = ("no", "broke a rule") if trial.violations else kind
        groups.setdefault(kind, []).append((float(trial.values[name]), trial.score))
    if not groups:
        return ""
    axes = zip(*(point for points in groups.values() for point in points), strict=True)
    across, up = (min(axis) > 0 and max(axis) / min(axis) > 20 for axis in axes)
    return dots_chart(groups, title=f"{one.by} over {_short(name)}", x_label=_short(name),
                      y_label=one.by, log=(across, up))  # fmt: skip


def _score_table(one: Swept, name: str) -> str:
    rows = sorted(one.trials, key=lambda trial: (float(trial.values[name]), trial.n))
    lines = [[str(t.n), _value(t.values[name]), shown(t.score, t.lo, t.hi, "")] for t in rows]
    return page.table(("trial", _short(name), one.by), lines, f"{one.by} over {_short(name)}")


def _sweep_line(one: Swept) -> str:
    """The command, where its words can say what was varied."""
    words = ["orrery", "sweep", ",".join(one.systems)] if one.systems else []
    for each in one.over:
        name, values = each.get("parameter"), each.get("values")
        if name == "system":
            continue
        if isinstance(values, list):
            words.append(f"{name}={','.join(map(_value, values))}")
        elif "lo" in each and "hi" in each:
            tail = ":log" if each.get("scale") == "log" else ""
            words.append(f"{name}={each['lo']:g}..{each['hi']:g}{tail}")
    if not words:
        return ""
    if one.seeds:
        words.append(f"seeds={','.join(map(str, one.seeds))}")
    words += ["--problem", one.problem, "--by", one.by]
    if one.search != "grid":
        words += ["--search", one.search, "--trials", str(one.total or len(one.trials))]
    return shlex.join(words)
