"""`orrery where`: which question does my system answer?"""

from __future__ import annotations

from typing import Annotated

import typer

from orrery.cli.common import Json, answer, new_app, say
from orrery.cli.table import print_table

app = new_app()


@app.command("where")
def command(
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="What your system does.")],
    as_json: Json = False,
) -> None:
    """Name the problem and the room that a description belongs to; the best first.

    \b
    Example:
      orrery where "moves KV blocks"
    """
    from orrery.lab.questions import where

    found = where(" ".join(text))

    def show() -> None:
        if not found:
            say("nothing here is like that; `orrery problems` lists every problem")
            return
        rows = [(row["problem"], row["room"], row["why"]) for row in found]
        print_table(("problem", "room", "why"), rows, keep=("problem", "room"))
        first = found[0]
        problem = f" --problem {first['problem']}" if first["problem"] else ""
        say()
        say(f"to begin one: orrery new system {first['room']}/my_system{problem}")

    answer(found, as_json, show)
