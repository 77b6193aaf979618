"""A branch of a playground as the source of a pytest file that replays exactly that.

The test builds the same part, problem, world, faults and seed, runs them, and asserts the digest,
the faults that took effect, and the violations or their absence. So it fails when a fault is taken
out, when the part behaves otherwise, and when the world has become another one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import StoreError
from orrery.lab import edits as editing
from orrery.world.spec import field_names

if TYPE_CHECKING:
    from orrery.lab.playground import Branch, Playground

_WIDTH = 96


class Setting(msgspec.Struct, kw_only=True):
    """What a playground was opened with, by name; empty fields mean the problem's own."""

    system: str
    problem: str
    world: str = ""
    knobs: dict[str, Any] = {}
    problem_knobs: dict[str, Any] = {}
    toml: str = ""  # the world itself, where it has no name


def setting_of(part: Any, problem: Any, world: Any) -> Setting | None:
    """The setting of a part that is listed; None where it is not, so that no test can name it."""
    from orrery.lab.discover import entries
    from orrery.lab.questions import questions

    home, asked = type(part).__module__, type(problem)
    mine = [e.id for e in entries() if e.built and (home + ".").startswith(e.module + ".")]
    named = [q.id for q in questions() if q.name == asked.__name__]
    if not mine or not named:
        return None
    own = problem.world().hash == world.hash
    return Setting(
        system=mine[0], problem=named[0], knobs=part.changed_knobs(),
        problem_knobs=problem.changed_knobs(), toml="" if own else world.to_toml(),
    )  # fmt: skip


def file_name(source: str) -> str:
    """How the file of a test is called, after the test in it."""
    found = re.search(r"^def (test_\w+)", source, re.MULTILINE)
    return f"{found[1] if found else 'test_branch'}.py"


def source(playground: Playground, branch: Branch) -> str:
    """The test of one branch, ready to be written to a file."""
    setting = playground.setting
    if setting is None:
        raise StoreError("only a listed system can be saved as a test; open it by its id")
    faults = editing.compiled(branch.edits)
    played = playground.whole(branch.id)
    kinds = sorted({type(fault).__name__ for fault in faults})
    run = played.run
    lines = [
        f'"""{_headline(playground, branch)}', "",
        f"Saved from the playground (branch {_safe(branch.title)}). {_says(run)}",
        '"""', "", "from __future__ import annotations", "",
    ]  # fmt: skip
    if played.failure:
        lines += ["import pytest", ""]
    names = ["run", *(["worlds"] if setting.world else ["World"] if setting.toml else [])]
    lines += [f"from orrery import {', '.join(sorted(names))}"]
    if played.failure:
        lines += ["from orrery.base.errors import PartError"]
    lines += ["from orrery.lab.discover import ask_problem, load"]
    if kinds:
        lines += [f"from orrery.world import {', '.join(kinds)}"]
    lines += ["", f'DIGEST = "{run.digest}"', f'WORLD = "{run.world.hash}"']
    if setting.toml:
        lines += _text("PLACE", setting.toml)
    lines += _faults(faults)
    lines += ["", "", f"def test_{_slug(playground, branch)}():"]
    lines += [f"    part = load({_literal(setting.system)})({_arguments(setting.knobs)})"]
    knobs = setting.problem_knobs
    given = f", {_table(knobs)}" if knobs else ""
    lines += [f"    problem = ask_problem({_literal(setting.problem)}{given})"]
    place = f'worlds.get("{setting.world}")' if setting.world else "problem.world()"
    place = "World.from_toml(PLACE)" if setting.toml else place
    lines += [f"    world = {place}" + (".with_faults(*FAULTS)" if faults else "")]
    lines += ['    assert world.hash == WORLD, "the world is no longer the one that was saved"']
    lines += _body(playground, played)
    return "\n".join(lines) + "\n"


def _body(playground: Playground, played: Any) -> list[str]:
    run = played.run
    until = f", until_s={playground.until_s!r}" if playground.until_s is not None else ""
    call = f"run(part, problem=problem, world=world, seed={playground.seed}{until})"
    if played.failure:
        error = re.sub(r"\s*\(.*$", "", played.failure.partition(" with ")[2])[:60]
        return [
            f"    with pytest.raises(PartError, match={re.escape(error)!r}):", f"        {call}",
        ]  # fmt: skip
    fired = dict(sorted(run.extra.get("faults_fired", {}).items()))
    body = [f"    made = {call}"]
    if fired:
        body += [
            f"    # How often each kind of fault took effect; {_quiet(fired)}",
            f'    assert made.extra["faults_fired"] == {_table(fired)}',
        ]
    kinds = sorted({violation.kind for violation in run.violations})
    if kinds:
        body += ["    # This is what the checker finds, and it must go on finding it."]
        body += [f"    assert sorted({{v.kind for v in made.violations}}) == {_literal(kinds)}"]
    else:
        body += ["    assert made.violations == []"]
    return [*body, "    assert made.digest == DIGEST"]


def _quiet(fired: Mapping[str, int]) -> str:
    return "a fault that never fires tests nothing." if all(fired.values()) else (
        "what is 0 came too late or hit nobody.")  # fmt: skip


def _headline(playground: Playground, branch: Branch) -> str:
    told = "; ".join(edit.words() for edit in branch.edits) or "nothing fails"
    size = playground.world.size
    on = playground.setting.problem if playground.setting is not None else "no problem"
    text = _safe(f"{playground.name} on {on}, {size} nodes") + f": {told}."
    return text if len(text) <= _WIDTH - 4 else text[: _WIDTH - 8] + " …."


def _safe(words: str) -> str:
    """Words that can stand in a docstring: nothing in them ends it."""
    return re.sub(r"[^\w .,:()–-]", "", words)[:80]


def _says(run: Any) -> str:
    if not run.violations:
        return "The checker finds nothing wrong."
    return f"The checker finds: {', '.join(sorted({v.kind for v in run.violations}))}."


def _faults(faults: Any) -> list[str]:
    if not faults:
        return []
    lines = ["FAULTS = ("]
    for fault in faults:
        given = [
            f"{name}={_literal(getattr(fault, name))}"
            for name in field_names(type(fault))
            if getattr(fault, name) is not None and not _default(fault, name)
        ]
        lines += _wrapped(f"    {type(fault).__name__}(", given, "),")
    return [*lines, ")"]


def _text(name: str, text: str) -> list[str]:
    """A text as source; in a block where nothing in it could end the block."""
    if "'''" in text or "\\" in text:
        return [f"{name} = {text!r}"]
    return [f"{name} = '''", *text.rstrip().splitlines(), "'''"]


def _wrapped(opening: str, words: list[str], closing: str) -> list[str]:
    """One line where it fits, else several; a cut rack names many nodes."""
    line = opening + ", ".join(words) + closing
    if len(line) <= _WIDTH:
        return [line]
    lines, line = [opening], ""
    for piece in ", ".join(words).replace("(", "( ").split(" "):
        if line and len(line) + len(piece) + 9 > _WIDTH:
            lines.append("        " + line)
            line = ""
        line = f"{line} {piece}".strip() if line and not line.endswith("(") else line + piece
    return [*lines, f"        {line},", "    " + closing]


def _default(fault: Any, name: str) -> bool:
    for field in msgspec.structs.fields(type(fault)):
        if field.name == name:
            return bool(field.default == getattr(fault, name))
    return False


def _slug(playground: Playground, branch: Branch) -> str:
    words = [playground.name, *(f"{edit.action}_{'_'.join(map(str, edit.nodes[:3]))}"
                                for edit in branch.edits[:3])]  # fmt: skip
    return re.sub(r"[^a-z0-9]+", "_", "_".join(words).lower()).strip("_")[:60] or "branch"


def _arguments(knobs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in knobs.items())


def _table(knobs: Mapping[str, Any]) -> str:
    inside = ", ".join(f'"{name}": {_literal(value)}' for name, value in knobs.items())
    return "{" + inside + "}"


def _literal(value: Any) -> str:
    """A value as source; only what reads back as itself."""
    if isinstance(value, str):
        return json.dumps(value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, tuple | list):
        inside = ", ".join(_literal(each) for each in value)
        return f"({inside},)" if isinstance(value, tuple) and len(value) == 1 else (
            f"({inside})" if isinstance(value, tuple) else f"[{inside}]")  # fmt: skip
    raise StoreError(f"a {type(value).__name__} cannot stand in a test; use plain knobs")
