"""`orrery list`: every system, built or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orrery.cli.common import Json, answer, complete_problem, complete_room, new_app, say
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.discover import Entry

app = new_app()


@app.command("list")
def command(
    room: Annotated[
        str | None,
        typer.Option("--room", help="Only this room.", autocompletion=complete_room),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option("--problem", help="Only this problem.", autocompletion=complete_problem),
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="Only planned, working or checked ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every system: what was published, what is built, what was found.

    \b
    Examples:
      orrery list --room protocols
      orrery list --status working --json
    """
    from orrery.base.errors import UsageError, did_you_mean
    from orrery.lab.discover import entries

    states = ("planned", "working", "checked")
    if status is not None and status not in states:
        raise UsageError(f"--status {status!r}: {did_you_mean(status, states)}")
    found = entries(room)
    if problem is not None:
        from orrery.lab.questions import question

        wanted = question(problem).id
        found = [entry for entry in found if entry.problem == wanted]
    if status is not None:
        found = [entry for entry in found if entry.status == status]
    answer([entry.listed() for entry in found], as_json, lambda: _show(found))


def _show(found: list[Entry]) -> None:
    several = len({entry.room for entry in found}) > 1
    heads = ["id", *(["room"] if several else []), "shape", "status", "problem", "name"]
    rows = [
        [e.id, *([e.room] if several else []), e.shape, e.status, e.problem, e.name]
        for e in found
    ]  # fmt: skip
    print_table(heads, rows, keep=("id", "room", "shape", "status"))
    built = sum(entry.built for entry in found)
    checked = sum(entry.status == "checked" for entry in found)
    say()
    count = "1 system" if len(found) == 1 else f"{len(found)} systems"
    say(f"{count}: {built} built, {checked} of them checked; orrery show ID")
