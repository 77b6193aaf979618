"""The words of a space-time picture: its headline, who lies, what was reported and decided."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orrery.base.units import show
from orrery.lab import svg
from orrery.lab.spans import Span, life, node_name, plain

if TYPE_CHECKING:
    from orrery.lab.run import Run
    from orrery.lab.scene import Scene

# What nodes report under these names is what a run is for: it is marked as a decision.
DECISIONS = ("decided", "delivered", "ordered", "applied", "output", "said")
_MOST_TROUBLES = 3


def liars(run: Run) -> dict[int, tuple[str, ...]]:
    """Who lies in a run, and how, by the schedule of faults."""
    found: dict[int, tuple[str, ...]] = {}
    if run.world is None:
        return found
    for fault in run.world.schedule(run.seed):
        if fault.kind == "Byzantine" and fault.at_s <= run.seconds:
            for node in run.world.targets(fault):
                known = found.get(node, ())
                found[node] = (*known, *(s for s in fault.strategies if s not in known))
    return found


def headline(run: Run) -> str:
    """What is seen, in one sentence: who runs, what befalls them, what the checker says."""
    parts = list(run.part.values()) if isinstance(run.part, dict) else [run.part]
    who = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
    on = f" on {type(run.problem).__name__}" if run.problem is not None else ""
    size = run.world.size if run.world is not None else 0
    many = f", {size} node{'s' if size != 1 else ''}" if size else ""
    troubles = _troubles(run)
    told = "; ".join(troubles) if troubles else "nothing fails"
    return svg.shorten(f"{who}{on}{many}: {told}{_verdict(run)}", 118)


def _troubles(run: Run) -> list[str]:
    found: list[str] = []
    by_way: dict[tuple[str, ...], list[int]] = {}
    for node, strategies in sorted(liars(run).items()):
        by_way.setdefault(strategies, []).append(node)
    for strategies, nodes in by_way.items():
        found.append(f"{_nodes(nodes, 'lies', 'lie')} ({', '.join(strategies)})")
    kinds: dict[str, list[int]] = {}
    for span in life(run):
        if span.kind != "fault":
            kinds.setdefault(span.kind, []).append(span.node)
        elif span.name != "Byzantine":
            kinds.setdefault(f"fault {span.name}", []).append(span.node)
    for kind, nodes in kinds.items():
        if kind == "down":
            found.append(_nodes(nodes, "crashes", "crash"))
        elif kind == "paused":
            found.append(_nodes(nodes, "stands still", "stand still"))
        else:
            found.append(_of_fault(kind.partition(" ")[2], nodes))
    if len(found) > _MOST_TROUBLES:
        found = [*found[: _MOST_TROUBLES - 1], f"{len(found) - _MOST_TROUBLES + 1} more faults"]
    return found


def _of_fault(name: str, nodes: list[int]) -> str:
    if name == "Partition":
        return "the network is parted"
    own = [node for node in nodes if node >= 0]
    return f"{name.lower()} at {_nodes(own, '', '')}".strip() if own else f"{name.lower()} of links"


def _nodes(nodes: list[int], one: str, many: str) -> str:
    each = sorted(dict.fromkeys(nodes))
    if len(each) == 1:
        return f"node {each[0]} {one}".rstrip()
    if len(each) > 4:
        return f"{len(each)} nodes {many}".rstrip()
    return f"nodes {', '.join(map(str, each[:-1]))} and {each[-1]} {many}".rstrip()


def _verdict(run: Run) -> str:
    if run.problem is None:
        return ""
    kinds = sorted({violation.kind for violation in run.violations})
    found = f"violated: {', '.join(kinds)}" if kinds else "the checker finds no violation"
    return f" — {found}"


def subtitle(scene: Scene) -> str:
    """The figures: seed, stretch of time, nodes, messages, and what is not drawn."""
    run, axis = scene.run, scene.axis
    whole = axis.lo == 0 and axis.hi >= round(run.seconds * 1e9) - 1
    at = f"{show(axis.lo / 1e9, 's')} to {show(axis.hi / 1e9, 's')}"
    when = f"the whole run, {show(run.seconds, 's')}" if whole else (
        f"{at} of {show(run.seconds, 's')}")  # fmt: skip
    size = run.world.size if run.world is not None else len(scene.rows)
    alone = sum(node < size for node in scene.rows)
    who = f"{alone} of {size} nodes" if alone < size else f"{size} nodes"
    every = run.part.values() if isinstance(run.part, dict) else [run.part]
    knobs = svg.shorten(", ".join(map(repr, every)), 60)
    parts = [knobs, f"seed {run.seed}", when, who, f"{len(scene.arrows)} messages"]
    if scene.bent:
        parts.append(f"{len(scene.bent)} of them altered by a liar")
    if scene.lost:
        parts.append(f"{len(scene.lost)} lost")
    if scene.folded:
        parts.append(f"{scene.folded} repeated ones folded")
    if scene.left_out:
        parts.append(f"{scene.left_out} more not drawn")
    return " · ".join(parts)


def in_words(scene: Scene) -> str:
    """The description for those who cannot see the picture."""
    kinds = Counter(span.name for span in scene.arrows)
    told = [f"Space-time diagram, time to the right, {subtitle(scene)}."]
    told.append("Messages: " + ", ".join(f"{n} {name}" for name, n in kinds.most_common(8)) + ".")
    told += [
        f"{node_name(node, scene.run)} lies: {', '.join(strategies)}."
        for node, strategies in sorted(scene.liars.items())[:12]
    ]
    for span in scene.life[:12]:
        until = show(span.end_ns / 1e9, "s")
        who = node_name(span.node, scene.run) if span.node >= 0 else "The network"
        told.append(f"{who}: {span.name} from {show(span.start_ns / 1e9, 's')} to {until}.")
    decided = [span for span in scene.emits if is_decision(span)]
    if decided:
        first = decided[0]
        told.append(f"First decision: {node_name(first.node, scene.run)}, {brief(first)}, "
                    f"at {show(first.start_ns / 1e9, 's')}.")  # fmt: skip
    return " ".join(told)


def row_name(node: int, scene_liars: dict[int, tuple[str, ...]], run: Run) -> str:
    """What stands at the left of a node's line; a liar is called one."""
    name = node_name(node, run)
    return f"{name} LIES" if node in scene_liars else name


def is_decision(span: Span) -> bool:
    """Whether a report tells of a decision."""
    return any(name in DECISIONS for name in span.values or ())


def brief(span: Span) -> str:
    """A report in a few words: of a decision its own figure, else all that it says."""
    values = plain(span.values) or {}
    picked = {name: values[name] for name in DECISIONS if name in values} or values
    words = ", ".join(f"{name} {_figure(value)}" for name, value in picked.items())
    return words.strip()


def _figure(value: Any) -> str:
    """A value without its bulk: of (index, long list) the index tells enough."""
    if isinstance(value, list) and value and not isinstance(value[0], list | dict):
        rest = [each for each in value[1:] if each not in ([], {}, None)]
        text = str(value[0])
        if len(rest) == 1 and not isinstance(rest[0], list | dict):
            text += f", {rest[0]}"
        elif len(value) > 1 and not rest:
            text += " (empty)"
        return text
    return str(value)


def fault_words(span: Span) -> str:
    """A fault of the network as the label of its band."""
    values = plain(span.values) or {}
    if span.name == "Partition":
        groups = values.get("groups") or [values.get("node")]
        sides = " | ".join("{" + ", ".join(map(str, g if isinstance(g, list) else [g])) + "}"
                           for g in groups)  # fmt: skip
        return f"partition {sides} | rest" + (" (one way)" if values.get("one_way") else "")
    told = ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("node", "domain") and v)
    return f"{span.name.lower()} {told}".strip()


def times(span: Span) -> str:
    """From when to when."""
    return f"{show(span.start_ns / 1e9, 's')} to {show(span.end_ns / 1e9, 's')}"
