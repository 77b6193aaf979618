"""The ZCS checker: counts become intervals, locations become empty or not.

Backward from the bad configurations, a set of abstract states is kept as cubes: some locations must
hold a process, some must hold none, the rest is free, in one context. A step's predecessor of a
cube is a cube again, and a cube that lies within another adds nothing. Where no cube meets a start,
the property holds; else the paths through the contexts found are held against the solver.

TACO keeps these sets as BDDs. Cubes are closed under predecessors here, and their number stays
small, so no BDD is needed.
"""

from __future__ import annotations

from orrery.systems.protocols.taco.automaton import Automaton, Property
from orrery.systems.protocols.taco.forms import Atom, cases
from orrery.systems.protocols.taco.graph import Graph, Setting
from orrery.systems.protocols.taco.orders import Context
from orrery.systems.protocols.taco.paths import PathSearch, Shape
from orrery.systems.protocols.taco.solver import Solver
from orrery.systems.protocols.taco.trace import Counterexample

Cube = tuple[int, int]  # (locations that must be occupied, locations that must be empty), as bits


def check_zcs(automaton: Automaton, asked: Property, solver: Solver) -> Counterexample | None:
    """A counterexample, or None where there is none for any parameters."""
    for case in asked.cases:
        setting = Setting(automaton, case, solver)
        if not setting.possible:
            continue
        targets = bad_cubes(automaton, case.bad)
        for order in setting.thresholds.orders():
            graph = Graph(setting, order)
            cubes = backward(graph, targets)
            if not any(_meets(cubes[start], automaton, setting) for start in graph.starts):
                continue
            shapes = {c: [_shape(cube, automaton) for cube in kept] for c, kept in cubes.items()}
            found = PathSearch(graph, shapes).find()
            if found is not None:
                return found
    return None


def bad_cubes(automaton: Automaton, bad: object) -> list[Cube]:
    """Cubes that hold every bad configuration; what cubes cannot say is left to the solver."""
    bit = {place: 1 << i for i, place in enumerate(automaton.locations)}
    found: list[Cube] = []
    for case in cases(bad):  # type: ignore[arg-type]
        ways: list[Cube] = [(0, 0)]
        for atom in case:
            some, none = _demand(atom, bit)
            if none:
                ways = [(full, empty | none) for full, empty in ways]
            if some:
                ways = [(full | one, empty) for full, empty in ways for one in some]
        found += [(full, empty) for full, empty in ways if not full & empty]
    return list(dict.fromkeys(found))


def _demand(atom: Atom, bit: dict[str, int]) -> tuple[list[int], int]:
    """(bits of which one must be occupied, bits that must all be empty) for an atom."""
    terms = atom.form.terms
    if any(name not in bit for name, _ in terms):
        return [], 0
    if atom.form.constant < 0 and any(factor > 0 for _, factor in terms):
        return [bit[name] for name, factor in terms if factor > 0], 0
    if atom.form.constant == 0 and all(factor < 0 for _, factor in terms):
        return [], sum(bit[name] for name, _ in terms)
    return [], 0


def _meets(cubes: list[Cube], automaton: Automaton, setting: Setting) -> bool:
    """Whether a start may lie in one of the cubes."""
    starting = sum(1 << i for i, p in enumerate(automaton.locations) if p in setting.starting)
    return any(not full & ~starting for full, _ in cubes)


def _shape(cube: Cube, automaton: Automaton) -> Shape:
    places = tuple(enumerate(automaton.locations))
    full, empty = cube
    least = tuple((place, 1) for i, place in places if full >> i & 1)
    return least, tuple(place for i, place in places if empty >> i & 1)


def backward(graph: Graph, targets: list[Cube]) -> dict[Context, list[Cube]]:
    """The abstract states of each context from which a bad one may be reached."""
    places = graph.setting.automaton.locations
    bit = {place: 1 << i for i, place in enumerate(places)}
    held = {c: sum(bit[p] for p in occupied) for c, occupied in graph.occupied.items()}
    kept: dict[Context, list[Cube]] = {context: [] for context in graph.occupied}
    todo = [(cube, context) for context in kept for cube in targets]
    while todo:
        (full, empty), context = todo.pop()
        if full & ~held[context] or not _add(kept[context], (full, empty)):
            continue
        for before, rule in graph.into.get(context, ()):
            source, target = bit[rule.source], bit[rule.target]
            if target & empty:
                continue  # the process that moved is there
            # The one who moved was at the source, which may be empty now or not.
            cube = ((full & ~target) | source, empty & ~source)
            todo.append((cube, before))
    return kept


def _add(cubes: list[Cube], cube: Cube) -> bool:
    """Keep a cube unless a larger one is there; smaller ones go."""
    full, empty = cube
    for a, b in cubes:
        if not a & ~full and not b & ~empty:
            return False
    cubes[:] = [(a, b) for a, b in cubes if full & ~a or empty & ~b]
    cubes.append(cube)
    return True
