"""`orrery report`: stored runs and findings as one offline HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orrery.cli.common import Json, answer, complete_run, new_app, say

app = new_app()


@app.command("report")
def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FILE.json…", autocompletion=complete_run,
                       help="Ids (or their beginnings), folders, system ids, last; or files that "
                       "another command wrote with --json."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write (.html).")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Its title.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write one offline HTML report: verdicts, tables, timeline, how to reproduce it.

    It takes stored runs, and what run, compare, choose, check, when and sweep print with --json.

    \b
    Examples:
      orrery report last -o report.html
      orrery check balanceroute --json > found.json; orrery report found.json
    """
    from orrery.base.errors import UsageError
    from orrery.lab import report as reports
    from orrery.lab.store import Store

    if output.is_dir():
        raise UsageError(f"-o {output}: is a folder; give the file to write, such as report.html")
    if output.parent != Path() and not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}; make it first")
    store = Store()
    items: dict[str, Any] = {}
    for word in runs:
        for name, item in _found(word, store):
            items.setdefault(name, item)
    path = reports.write(list(items.values()), output, title=title, store=store)
    document = {"path": str(path), "bytes": path.stat().st_size, "runs": list(items)}
    answer(document, as_json, lambda: say(str(path)))


def _found(word: str, store: Any) -> list[tuple[str, Any]]:
    """What a word names: the findings in a file, or a stored run by its id."""
    from orrery.cli.asking import find_run
    from orrery.lab.report.documents import Ran, read_documents

    if word.endswith(".json"):
        found: list[tuple[str, Any]] = []
        for i, document in enumerate(read_documents(Path(word))):
            if isinstance(document, Ran):
                id = find_run(Path(document.folder).name, store).id
                found.append((id, id))
            else:
                found.append((f"{word}#{i}" if i else word, document))
        return found
    id = find_run(word, store).id
    return [(id, id)]
