"""The ACS checker: counts become intervals, locations keep their numbers of processes.

More processes in a location never hinder a step, so the configurations from which a bad one can be
covered are known by their smallest members. Backward from the bad ones, a basis of smallest
vectors for each context grows until nothing new comes, which it must (Dickson's lemma). What the
intervals lost is then asked of the solver, path by path, shorter ones first. A target that says
that a location must be empty is not of this kind, and is refused.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np
import numpy.typing as npt

from orrery.systems.protocols.taco.automaton import (
    Automaton,
    Property,
    UnsupportedProperty,
)
from orrery.systems.protocols.taco.forms import Atom, Formula, cases
from orrery.systems.protocols.taco.graph import Graph, Setting
from orrery.systems.protocols.taco.orders import Context
from orrery.systems.protocols.taco.paths import PathSearch, Shape
from orrery.systems.protocols.taco.solver import Solver
from orrery.systems.protocols.taco.trace import Counterexample

Vector = tuple[int, ...]
# A sum that must reach more than this is left to the solver instead of being spelt out.
MOST_SUM = 4
# What one vector of the backward search costs, in the units of the budget.
VECTOR_UNITS = 20


def check_acs(automaton: Automaton, asked: Property, solver: Solver) -> Counterexample | None:
    """A counterexample, or None where there is none for any parameters."""
    wanted = [(case, bad_vectors(automaton, asked, case.bad)) for case in asked.cases]
    for case, targets in wanted:
        setting = Setting(automaton, case, solver)
        if not setting.possible:
            continue
        for order in setting.thresholds.orders():
            graph = Graph(setting, order)
            bases = backward(graph, targets)
            starting = [automaton.locations.index(place) for place in sorted(setting.starting)]
            if not any(_covers_a_start(bases[start], starting) for start in graph.starts):
                continue
            shapes = {c: basis.shapes(automaton.locations) for c, basis in bases.items()}
            found = PathSearch(graph, shapes).find()
            if found is not None:
                return found
    return None


def bad_vectors(automaton: Automaton, asked: Property, bad: Formula) -> list[Vector]:
    """The smallest numbers of processes in a bad configuration; refuses what is not upward."""
    found: list[Vector] = []
    for case in cases(bad):
        ways: list[Vector] = [(0,) * len(automaton.locations)]
        for atom in case:
            ways = [
                tuple(map(max, one, other))
                for one, other in product(ways, _smallest(automaton, asked, atom))
            ]
        found += ways
    return list(dict.fromkeys(found))


def _smallest(automaton: Automaton, asked: Property, atom: Atom) -> list[Vector]:
    places = {place: i for i, place in enumerate(automaton.locations)}
    terms = [(places[name], factor) for name, factor in atom.form.terms if name in places]
    for place, factor in terms:
        if factor < 0:
            name = automaton.locations[place]
            raise UnsupportedProperty(
                f"the ACS checker cannot judge {asked.name}: to break it, {atom} must hold, which "
                f"bounds the processes in {name} from above; use method='smt' or 'zcs'"
            )
    zero = [(0,) * len(places)]
    want = -atom.form.constant
    if len(terms) < len(atom.form.terms) or want <= 0:
        return zero  # what else stands in the atom is left to the solver
    if len(terms) == 1:
        place, factor = terms[0]
        return [_vector(len(places), {place: -(-want // factor)})]
    if want > MOST_SUM:
        return zero
    found = []
    for counts in product(range(want + 1), repeat=len(terms)):
        if sum(k * factor for k, (_, factor) in zip(counts, terms, strict=True)) >= want:
            pairs = {place: k for k, (place, _) in zip(counts, terms, strict=True)}
            found.append(_vector(len(places), pairs))
    return [v for v in found if not any(w != v and _below(w, v) for w in found)]


def _vector(size: int, counts: dict[int, int]) -> Vector:
    return tuple(counts.get(i, 0) for i in range(size))


def _below(one: Vector, other: Vector) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def backward(graph: Graph, targets: list[Vector]) -> dict[Context, Basis]:
    """A basis for each context of the configurations that may cover a bad one."""
    places = graph.setting.automaton.locations
    index = {place: i for i, place in enumerate(places)}
    free = {
        context: np.array([place in held for place in places])
        for context, held in graph.occupied.items()
    }
    bases = {context: Basis(len(places)) for context in graph.occupied}
    # Small vectors first: they swallow the larger ones, of which there may be very many.
    todo = [(sum(target), target, context) for context in bases for target in targets]
    heapify(todo)
    while todo:
        _, smallest, context = heappop(todo)
        graph.setting.solver.charge(VECTOR_UNITS)
        vector = np.array(smallest, dtype=np.int32)
        if vector[~free[context]].any() or not bases[context].add(vector):
            continue
        for before, rule in graph.into.get(context, ()):
            earlier = list(smallest)
            target = index[rule.target]
            earlier[target] = max(earlier[target] - 1, 0)
            earlier[index[rule.source]] += 1
            heappush(todo, (sum(earlier), tuple(earlier), before))
    return bases


class Basis:
    """Vectors of which none lies above another, as the rows of an array."""

    def __init__(self, width: int) -> None:
        self.rows: npt.NDArray[np.int32] = np.zeros((0, width), dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, vector: npt.NDArray[np.int32]) -> bool:
        """Keep a vector unless one below it is there; those above it go."""
        if len(self.rows) and (self.rows <= vector).all(axis=1).any():
            return False
        above = (self.rows >= vector).all(axis=1)
        self.rows = np.vstack([self.rows[~above], vector])
        return True

    def shapes(self, places: tuple[str, ...]) -> list[Shape]:
        """What a configuration must hold at least, one shape for each vector."""
        return [
            (tuple((place, k) for place, k in zip(places, row, strict=True) if k), ())
            for row in self.rows.tolist()
        ]


def _covers_a_start(basis: Basis, starting: list[int]) -> bool:
    """Whether some vector has processes in starting locations alone."""
    if not len(basis):
        return False
    rest = np.delete(basis.rows, starting, axis=1)
    return bool((rest == 0).all(axis=1).any())
