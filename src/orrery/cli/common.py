"""What every command shares: exit codes, results on stdout, talk on stderr, texts to values."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NoReturn

import typer

OK = 0
VIOLATED = 1
INCONCLUSIVE = 2
USAGE = 64
INTERNAL = 70
INTERRUPTED = 130

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")
]


def new_app(**options: Any) -> typer.Typer:
    """A Typer application as every command module has one: plain help, errors left to `app`."""
    plain: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}
    names = {"help_option_names": ["-h", "--help"]}
    plain |= {"pretty_exceptions_enable": False, "context_settings": names}
    return typer.Typer(**{**plain, **options})


# -- output


def say(text: str = "") -> None:
    """A line of the result, on stdout; a reader that has gone away is no error."""
    _write(text + "\n")


def talk(text: str) -> None:
    """A line beside the result, on stderr."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def answer(document: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Print the result: the JSON document, or what `show` prints for people."""
    if as_json:
        say(to_json(document))
    else:
        show()


def leave(code: int) -> NoReturn:
    """End the command with an exit code."""
    raise typer.Exit(code)


def to_json(document: Any) -> str:
    """A document as JSON text; what JSON lacks (NaN, infinity) becomes null, the rest its text."""
    import msgspec

    from orrery.base.plain import encode_json

    return msgspec.json.format(encode_json(document), indent=2).decode()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        # A terminal without the letters (LANG=C) gets question marks rather than an error.
        coding = getattr(sys.stdout, "encoding", None) or "ascii"
        sys.stdout.write(text.encode(coding, "replace").decode(coding))
        sys.stdout.flush()
    except BrokenPipeError:
        # As in `orrery list | head`: what follows goes nowhere, and the exit code stays ours.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def colourful(stream: Any) -> bool:
    """Whether escape codes may go to a stream: a terminal, and nobody has said no."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def strong(text: str) -> str:
    """Text in bold where stdout can show it."""
    return f"\x1b[1m{text}\x1b[0m" if colourful(sys.stdout) else text


# -- work


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Around what reads the user's words: a part that does not load or fit is a usage error."""
    from orrery.base.errors import PartError, UsageError

    try:
        yield
    except PartError as error:
        raise UsageError(str(error)) from error


def note_kernel() -> None:
    """Choose the kernel now, which says on stderr when it is the slower one."""
    from orrery.engines.virtual.kernel import load

    load()


def unit_value(name: str, value: float, units: Any) -> str:
    """A metric as people write it, with the unit that its problem gave."""
    from orrery.base.units import show

    unit = units[name][0] if units and name in units else ""
    return show(value, "Bps" if unit == "B/s" else unit)


# -- completion of words in the shell; a failure there must stay silent


def complete_system(incomplete: str) -> list[tuple[str, str]]:
    """Ids of systems that begin so, with their names."""
    with contextlib.suppress(Exception):
        from orrery.lab.discover import scan

        return [(e.id, e.name) for e in scan().entries if e.id.startswith(incomplete)]
    return []


def complete_built(incomplete: str) -> list[tuple[str, str]]:
    """The same for systems that can be run."""
    with contextlib.suppress(Exception):
        from orrery.lab.discover import scan

        return [(e.id, e.name) for e in scan().entries if e.built and e.id.startswith(incomplete)]
    return []


def complete_problem(incomplete: str) -> list[tuple[str, str]]:
    """Ids of problems that begin so, with what they ask."""
    with contextlib.suppress(Exception):
        from orrery.lab.questions import questions

        return [(q.id, q.title) for q in questions() if q.id.startswith(incomplete)]
    return []


def complete_room(incomplete: str) -> list[str]:
    """Names of rooms that begin so."""
    with contextlib.suppress(Exception):
        from orrery.lab.discover import scan

        rooms = sorted({entry.room for entry in scan().entries})
        return [room for room in rooms if room.startswith(incomplete)]
    return []


def complete_world(incomplete: str) -> list[tuple[str, str]]:
    """Names of worlds that begin so."""
    with contextlib.suppress(Exception):
        from orrery.world import worlds

        return [(n, text) for n, text in worlds.names().items() if n.startswith(incomplete)]
    return []


def complete_run(incomplete: str) -> list[str]:
    """Ids of stored runs that begin so."""
    with contextlib.suppress(Exception):
        from orrery.lab.store import Store

        return [id for id in [*Store().ids(), "last"] if id.startswith(incomplete)]
    return []
