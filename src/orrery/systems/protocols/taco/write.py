"""Writes an automaton as the text of a .ta file, which reads back as the same automaton."""

from __future__ import annotations

from orrery.systems.protocols.taco.automaton import Automaton, Rule
from orrery.systems.protocols.taco.forms import All, Formula


def to_text(automaton: Automaton) -> str:
    """The automaton as a .ta file."""
    lines = [f"ta {automaton.name} {{"]
    if automaton.shared:
        lines.append(f"  shared {', '.join(automaton.shared)};")
    if automaton.parameters:
        lines.append(f"  parameters {', '.join(automaton.parameters)};")
    lines += _section("assumptions", [f"{part};" for part in _parts(automaton.assumptions)])
    places = [f"{name}: [{i}];" for i, name in enumerate(automaton.locations)]
    lines += _section("locations", places)
    lines += _section("inits", [f"{part};" for part in _parts(automaton.inits)])
    lines += _section("rules", [_rule(rule) for rule in automaton.rules])
    asked = [f"{each.name}: {each.text};" for each in automaton.properties]
    lines += _section("specifications", asked)
    return "\n".join([*lines, "}"]) + "\n"


def _parts(formula: Formula) -> tuple[Formula, ...]:
    return formula.parts if isinstance(formula, All) else (formula,)


def _section(name: str, inside: list[str]) -> list[str]:
    return [f"  {name} ({len(inside)}) {{", *(f"    {line}" for line in inside), "  }"]


def _rule(rule: Rule) -> str:
    updates = [f"{name}' == {name} {'+' if amount > 0 else '-'} {abs(amount)};"
               for name, amount in rule.changes]  # fmt: skip
    updates += [f"reset({name});" for name in rule.resets]
    inside = " ".join(updates)
    return f"{rule.name}: {rule.source} -> {rule.target} when ({rule.guard}) do {{ {inside} }};"
