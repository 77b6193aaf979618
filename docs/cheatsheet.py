"""The cheat sheet: parts, problems, worlds and faults on one page, generated from the code."""

from __future__ import annotations

import inspect
from typing import Any

from docs.pieces import Page, inline, knob_table, table

TIMES = ("at_s", "until_s")  # every fault has them


def cheat_sheet() -> Page:
    """Parts, problems, worlds and faults on one page, from signatures and docstrings."""
    body = "<h1>Cheat sheet</h1><p>Generated from the code.</p>"
    return Page(
        "cheatsheet.html", "Cheat sheet", body + _names() + _node() + _problems() + _places()
    )


def _first_line(thing: Any) -> str:
    return inline((inspect.getdoc(thing) or "").split("\n\n")[0])


def _names() -> str:
    import orrery

    rows = [
        (f"<code>{name}</code>", _first_line(getattr(orrery, name)))
        for name in orrery.__all__
        if not name.startswith("_")
    ]
    return "<h2>Names</h2><p><code>from orrery import …</code></p>" + table(("name", "is"), rows)


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
    return "<h2>What a node has</h2>" + table(("<code>self.</code>…", ""), rows)


def _problems() -> str:
    from orrery.lab.discover import load, of_problem, questions
    from orrery.lab.questions import problem_class

    parts = ["<h2>Problems</h2>"]
    for one in questions():
        cls = problem_class(one.id)
        answers = ", ".join(f'<a href="systems/{e.id}.html">{e.id}</a>' for e in of_problem(one.id))
        answers = answers or "none yet"
        metrics = [
            (f"<code>{name}</code>", m.unit, m.better, inline(m.says))
            for name, m in cls.metrics.items()
        ]
        parts += [
            f"<h3><code>{one.id}</code></h3><p>{inline(one.title)}</p>",
            f"<p>A part inherits from <code>{cls.port.__name__}</code>. Systems: {answers}.</p>",
            knob_table(cls),
            table(("metric", "unit", "better", "is"), metrics),
        ]
        for entry in of_problem(one.id):
            parts.append(f"<p><code>{entry.id}</code>: {_first_line(load(entry.id))}</p>")
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
        "<h2>Named worlds</h2>" + table(("<code>--world</code>", "is"), named)
        + "<h2>Faults</h2><p>All have <code>at_s</code> and <code>until_s</code>.</p>"
        + table(("kind", "also has", "is"), faults)
    )  # fmt: skip
