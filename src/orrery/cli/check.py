"""`orrery check`: published claims put to the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    INCONCLUSIVE,
    OK,
    VIOLATED,
    Json,
    answer,
    complete_built,
    complete_room,
    leave,
    new_app,
    note_kernel,
    say,
    strong,
    talk,
)
from orrery.cli.progress import bar

if TYPE_CHECKING:
    from orrery.lab.claims import Verdicts

app = new_app()


@app.command("check")
def command(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The system.", autocompletion=complete_built),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every built system.")] = False,
    room: Annotated[
        str | None,
        typer.Option("--room", help="Every built system of a room.", autocompletion=complete_room),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Write verdicts to the ledger.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Processes to use.")] = 1,
    as_json: Json = False,
) -> None:
    """Put a system's published claims to the test: ours, the rival, and the mechanism off.

    Exit code 0: all hold or hold in part; 1: one does not, or its gain is not from the mechanism;
    2: one is inconclusive.

    \b
    Examples:
      orrery check chord
      orrery check --room protocols --record
    """
    from orrery.base.errors import UsageError
    from orrery.lab import check
    from orrery.lab.discover import entries, find

    given = [id is not None, everything, room is not None]
    if sum(given) != 1:
        raise UsageError("orrery check needs one of: an ID, --room R, --all; see: orrery list")
    ids = [find(id).id] if id is not None else [e.id for e in entries(room) if e.built]
    if not ids:
        talk("orrery: nothing is built there yet")
    else:
        note_kernel()
    with bar("check") as advance:

        def step(cell: Any, stored: Any) -> None:
            advance(f"{cell.name}, seed {cell.seed}", 1)

        found = [check(each, record=record, jobs=jobs, progress=step) for each in ids]
    documents: Any = [verdicts.to_json() for verdicts in found]
    answer(documents[0] if id is not None else documents, as_json, lambda: _show(found))
    leave(worst(verdicts.exit_code() for verdicts in found))


def worst(codes: Any) -> int:
    """One exit code for many: a failure counts before what is open."""
    seen = set(codes)
    return VIOLATED if VIOLATED in seen else INCONCLUSIVE if INCONCLUSIVE in seen else OK


def _show(found: list[Verdicts]) -> None:
    for verdicts in found:
        say(strong(verdicts.id))
        for verdict in verdicts:
            say(f"  {verdict.sentence()}")
        if not verdicts:
            say("  it makes no claims")
