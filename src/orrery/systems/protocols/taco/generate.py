"""Random small threshold automata, for holding the checkers against enumeration."""

from __future__ import annotations

from typing import Any

from orrery.systems.protocols.taco.automaton import Automaton
from orrery.systems.protocols.taco.parser import parse

RESILIENCE = ("n > 3 * t", "n > 2 * t", "n > t", "n >= 1")
THRESHOLDS = ("1", "2", "t + 1 - f", "n - t - f", "t + 1", "n - f")
HALVES = ("n + 1 - 2 * f", "n + t + 1 - 2 * f")


def random_automaton(rng: Any, *, extended: bool = False) -> Automaton:
    """A small automaton with one property; with `extended`, some rules reset or decrement.

    Three to five locations of which one or two are initial, one or two counters, four to seven
    rules with rising and falling guards, sums and halves among them; a quarter of the rules may go
    back, so that there are cycles.
    """
    places = [f"L{i}" for i in range(rng.randint(3, 5))]
    shared = ["x", "y"][: rng.randint(1, 2)]
    starts = places[: rng.randint(1, 2)]
    rules = []
    for number in range(rng.randint(4, 7)):
        source = rng.choice(places[:-1])
        later = places[places.index(source) + 1 :]
        target = rng.choice(places) if rng.random() < 0.25 else rng.choice(later)
        updates = "".join(_update(rng, name, extended) for name in shared)
        rules.append(f"{number}: {source} -> {target} when ({_guard(rng, shared)}) "
                     f"do {{ {updates} }};")  # fmt: skip
    idle = [f"{name} == 0;" for name in (*places, *shared) if name not in starts]
    return parse(
        f"ta Drawn {{ shared {', '.join(shared)}; parameters n, t, f; "
        f"assumptions {{ {rng.choice(RESILIENCE)}; t >= f; }} "
        f"locations {{ {' '.join(f'{place}: [0];' for place in places)} }} "
        f"inits {{ {' + '.join(starts)} == n - f; n >= f; {' '.join(idle)} }} "
        f"rules {{ {' '.join(rules)} }} "
        f"specifications {{ drawn: {_property(rng, places, starts)}; }} }}",
        "drawn.ta",
    )


def _update(rng: Any, name: str, extended: bool) -> str:
    chance = rng.random()
    if extended and chance < 0.25:
        return f"{name}' == 0; " if chance < 0.12 else f"{name}' == {name} - 1; "
    return f"{name}' == {name} + 1; " if chance > 0.5 else ""


def _guard(rng: Any, shared: list[str]) -> str:
    if rng.random() < 0.3:
        return "true"
    count = " + ".join(shared) if rng.random() < 0.2 else rng.choice(shared)
    sign = ">=" if rng.random() < 0.75 else "<"
    if rng.random() < 0.2:
        atom = f"2 * ({count}) {sign} {rng.choice(HALVES)}"
    else:
        atom = f"{count} {sign} {rng.choice(THRESHOLDS)}"
    if rng.random() < 0.2:
        join = rng.choice(["&&", "||"])
        other = f"{rng.choice(shared)} {rng.choice(['>=', '<'])} {rng.choice(THRESHOLDS)}"
        atom = f"({atom}) {join} ({other})"
    return atom


def _property(rng: Any, places: list[str], starts: list[str]) -> str:
    last = places[-1]
    kind = rng.below(4)
    if kind == 0 and len(starts) > 1:
        return f"({starts[1]} == 0) -> []({last} == 0)"
    if kind == 1:
        return f"[]({last} == 0 || {places[-2]} == 0)"
    if kind == 2:
        # To break it, a location must be empty: ACS has to refuse this one.
        return f"[]({last} == 0 || {places[0]} != 0)"
    return f"[]({last} < {rng.randint(1, 2)})"
