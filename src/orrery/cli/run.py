"""`orrery run`: one system, on its problem, in a world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    OK,
    VIOLATED,
    Json,
    answer,
    complete_built,
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
from orrery.cli.table import print_pairs, print_table

if TYPE_CHECKING:
    from orrery.lab.run import Run

app = new_app()
MOST_SHOWN = 5
SEED_MOST = (1 << 63) - 1


@app.command("run")
def command(
    system: Annotated[
        str,
        typer.Argument(metavar="ID|MODULE:CLASS|FILE.py:CLASS", help="What to run.",
                       autocompletion=complete_built),
    ],
    problem: Annotated[
        str | None,
        typer.Option("--problem", metavar="ID[:KNOB=VALUE,…]", autocompletion=complete_problem,
                     help="The problem; a listed system has one of its own."),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="FILE.toml|NAME:ARG", autocompletion=complete_world,
                     help="The world; by default the problem's own."),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="A workload trace.")] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="virtual (modelled time), processes or ray (real).")
    ] = "virtual",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=SEED_MOST, help="Equal seeds, equal runs.")
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Set a knob of the system."),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option("--faults", help="A TOML or JSON file of more faults.")
    ] = None,
    until: Annotated[
        float | None, typer.Option("--until", metavar="S", help="Stop at this time at the latest.")
    ] = None,
    spans_out: Annotated[
        Path | None,
        typer.Option("--spans-out", metavar="FILE",
                     help="Write all events: .json (Perfetto), .jsonl, .parquet, .et (Chakra)."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run one system on its problem in a world, and keep the run in a folder.

    \b
    Examples:
      orrery run push-gossip --world lan:200 --seed 7 --set fanout=4
      orrery run raft --problem replicated_store:clients=3,ops=10 --faults storm.toml
      orrery run mine.py:MyGossip --problem broadcast --spans-out run.json
      orrery run push-gossip --engine processes
    """
    from orrery.cli import asking

    own, part = asking.find_part(system, asking.split_settings(settings or []))
    name = problem if problem is not None else own
    asked = asking.find_problem(name, trace) if name else None
    place = asking.find_world(world, asked, faults)
    made, id, folder = make_run(
        part, asked, place, engine=engine, seed=seed, until_s=until, name=system,
        spans_out=spans_out,
    )  # fmt: skip
    document = {
        "id": id, "system": system, "seed": made.seed, "engine": made.engine,
        "digest": made.digest, "seconds": made.seconds, "metrics": made.metrics,
        "violations": made.violations, "folder": folder, "events": made.events,
        "messages": made.messages, "bytes": made.bytes, "ended": made.ended,
        "world": place.hash, "spans": str(spans_out) if spans_out else None,
    }  # fmt: skip
    answer(document, as_json, lambda: _show(made, document))
    leave(VIOLATED if made.violations else OK)


def make_run(
    part: Any, problem: Any, world: Any, *, engine: str, seed: int, until_s: float | None,
    name: str, spans_out: Path | None = None,
) -> tuple[Run, str, str]:  # fmt: skip
    """Run, write the spans if asked, and save: (the run, its id, its folder)."""
    from orrery.lab import run
    from orrery.lab.run import check_call
    from orrery.lab.spec import spec_id, spec_of
    from orrery.lab.store import Store

    with preparing():
        check_call(part, problem, engine, seed, until_s, ())
        if problem is not None:
            problem.accept(part)
    options: dict[str, Any] = {}
    if spans_out is not None:
        _check_target(spans_out)
        options = {"trace": True} if engine == "virtual" else {}
    if engine == "virtual":
        note_kernel()
    store = Store()
    spec = spec_of(part, problem=problem, world=world, seed=seed, engine=engine,
                   until_s=until_s, name=name)  # fmt: skip
    made = run(part, problem=problem, world=world, engine=engine, seed=seed, until_s=until_s,
               **options)  # fmt: skip
    if spans_out is not None:
        from orrery.lab import execution_traces, spans

        write = execution_traces.write if spans_out.suffix == ".et" else spans.write
        write(made, spans_out)
    if engine != "virtual" and store.has(spec_id(spec)):
        store.rm(spec_id(spec))  # a real run is never the same twice: the newest one is kept
    id = store.save(made, spec)
    return made, id, str(store.runs / id)


def _check_target(path: Path) -> None:
    """Refuse a place that cannot be written before the run, not after it."""
    from orrery.base.errors import UsageError

    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"--spans-out {path}: {why}; name a file such as run.json")
    if path.suffix not in (".json", ".jsonl", ".parquet", ".et"):
        raise UsageError(f"--spans-out {path}: end the name with .json, .jsonl, .parquet or .et")


def _show(made: Run, document: dict[str, Any]) -> None:
    from orrery.base.units import show

    kind = "modelled" if made.engine == "virtual" else "measured"
    say(strong(f"{document['system']}, seed {made.seed}, {made.engine} ({kind})"))
    says = {name: metric.says for name, metric in made.units.items()}
    rows = [(n, unit_value(n, v, made.units), says.get(n, "")) for n, v in made.metrics.items()]
    print_table(("metric", "value", "says"), rows, right=("value",), keep=("metric",))
    say()
    print_pairs([
        ("took", f"{show(made.seconds, 's')}, {made.events} events, {made.messages} messages, "
                 f"{show(made.bytes, 'B')}; ended {made.ended}"),
        ("digest", made.digest), ("folder", document["folder"]), ("spans", document["spans"]),
    ])  # fmt: skip
    if not made.violations:
        say("no violations")
        return
    say(strong(f"{len(made.violations)} violations"))
    for violation in made.violations[:MOST_SHOWN]:
        say(f"  {violation.kind}: {violation.message}")
    if len(made.violations) > MOST_SHOWN:
        say(f"  … and {len(made.violations) - MOST_SHOWN} more, in the folder")
    talk(f"try: orrery replay {document['id'][:8]}")
