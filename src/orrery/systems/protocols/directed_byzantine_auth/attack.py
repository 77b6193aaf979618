"""Necessity that runs: on a graph that violates a condition, the worlds in which a protocol breaks.

Each attack is a handful of worlds in which some nodes have the same view, so that they decide the
same; no protocol can be right in all of them. Liars here follow the protocol with an input of their
choice, and only cut themselves off, keep silent, or play two copies of themselves; so no signature
is ever forged. Tokens are deterministic, and views are compared to the byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from orrery.systems.protocols.directed_byzantine_auth import conditions
from orrery.systems.protocols.directed_byzantine_auth.approximate import ApproximateMachine, Flood
from orrery.systems.protocols.directed_byzantine_auth.exact import ExactMachine, Plan
from orrery.systems.protocols.problems.digraphs import Digraph, bits, mask_of
from orrery.systems.protocols.problems.signing import TokenKeys
from orrery.world import Byzantine

View = list[Any]


class Scene(NamedTuple):
    """One world of an attack: inputs, who is faulty, who is silent, and which two sets are cut."""

    name: str
    inputs: tuple[int, ...]
    faulty: int
    silent: int = 0
    cut: tuple[int, int] = (0, 0)

    def passes(self, a: int, b: int) -> bool:
        """Whether what node a tells node b arrives, and counts there."""
        one, other = self.cut
        crosses = (one >> a & 1 and other >> b & 1) or (other >> a & 1 and one >> b & 1)
        return not self.silent >> a & 1 and not crosses

    def faults(self, n: int) -> tuple[Byzantine, ...]:
        """The same liars for an engine."""
        liars = tuple(bits(self.faulty))
        if not liars:
            return ()
        if self.silent:
            return (Byzantine(node=liars, strategies=("silence",)),)
        away = next((set(bits(side)) for side in self.cut if side and not side & self.faulty), None)
        if away is None:
            return (Byzantine(node=liars, strategies=("pretend",)),)
        to = tuple(v for v in range(n) if v not in away)
        return (Byzantine(node=liars, strategies=("selective", "deaf"), to=to),)


class Attack(NamedTuple):
    """The worlds, and which nodes (a mask) cannot tell which two of them apart."""

    scenes: tuple[Scene, ...]
    alike: tuple[tuple[int, int, int], ...]


class Ending(NamedTuple):
    """What became of a world: the last value of each node (None: undecided) and its view."""

    values: list[float | None]
    views: list[View]


def _given(n: int, ones: int) -> tuple[int, ...]:
    """The inputs of n nodes, 1 for those in the mask."""
    return tuple(ones >> v & 1 for v in range(n))


def on_exact(graph: Digraph, f: int) -> Attack | None:
    """The worlds that refute any exact protocol on a violating graph; None where it does not."""
    flaw = conditions.synchronous_flaw(graph, f)
    if flaw is None:
        return None
    n, suspects, source = graph.n, flaw.without_u, flaw.reach_u
    if flaw.reach_u != flaw.reach_v:  # two sources hear nothing of one another
        return Attack(
            (
                Scene("all have 0", _given(n, 0), suspects, silent=suspects),
                Scene("all have 1", _given(n, graph.everyone), suspects, silent=suspects),
                Scene("a source of each", _given(n, flaw.reach_v), suspects, silent=suspects),
            ),
            ((0, 2, flaw.reach_u), (1, 2, flaw.reach_v)),
        )
    rest = graph.everyone & ~suspects & ~source
    cut = (source, suspects)
    if rest:  # the rest cannot tell whether the small source lies or those who hide from it
        return Attack(
            (
                Scene("the source is right", _given(n, suspects), suspects, cut=cut),
                Scene("it has not heard", _given(n, suspects | rest), suspects, cut=cut),
                Scene("the source lies", _given(n, suspects | rest), source, cut=cut),
            ),
            ((0, 1, source), (1, 2, rest)),
        )
    return Attack(  # two halves, neither of which is more than f
        (
            Scene("one half lies", _given(n, suspects), suspects),
            Scene("the other half lies", _given(n, suspects), source),
            Scene("nobody lies", _given(n, suspects), 0),
        ),
        ((0, 2, source), (1, 2, suspects)),
    )


def play_exact(graph: Digraph, f: int, scene: Scene, tight: bool = False) -> Ending:
    """Run the synchronous machines through one world."""
    plan = Plan.of(graph, f, tight)
    cast = [ExactMachine(v, plan, x, TokenKeys(v)) for v, x in enumerate(scene.inputs)]
    views: list[View] = [[] for _ in cast]
    for number in range(len(plan.rounds)):
        told = [machine.news(number) for machine in cast]
        for v, machine in enumerate(cast):
            for peer in bits(graph.into[v]):
                if told[peer] and scene.passes(peer, v):
                    machine.take(number, told[peer])
                    views[v].append((number, peer, told[peer]))
        for machine in cast:
            machine.close(number)
    return Ending([float(machine.value) for machine in cast], views)


def broken_exact(graph: Digraph, f: int, tight: bool = False) -> list[str]:
    """The worlds of the attack in which the synchronous protocol is wrong, by name."""
    attack = on_exact(graph, f)
    if attack is None:
        return []
    return [scene.name for scene in attack.scenes
            if wrong(scene, play_exact(graph, f, scene, tight), 0.0)]  # fmt: skip


def wrong(scene: Scene, ending: Ending, close: float) -> bool:
    """Whether the fault-free nodes disagree, leave the range of their inputs, or stay undecided."""
    good = [v for v in range(len(scene.inputs)) if not scene.faulty >> v & 1]
    ends = [ending.values[v] for v in good]
    inputs = [scene.inputs[v] for v in good]
    known = [x for x in ends if x is not None]
    if len(known) < len(ends):
        return True
    outside = not (min(inputs) <= min(known) and max(known) <= max(inputs))
    return outside or max(known) - min(known) > close


# -- asynchronous


class Stage(NamedTuple):
    """A world of actors: (node, copy) pairs; who hears whom in time, and who is silent."""

    scene: Scene
    actors: tuple[tuple[int, int], ...]
    inputs: dict[tuple[int, int], int]
    hears: Callable[[tuple[int, int], tuple[int, int]], bool]


def _plain(scene: Scene, graph: Digraph) -> Stage:
    actors = tuple((v, 0) for v in range(graph.n))
    inputs = {(v, 0): scene.inputs[v] for v in range(graph.n)}
    return Stage(scene, actors, inputs, lambda a, b: scene.passes(a[0], b[0]))


def on_approximate(graph: Digraph, f: int) -> tuple[tuple[Stage, ...], Attack] | None:
    """The worlds that refute any approximate protocol on a violating graph, or None."""
    flaw = conditions.asynchronous_flaw(graph, f)
    if flaw is None:
        return None
    n, one, other = graph.n, flaw.reach_u, flaw.reach_v
    if not one & ~other or not other & ~one:
        small = one if not one & ~other else other
        hidden = flaw.without_u if small == one else flaw.without_v
        rest = graph.everyone & ~small
        cut = (small, rest & hidden)
        scenes = (
            Scene("it hears nobody", _given(n, 0), hidden, silent=hidden),
            Scene("it lies", _given(n, rest), small, cut=cut),
            Scene("news to it is late", _given(n, rest), 0, cut=cut),
        )
        alike = ((0, 2, small), (1, 2, rest))
        return tuple(_one_way(each, graph, small) for each in scenes), Attack(scenes, alike)
    both = one & other
    scenes = (
        Scene("all have 0", _given(n, 0), flaw.without_u, silent=flaw.without_u),
        Scene("all have 1", _given(n, graph.everyone), flaw.without_v, silent=flaw.without_v),
        Scene("two-faced", _given(n, other & ~one), both),
    )
    alike = ((0, 2, one & ~other), (1, 2, other & ~one))
    stages = (_plain(scenes[0], graph), _plain(scenes[1], graph), _two_faced(scenes[2], one, other))
    return stages, Attack(scenes, alike)


def _one_way(scene: Scene, graph: Digraph, small: int) -> Stage:
    """What the rest tells the small set is late or goes unheard; the other way nothing is lost."""
    stage = _plain(scene, graph)

    def hears(a: tuple[int, int], b: tuple[int, int]) -> bool:
        into = small >> b[0] & 1 and not small >> a[0] & 1
        return not scene.silent >> a[0] & 1 and not into

    return stage._replace(hears=hears)


def _two_faced(scene: Scene, one: int, other: int) -> Stage:
    """Those in both sets play a copy for each; what comes to either set from outside is late."""
    both, n = one & other, len(scene.inputs)
    actors = tuple((v, copy) for v in range(n) for copy in range(1 + (both >> v & 1)))
    inputs = {(v, copy): copy if both >> v & 1 else scene.inputs[v] for v, copy in actors}

    def hears(a: tuple[int, int], b: tuple[int, int]) -> bool:
        twin = both >> a[0] & 1
        if both >> b[0] & 1:
            side = other if b[1] else one
            return bool(side >> a[0] & 1) and (not twin or a[1] == b[1])
        for side, copy in ((one, 0), (other, 1)):
            if side >> b[0] & 1:
                return bool(side >> a[0] & 1) and (not twin or a[1] == copy)
        return not twin or a[1] == 0

    return Stage(scene, actors, inputs, hears)


def play_approximate(graph: Digraph, f: int, stage: Stage, rounds: int = 10) -> Ending:
    """Run the asynchronous machines through one world, first come first served.

    What is late comes when all else is quiet: no link loses anything but what the silent and the
    two-faced keep back.
    """
    cast = {
        (v, copy): ApproximateMachine(v, graph, f, float(x), rounds, TokenKeys(v))
        for (v, copy), x in stage.inputs.items()
    }
    views: dict[tuple[int, int], View] = {actor: [] for actor in cast}
    soon: deque[tuple[Any, Any, Flood]] = deque()
    late: deque[tuple[Any, Any, Flood]] = deque()

    def send(a: tuple[int, int], floods: list[Flood]) -> None:
        for flood in floods:
            for b in cast:
                if graph.out[a[0]] >> b[0] & 1:
                    (soon if stage.hears(a, b) else late).append((a, b, flood))

    for actor, machine in cast.items():
        send(actor, machine.begin())
    while soon:
        a, b, flood = soon.popleft()
        if not cast[b].decided:
            views[b].append((a[0], flood))
        send(b, _take(cast[b], flood))
    values = [cast[v, 0].value if cast[v, 0].decided else None for v in range(graph.n)]
    for a, b, flood in late:  # it changes nothing for those who have decided
        if not stage.scene.silent >> a[0] & 1:
            _take(cast[b], flood)
    return Ending(values, [views[v, 0] for v in range(graph.n)])


def _take(machine: ApproximateMachine, flood: Flood) -> list[Flood]:
    if flood.said is not None:
        return machine.take_said(flood.number, flood.said)
    assert flood.report is not None
    return machine.take_report(flood.number, flood.report)


def broken_approximate(graph: Digraph, f: int, rounds: int = 10) -> list[str]:
    """The worlds of the attack in which the asynchronous protocol is wrong, by name."""
    found = on_approximate(graph, f)
    if found is None:
        return []
    stages, _ = found
    close = 2.0**-rounds
    return [stage.scene.name for stage in stages
            if wrong(stage.scene, play_approximate(graph, f, stage, rounds), close)]  # fmt: skip


def same_views(attack: Attack, endings: list[Ending]) -> bool:
    """Whether the nodes that must not tell two worlds apart saw exactly the same in both."""
    return all(
        endings[a].views[v] == endings[b].views[v] and endings[a].values[v] == endings[b].values[v]
        for a, b, nodes in attack.alike for v in bits(nodes & mask_of(range(len(endings[a].views))))
    )  # fmt: skip
