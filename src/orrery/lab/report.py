"""`report`: runs and comparisons as one offline HTML file that a person can read and pass on.

Only what differs stands in the tables; what is the same for all is in a fold-out. The file holds
its pictures, uses no script and loads nothing: a content security policy says so. Everything that
came from outside is escaped.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, UsageError
from orrery.base.units import show
from orrery.lab import html_page as page
from orrery.lab import stats
from orrery.lab.charts import bar_chart, line_chart
from orrery.lab.compare import Comparison
from orrery.lab.items import Item, item_of
from orrery.lab.run import Run
from orrery.lab.spans import _whole, plain
from orrery.lab.store import Store, Stored

MOST_B = 2_000_000
MOST_RUNS = 200
MOST_PICTURES = 4
MOST_VIOLATIONS = 20
MOST_ALIKE = 25
MOST_CHARTS = 4
MOST_WORLD = 40_000
MOST_REPLAYED = 2_000_000  # events: a few seconds


def write(items: Any, path: str | Path, **options: Any) -> Path:
    """Write the report of one or more runs, run ids or comparisons; gives the path."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{target}: a report is HTML; end the name in .html")
    text = report(items, **options).encode()
    return _whole(target, lambda file: file.write(text))


def report(
    items: Any,
    *,
    title: str | None = None,
    store: Store | None = None,
    pictures: bool = True,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The report as HTML text, below 2 MB; pictures are left out one by one if it grows larger."""
    given = _listed(items)
    compared = [each for each in given if isinstance(each, Comparison)]
    runs = [item_of(each, store) for each in given if not isinstance(each, Comparison)]
    if not runs and not compared:
        raise UsageError("report: no run is named; give run ids, runs or a comparison")
    if len(runs) > MOST_RUNS:
        raise UsageError(f"report: {len(runs)} runs are too many; give at most {MOST_RUNS}")
    drawn = _pictures(runs, store) if pictures else []
    heading = title or _title(runs, compared)
    for keep in range(len(drawn), -1, -1):
        left_out = len(drawn) - keep
        text = _assemble(heading, runs, compared, drawn[:keep], left_out, commands, notes)
        if len(text.encode()) < MOST_B:
            return text
    raise UsageError("report: over 2 MB even without pictures; give fewer runs")


def _listed(items: Any) -> list[Any]:
    if isinstance(items, str | Run | Stored | Comparison):
        return [items]
    if not isinstance(items, Iterable):
        raise UsageError(f"report: {items!r} is no run; give runs, run ids or comparisons")
    return list(items)


def _title(runs: Sequence[Item], compared: Sequence[Comparison]) -> str:
    if compared and not runs:
        return f"{compared[0].problem}: {len(compared[0].rows)} systems compared"
    names = list(dict.fromkeys(item.name for item in runs))
    problems = list(dict.fromkeys(item.problem for item in runs))
    who = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    on = f" on {', '.join(problems)}" if problems != ["none"] else ""
    return f"{who}{on}"


# -- the page


def _assemble(
    title: str, runs: Sequence[Item], compared: Sequence[Comparison],
    drawn: Sequence[tuple[str, str]], dropped: int, commands: Sequence[str],
    notes: Sequence[str],
) -> str:  # fmt: skip
    body: list[str] = [page.header(title, _lead(runs, compared))]
    body += [page.note(text) for text in notes]
    body.append(page.verdicts(_verdicts(runs, compared)))
    body += [_comparison(each) for each in compared]
    for problem in dict.fromkeys(item.problem for item in runs):
        # Runs of different problems share no metrics, so each problem has a table of its own.
        alike = [item for item in runs if item.problem == problem]
        body.append(_metrics(alike, "Results" if len(alike) == len(runs) else problem))
    if runs:
        body.append(page.grid(_run_charts(runs)))
    for caption, picture in drawn:
        body.append(page.figure(picture, caption, wide=True))
    if dropped:
        body.append(page.note(f"{dropped} pictures were left out to keep this file below 2 MB."))
    body.append(_violations(runs, compared))
    body.append(_reproduce(runs, compared, commands))
    body.append(_environment(runs))
    return page.document(title, body)


def _lead(runs: Sequence[Item], compared: Sequence[Comparison]) -> str:
    if compared:
        one = compared[0]
        seeds = max((len(row.seeds) for row in one.rows), default=0)
        return f"World {one.world} · ranked by {one.by} · up to {seeds} seeds · {one.kind}"
    worlds = list(dict.fromkeys(item.world for item in runs))
    seeds_of = sorted({item.seed for item in runs})
    few = ", ".join(map(str, seeds_of[:6])) + ("…" if len(seeds_of) > 6 else "")
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{what} · world {', '.join(worlds[:3])} · seed {few} · {runs[0].engine} engine"


def _verdicts(runs: Sequence[Item], compared: Sequence[Comparison]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in compared:
        found.append(_ranking(one))
        broken = [row.system for row in one.rows if row.violations]
        found += [("bad", f"{name} broke what it promises; see Violations.") for name in broken]
        if one.partial:
            found.append(("open", "The comparison was interrupted; these are its finished runs."))
    for item in runs:
        who = f"{item.name}, seed {item.seed}" if len(runs) > 1 else item.name
        if item.partial:
            found.append(("open", f"{who}: the run was interrupted."))
        if item.violations:
            kinds = ", ".join(dict.fromkeys(str(v.get("kind")) for v in item.violations))
            count = len(item.violations)
            times = "once" if count == 1 else f"{count} times"
            found.append(("bad", f"{who}: violated {times} ({kinds})."))
    clean = [item for item in runs if not item.violations and not item.partial]
    if clean:
        what = "The run" if len(runs) == 1 else f"{len(clean)} of {len(runs)} runs"
        found.append(("good", f"{what} ended without a violation."))
    return found


def _ranking(one: Comparison) -> tuple[str, str]:
    rows = [row for row in one.rows if row.values.get(one.by)]
    if not rows:
        return "open", f"No system has a value for {one.by}."
    best = rows[0]
    unit = one.units[one.by].unit if one.by in one.units else ""
    value = show(stats.mean(best.column(one.by)), unit)
    if len(rows) == 1:
        return "good", f"{best.system}: {one.by} {value}."
    tied = sorted({name for pair in one.ties for name in pair if best.system in pair})
    if tied:
        return "open", f"{' and '.join(tied)} are level by {one.by} ({value})."
    if not one.decided:
        return "open", f"{best.system} is first by {one.by} ({value}), but more seeds could differ."
    return "good", f"{best.system} is best by {one.by}: {value}."


def _comparison(one: Comparison) -> str:
    heads, lines = one.table()
    says = [f"{one.units[name].says}" if name in one.units else "" for name in one.differing]
    same = {name: show(value, one.units[name].unit if name in one.units else "")
            for name, value in one.same.items()}  # fmt: skip
    for name in ("seeds", "violations"):  # worth a column only where the systems differ
        place = heads.index(name)
        if len({line[place] for line in lines}) == 1:
            same[name] = lines[0][place]
            heads = heads[:place] + heads[place + 1 :]
            lines = [line[:place] + line[place + 1 :] for line in lines]
    body = [page.table(heads, lines, ["", *says], f"{one.problem}: what differs")]
    if same:
        body.append(page.fold(f"The same for all ({len(same)})", page.facts(same)))
    figures = []
    for name in _worth_drawing(one):
        metric = one.units.get(name)
        bars = []
        for row in one.rows:
            if row.values.get(name):
                at = stats.mean_interval(row.column(name))
                bars.append((row.system, at.mean, at.lo, at.hi))
        unit, better = (metric.unit, metric.better) if metric else ("", "")
        drawn = bar_chart(bars, title=name, unit=unit, better=better)
        says_what = metric.says if metric else ""
        figures.append(page.figure(drawn, f"{says_what or name}; mean, 95 % interval over seeds"))
    body.append(page.grid(figures))
    return page.section("Comparison", body)


def _worth_drawing(one: Comparison) -> list[str]:
    order = [one.by, *(name for name in one.differing if name != one.by)]
    drawable = [
        name for name in order
        if sum(any(map(math.isfinite, row.column(name))) for row in one.rows) > 1
    ]  # fmt: skip
    return drawable[:MOST_CHARTS]


def _metrics(runs: Sequence[Item], title: str) -> str:
    names = list(dict.fromkeys(name for item in runs for name in item.metrics))
    if len(runs) == 1:
        item = runs[0]
        lines = [
            [name, show(value, item.units.get(name, ("", "", ""))[0]), *_sense(item, name)]
            for name, value in item.metrics.items()
        ]
        body = [page.table(["metric", "value", "better", "meaning"], lines, [], "Metrics")]
        body.append(page.facts(item.facts))
        knobs = {name: str(value) for name, value in item.knobs.items()}
        if knobs:
            body.append(page.fold(f"Knobs ({len(knobs)})", page.facts(knobs)))
        return page.section(title, body)
    columns: dict[str, list[str]] = {"system": [item.name for item in runs]}
    columns["problem"] = [item.problem for item in runs]
    columns["world"] = [item.world for item in runs]
    columns["engine"] = [item.engine for item in runs]
    columns["seed"] = [str(item.seed) for item in runs]
    for name in names:
        columns[name] = [_shown(item, name) for item in runs]
    columns["violations"] = [str(len(item.violations)) for item in runs]
    differ = {name: cells for name, cells in columns.items() if len(set(cells)) > 1}
    differ = {"system": columns["system"]} | differ
    same = {name: cells[0] for name, cells in columns.items() if name not in differ}
    lines = [list(line) for line in zip(*differ.values(), strict=True)]
    body = [page.table(list(differ), lines, [], "What differs between the runs")]
    if same:
        body.append(page.fold(f"The same for all ({len(same)})", page.facts(same)))
    return page.section(title, body)


def _sense(item: Item, name: str) -> list[str]:
    _, better, says = item.units.get(name, ("", "", ""))
    return [better, says]


def _shown(item: Item, name: str) -> str:
    if name not in item.metrics:
        return "–"
    return show(item.metrics[name], item.units.get(name, ("", "", ""))[0])


def _run_charts(runs: Sequence[Item]) -> list[str]:
    """Progress over time, from what the nodes emitted: how many reports of each kind by when."""
    found: list[str] = []
    for item in runs[:MOST_CHARTS]:
        if item.made is None or not item.made.records:
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for time_s, _, values in item.made.records:
            name = next(iter(values), "")  # the first word says what it is, the rest adds to it
            points = lines.setdefault(name, [(0.0, 0.0)])
            points.append((time_s, points[-1][1] + 1))
        kept = dict(sorted(lines.items(), key=lambda pair: -len(pair[1]))[:6])
        for points in kept.values():
            points.append((item.made.seconds, points[-1][1]))
        drawn = line_chart(kept, title=f"What the nodes of {item.name} reported",
                           x_label="time (s)", y_label="reports so far", y_from=0.0,
                           steps=True)  # fmt: skip
        found.append(page.figure(drawn, f"Reports over time, seed {item.seed}"))
    return found


def _pictures(runs: Sequence[Item], store: Store | None) -> list[tuple[str, str]]:
    """The space-time picture of some runs, violated ones first; stored ones are made again."""
    from orrery.lab.draw import space_time

    order = sorted(runs, key=lambda item: not item.violations)
    found: list[tuple[str, str]] = []
    tries = 0
    for item in order:
        if len(found) == MOST_PICTURES or tries == 2 * MOST_PICTURES:
            break
        tries += 1
        made = item.made or _again(item, store)
        try:
            if made is not None and made.spans:
                drawn = space_time(made, lost=made.extra.get("lost_spans", ()))
                caption = f"{item.name}, seed {item.seed}: who told whom, when"
                if all(drawn != before for _, before in found):  # equal runs look the same
                    found.append((caption, drawn))
        except OrreryError:
            continue  # a run with nothing to draw still has its tables
    return found


def _again(item: Item, store: Store | None) -> Run | None:
    """A stored run made again, if that is quick and gives the same digest."""
    from orrery.lab.replay import replay

    if not item.id or item.engine != "virtual" or item.partial or item.events > MOST_REPLAYED:
        return None
    try:
        again = replay(item.id, store=store)
    except OrreryError:
        return None  # its code or its world is gone; the stored numbers stand
    made = again.run if again.same else None
    item.made = made
    return made


def _violations(runs: Sequence[Item], compared: Sequence[Comparison]) -> str:
    rows: list[tuple[str, dict[str, Any]]] = []
    for item in runs:
        rows += [(item.name, {"seed": item.seed, **each}) for each in item.violations]
    for one in compared:
        for row in one.rows:
            rows += [(row.system, each) for each in row.violations]
    if not rows:
        return ""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for who, violation in rows:
        groups.setdefault((who, str(violation.get("kind"))), []).append(violation)
    body = []
    for (who, kind), alike in list(groups.items())[:MOST_VIOLATIONS]:
        first = alike[0]
        where = [f"{len(alike)} times, the first"] if len(alike) > 1 else []
        if first.get("seed") is not None:
            where.append(f"with seed {first['seed']}")
        if first.get("time_s") is not None:
            where.append(f"at {show(float(first['time_s']), 's')}")
        if first.get("node") is not None:
            where.append(f"node {first['node']}")
        others = [f"seed {v.get('seed')}: {v.get('message', '')}" for v in alike[1:MOST_ALIKE]]
        if len(alike) > MOST_ALIKE:
            others.append(f"… and {len(alike) - MOST_ALIKE} more")
        body.append(page.violation(
            who, kind, " · ".join(where), str(first.get("message", "")), others,
            _evidence(first.get("evidence"))))  # fmt: skip
    if len(groups) > MOST_VIOLATIONS:
        body.append(page.note(f"{len(groups) - MOST_VIOLATIONS} more kinds are not shown."))
    return page.section(f"Violations ({len(rows)})", body)


def _evidence(data: Any) -> str:
    if data is None:
        return ""
    text = msgspec.json.format(msgspec.json.encode(plain(data)), indent=2).decode()
    return text if len(text) <= 6000 else text[:6000] + "\n… (cut)"


def _reproduce(
    runs: Sequence[Item], compared: Sequence[Comparison], commands: Sequence[str]
) -> str:
    lines = list(commands)
    for one in compared:
        lines += _compare_lines(one)
    lines += [item.command or _python(item) for item in runs[:20]]
    digests = {f"{item.name}, seed {item.seed}": item.digest for item in runs if item.digest}
    body = [page.code(lines)]
    if digests:
        body.append("<p>The same code, world and seed give the same digest:</p>")
        body.append(page.facts(digests, mono=True))
    worlds = {item.made.world.hash: item.made.world for item in runs if item.made is not None}
    for name, world in list(worlds.items())[:4]:
        text = world.to_toml()
        if len(text) <= MOST_WORLD:
            body.append(page.fold(f"The world {name} (save it as world.toml)", page.code([text])))
    return page.section("How to reproduce", body)


def _compare_lines(one: Comparison) -> list[str]:
    """The command, if its words reach the same systems and world; and one replay a system."""
    from orrery.lab.discover import find
    from orrery.world import worlds

    found = []
    try:
        for row in one.rows:
            find(row.system)
        if worlds.find(one.world).hash == one.world_hash:
            words = ["orrery", "compare", one.problem, "--systems",
                     ",".join(row.system for row in one.rows), "--world", one.world]  # fmt: skip
            counts = {len(row.seeds) for row in one.rows}
            words += ["--seeds", str(counts.pop())] if len(counts) == 1 else []
            found.append(shlex.join(words))
    except (OrreryError, OSError):
        pass  # parts or a world made in Python have no name on the command line
    found += [f"orrery replay {row.runs[0]}   # {row.system}" for row in one.rows if row.runs]
    return found


def _python(item: Item) -> str:
    if item.made is None:
        return f"run {item.name} with seed {item.seed}"
    made = item.made
    problem = f", problem={made.problem!r}" if made.problem is not None else ""
    until = f", until_s={made.seconds!r}" if made.ended == "until" else ""
    world = "world=World.load('world.toml')"
    return f"run({made.part!r}{problem}, {world}, seed={item.seed}{until})"


def _environment(runs: Sequence[Item]) -> str:
    import platform

    import orrery

    merged: dict[str, str] = {"orrery": orrery.__version__, "python": platform.python_version()}
    for item in runs:
        for name, value in item.environment.items():
            if value is None:
                continue
            before = merged.get(name)
            text = str(value)
            if before is None or name in ("orrery", "python"):
                merged[name] = text
            elif text not in before.split(", ") and len(before) < 120:
                merged[name] = f"{before}, {text}"
    return page.section("Environment", [page.facts(merged)])


__all__ = ["MOST_B", "report", "write"]
