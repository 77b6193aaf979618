"""`orrery sweep`: search a space of parameters for the best trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    INCONCLUSIVE,
    INTERRUPTED,
    OK,
    VIOLATED,
    Json,
    answer,
    complete_problem,
    complete_world,
    leave,
    new_app,
    note_kernel,
    preparing,
    say,
    strong,
    talk,
    unit_value,
)
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.sweep import Sweep

app = new_app()
SHOWN = 20
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SPEC.toml|SYSTEM,…] [KEY=A,B|KEY=A..B[:log]]…",
        help="A file or systems, and what is varied; KEY=A is fixed.",
    ),
]
Question = Annotated[
    str | None,
    typer.Option(
        "--problem",
        metavar="PROBLEM",
        autocompletion=complete_problem,
        help="The question; by default the system's own.",
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--world",
        metavar="FILE.toml|NAME:ARG",
        autocompletion=complete_world,
        help="The world; by default the problem's own.",
    ),
]
On = Annotated[str, typer.Option("--on", help="Where the work is done: processes or ray.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of a Ray cluster, or auto; by default RAY_ADDRESS, else a local Ray.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, max=1024, help="Workers to use; by default 1, on ray all processors."
    ),
]


@app.command("sweep")
def command(
    words: Words = None,
    problem: Question = None,
    world: Place = None,
    search: Annotated[
        str | None, typer.Option("--search", help="grid, random or tpe; by default grid.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="How many, for random and tpe; by default 50.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="METRIC", help="The metric to optimise.")
    ] = None,
    better: Annotated[
        str | None, typer.Option("--better", help="lower or higher; by default the metric's own.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Seeds of each trial; seeds=3,5 names them.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the search itself.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="virtual (by default), processes or ray.")
    ] = None,
    on: On = "processes",
    address: Address = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Search a space of knobs, worlds and seeds for the best trial by a metric.

    A key is a knob of the problem or of the part, or a path into the world (network.latency_s);
    problem., part. or world. before it says which. A range in a grid has five steps, or as many as
    KEY=A..B:N says. Options given here go before the file's. Finished trials are kept: after a
    kill, a full disk or a reboot the same command goes on. Exit code 1: every trial broke a rule
    or failed; 2: no trial gave a finite figure.

    \b
    Examples:
      orrery sweep push-gossip fanout=2,3,4 network.drop=0,0.1 --by messages_per_value --seeds 3
      orrery sweep push-gossip period_s=0.01..1:log --search tpe --trials 30 --jobs 2
      orrery sweep sweep.toml --trials 100
      orrery sweep sweep.toml --on ray --address 10.0.0.1:6379
    """
    from orrery.lab.sweep import answer_question, make_question

    place = _workers(on, address)
    given = {
        "problem": problem, "world": world, "search": search, "trials": trials, "by": by,
        "better": better, "seeds": seeds, "seed": seed, "engine": engine,
    }  # fmt: skip
    spec = _gather(list(words or []), {k: v for k, v in given.items() if v is not None})
    limit = spec.pop("trials", None)
    with preparing():
        asked = make_question(**_found(spec))
    total = asked.make_search().limit(limit)
    note_kernel()
    with bar("sweep", total) as advance:

        def step(trial: Any) -> None:
            advance(f"trial {trial.n}", 1)

        found = answer_question(
            asked, trials=limit, jobs=jobs or (0 if on == "ray" else 1), on=place, progress=step
        )
    answer(found.to_json(), as_json, lambda: _show(found))
    leave(_code(found))


def _workers(on: str, address: str | None) -> str:
    """The workers by one name; an address belongs to Ray."""
    from orrery.base.errors import UsageError

    if address is None:
        return on
    if on != "ray":
        raise UsageError(f"--address {address}: only Ray has one; add --on ray")
    if not address.strip():
        raise UsageError("--address is empty; give host:port, auto or local, or leave it out")
    return f"ray:{address.strip()}"


def _gather(words: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The file, the words and the options as one table; what stands later goes before."""
    from orrery.base.errors import UsageError
    from orrery.lab.sweep.space import parse_setting
    from orrery.lab.sweep.spec_file import read_spec

    files = [word for word in words if word.endswith(".toml") and "=" not in word]
    names = [word for word in words if "=" not in word and word not in files]
    if len(files) > 1:
        raise UsageError(f"{files[1]}: a sweep has one file; {files[0]} is the first")
    spec: dict[str, Any] = read_spec(Path(files[0])) if files else {"over": {}}
    systems = [each.strip() for word in names for each in word.split(",")]
    if not all(systems):
        raise UsageError("a system is empty; `orrery list` shows the ids")
    own: dict[str, Any] = {}
    for name, asked in (parse_setting(word) for word in words if "=" in word):
        if name in own:
            raise UsageError(f"{name} comes twice; give it once")
        own[name] = asked
    for word in ("seed", "seeds"):
        if word in own:
            spec["seeds"] = _seeds(word, own.pop(word))
    spec["over"] |= own
    return spec | options | ({"system": systems} if systems else {})


def _seeds(name: str, asked: Any) -> list[int]:
    from orrery.base.errors import UsageError
    from orrery.lab.sweep.space import Span

    texts = asked.texts if not isinstance(asked, Span) else ()
    if not texts or not all(text.isascii() and text.isdigit() for text in texts):
        raise UsageError(f"{name}: give seeds as whole numbers, for example seeds=1,2,3")
    return [int(text) for text in texts]


def _found(spec: dict[str, Any]) -> dict[str, Any]:
    """The words of a sweep as parts, a problem and a world."""
    from orrery.base.errors import UsageError
    from orrery.cli import asking

    systems = spec.pop("system", None)
    names = [systems] if isinstance(systems, str) else systems
    problem = spec.pop("problem", None)
    if names is not None and not names:
        raise UsageError("system is an empty list; name at least one, or leave it out")
    if any(not isinstance(name, str) for name in names or []):
        raise UsageError(f"system={systems!r}: give ids, or module:Class")
    parts: dict[str, Any] | None = None if names is None else {}
    for name in names or []:
        own, part = asking.find_part(name)
        if parts is not None and name in parts:
            raise UsageError(f"system {name} comes twice; give it once")
        parts = {**(parts or {}), name: part}
        problem = problem or own
    if not problem:
        raise UsageError("the sweep names no system and no problem; see: orrery sweep --help")
    asked = asking.find_problem(problem)
    world = spec.pop("world", None)
    place = asking.find_world(world, asked) if world is not None else None
    return {**spec, "systems": parts, "problem": asked, "world": place}


def _code(found: Sweep) -> int:
    if found.partial:
        return INTERRUPTED
    if found.best is not None:
        return OK
    failed = any(trial.violations or trial.note for trial in found.trials)
    return VIOLATED if failed else INCONCLUSIVE


def _show(found: Sweep) -> None:
    asked = found.question
    units = asked.problem.metrics
    varied = [dim.parameter for dim in asked.space.dims if dim.size != 1]
    if found.partial:
        say(f"stopped: {len(found.trials)} of {found.total} trials; the same command goes on")
    best = found.best
    if best is None:
        say(strong(f"no trial of {len(found.trials)} is sound"))
    else:
        setting = ", ".join(f"{name} = {_text(best.values[name])}" for name in varied)
        score = unit_value(asked.by, found.row(best)["score"], units)
        say(strong(f"{asked.by} {score} ({asked.better} is better) with {setting or 'no change'}"))
    rows = []
    for trial in found.ranking()[:SHOWN]:
        row = found.row(trial)
        score = "–" if row["score"] is None else unit_value(asked.by, row["score"], units)
        if row["lo"] is not None and row["hi"] > row["lo"]:
            ends = [unit_value(asked.by, row[end], units) for end in ("lo", "hi")]
            score += f" [{ends[0]}, {ends[1]}]"
        cells = [_text(trial.values[name]) for name in varied]
        rows.append((trial.n, *cells, score, trial.violations, trial.note))
    noted = any(row[-1] for row in rows)
    heads = ("trial", *varied, asked.by, "violations", *(["note"] if noted else []))
    print_table(heads, [row if noted else row[:-1] for row in rows], keep=(asked.by,))
    if len(found.trials) > SHOWN:
        say(f"the best {SHOWN} of {len(found.trials)} trials; --json has all")
    if found.ties:
        many = "1 other trial" if len(found.ties) == 1 else f"{len(found.ties)} other trials"
        say(f"{many} cannot be told from the best with these seeds")
    if found.torn:
        talk(f"note: {found.torn} torn lines of the journal were skipped")
    talk(f"journal: {found.journal}")


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
