"""`orrery compare`: the systems of a problem side by side."""

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
)
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.compare import Comparison

app = new_app()
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, max=100_000,
                 help="Exactly so many; by default as many as it takes to decide."),
]  # fmt: skip


@app.command("compare")
def command(
    problem: Annotated[
        str,
        typer.Argument(metavar="PROBLEM[:KNOB=VALUE,…]", help="The question.",
                       autocompletion=complete_problem),
    ],
    systems: Annotated[
        str | None,
        typer.Option("--systems", metavar="A,B", help="Only these; by default all that answer."),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="FILE.toml|NAME:ARG", autocompletion=complete_world,
                     help="The world; by default the problem's own."),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="A workload trace.")] = None,
    faults: Annotated[
        Path | None, typer.Option("--faults", help="A TOML or JSON file of more faults.")
    ] = None,
    seeds: Seeds = None,
    by: Annotated[str, typer.Option("--by", metavar="METRIC", help="Rank by this metric.")] = "",
    engine: Annotated[str, typer.Option("--engine", help="virtual, processes or ray.")] = "virtual",
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Processes to use.")] = 1,
    report: Annotated[
        Path | None, typer.Option("-o", "--report", help="Also write an HTML report here.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compare the systems of a problem, with intervals over seeds; shows only what differs.

    Finished runs are kept: after a kill or Ctrl-C the same command continues where it was.

    \b
    Examples:
      orrery compare broadcast --world lan:100 --by messages_per_value
      orrery compare broadcast:values=5 --systems flood,push-gossip --seeds 5
    """
    from orrery.cli import asking
    from orrery.lab import compare
    from orrery.lab.compare import main_metric, pick
    from orrery.lab.questions import snake
    from orrery.lab.run import check_call

    asked = asking.find_problem(problem, trace)
    place = asking.find_world(world, asked, faults)
    with preparing():
        parts = pick(systems, snake(type(asked).__name__))
        for part in parts.values():
            asked.accept(part)
            check_call(part, asked, engine, 0, None, ())
        main_metric(asked, by)
    note_kernel()
    total = len(parts) * seeds if seeds is not None else None
    with bar(f"compare {problem}", total) as advance:

        def step(cell: Any, stored: Any) -> None:
            advance(f"{cell.name}, seed {cell.seed}", 1)

        found = compare(
            asked, parts, world=place, seeds=seeds, by=by, engine=engine, jobs=jobs, progress=step
        )
    if world is not None:
        found.world = world
    document = _document(found, report)
    where = world or f"its own world of {place.size} nodes"
    answer(document, as_json, lambda: _show(found, document, where))
    leave(_code(found, adaptive=seeds is None))


def _document(found: Comparison, report: Path | None) -> dict[str, Any]:
    document = found.to_json()
    if report is not None:
        from orrery.lab import report as reports

        document["report"] = str(reports.write(found, report))
    return document


def _code(found: Comparison, adaptive: bool) -> int:
    if found.partial:
        return INTERRUPTED
    if any(row.violations for row in found.rows):
        return VIOLATED
    # With a fixed number of seeds the user has said how sure to be.
    return INCONCLUSIVE if adaptive and not found.decided else OK


def _show(found: Comparison, document: dict[str, Any], where: str) -> None:
    from orrery.cli.common import unit_value

    heads, rows = found.table()
    say(strong(f"{found.problem} in {where}, by {found.by or 'no metric'} ({found.kind})"))
    if not any(row.violations for row in found.rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    print_table(heads, rows, keep=("system",))
    say()
    if found.same:
        same = ", ".join(f"{k} {unit_value(k, v, found.units)}" for k, v in found.same.items())
        say(f"the same for all: {same}")
    for one, other in found.ties:
        say(f"{one} and {other} are within 1 % of one another")
    state = "stopped early" if found.partial else "decided" if found.decided else "not decided"
    say(f"the order by {found.by} is {state}" if found.by else state)
    for row in found.rows:
        for violation in row.violations[:2]:
            say(f"{row.system}, seed {violation['seed']}: {violation['message']}")
    if document.get("report"):
        say(f"report: {document['report']}")
