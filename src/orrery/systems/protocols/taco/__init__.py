"""TACO: verification of threshold automata, for every number of processes at once.

`Taco` is the part. `parse` reads a .ta file, `library` holds the classics, `replayed` puts a
counterexample on stage as an Orrery run, `automaton_of` exports an annotated node. The names load
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HERE = "orrery.systems.protocols.taco"
_HOMES = {
    "Answer": "answer",
    "Automaton": "automaton",
    "AutomatonError": "automaton",
    "Counterexample": "trace",
    "SyntaxFault": "lexer",
    "Taco": "checker",
    "UnsupportedProperty": "automaton",
    "automaton_of": "export",
    "parse": "parser",
    "random_automaton": "generate",
    "replayed": "replay",
    "to_text": "write",
    "transition": "export",
}

__all__ = [
    "Answer",
    "Automaton",
    "AutomatonError",
    "Counterexample",
    "SyntaxFault",
    "Taco",
    "UnsupportedProperty",
    "automaton_of",
    "parse",
    "random_automaton",
    "replayed",
    "to_text",
    "transition",
]

if TYPE_CHECKING:
    from orrery.systems.protocols.taco.answer import Answer
    from orrery.systems.protocols.taco.automaton import (
        Automaton,
        AutomatonError,
        UnsupportedProperty,
    )
    from orrery.systems.protocols.taco.checker import Taco
    from orrery.systems.protocols.taco.export import automaton_of, transition
    from orrery.systems.protocols.taco.generate import random_automaton
    from orrery.systems.protocols.taco.lexer import SyntaxFault
    from orrery.systems.protocols.taco.parser import parse
    from orrery.systems.protocols.taco.replay import replayed
    from orrery.systems.protocols.taco.trace import Counterexample
    from orrery.systems.protocols.taco.write import to_text


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{_HERE}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
