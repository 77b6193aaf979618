"""Progress of long work: a bar on a terminal's stderr, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from orrery.cli.common import colourful

Advance = Callable[[str, float], None]


@contextlib.contextmanager
def bar(title: str, total: float | None = None, show: bool = True) -> Iterator[Advance]:
    """A bar while the block runs; call it with what was done and how much of the total that is."""
    if not show or not colourful(sys.stderr):
        yield lambda text, amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(bar_width=24)]
    columns += [MofNCompleteColumn()] if total is not None else []
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("{task.fields[now]}"),
        console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task(title, total=total, now="")

        def advance(text: str, amount: float) -> None:
            progress.update(task, advance=amount, now=text)

        yield advance
