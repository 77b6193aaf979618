"""The PP[+1] compiler: a bounded Turing-machine head that walks along the line of agents.

Only neighbours meet. At first every agent holds a head and takes itself for both ends of the line.
Two neighbours that meet for the first time learn that they are not ends, and start one new head;
two heads that meet become one new head. Both happen finitely often, and the last such event leaves
a single head that starts afresh when all ends are known: it walks to the left end, puts the input
back on every cell, runs the machine, and then walks to and fro for ever to tell the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from orrery.base.errors import UsageError
from orrery.systems.protocols.ordered_population_protocols.regular import Dfa, dfa_of
from orrery.systems.protocols.problems.languages import letters_of, parse
from orrery.systems.protocols.problems.population_tables import EARLIER, Label, Protocol

HOME, WIPE, REWIND, RUN, WALK = "home", "wipe", "rewind", "run", "walk"
LEFT, RIGHT = -1, 1
CROSSED = "_"
# How many moves a machine may take on one letter, where the compiler runs it by itself.
ALONE = 1000

# step(state, symbol, at_left, at_right) -> (state, symbol, LEFT or RIGHT), or True / False to halt.
Move = tuple[Any, str, int] | bool
Step = Callable[[Any, str, bool, bool], Move]


class Machine:
    """A Turing machine whose tape is the input: its first state and its step."""

    def __init__(self, name: str, first: Any, step: Step, alphabet: str) -> None:
        self.name, self.first, self.step, self.alphabet = name, first, step, alphabet


def automaton(name: str, dfa: Dfa) -> Machine:
    """The machine that runs an automaton once from left to right."""

    def step(state: Any, symbol: str, at_left: bool, at_right: bool) -> Move:
        to = dfa.step[state][dfa.alphabet.index(symbol)]
        return to in dfa.finals if at_right else (to, symbol, RIGHT)

    return Machine(name, 0, step, dfa.alphabet)


def _palindrome(state: Any, symbol: str, at_left: bool, at_right: bool) -> Move:
    """Cross off the first letter, walk to the last one, compare, cross off, walk back."""
    word, carried = state
    if word == "back":
        if not at_left:
            return (state, symbol, LEFT)
        word = "go"
    if word == "go":
        if symbol == CROSSED:
            return True if at_right else (("go", ""), symbol, RIGHT)
        return True if at_right else (("carry", symbol), CROSSED, RIGHT)
    if word == "carry" and symbol == CROSSED:
        return (("test", carried), symbol, LEFT)
    if word == "carry" and not at_right:
        return (state, symbol, RIGHT)
    if symbol == CROSSED:  # nothing is left to compare with: the middle letter
        return True
    return (("back", ""), CROSSED, LEFT) if symbol == carried else False


def _equal_thirds(state: Any, symbol: str, at_left: bool, at_right: bool) -> Move:
    """Check the order a*b*c*, then cross off one of each letter in every round."""
    if state in ("0a", "0b", "0c"):
        if symbol < state[1]:
            return False
        return ("back", symbol, LEFT) if at_right else ("0" + symbol, symbol, RIGHT)
    if state == "back":
        if not at_left:
            return (state, symbol, LEFT)
        state = "a"
    if symbol == state:
        if state == "c":
            return ("back", CROSSED, LEFT)
        return False if at_right else ("b" if state == "a" else "c", CROSSED, RIGHT)
    if state == "a":
        return (symbol == CROSSED) if at_right or symbol != CROSSED else (state, symbol, RIGHT)
    return False if at_right else (state, symbol, RIGHT)


class HeadRule:
    """The two-way rule of a machine. A state is (input, cell, head, has left, has right, said)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def first(self, letter: str) -> Label:
        """Every agent begins with a head, alone in its world: it already knows that answer."""
        return (letter, letter, (HOME,), False, False, self.alone(letter))

    def alone(self, letter: str) -> bool:
        """What the machine says of a line of one cell."""
        state, symbol = self.machine.first, letter
        for _ in range(ALONE):
            made = self.machine.step(state, symbol, True, True)
            if isinstance(made, bool):
                return made
            state, symbol, _ = made
        raise UsageError(f"{self.machine.name}: does not halt on the word {letter!r}")

    def __call__(self, side: int, me: Label, other: Label) -> tuple[Label, Label]:
        if side == EARLIER:  # whoever begins, the places decide
            right, left = me, other
            left, right = self.neighbours(left, right)
            return right, left
        return self.neighbours(me, other)

    def neighbours(self, left: Label, right: Label) -> tuple[Label, Label]:
        """One meeting of two neighbours."""
        if not left[4] or not right[3]:
            return (*left[:2], (HOME,), left[3], True, left[5]), (
                *right[:2], None, True, *right[4:])  # fmt: skip
        if left[2] and right[2]:
            return (*left[:2], (HOME,), *left[3:]), (*right[:2], None, *right[3:])
        if left[2]:
            stays, head, way = self.advance(left)
            if way == RIGHT:
                return stays, (*right[:2], head, *right[3:])
        elif right[2]:
            stays, head, way = self.advance(right)
            if way == LEFT:
                return (*left[:2], head, *left[3:]), stays
        return left, right

    def advance(self, agent: Label) -> tuple[Label, Any, int]:
        """What the head does before it leaves: (the agent it leaves, the head, its way)."""
        letter, cell, head, has_left, has_right, said = agent
        while True:
            phase = head[0]
            if phase == WIPE:
                cell = letter
            if phase in (HOME, REWIND) and has_left:
                way = LEFT
            elif phase == WIPE and has_right:
                way = RIGHT
            elif phase == WALK:
                said, way = head[1], head[2]
                if not (has_right if way == RIGHT else has_left):
                    way = -way
                head = (WALK, said, way)
            elif phase == RUN:
                made = self.machine.step(head[1], cell, not has_left, not has_right)
                if isinstance(made, bool):
                    head = (WALK, made, RIGHT)
                    continue
                state, cell, way = made
                head = (RUN, state)
            else:
                head = {HOME: (WIPE,), WIPE: (REWIND,), REWIND: (RUN, self.machine.first)}[phase]
                continue
            return (letter, cell, None, has_left, has_right, said), head, way


def machine_of(text: str, alphabet: str) -> Machine:
    """The machine of a language: a named one, or the automaton of a regular expression."""
    formula = parse(text)
    if formula == ("named", "palindrome"):
        return Machine(text, ("go", ""), _palindrome, alphabet)
    if formula == ("named", "anbncn"):
        return Machine(text, "0a", _equal_thirds, alphabet)
    if formula[0] == "regex":
        return automaton(text, dfa_of(formula[1], alphabet))
    raise UsageError(
        f"language {text!r}: the PP[+1] compiler takes a regular expression in single quotes, "
        "palindrome or anbncn; give ranker formulas to IO-PP[<]"
    )


@functools.lru_cache(maxsize=64)
def compile_head(text: str, alphabet: str = "ab") -> Protocol:
    """The PP[+1] protocol of a language."""
    strange = sorted(set(letters_of(parse(text))) - set(alphabet))
    if strange:
        raise UsageError(f"language: letter {strange[0]!r} is not in the alphabet {alphabet!r}")
    return head_protocol(machine_of(text, alphabet))


def head_protocol(machine: Machine) -> Protocol:
    """The PP[+1] protocol of any machine that keeps to its input's cells and halts."""
    rule = HeadRule(machine)
    initial = {letter: rule.first(letter) for letter in machine.alphabet}
    return Protocol(name=machine.name, initial=initial, rule=rule,
                    output=lambda label: bool(label[5]), order="+1", one_way=False)  # fmt: skip
