"""`orrery choose`: which system is best here, why, and what would change that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    OK,
    VIOLATED,
    Json,
    answer,
    leave,
    new_app,
    note_kernel,
    preparing,
    say,
    strong,
    talk,
)
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.choose import Choice

app = new_app()


@app.command("choose")
def command(
    problem: Annotated[str, typer.Argument(help="A problem, or problem:knob=value,…")],
    world: Annotated[
        str | None, typer.Option("--world", help="A TOML path or name:arg, such as h100_pod:8.")
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="A workload trace.")] = None,
    by: Annotated[str, typer.Option("--by", metavar="METRIC", help="Choose by this metric.")] = "",
    systems: Annotated[
        str | None, typer.Option("--systems", help="Only these, separated by commas.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=2, max=1000, help="Seeds of each.")] = 3,
    flips: Annotated[
        bool, typer.Option("--flips/--no-flips", help="Look for what would change the answer.")
    ] = True,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Processes to use.")] = 2,
    report: Annotated[
        Path | None, typer.Option("-o", "--report", help="Its HTML file; else in ORRERY_HOME.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rank every system of a problem on your world and trace, and find where the answer flips.

    \b
    Examples:
      orrery choose llm_routing --world h100_pod:8 --by ttft_p99_s
      orrery choose llm_routing:rate_per_s=60 --trace mine.csv --by goodput_per_s
    """
    from orrery.cli import asking
    from orrery.lab.choose import choose
    from orrery.lab.compare import main_metric, pick
    from orrery.lab.questions import snake

    asked = asking.find_problem(problem, trace)
    place = asking.find_world(world, asked)
    with preparing():
        parts = pick(systems, snake(type(asked).__name__))
        for part in parts.values():
            asked.accept(part)
        main_metric(asked, by)
    note_kernel()
    with bar(f"choose {problem}") as advance:
        found = choose(
            asked, parts, world=place, by=by, seeds=seeds, flips=flips, jobs=jobs,
            progress=lambda what: advance(what, 1),
        )  # fmt: skip
    found.world = world or f"its own world of {place.size} nodes"
    found.comparison.world = world or found.comparison.world
    document = found.to_json() | {"report": str(write_report(found, report))}
    answer(document, as_json, lambda: _show(found, document))
    broken = all(row.violations for row in found.comparison.rows)
    leave(VIOLATED if broken else OK)


def write_report(found: Choice, path: Path | None) -> Path:
    """The HTML report of the comparison, with what was found about flips as its notes."""
    from orrery.base.errors import StoreError
    from orrery.lab import report as reports
    from orrery.lab.ledger import home

    target = path if path is not None else home() / "choose" / f"{found.problem}.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise StoreError(f"{target.parent}: cannot be made: {failure.strerror}") from None
    winner = found.ranking[0]
    title = f"{winner.system} is the choice for {found.problem} by {found.by}"
    notes = [f"Why {winner.system}: {winner.why}."]
    notes += [f"The answer flips {told(flip, winner.system)}." for flip in found.flips]
    return reports.write(found, target, title=title, notes=notes)


def told(flip: Any, winner: str) -> str:
    """A flip in words."""
    way = "at and above" if flip.side == "above" else "at and below"
    return (f"{way} {flip.parameter} {flip.at:.4g} (here {flip.base:.4g}) "
            f"{flip.to} beats {winner}")  # fmt: skip


def _show(found: Choice, document: dict[str, Any]) -> None:
    from orrery.base.units import show

    unit = found.comparison.units[found.by].unit if found.by in found.comparison.units else ""
    say(strong(f"{found.problem} in {found.world}, by {found.by}"))
    rows = []
    for place, each in enumerate(found.ranking, 1):
        score = "–" if each.score is None else show(each.score, unit)
        if each.lo is not None and each.hi is not None and each.hi > each.lo:
            score += f" [{show(each.lo, unit)}, {show(each.hi, unit)}]"
        rows.append((place, each.system, score, each.why))
    print_table(("", "system", found.by, "why"), rows, keep=("system", found.by))
    say()
    winner = found.ranking[0].system
    for flip in found.flips:
        say(f"the answer flips {told(flip, winner)}")
    if not found.flips and found.tried:
        spans = ", ".join(f"{name} {values[0]:.4g} to {values[-1]:.4g}"
                          for name, values in found.tried.items() if values)  # fmt: skip
        say(f"the answer stays the same for {spans}")
    say(f"report: {document['report']}")
    talk("next: orrery compare, or another metric with --by")
