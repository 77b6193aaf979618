"""`orrery replay`: a stored run again, event by event."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    OK,
    VIOLATED,
    Json,
    answer,
    complete_run,
    complete_world,
    leave,
    new_app,
    note_kernel,
    say,
    strong,
)
from orrery.cli.table import print_pairs, print_table

if TYPE_CHECKING:
    from orrery.lab.replay import Replay

app = new_app()


@app.command("replay")
def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", autocompletion=complete_run,
                       help="An id (or its beginning), a folder, a system's id, or last."),
    ],
    until: Annotated[
        float | None, typer.Option("--until", metavar="T", help="Events up to this time, in s.")
    ] = None,
    node: Annotated[
        int | None, typer.Option("--node", min=0, metavar="N", help="Events of this node only.")
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="FILE.toml|NAME:ARG", autocompletion=complete_world,
                     help="The run's world, where its folder does not hold it."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("-o", "--picture", help="Draw a space-time picture here (.svg).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Events to print.")] = 40,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a stored run again from its seed, list its events, and verify its digest.

    \b
    Examples:
      orrery replay last --until 0.5 --node 3
      orrery replay 3fa0c1 -o run.svg
    """
    from orrery.base.errors import UsageError
    from orrery.cli.asking import find_run
    from orrery.lab.replay import replay
    from orrery.lab.store import Store
    from orrery.world import worlds

    if picture is not None and (picture.suffix != ".svg" or not picture.parent.is_dir()):
        raise UsageError(f"-o {picture}: name an .svg file in a folder that exists")
    store = Store()
    stored = find_run(run, store)
    place = worlds.find(world) if world is not None else None
    note_kernel()
    found = replay(stored, until_s=until, node=node, world=place, store=store)
    document = {**found.to_json(), "picture": None}
    if picture is not None:
        document["picture"] = str(_draw(found, picture))
    answer(document, as_json, lambda: _show(found, document, limit))
    leave(OK if found.same else VIOLATED)


def _draw(found: Replay, path: Path) -> Path:
    from orrery.base.errors import UsageError

    drawn = found.picture()
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"-o {path}: cannot be written: {failure.strerror}") from None
    return path


def _show(found: Replay, document: dict[str, Any], limit: int) -> None:
    rows = []
    for span in found.events[:limit]:
        way = f"{span.node} → {span.to}" if span.to >= 0 else str(span.node)
        rows.append((f"{span.start_ns / 1e9:.6f}", span.kind, way, span.name, _told(span)))
    print_table(("time", "kind", "node", "what", "told"), rows, right=("time",), keep=("kind",))
    if len(found.events) > limit:
        say(f"… and {len(found.events) - limit} more events; --limit, --until and --node choose")
    say()
    state = "the same digest as before" if found.same else "ANOTHER digest than before"
    say(strong(f"{state}: {found.digest}"))
    print_pairs([
        ("stored", "" if found.same else found.stored_digest),
        ("changed since", ", ".join(found.changed)), ("first difference", found.divergence),
        ("violations", len(found.run.violations) or None), ("picture", document["picture"]),
    ])  # fmt: skip


def _told(span: Any) -> str:
    values = span.values or {}
    return ", ".join(f"{key}={value}" for key, value in values.items())
