"""The cheat sheet: parts, problems, worlds and faults on one page, generated from the code."""

from __future__ import annotations

import html
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from docs.docstring import told_by
from docs.pieces import Page, heading, inline, knob_table, table

TIMES = ("at_s", "until_s")  # every fault has them


def cheat_sheet(entries: Sequence[Any], problems: Sequence[Any]) -> Page:
    """Parts, problems, worlds and faults on one page, from signatures and docstrings."""
    body = "<h1>Cheat sheet</h1><p>Generated from the code.</p>"
    parts = [body, _names(), _node(), _chooser(problems), _problems(entries, problems), _places()]
    return Page("cheatsheet.html", "Cheat sheet", "".join(parts))


def _chooser(problems: Sequence[Any]) -> str:
    """The problems as links, by room: which question is yours?"""
    rooms: dict[str, list[str]] = {}
    for one in problems:
        link = f'<a href="#{one.id}" title="{html.escape(one.title)}"><code>{one.id}</code></a>'
        rooms.setdefault(one.room, []).append(link)
    rows = [(room, ", ".join(links)) for room, links in rooms.items()]
    return heading("Which question is yours?") + table(("room", "problems"), rows)


def _first_line(thing: Any) -> str:
    return inline((inspect.getdoc(thing) or "").split("\n\n")[0])


def _names() -> str:
    import orrery

    rows = [
        (f"<code>{name}</code>", _first_line(getattr(orrery, name)))
        for name in orrery.__all__
        if not name.startswith("_")
    ]
    return (
        heading("Names") + "<p><code>from orrery import …</code></p>" + table(("name", "is"), rows)
    )


def _node() -> str:
    said = {
        "id, role, peers, neighbours, members(role)": "who and where one is",
        "now, clock()": "true time, for metrics; the clock that faults may skew",
        "sleep(s), deadline(s)": "wait; <code>async with</code> a limit",
        "tell(peer, Cls.method, …)": "send, wait for nothing",
        "ask(peer, Cls.method, …)": "send and wait for the answer",
        "spawn(coro), first(*coros), all(*coros)": "tasks of this node",
        "event(), queue(), lock()": "between the tasks of one node",
        "transfer(peer, array, tag), receive(peer, tag)": "bulk data as a flow",
        "disk.read / write / append / fsync / delete": "what survives a crash, once synced",
        "store.get / put / put_if / list": "the world's object store",
        "compute(fn, *args)": "the real result, after its modelled time",
        "rng": "this node's own random stream",
        "emit(**values), log(*words)": "report to the problem; talk",
        "arena(name, size)": "memory shared on one machine",
    }
    rows = [(f"<code>{name}</code>", text) for name, text in said.items()]
    return heading("What a node has") + table(("<code>self.</code>…", ""), rows)


def _problems(entries: Sequence[Any], problems: Sequence[Any]) -> str:
    from orrery.lab.questions import problem_class

    parts = [heading("Problems")]
    for one in problems:
        try:
            cls = problem_class(one.id)
        except Exception as failure:  # one problem that is being written must not stop the others
            print(f"docs: problem {one.id} does not load: {failure}", file=sys.stderr)
            continue
        own = [entry for entry in entries if entry.problem == one.id and entry.built]
        answers = ", ".join(
            f'<a href="systems/{e.id}.html" title="{html.escape(e.stem.job)}">{e.id}</a>'
            for e in own
        )
        metrics = [
            (f"<code>{name}</code>", m.unit, m.better, inline(m.says))
            for name, m in cls.metrics.items()
        ]
        parts += [
            heading(f"<code>{one.id}</code>", 3, id=one.id), f"<p>{inline(one.title)}</p>",
            f"<p>A part inherits from <code>{cls.port.__name__}</code>. "
            f"Systems: {answers or 'none yet'}.</p>",
            "<details><summary>Knobs and metrics</summary>",
            knob_table(cls, told_by(cls).knobs),
            table(("metric", "unit", "better", "is"), metrics),
            "</details>",
        ]  # fmt: skip
    return "".join(parts)


def _places() -> str:
    from orrery.world import FAULTS, worlds

    named = [(f"<code>{name}</code>", inline(text)) for name, text in worlds.names().items()]
    faults = [
        (f"<code>{name}</code>",
         " ".join(f"<code>{f}</code>" for f in kind.__struct_fields__ if f not in TIMES),
         _first_line(kind))
        for name, kind in FAULTS.items()
    ]  # fmt: skip
    return (
        heading("Named worlds") + table(("<code>--world</code>", "is"), named)
        + heading("Faults") + "<p>All have <code>at_s</code> and <code>until_s</code>.</p>"
        + table(("kind", "also has", "is"), faults)
    )  # fmt: skip
