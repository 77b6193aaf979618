"""What a playground shows of a branch: the scene at a time, a node's story, two branches compared.

All of it is read from executions that `playback.play` made; nothing here runs anything by itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab import edits as editing
from orrery.lab import spans
from orrery.lab.playback import INSPECTED, Played, in_words
from orrery.lab.timeline import usual_latency_ns

if TYPE_CHECKING:
    from orrery.lab.playground import Branch, Playground

MOST_SHOWN = 400  # nodes, messages or links that a scene names one by one
MOST_TOLD = 60
MOST_FOUND = 20
STATES = ("down", "up", "paused")
# Fields of these names say what a node is at the moment, in systems that have such a thing.
WHAT = ("mode", "role", "state", "phase", "status", "stage", "decided", "decision", "value")
WHICH = ("term", "view", "epoch", "round", "ballot", "height", "version", "step", "sequence")


def scene(
    playground: Playground, branch: Branch, whole: Played, cut: Played, at_s: float
) -> dict[str, Any]:
    """Everything at one time, as plain data of a bounded size."""
    run = cut.run
    at_ns = round(at_s * 1e9)
    flying, total = _flying(whole, at_ns)
    faults = _on(whole, at_s)
    return {
        "branch": branch.id, "at_s": at_s, "end_s": whole.run.seconds, "ended": whole.run.ended,
        "size": playground.world.size, "nodes": _nodes(playground, cut, faults, at_s),
        "links": _links(faults), "faults": faults[:MOST_SHOWN],
        "standing": [{"action": kind, "nodes": list(nodes)[:MOST_SHOWN]}
                     for kind, nodes in editing.standing(branch.edits, at_s)][:MOST_SHOWN],
        "flying": flying, "counts": _counts(whole, cut, total, at_ns),
        "metrics": metrics(run), "final_metrics": metrics(whole.run),
        "violations": told_violations(_so_far(whole, cut, at_s)),
        "final_violations": told_violations(whole.run.violations),
        "log": [{"time_s": t, "node": n, "words": w} for t, n, w in cut.log[-MOST_TOLD:]],
        "reports": _reports(run, at_s), "failure": cut.failure, "digest": whole.run.digest,
    }  # fmt: skip


def _nodes(
    playground: Playground, cut: Played, faults: list[dict[str, Any]], at_s: float
) -> list[dict[str, Any]]:
    """Every node of a small world; of a large one those that are not simply up."""
    size = playground.world.size
    slow = {n: f["value"] for f in faults if f["kind"] == "Slow" for n in f["nodes"]}
    alone = {n for f in faults if f["kind"] == "Partition" for n in f["nodes"]}
    lies = {n for f in faults if f["kind"] == "Byzantine" for n in f["nodes"]}
    last: dict[int, Any] = {}
    if size <= INSPECTED:
        for record in cut.run.records:
            last[record.node] = record
    found = []
    for node in range(size):
        state = STATES[cut.state[node]] if node < len(cut.state) else "up"
        plain = state == "up" and node not in slow and node not in alone and node not in lies
        if size > MOST_SHOWN and plain:
            continue
        told: dict[str, Any] = {"id": node, "state": state}
        if playground.world.roles != ("node",):
            told["role"] = playground.world.role_of(node)
        if node in slow:
            told["slow"] = slow[node]
        if node in alone:
            told["alone"] = True
        if node in lies:
            told["lies"] = True
        if node in cut.fields:
            told |= badge(cut.fields[node])
        if node in last:
            told["told"] = _brief(last[node].values)
        found.append(told)
        if len(found) >= 4 * MOST_SHOWN:
            break
    return found


def badge(fields: dict[str, str]) -> dict[str, Any]:
    """What stands on a node: what it is at the moment, and in which term, view or round."""
    what = next((fields[name] for name in WHAT if _says(fields.get(name))), None)
    which = next((f"{name} {fields[name]}" for name in WHICH if _says(fields.get(name))), None)
    return {key: told for key, told in (("is", what), ("in", which)) if told is not None}


def _says(value: str | None) -> bool:
    return value is not None and value not in ("", "None", "empty") and len(value) <= 18


def _brief(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {in_words(value)}" for name, value in values.items())[:160]


def _on(whole: Played, at_s: float) -> list[dict[str, Any]]:
    """The faults that are on at a time, the world's own and the edits alike."""
    run, found = whole.run, []
    for fault in run.world.schedule(run.seed):
        if not fault.during(at_s):
            continue
        link = getattr(fault, "link", None)
        aimed = link is not None or getattr(fault, "node", None) is not None
        groups = getattr(fault, "groups", None)
        nodes = list(run.world.targets(fault)) if aimed and groups is None else []
        if groups is not None:
            nodes = [node for group in groups for node in group]
        value = next((getattr(fault, name) for name in ("factor", "p", "delay_s", "watts")
                      if getattr(fault, name, None) is not None), None)  # fmt: skip
        found.append({
            "kind": fault.kind, "nodes": nodes[:MOST_SHOWN], "link": list(link) if link else None,
            "since_s": fault.at_s, "until_s": fault.until_s, "value": value,
        })  # fmt: skip
    return found


def _links(faults: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ways = {"Drop": "cut", "Clog": "late", "Corrupt": "lossy", "Reorder": "late"}
    found = []
    for fault in faults:
        if fault["link"] is not None and fault["kind"] in ways:
            kind = ways[fault["kind"]]
            if fault["kind"] == "Drop" and fault["value"] is not None and fault["value"] < 1:
                kind = "lossy"
            a, b = fault["link"]
            found.append({"a": a, "b": b, "kind": kind, "since_s": fault["since_s"]})
    return found[:MOST_SHOWN]


def _flying(whole: Played, at_ns: int) -> tuple[list[dict[str, Any]], int]:
    """The messages that are on their way, and those lost a moment ago."""
    rows = [row for row in whole.run.spans if row[0] <= at_ns < row[1]]
    latency = usual_latency_ns([(row[0], row[1]) for row in whole.run.spans[:2000]])
    lost = [s for s in whole.lost if s.start_ns <= at_ns < s.start_ns + latency]
    found = [
        {"src": src, "dst": dst, "method": method, "sent_s": sent / 1e9, "size_B": size_B,
         "received_s": received / 1e9, "reply": bool(is_reply)}
        for sent, received, _, src, dst, method, size_B, is_reply in rows[:MOST_SHOWN]
    ]  # fmt: skip
    found += [
        {"src": s.node, "dst": s.to, "method": s.name, "sent_s": s.start_ns / 1e9,
         "received_s": (s.start_ns + latency) / 1e9, "lost": True}
        for s in lost[:MOST_SHOWN]
    ]  # fmt: skip
    return found, len(rows)


def _counts(whole: Played, cut: Played, flying: int, at_ns: int) -> dict[str, Any]:
    return {
        "messages": cut.run.messages, "bytes": cut.run.bytes, "events": cut.run.events,
        "flying": flying, "lost": sum(span.start_ns <= at_ns for span in whole.lost),
        "reports": len(cut.run.records), "down": sum(state == 0 for state in cut.state),
        "paused": sum(state == 2 for state in cut.state),
    }  # fmt: skip


def metrics(run: Any) -> list[dict[str, Any]]:
    """The metrics of a run with their units, as a reader sees them."""
    found = []
    for name, value in run.metrics.items():
        unit = run.units.get(name)
        finite = isinstance(value, int | float) and math.isfinite(value)
        found.append({
            "name": name, "value": value if finite else None, "text": _figure(value, unit),
            "unit": unit.unit if unit else "", "better": unit.better if unit else "",
            "says": unit.says if unit else "",
        })  # fmt: skip
    return found


def _figure(value: Any, unit: Any) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "none"
    return show(value, unit.unit) if unit is not None and unit.unit else f"{value:.6g}"


def _so_far(whole: Played, cut: Played, at_s: float) -> list[Any]:
    """What is wrong by then.

    A checker that sees only a part of a run also complains that it has not ended. So what it says
    of the part counts only where it says the same of the whole.
    """
    if cut is whole:
        return list(whole.run.violations)
    kinds = {violation.kind for violation in whole.run.violations}
    found = [violation for violation in cut.run.violations if violation.kind in kinds]
    seen = {violation.kind for violation in found}
    return found + [
        violation for violation in whole.run.violations
        if violation.time_s is not None and violation.time_s <= at_s and violation.kind not in seen
    ]  # fmt: skip


def told_violations(violations: list[Any]) -> list[dict[str, Any]]:
    """Violations in plain words, the first of each kind with how many there are."""
    found: dict[str, dict[str, Any]] = {}
    for one in violations:
        if one.kind in found:
            found[one.kind]["count"] += 1
        else:
            found[one.kind] = {
                "kind": one.kind, "words": one.kind.replace("_", " "),
                "message": one.message[:600], "time_s": one.time_s, "node": one.node, "count": 1,
            }  # fmt: skip
    return list(found.values())[:MOST_FOUND]


def _reports(run: Any, at_s: float) -> list[dict[str, Any]]:
    latest = run.records[-MOST_TOLD:]
    return [{"time_s": r.time_s, "node": r.node, "words": _brief(r.values)} for r in latest]


# -- what happens to a node


def happenings(
    playground: Playground, branch: Branch, node: int | None
) -> list[tuple[int, int, str]]:
    """All that happens, to one node if so asked, in order: (time in ns, node, in words)."""
    whole = playground.whole(branch.id)
    run, found = whole.run, []
    for sent, received, _, src, dst, method, _, is_reply in run.spans:
        what = f"answer of {method}" if is_reply else method
        if node is None or node == dst:
            found.append((received, dst, f"hears {what} from {_name(src, run)}"))
        if node == src:
            found.append((sent, src, f"says {what} to {_name(dst, run)}"))
    for span in whole.lost:
        if node is None or node == span.node:
            said = f"says {span.name} to {_name(span.to, run)}, which never arrives"
            found.append((span.start_ns, span.node, said))
    for record in run.records:
        if node is None or node == record.node:
            at_ns = round(record.time_s * 1e9)
            found.append((at_ns, record.node, f"reports {_brief(record.values)}"))
    for span in spans.life(run):
        # A fault of several nodes or of a link is aimed at no single one (node -1).
        aimed = (span.values or {}).get("link") or (span.values or {}).get("node") or ()
        hit = span.node == node or (not isinstance(aimed, int) and node in aimed)
        if node is None or hit:
            found.append((span.start_ns, span.node, _begins(span)))
            if span.end_ns < round(run.seconds * 1e9):
                found.append((span.end_ns, span.node, _ends(span)))
    found.sort(key=lambda each: each[0])
    return found


def _name(node: int, run: Any) -> str:
    return "a client" if node == run.world.size else spans.node_name(node, run)


def _begins(span: Any) -> str:
    words = {"down": "crashes", "paused": "stands still"}
    return words.get(span.kind) or f"{span.name.lower()} begins"


def _ends(span: Any) -> str:
    words = {"down": "starts again", "paused": "goes on"}
    return words.get(span.kind) or f"{span.name.lower()} ends"


def story(playground: Playground, branch: Branch, node: Any, at_s: float) -> dict[str, Any]:
    """What happened to one node until a time, the latest first; and what it holds then."""
    size = playground.world.size
    if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node <= size:
        raise UsageError(f"node={str(node)[:20]}: this world has nodes 0 to {size - 1}")
    at_ns = round(at_s * 1e9)
    every = happenings(playground, branch, node)
    past = [each for each in every if each[0] <= at_ns]
    coming = [each for each in every if each[0] > at_ns][:3]
    whole = playground.whole(branch.id)
    cut = whole if at_s >= whole.run.seconds else playground._play(branch, at_s)
    state = STATES[cut.state[node]] if node < len(cut.state) else "up"
    return {
        "node": node, "at_s": at_s, "state": state, "name": _name(node, whole.run),
        "part": type(playground.part).__name__, "fields": cut.fields.get(node, {}),
        "past": [{"time_s": t / 1e9, "words": w} for t, _, w in reversed(past[-MOST_TOLD:])],
        "coming": [{"time_s": t / 1e9, "words": w} for t, _, w in coming],
        "count": len(past),
    }  # fmt: skip


# -- two branches


def difference(playground: Playground, a: Branch, b: Branch) -> dict[str, Any]:
    """The first event that is not the same, and what came out otherwise."""
    one, two = playground.whole(a.id), playground.whole(b.id)
    first = first_difference(one, two)
    mine = {m["name"]: m for m in metrics(one.run)}
    theirs = {m["name"]: m for m in metrics(two.run)}
    rows = [
        {"name": name, "a": mine.get(name), "b": theirs.get(name)}
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]
    same = sum(mine.get(name) == theirs.get(name) for name in mine)
    kinds = [{v.kind for v in each.run.violations} for each in (one, two)]
    return {
        "a": a.id, "b": b.id, "first": first, "metrics": rows, "same_metrics": same,
        "violations": {
            "both": sorted(kinds[0] & kinds[1]), "a": sorted(kinds[0] - kinds[1]),
            "b": sorted(kinds[1] - kinds[0]),
        },
        "seconds": [one.run.seconds, two.run.seconds],
        "messages": [one.run.messages, two.run.messages],
        "words": _in_words(a, b, first, rows, kinds),
    }  # fmt: skip


def first_difference(one: Played, two: Played) -> dict[str, Any] | None:
    """The first arrival that differs; numbers of sequence do not count, as every fault takes one.

    The earlier of the two events tells when it happened.
    """
    here, there = one.run.spans, two.run.spans
    for i in range(max(len(here), len(there))):
        x = here[i] if i < len(here) else None
        y = there[i] if i < len(there) else None
        if x is None or y is None or _bare(x) != _bare(y):
            when = min(row[1] for row in (x, y) if row is not None)
            return {"event": i, "time_s": when / 1e9, "a": _told(x, one), "b": _told(y, two)}
    for i in range(max(len(one.run.records), len(two.run.records))):
        records = [r.run.records[i] if i < len(r.run.records) else None for r in (one, two)]
        told = [r and (r.time_s, r.node, _brief(r.values)) for r in records]
        if told[0] != told[1]:
            words = [t and f"node {t[1]} reports {t[2]}" for t in told]
            at_s = min(t[0] for t in told if t)
            return {"event": None, "time_s": at_s, "a": words[0], "b": words[1]}
    return None


def _bare(row: Any) -> tuple[Any, ...]:
    return (row[0], row[1], row[3], row[4], row[5], row[6], row[7])


def _told(row: Any, played: Played) -> str | None:
    if row is None:
        return None
    _, received, _, src, dst, method, _, is_reply = row
    what = f"the answer of {method}" if is_reply else method
    who = "a client" if dst == played.run.world.size else f"node {dst}"
    return f"{who} hears {what} from {_name(src, played.run)} at {show(received / 1e9, 's')}"


def _in_words(
    a: Branch, b: Branch, first: dict[str, Any] | None, rows: list[Any], kinds: list[set[str]]
) -> str:
    if first is None:
        return "The two branches are the same, event for event."
    told = [f"Alike until {show(first['time_s'], 's')}."]
    told.append(f"{len(rows)} metric{'s' if len(rows) != 1 else ''} differ." if rows else
                "Yet every metric came out the same.")  # fmt: skip
    for mine, other, name in ((kinds[0], kinds[1], a.title), (kinds[1], kinds[0], b.title)):
        if mine - other:
            wrong = ", ".join(kind.replace("_", " ") for kind in sorted(mine - other))
            told.append(f"Only “{name}” goes wrong: {wrong}.")
    return " ".join(told)


def earlier_change(before: Played, after: Played, at_s: float) -> str:
    """A warning where an edit changed what came before it; empty where the past is the same.

    That happens with problems whose clients look at the schedule of faults, for example to wait
    until the last one is over.
    """
    first = first_difference(before, after)
    if first is None or first["time_s"] >= at_s:
        return ""
    return (f"This edit also changed what happened before it, from {show(first['time_s'], 's')} "
            "on: the workload of this problem looks at the schedule of faults.")  # fmt: skip
