"""`orrery new`: the files of a new system, problem or world, with code that works."""

from __future__ import annotations

import keyword
import os
import re
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orrery.cli import templates
from orrery.cli.common import Json, answer, complete_problem, new_app, say

if TYPE_CHECKING:
    from orrery.lab.discover import Entry

app = new_app()
KINDS = ("system", "problem", "world")


class Place(NamedTuple):
    """Where the files go, and how they are called."""

    room: str
    stem: str
    code: Path
    test: Path
    module: str

    @property
    def id(self) -> str:
        return self.stem.replace("_", "-")

    @property
    def class_name(self) -> str:
        return "".join(word.capitalize() for word in self.stem.split("_"))

    @property
    def name(self) -> str:
        return self.stem.replace("_", " ").capitalize()


@app.command("new")
def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="system, problem or world.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="room/name, or a name.")],
    problem: Annotated[
        str | None,
        typer.Option("--problem", help="The problem that the system answers.",
                     autocompletion=complete_problem),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write the files of a new system, problem or world: code that works, data, a test.

    In a checkout, room/name goes into that room; elsewhere the files stand side by side in the
    folder that the path names. Nothing that exists is overwritten.

    \b
    Examples:
      orrery new system protocols/my_gossip --problem broadcast
      orrery new problem protocols/my_question
      orrery new world my_world
    """
    from orrery.base.errors import UsageError, did_you_mean

    if kind not in KINDS:
        raise UsageError(f"new {kind!r}: {did_you_mean(kind, KINDS)}")
    if problem is not None and kind != "system":
        raise UsageError(f"--problem goes with a system, not with a {kind}; leave it out")
    place = find_place(kind, path)
    texts = {"system": _system, "problem": _problem, "world": _world}[kind](place, problem)
    written = write_all(texts)
    tests = [each for each in written if Path(each).name.startswith("test_")]
    if kind == "world":
        then = f"orrery run push-gossip --world {written[0]}"
    else:
        then = f"python -m pytest {tests[0]}"

    def show() -> None:
        for each in written:
            say(each)
        say(f"next: {then}")

    answer({"kind": kind, "files": written, "next": then}, as_json, show)


def find_place(kind: str, text: str) -> Place:
    """Where a new thing belongs: a room of the checkout that we stand in, or a plain folder."""
    from orrery.base.errors import UsageError
    from orrery.lab.ledger import checkout

    path = Path(text.strip())
    stem = path.name.removesuffix(".toml").removesuffix(".py").replace("-", "_")
    fits = re.fullmatch(r"[a-z][a-z0-9_]{0,59}", stem) and not text.strip().endswith("/")
    if not fits or keyword.iskeyword(stem) or stem in sys.stdlib_module_names:
        fix = "use a-z, 0-9 and _, begin with a letter, and take no word of Python's own"
        raise UsageError(f"new {text!r}: {stem!r} cannot be a module's name; {fix}")
    root = checkout()
    here = Path.cwd().resolve()
    inside = root is not None and (here == root or root in here.parents)
    folders = path.parent.parts
    if root is not None and inside and len(folders) == 1 and kind != "world":
        room = folders[0]
        home = root / "src/orrery/systems" / room
        if home.is_dir():
            more = ("problems",) if kind == "problem" else ()
            module = ".".join(("orrery.systems", room, *more, stem))
            test = root / "tests/systems" / room / f"test_{stem}.py"
            return Place(room, stem, home.joinpath(*more) / f"{stem}.py", test, module)
    folder = path.parent
    room = folders[-1] if folders and folders[-1] not in ("..", "/", ".") else ""
    return Place(room, stem, folder / f"{stem}.py", folder / f"test_{stem}.py", stem)


def _fill(template: str, **values: str) -> str:
    return string.Template(template).substitute(values)


def _system(place: Place, problem: str | None) -> dict[Path, str]:
    from orrery.base.errors import UsageError
    from orrery.lab import discover
    from orrery.lab.compare import main_metric

    asked = discover.question(problem or "broadcast")
    if any(entry.id.replace("_", "-") == place.id for entry in discover.entries()):
        raise UsageError(f"there is a system {place.id!r} already; choose another name")
    rivals = discover.of_problem(asked.id)
    if not rivals:
        fix = "write its first one by hand, or choose a problem that has one: orrery problems"
        raise UsageError(f"no system answers {asked.id} yet, so there is no pattern; {fix}")
    cls = discover.problem_class(asked.id)
    metric = main_metric(cls())
    values = {
        "id": place.id, "name": place.name, "room": place.room or asked.room,
        "class_name": place.class_name, "module": place.module, "problem": asked.id,
        "problem_module": asked.module, "job": f"a new answer to {asked.id}.",
        "metric": metric, "better": cls.metrics[metric].better or "higher" if metric else "higher",
        "rival": rivals[0].id, "shape": rivals[0].shape,
    }  # fmt: skip
    if asked.id == "broadcast":
        code = _fill(templates.GOSSIP, **values)
    else:
        code = _child(rivals[0], values)
    return {
        place.code: code,
        place.code.with_suffix(".toml"): _fill(templates.STEM, **values),
        place.test: _fill(templates.TEST, **values),
    }


def _child(rival: Entry, values: dict[str, str]) -> str:
    """A system that begins as the classic of its problem."""
    from orrery.lab.discover import load

    parent = load(rival.id)
    more = {"parent": parent.__name__, "parent_module": rival.module}
    return _fill(templates.CHILD, **values, **more)


def _problem(place: Place, problem: str | None) -> dict[Path, str]:
    from orrery.base.errors import UsageError
    from orrery.lab.questions import questions, snake

    id = snake(place.class_name)
    if any(one.id == id for one in questions()):
        raise UsageError(f"there is a problem {id!r} already; choose another name")
    values = {"class_name": place.class_name, "problem": id, "module": place.module}
    return {
        place.code: _fill(templates.PROBLEM, **values),
        place.test: _fill(templates.PROBLEM_TEST, **values),
    }


def _world(place: Place, problem: str | None) -> dict[Path, str]:
    from orrery.world import World

    path = place.code.with_suffix(".toml")
    note = _fill(templates.WORLD_NOTE, name=place.name, path=str(path))
    return {path: note + World.lan(5, title=place.name).to_toml()}


def write_all(texts: dict[Path, str]) -> list[str]:
    """Write every file or none; what exists is not touched."""
    from orrery.base.errors import UsageError

    for path in texts:
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} exists already; choose another name, or move it away")
    done: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            done.append(path)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as failure:
        for path in done:
            path.unlink(missing_ok=True)
        why = failure.strerror or str(failure)
        raise UsageError(f"{failure.filename or path}: cannot be written: {why}") from None
    return [str(path) for path in texts]
