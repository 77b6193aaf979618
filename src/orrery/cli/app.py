"""The program: finds the command, runs it, and turns every ending into the contract's exit code.

A command's module is imported only when it is called, so that `orrery --help` stays quick.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from orrery.base.errors import FaultError as FaultSpecError
from orrery.base.errors import (
    InternalError,
    KnobError,
    OrreryError,
    PartError,
    PlatformLacks,
    StemError,
    StoreError,
    UsageError,
    WorldError,
    did_you_mean,
)
from orrery.cli.common import (
    INTERNAL,
    INTERRUPTED,
    OK,
    USAGE,
    VIOLATED,
    new_app,
    say,
    talk,
    to_json,
)

# Typer brings its own Click in newer versions and uses the separate package in older ones, so the
# classes of its errors are reached through a name that both have.
ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]
ClickException: type[Exception] = typer.BadParameter.__mro__[2]

SECTIONS: dict[str, dict[str, str]] = {
    "Look around": {
        "tour": "See it work: gossip, Raft and Chord at 1,000 nodes under faults.",
        "list": "List every system: what was published, what is built, what was found.",
        "show": "Show one system: its paper, its claims and the verdicts.",
        "where": "Name the problem and the room that a description belongs to.",
        "problems": "List the problems, or the knobs and metrics of one.",
        "worlds": "List the named worlds, or print one as TOML.",
        "faults": "List the kinds of faults, or the fields of one.",
        "feed": "Read saved paper feeds: repeats, systems, and the state of their claims.",
        "page": "Serve the local web page: catalogue, ledger, runs, timelines, a playground.",
    },
    "Run and compare": {
        "run": "Run one system on its problem in a world.",
        "compare": "Compare the systems of a problem, with intervals over seeds.",
        "choose": "Rank the systems for your world and trace; find what flips the answer.",
        "check": "Put a system's published claims to the test.",
        "when": "Map the region of two parameters in which a claim holds.",
        "sweep": "Search a space of parameters for the best; goes on after a kill.",
        "report": "Write an offline HTML report of stored runs.",
        "replay": "Run a stored run again, event by event, and verify its digest.",
        "runs": "List, remove or sweep up stored runs.",
    },
    "Build and verify": {
        "new": "Write the files of a new system, problem or world.",
        "verify": "Verify that equal seeds give equal digests.",
        "validate": "Lay models beside what was measured: a saved engine run, replayed.",
        "bench": "Measure how fast the event kernel and the serving model are.",
        "serve": "Serve a real model to OpenAI clients on the loopback.",
        "calibrate": "Measure this machine and write it down as a world.",
        "doctor": "Tell what works on this machine, and how to mend what does not.",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}


class Commands(TyperGroup):
    """The commands of `SECTIONS`, each imported when it is first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(f"orrery.cli.{cmd_name}")
            command = typer.main.get_command(module.app)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            fix = did_you_mean(args[0], COMMANDS)
            raise UsageError(f"no command {args[0]!r}; {fix}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


app = new_app(
    cls=Commands, no_args_is_help=True, add_completion=True,
    help="Write a distributed system once; run it in virtual time on a modelled world, or for real "
    "on processes and sockets; check its published claims.\n\nResults go to stdout, talk to "
    "stderr. Every command takes --json. Exit codes: 0 fine, 1 violated or not so, "
    "2 inconclusive, 64 usage.\n\n\b\nA first look:\n  orrery tour\n"
    "  orrery run push-gossip --world lan:200 --seed 7\n  orrery compare broadcast",
)  # fmt: skip


def _tell_version(asked: bool) -> None:
    if asked:
        import orrery

        say(f"orrery {orrery.__version__}")
        raise typer.Exit(OK)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True,
                     help="Print the version and exit."),
    ] = False,
) -> None:  # fmt: skip
    """Options of the program itself."""


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and never raises for what a user did."""
    words = list(arguments)
    as_json = "--json" in words
    try:
        code = typer.main.get_command(app).main(
            args=words, prog_name="orrery", standalone_mode=False
        )
        code = code if isinstance(code, int) else OK
    except SystemExit as ending:  # from shell completion
        code = ending.code if isinstance(ending.code, int) else USAGE
    except ClickException as error:
        return _refuse_usage(error, as_json)
    except OrreryError as error:
        return _refuse(error, words, as_json)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (InternalError, Exception) as error:
        return _confess(error, words, as_json)
    if code == INTERRUPTED:
        talk("orrery: stopped; runs that were finished are kept")
    return code


# -- endings


def _refuse_usage(error: Any, as_json: bool) -> int:
    """A command line that cannot be read."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "orrery"
    if type(error).__name__ == "NoArgsIsHelpError":
        talk(message)
        message = f"{path} needs a command"
    else:
        talk(f"orrery: {message}")
        talk(f"try: {path} --help")
    return _error_document("UsageError", message, USAGE, as_json)


def _refuse(error: OrreryError, words: list[str], as_json: bool) -> int:
    """An error that the user can mend: what, and the next command to try."""
    code = VIOLATED if isinstance(error, PartError) else USAGE
    talk(f"orrery: {error}")
    # A part that broke breaks again in the same way: the command replays it.
    again = f"orrery {shlex.join(words)}" if words[:1] == ["run"] else ""
    hint = again if code == VIOLATED else next_command(error)
    if hint:
        talk(f"try: {hint}")
    return _error_document(type(error).__name__, str(error), code, as_json)


def next_command(error: OrreryError) -> str:
    """The command that helps on after an error."""
    text = str(error)
    if isinstance(error, KnobError):
        return "orrery show ID (a system's knobs), orrery problems ID (a problem's)"
    if isinstance(error, FaultSpecError):
        return "orrery faults"
    if isinstance(error, WorldError):
        return "orrery worlds"
    if isinstance(error, StoreError):
        return "orrery runs ls"
    if isinstance(error, PlatformLacks):
        return "orrery doctor"
    if isinstance(error, StemError) or text.startswith("no system"):
        return "orrery list"
    if text.startswith("no problem"):
        return "orrery problems"
    return "orrery --help" if text.startswith("no command") else ""


def _confess(error: BaseException, words: list[str], as_json: bool) -> int:
    """Our bug: a short message, and the traceback in a file."""
    report = "".join(traceback.format_exception(error))
    path = _keep_report(f"orrery {' '.join(words)}\n\n{report}")
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    talk(f"orrery: something broke inside ({what[:300]})")
    talk(f"this is our bug, not yours; the traceback is in {path}")
    return _error_document("InternalError", what, INTERNAL, as_json, traceback=str(path))


def _keep_report(text: str) -> Path | str:
    from orrery.lab.ledger import home

    name = f"crash-{os.getpid()}-{os.urandom(3).hex()}.txt"
    for at_home in (True, False):
        with contextlib.suppress(OSError, OrreryError):
            folder = home() / "crashes" if at_home else Path(tempfile.gettempdir())
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
            return folder / name
    print(text, file=sys.stderr)
    return "the lines above"


def _error_document(kind: str, message: str, code: int, as_json: bool, **more: str) -> int:
    if as_json:
        say(to_json({"error": {"kind": kind, "message": message, "exit": code, **more}}))
    return code
