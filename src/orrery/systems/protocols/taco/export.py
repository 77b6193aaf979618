"""From a protocol to an automaton: a node whose counting steps are annotated can be exported.

    class Echo(Node):
        model = Model(parameters="n, t, f", assumptions="n > 3 * t; t >= f;", …)

        @transition("V0 -> SE", when="x >= t + 1 - f", sends="x")
        def echo(self): ...

The annotation says what the method does to a process and to the counts; the method itself stays
what it is. One method may carry several transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from orrery.base.errors import PartError
from orrery.systems.protocols.taco.automaton import Automaton
from orrery.systems.protocols.taco.parser import parse

F = TypeVar("F", bound=Callable[..., Any])


class Model(NamedTuple):
    """What an export needs beside the transitions; texts are those of the sections of a .ta file.

    `begins` names the locations in which processes start, `crowd` how many they are together.
    """

    parameters: str = "n, t, f"
    assumptions: str = ""
    begins: str = ""
    crowd: str = "n - f"
    specifications: str = ""


class _Move(NamedTuple):
    source: str
    target: str
    when: str
    sends: tuple[str, ...]


def transition(move: str, *, when: str = "true", sends: str = "") -> Callable[[F], F]:
    """Say what a method is in the automaton: "FROM -> TO", its guard, the counters it raises.

    >>> @transition("V0 -> SE", when="x >= 1", sends="x")
    ... def echo(self): pass
    >>> echo.__transitions__[0].target
    'SE'
    """
    source, arrow, target = (part.strip() for part in move.partition("->"))
    if not (source and arrow and target):
        raise PartError(f'transition({move!r}) names no step; write "FROM -> TO"')
    counters = tuple(name.strip() for name in sends.split(",") if name.strip())

    def mark(method: F) -> F:
        found = [*getattr(method, "__transitions__", ()), _Move(source, target, when, counters)]
        method.__transitions__ = tuple(found)  # type: ignore[attr-defined]
        return method

    return mark


def automaton_of(part: Any) -> Automaton:
    """The automaton of a class (or part) that has a `model` and methods with transitions."""
    cls = part if isinstance(part, type) else type(part)
    model = getattr(cls, "model", None)
    if not isinstance(model, Model):
        raise PartError(f"{cls.__name__} has no model; set model = Model(…)")
    moves: dict[_Move, None] = {}
    for base in reversed(cls.__mro__):
        for value in vars(base).values():
            moves.update(dict.fromkeys(getattr(value, "__transitions__", ())))
    if not moves:
        raise PartError(f"{cls.__name__} has no transitions; mark its steps with @transition")
    return parse(_text(cls.__name__, model, list(moves)), f"{cls.__name__}.ta")


def _text(title: str, model: Model, moves: list[_Move]) -> str:
    begins = [name.strip() for name in model.begins.split(",") if name.strip()]
    places = list(dict.fromkeys([*begins, *(p for m in moves for p in (m.source, m.target))]))
    shared = list(dict.fromkeys(name for move in moves for name in move.sends))
    empty = [name for name in (*places, *shared) if name not in begins]
    inits = [f"{' + '.join(begins)} == {model.crowd};", *(f"{name} == 0;" for name in empty)]
    rules = [
        f"{i}: {m.source} -> {m.target} when ({m.when}) "
        f"do {{ {' '.join(f'''{name}' == {name} + 1;''' for name in m.sends)} }};"
        for i, m in enumerate(moves)
    ]
    lines = [
        f"ta {title} {{",
        f"shared {', '.join(shared)};" if shared else "",
        f"parameters {model.parameters};",
        f"assumptions {{ {model.assumptions} }}",
        f"locations {{ {' '.join(f'{place}: [0];' for place in places)} }}",
        f"inits {{ {' '.join(inits)} }}",
        f"rules {{ {' '.join(rules)} }}",
        f"specifications {{ {model.specifications} }}",
        "}",
    ]
    return "\n".join(lines)
