"""`orrery report`: stored runs as one offline HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orrery.cli.common import Json, answer, complete_run, new_app, say

app = new_app()


@app.command("report")
def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", autocompletion=complete_run,
                       help="Ids (or their beginnings), folders, system ids, or last."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write (.html).")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Its title.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write one offline HTML report of stored runs: tables, pictures, how to repeat them.

    \b
    Example:
      orrery report last -o report.html
    """
    from orrery.base.errors import UsageError
    from orrery.cli.asking import find_run
    from orrery.lab import report as reports
    from orrery.lab.store import Store

    if output.parent != Path() and not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    store = Store()
    ids = list(dict.fromkeys(find_run(run, store).id for run in runs))
    path = reports.write(ids, output, title=title, store=store)
    document = {"path": str(path), "bytes": path.stat().st_size, "runs": ids}
    answer(document, as_json, lambda: say(str(path)))
