"""`orrery runs`: the stored runs."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from orrery.cli.common import Json, answer, complete_run, new_app, say
from orrery.cli.table import print_table

app = new_app(no_args_is_help=True, help="List, remove or sweep up stored runs.")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@app.command("ls")
def ls(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List stored runs, the newest first.

    \b
    Example:
      orrery runs ls --limit 10
    """
    from orrery.lab.store import Store

    store = Store()
    found = store.ls()
    rows = [stored.row() for stored in found[:limit]]

    def show() -> None:
        heads = ["id", "part", "problem", "world", "seed", "engine", "violations", "date"]
        same = [h for h in ("problem", "world", "engine") if len({r[h] for r in rows}) == 1]
        shown = [head for head in heads if head not in same or len(rows) < 2]
        lines = [[r["id"][:12] if h == "id" else r[h] for h in shown] for r in rows]
        print_table(shown, lines, right=("seed", "violations"), keep=("id",))
        if len(rows) > 1 and same:
            say("the same for all: " + ", ".join(f"{h} {rows[0][h]}" for h in same))
        say(f"{len(found)} runs in {store.runs}")

    answer(rows, as_json, show)


@app.command("rm")
def rm(
    ids: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Ids.", autocompletion=complete_run)
    ],
    as_json: Json = False,
) -> None:
    """Remove stored runs, whole or damaged.

    \b
    Example:
      orrery runs rm 3fa0c1
    """
    from orrery.lab.store import Store

    store = Store()
    # All are looked up before any goes, so that one wrong id removes nothing.
    wanted = list(dict.fromkeys(store.find(id) for id in ids))
    removed = [store.rm(id) for id in wanted]
    answer(removed, as_json, lambda: say(f"removed {', '.join(removed)}"))


@app.command("gc")
def gc(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Runs older than 90s, 30m, 12h, 7d, 2w."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, help="Keep so many of the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sweep up what killed programs left, and old runs if asked.

    \b
    Examples:
      orrery runs gc
      orrery runs gc --older-than 30d --keep 100
    """
    from orrery.lab.store import Store

    age_s = seconds_of(older_than) if older_than is not None else None
    removed = Store().gc(older_than_s=age_s, keep=keep)
    answer(removed, as_json, lambda: say(f"removed {len(removed)} runs"))


def seconds_of(text: str) -> float:
    """An age such as 12h in seconds.

    >>> seconds_of("2h")
    7200.0
    """
    from orrery.base.errors import UsageError

    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", text.strip())
    if match is None:
        raise UsageError(f"--older-than {text!r}: write a number and s, m, h, d or w, as in 7d")
    return float(match[1]) * UNITS_S[match[2]]
