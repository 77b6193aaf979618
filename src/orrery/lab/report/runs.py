"""The chapter of runs: their metrics, what differs between them, what was done to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orrery.base.errors import OrreryError, UsageError
from orrery.base.units import show
from orrery.lab import html_page as page
from orrery.lab.charts import line_chart
from orrery.lab.html_page import Said
from orrery.lab.items import Item
from orrery.lab.report.chapter import Chapter, Picture
from orrery.lab.report.timeline import MOST_WINDOWS, faults_table, timeline
from orrery.lab.run import Run
from orrery.lab.store import Store

MOST_RUNS = 200
MOST_PICTURED = 4
MOST_WORLD = 40_000
MOST_REPLAYED = 2_000_000  # events: a few seconds
MAIN_COLUMNS = 9


def runs_chapter(runs: Sequence[Item], store: Store | None, pictures: bool) -> Chapter:
    """One chapter for all runs."""
    if len(runs) > MOST_RUNS:
        raise UsageError(f"report: {len(runs)} runs are too many; give at most {MOST_RUNS}")
    drawn = _timelines(runs, store) if pictures else []
    made = Chapter(
        title=_title(runs), lead=_lead(runs), verdicts=_verdicts(runs),
        commands=[item.command or _python(item) for item in runs[:20]],
        digests={f"{item.name}, seed {item.seed}": item.digest for item in runs if item.digest},
        worlds=_worlds(runs), environment=[item.environment for item in runs],
    )  # fmt: skip
    for item in runs:
        made.broken += [(item.name, {"seed": item.seed, **each}) for each in item.violations]
    for problem in dict.fromkeys(item.problem for item in runs):
        # Runs of different problems share no metrics, so each problem has a table of its own.
        alike = [item for item in runs if item.problem == problem]
        title = "Results" if len(alike) == len(runs) else f"Results on {problem}"
        made.sections.append((title, _metrics(alike)))
    told = [page.heading(f"{item.name}, seed {item.seed}") + table if len(runs) > 1 else table
            for item in runs[:MOST_PICTURED] if item.made is not None
            and (table := faults_table(item.made))]  # fmt: skip
    if told:
        made.sections.append(("Faults", list(dict.fromkeys(told))))
    if drawn:
        made.sections.append(("Timeline", drawn))
    return made


def _title(runs: Sequence[Item]) -> str:
    names = list(dict.fromkeys(item.name for item in runs))
    problems = list(dict.fromkeys(item.problem for item in runs))
    who = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    on = f" on {', '.join(problems)}" if problems != ["none"] else ""
    return f"{who}{on}"


def _lead(runs: Sequence[Item]) -> str:
    worlds = list(dict.fromkeys(_world_words(item) for item in runs))
    seeds_of = sorted({item.seed for item in runs})
    few = ", ".join(map(str, seeds_of[:6])) + ("…" if len(seeds_of) > 6 else "")
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    engines = ", ".join(dict.fromkeys(item.engine for item in runs))
    return f"{what} · world {', '.join(worlds[:3])} · seed {few} · {engines} engine"


def _world_words(item: Item) -> str:
    """A world by what it is where that is known, else by its hash."""
    world = item.made.world if item.made is not None else None
    if world is None:
        return item.world
    nodes = "1 node" if world.size == 1 else f"{world.size} nodes"
    faults = len(world.faults)
    name = f"{world.title}: {nodes}" if world.title else f"of {nodes}"
    return name + (f", {faults} fault{'s' * (faults != 1)}" if faults else "")


def _verdicts(runs: Sequence[Item]) -> list[Said]:
    found: list[Said] = []
    for item in runs:
        who = f"{item.name}, seed {item.seed}" if len(runs) > 1 else item.name
        if item.partial:
            found.append(Said("Stopped", f"{who}: the run was interrupted."))
        if item.violations:
            kinds = ", ".join(dict.fromkeys(str(v.get("kind")) for v in item.violations))
            count = len(item.violations)
            times = "once" if count == 1 else f"{count} times"
            found.append(Said("Violated", f"{who}: violated {times} ({kinds})."))
    clean = [item for item in runs if not item.violations and not item.partial]
    if clean:
        what = "The run" if len(runs) == 1 else f"{len(clean)} of {len(runs)} runs"
        found.append(Said("Fine", f"{what} ended without a violation."))
    return found


# -- results


def _metrics(runs: Sequence[Item]) -> list[str | Picture]:
    if len(runs) == 1:
        return _one(runs[0])
    names = list(dict.fromkeys(name for item in runs for name in item.metrics))
    columns: dict[str, list[str]] = {"system": [item.name for item in runs]}
    columns["problem"] = [item.problem for item in runs]
    columns["world"] = [_world_words(item) for item in runs]
    columns["engine"] = [item.engine for item in runs]
    columns["seed"] = [str(item.seed) for item in runs]
    columns |= _knob_columns(runs)
    columns["violations"] = [str(len(item.violations)) for item in runs]
    for name in names:
        columns[name] = [_shown(item, name) for item in runs]
    differ = {name: cells for name, cells in columns.items() if len(set(cells)) > 1}
    differ = {"system": columns["system"]} | differ
    same = {name: cells[0] for name, cells in columns.items() if name not in differ}
    heads = list(differ)
    body: list[str | Picture] = [
        _table(heads[: MAIN_COLUMNS + 1], differ, runs, "What differs between the runs")
    ]
    if len(heads) > MAIN_COLUMNS + 1:
        rest = ["system", *(["seed"] if "seed" in differ else []), *heads[MAIN_COLUMNS + 1 :]]
        table = _table(rest, differ, runs, "What else differs")
        body.append(page.fold(f"More that differs ({len(heads) - MAIN_COLUMNS - 1})", table))
    if same:
        body.append(page.fold(f"The same for all ({len(same)})", page.facts(same)))
    return body


def _knob_columns(runs: Sequence[Item]) -> dict[str, list[str]]:
    """The knobs that some run has; those that all have alike go with what is the same."""
    names = list(dict.fromkeys(name for item in runs for name in item.knobs))
    every = {f"knob {name}": [str(item.knobs.get(name, "–")) for item in runs] for name in names}
    if len({item.name for item in runs}) > 1:
        return {}  # other parts have other knobs: that says nothing about the runs
    return every


def _table(
    heads: Sequence[str], columns: dict[str, list[str]], runs: Sequence[Item], caption: str
) -> str:
    lines = [list(line) for line in zip(*(columns[name] for name in heads), strict=True)]
    says = [_meaning(runs, name) for name in heads]
    return page.table(heads, lines, caption, says=says)


def _meaning(runs: Sequence[Item], name: str) -> str:
    _, better, says = next((i.units[name] for i in runs if name in i.units), ("", "", ""))
    return says + (f" ({better} is better)" if better else "")


def _one(item: Item) -> list[str | Picture]:
    lines = [[name, _shown(item, name)] for name in item.metrics]
    says = [_meaning([item], name) for name in item.metrics]
    body: list[str | Picture] = []
    if lines:
        body.append(page.table(("metric", "value"), lines, "Metrics", row_says=says))
    body.append(page.facts(item.facts))
    knobs = {name: str(value) for name, value in item.knobs.items()}
    if knobs:
        body.append(page.fold(f"Knobs ({len(knobs)})", page.facts(knobs)))
    return body


def _shown(item: Item, name: str) -> str:
    if name not in item.metrics:
        return "–"
    return show(item.metrics[name], item.units.get(name, ("", "", ""))[0])


# -- over time


def _chart(item: Item) -> list[str]:
    """Progress over time, from what the nodes emitted: how many reports of each kind by when."""
    if item.made is None or not item.made.records:
        return []
    lines: dict[str, list[tuple[float, float]]] = {}
    for time_s, _, values in item.made.records:
        name = next(iter(values), "")  # the first word says what it is, the rest adds to it
        points = lines.setdefault(name, [(0.0, 0.0)])
        points.append((time_s, points[-1][1] + 1))
    kept = dict(sorted(lines.items(), key=lambda pair: -len(pair[1]))[:6])
    for points in kept.values():
        points.append((item.made.seconds, points[-1][1]))
    drawn = line_chart(kept, title=f"What the nodes of {item.name} told", x_label="time (s)",
                       y_label="reports so far", y_from=0.0, steps=True)  # fmt: skip
    caption = "What nodes reported with emit, counted over time"
    return [page.figure(drawn, caption, _progress(kept, item.made.seconds))]


def _progress(lines: dict[str, list[tuple[float, float]]], end_s: float) -> str:
    """The counts at some moments of the run."""
    rows = []
    for i in range(11):
        at = end_s * i / 10
        counts = [max((y for x, y in points if x <= at), default=0.0) for points in lines.values()]
        rows.append([f"{at:.4g}", *(f"{count:.0f}" for count in counts)])
    return page.table(("time (s)", *lines), rows, "Reports so far")


def _timelines(runs: Sequence[Item], store: Store | None) -> list[str | Picture]:
    """The timelines of some runs, violated ones first; stored ones are made again."""
    order = sorted(runs, key=lambda item: not item.violations)
    found: list[str | Picture] = []
    seen: set[str] = set()
    drawn = 0
    for item in order[: 2 * MOST_PICTURED]:
        made = item.made or _again(item, store)
        if made is None or drawn == MOST_PICTURED or (made.digest and made.digest in seen):
            continue  # equal runs look the same
        seen.add(made.digest)
        chart = _chart(item)
        pictures = timeline(made, item.name, MOST_WINDOWS if len(runs) == 1 else 1, chart)
        if not pictures and chart:  # a problem may host its part without sending messages
            pictures = [Picture(page.grid(chart, two=True))]
        if pictures:
            drawn += 1
            found += [page.heading(f"{item.name}, seed {item.seed}")] if len(runs) > 1 else []
            found += pictures
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


# -- how to make them again


def _worlds(runs: Sequence[Item]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in runs:
        world = item.made.world if item.made is not None else _stored_world(item)
        if world is not None and len(found) < 4:
            text = world.to_toml()
            if len(text) <= MOST_WORLD:
                found[world.hash] = text
    return found


def _stored_world(item: Item) -> Any:
    from orrery.world import World

    file = Path(item.folder) / "world.json" if item.folder else None
    try:
        return World.load(file) if file is not None and file.is_file() else None
    except OrreryError:
        return None


def _python(item: Item) -> str:
    if item.made is None:
        return f"run {item.name} with seed {item.seed}"
    made = item.made
    problem = f", problem={made.problem!r}" if made.problem is not None else ""
    until = f", until_s={made.seconds!r}" if made.ended == "until" else ""
    world = "world=World.load('world.toml')"
    return f"run({made.part!r}{problem}, {world}, seed={item.seed}{until})"
